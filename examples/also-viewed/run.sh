#!/bin/sh
# Computes "viewers of this also viewed" and pushes it to a larder server.
#
#   run.sh            with a sample of 5,000 made-up users
#   run.sh FILE       with lines of `user item`; FILE may end in .gz or .zst
#
# LARDER is the program to run (default: larder); LARDER_SERVER the server, as everywhere.
set -eu
here=$(dirname "$0")
rows=$(mktemp "${TMPDIR:-/tmp}/also-viewed.XXXXXX")
trap 'rm -f "$rows"' EXIT

case "${1-}" in
'') python3 "$here/also_viewed.py" --sample 5000 >"$rows" ;;
*.zst) zstd -dc -- "$1" | python3 "$here/also_viewed.py" >"$rows" ;;
*.gz) gzip -dc -- "$1" | python3 "$here/also_viewed.py" >"$rows" ;;
*) python3 "$here/also_viewed.py" <"$1" >"$rows" ;;
esac

"${LARDER:-larder}" push "$rows" --format jsonl --store also-viewed --key item --value also
