#!/bin/sh
# Six languages push jobs while no server runs; then a server runs them all, and the result is judged by its bytes.
# usage: examples/inbox/run.sh      WINDLASS=/path/to/windlass uses that binary instead of building one
set -eu
here=$(cd "$(dirname "$0")" && pwd)
count=200

need() {
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
missing=
need python3 python3; need php php-cli; need ruby ruby; need node nodejs; need cc gcc; need flock util-linux
if [ -n "$missing" ]; then
    echo "installing:$missing" >&2
    apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
if [ -z "${WINDLASS:-}" ]; then
    (cd "$here/../.." && cargo build --release -p windlass)
    WINDLASS=$here/../../target/release/windlass
fi

work=$(mktemp -d)
server=
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi; rm -rf "$work"' EXIT
dir=$work/data inbox=$work/data/inbox result=$work/result
mkdir -p "$dir" && chmod 700 "$dir" && mkdir -m 700 "$inbox"

# The server is not running. Each producer appends for itself; all at once, to the same file.
cc -O2 -o "$work/producer" "$here/producer.c"
"$here/producer.sh" "$inbox" example "$count" & a=$!
python3 "$here/producer.py" "$inbox" example "$count" & b=$!
php "$here/producer.php" "$inbox" example "$count" & c=$!
ruby "$here/producer.rb" "$inbox" example "$count" & d=$!
node "$here/producer.js" "$inbox" example "$count" & e=$!
"$work/producer" "$inbox" example "$count" & f=$!
for producer in $a $b $c $d $e $f; do wait "$producer"; done

# A whole file of lines, moved in; one job for a moment that comes in two seconds.
n=1
while [ "$n" -le "$count" ]; do printf 'example\tmv %d\n' "$n"; n=$((n + 1)); done >"$work/lines"
mv "$work/lines" "$inbox/lines"
printf '\030\n_future\t@%d\texample\tfuture 1\n' "$(($(date +%s) + 2))" >>"$inbox/$(id -u)"

cat >"$work/windlass.toml" <<CONFIG
[queue.example]
run = ["sh", "-c", "data=\$(cat); printf '%s\\\\n' \"\$data\" >>'$result'"]
slots = 4
CONFIG
mkfifo "$work/ready"
"$WINDLASS" --dir "$dir" serve --config "$work/windlass.toml" >"$work/ready" & server=$!
read -r line <"$work/ready"
echo "$line"
"$WINDLASS" --dir "$dir" wait --drained

{
    for language in sh py php rb js c mv; do
        n=1
        while [ "$n" -le "$count" ]; do echo "$language $n"; n=$((n + 1)); done
    done
    echo "future 1"
} | sort >"$work/expected"
sort "$result" >"$work/got"
if ! cmp -s "$work/expected" "$work/got"; then
    echo "WRONG: expected $(wc -l <"$work/expected") jobs, got $(wc -l <"$work/got"):" >&2
    diff "$work/expected" "$work/got" | head -20 >&2
    exit 1
fi
echo "right: $(wc -l <"$work/got") jobs from six languages, one moved file and one future line, byte for byte"
