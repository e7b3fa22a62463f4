#!/bin/sh
# Two servers on this machine stand for two machines. See README.md.
# usage: examples/two-machines/run.sh      WINDLASS=/path/to/windlass uses that binary instead of building one
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if ! command -v python3 >/dev/null; then                             # it finds a free port
    echo "installing: python3" >&2
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 >/dev/null; } ||
        { echo "this example needs python3: apt-get install python3" >&2; exit 69; }
fi
if [ -z "${WINDLASS:-}" ]; then
    (cd "$here/../.." && cargo build --release --quiet --bin windlass)
    WINDLASS=$here/../../target/release/windlass
fi
windlass=$WINDLASS
place=$(mktemp -d)
one=$place/one two=$place/two
one_pid='' two_pid=''
trap 'kill $one_pid $two_pid 2> /dev/null || true; wait; rm -rf "$place"' EXIT
at_one() { "$windlass" --dir "$one" "$@"; }
at_two() { "$windlass" --dir "$two" "$@"; }

# A server of a data directory in the background; comes back when it is ready, its process in $pid.
serve() {
    rm -f "$1/ready" && mkfifo "$1/ready"
    "$windlass" --dir "$1" serve > "$1/ready" 2>> "$1/log" &
    pid=$!
    read -r _ < "$1/ready"
}

# The second machine does the work: a line for each job that it has done.
mkdir -p "$one" "$two"
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
port=$(free_port)
cat > "$two/windlass.toml" <<END
[server]
listen = "127.0.0.1:$port"
[queue."*"]
batch = ["sh", "-c", "while read -r line; do echo \"\$line\" >> $place/done; echo ok; done"]
END
serve "$two"; two_pid=$pid

# The first one takes orders and gives them away.
cat > "$one/windlass.toml" <<END
[limits]
hosts = ["127.0.0.1:$port"]
[queue.resize]
forward = "http://127.0.0.1:$port"
token_file = "$two/run/token"
END
serve "$one"; one_pid=$pid

for round in 1 2 3; do
    seq -f "picture-$round-%04g" 1000 | at_one push resize - > /dev/null 2>&1
    kill -9 "$one_pid"; wait "$one_pid" 2> /dev/null || true
    serve "$one"; one_pid=$pid
    seq -f "drawing-$round-%04g" 1000 | at_one push resize - > /dev/null 2>&1
    kill -9 "$two_pid"; wait "$two_pid" 2> /dev/null || true
    serve "$two"; two_pid=$pid
done
at_one wait --drained > /dev/null 2>&1

# A backlog that nobody serves here, given away by hand; later one that is not due for long.
away() { at_one move letters --to "http://127.0.0.1:$port" --token-file "$two/run/token"; }
seq -f 'letter-%04g' 500 | at_one push letters - > /dev/null 2>&1
away 2> "$place/moved"
at_two wait --drained > /dev/null 2>&1
at_one push letters 'letter-next-century' --at 2100-01-01T00:00:00Z > /dev/null 2>&1
away 2> /dev/null

id=$(at_one ls queue:resize state:succeeded -o ids --limit 1)
went=$(at_one show "$id" | grep -c "^message .*moved to http://127.0.0.1:$port" || true)
arrived=$(at_two export 2> /dev/null | grep -c '"id"')
ids=$(at_two export 2> /dev/null | grep -o '"id":"j-[^"]*"' | sort -u | wc -l)
left=$(at_one ls state:ready,scheduled,running,retrying -o ids | wc -l)
later=$(at_two ls state:scheduled -o ids | wc -l)
done=$(sort -u "$place/done" | wc -l)
if [ "$went $arrived $ids $left $later $done" = "1 6501 6501 0 1 6500" ]; then
    echo "right: 6500 jobs done on the second machine and 1 waiting there, each once; $(cat "$place/moved")"
else
    echo "wrong: $went told, $arrived arrived with $ids ids, $left left, $later later, $done done" >&2
    exit 1
fi
