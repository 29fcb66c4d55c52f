#!/bin/sh
# Timelines: declared once, fresh at every read. Each command is shown as one would type it.
#
#   larder serve             # in one terminal
#   examples/twip/run.sh     # in another; PORT is the server's (default 7379)
set -eu
port=${PORT:-7379}

ask() {
    printf '$ redis-cli -p 7379'
    for word; do
        case $word in
        *[!A-Za-z0-9._]*) printf " '%s'" "$word" ;;
        *) printf ' %s' "$word" ;;
        esac
    done
    echo
    redis-cli -p "$port" -e --no-raw "$@"
}

say() { printf '\n# %s\n' "$1"; }

# Whatever an earlier run left.
for join in timeline audience; do redis-cli -p "$port" JOIN.DROP "$join" >/dev/null; done
for table in sub post; do redis-cli -p "$port" RANGEDEL "$table|" "$table}" >/dev/null; done

echo '# A timeline has what the people write whom the user follows.'
ask JOIN.CREATE timeline 'tline|<user>|<time>|<author> = check sub|<user>|<author> copy post|<author>|<time>'

say 'Ann and Jim follow people, and people write.'
ask MSET 'sub|ann|bob' 1 'sub|ann|liz' 1 'sub|jim|bob' 1
ask SET 'post|bob|0000000100' 'hello, I am Bob'
ask SET 'post|liz|0000000110' 'Liz is here too'
ask SET 'post|eve|0000000120' 'nobody follows Eve'

say 'Ann reads.'
ask RANGE 'tline|ann|' 'tline|ann}'

say 'From now on her timeline is kept: a post is in it when the writer has the reply.'
ask SET 'post|liz|0000000130' 'the second of Liz'
ask RANGE 'tline|ann|0000000111' 'tline|ann}'

say 'Ann follows Eve, and sees what Eve wrote before. Newest first, two of them:'
ask SET 'sub|ann|eve' 1
ask RANGE 'tline|ann|' 'tline|ann}' REV LIMIT 2

say 'She does not follow Bob any more.'
ask DEL 'sub|ann|bob'
ask RANGE 'tline|ann|' 'tline|ann}' KEYSONLY

say 'The same subscriptions, counted: who has how many followers.'
ask JOIN.CREATE audience 'audience|<author> = count sub|<user>|<author>'
ask RANGE 'audience|' 'audience}'
