#!/bin/sh
# A directory of programs and Lua modules as queues, then 20,000 queues more, made while the server runs.
# usage: examples/handlers/run.sh      WINDLASS=/path/to/windlass uses that binary instead of building one
set -eu
here=$(cd "$(dirname "$0")" && pwd)
queues=20000

if [ -z "${WINDLASS:-}" ]; then
    (cd "$here/../.." && cargo build --release -p windlass)
    WINDLASS=$here/../../target/release/windlass
fi
work=$(mktemp -d)
server=
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi; rm -rf "$work"' EXIT
dir=$work/data result=$work/result handlers=$work/handlers
mkdir -m 755 "$handlers"
: >"$result"

cat >"$work/windlass.toml" <<CONFIG
[handlers]
path = "$handlers"
environment = { RESULT = "$result" }
CONFIG
mkfifo "$work/ready"
"$WINDLASS" --dir "$dir" serve --config "$work/windlass.toml" >"$work/ready" 2>"$work/log" & server=$!
read -r line <"$work/ready"
echo "$line"
windlass() { "$WINDLASS" --dir "$dir" "$@"; }

# Nothing serves these queues yet: the jobs are kept.
windlass push wordcount "to be or not to be" >/dev/null
windlass push split "out out brief candle" >/dev/null
windlass wait --drained
[ ! -s "$result" ] || { echo "WRONG: something ran before its handler was there" >&2; exit 1; }

# The files come, each whole: `mv` within a directory. From here on their queues are served.
for file in wordcount split record shout.lua .tenant.lua; do
    cp "$here/handlers/$file" "$handlers/.new" && chmod 755 "$handlers/.new" && mv "$handlers/.new" "$handlers/$file"
done
last=$(windlass push wordcount "one more")
windlass wait "$last" && windlass wait --drained
printf '%s\n' "wordcount 6" "wordcount 2" "shout OUT" "shout OUT" "shout BRIEF" "shout CANDLE" | sort >"$work/expected"
sort "$result" >"$work/got"
cmp -s "$work/expected" "$work/got" || { echo "WRONG:" >&2; diff "$work/expected" "$work/got" >&2; exit 1; }

# 20,000 queues with a job each wait; then each gets a link to one module, and a few processes serve them all.
awk -v n=$queues 'BEGIN { for (i = 1; i <= n; i++) printf "tenant-%05d\torder %d\n", i, i }' >"$work/lines"
mv "$work/lines" "$dir/inbox/lines"
perl -e 'symlink ".tenant.lua", sprintf("%s/tenant-%05d.lua", $ARGV[0], $_) or die $! for 1..$ARGV[1]' "$handlers" $queues
last=$(windlass push "tenant-$queues" "the last")
windlass wait "$last" && windlass wait --drained

right=$(windlass ls state:succeeded "queue:tenant-*" -o jsonl |
    sed -n 's/.*"message":"\(tenant-[0-9]*\) order \([0-9]*\)".*"queue":"\1".*/\1 \2/p' |
    awk '{ sub("tenant-", "", $1); if ($1 + 0 == $2) seen[$2] = 1 } END { n = 0; for (i in seen) n++; print n }')
if [ "$right" -ne "$queues" ]; then
    echo "WRONG: $right of $queues tenants have their own message" >&2
    exit 1
fi

# A file that goes leaves its queue waiting, and the queue says so.
rm "$handlers/wordcount"
windlass why wordcount | grep -q "is not there any more" || { echo "WRONG: nobody says why it waits" >&2; exit 1; }
id=$(windlass push wordcount "still here")
windlass show "$id" --json | grep -q '"state": *"ready"' || { echo "WRONG: $id ran without a handler" >&2; exit 1; }
echo "right: $queues queues served by links to one module, 4 handlers that came while the server ran, 1 that went"
