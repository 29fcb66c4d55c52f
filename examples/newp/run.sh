#!/bin/sh
# A page of a news site in one read: article, score, comments, and what each commenter's own articles earned.
#
#   larder serve             # in one terminal
#   examples/newp/run.sh     # in another; PORT is the server's (default 7379)
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
for join in page.karma page.comment page.score page.article score karma; do
    redis-cli -p "$port" JOIN.DROP "$join" >/dev/null
done
for table in article vote comment; do redis-cli -p "$port" RANGEDEL "$table|" "$table}" >/dev/null; done

echo '# Votes are counted twice: for the article, and as karma for its author.'
ask JOIN.CREATE score 'score|<author>|<article> = count vote|<author>|<article>|<voter>'
ask JOIN.CREATE karma 'karma|<author> = count vote|<author>|<article>|<voter>'

say 'Four joins fill one table, and their rows sort into a page.'
ask JOIN.CREATE page.article 'page|<author>|<article>|1 = copy article|<author>|<article>'
ask JOIN.CREATE page.score 'page|<author>|<article>|2|score = copy score|<author>|<article>'
ask JOIN.CREATE page.comment 'page|<author>|<article>|3|<number>|<commenter>|text = copy comment|<author>|<article>|<number>|<commenter>'
ask JOIN.CREATE page.karma 'page|<author>|<article>|3|<number>|<commenter>|karma = check comment|<author>|<article>|<number>|<commenter> copy karma|<commenter>'

say 'Ann and Bob write; others vote and comment.'
ask SET 'article|ann|a1' 'Caches that join'
ask SET 'article|bob|b1' 'My first article'
ask MSET 'vote|ann|a1|bob' 1 'vote|ann|a1|liz' 1 'vote|bob|b1|liz' 1
ask SET 'comment|ann|a1|001|bob' 'I like it'
ask SET 'comment|ann|a1|002|liz' 'So do I'

say "The page of Ann's article, whole. Liz has no karma: nobody voted for anything of hers."
ask RANGE 'page|ann|a1|' 'page|ann|a1}'

say "Jim votes for both articles: the page's score and Bob's karma on it are fresh at once."
ask MSET 'vote|ann|a1|jim' 1 'vote|bob|b1|jim' 1
ask RANGE 'page|ann|a1|' 'page|ann|a1}'

say 'Liz takes her vote for Ann back.'
ask DEL 'vote|ann|a1|liz'
ask GET 'page|ann|a1|2|score'
