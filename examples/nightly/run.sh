#!/usr/bin/env bash
# 2,000 reports of a night: fired by cron, with priorities, hours, slots, suspended jobs and an error handler.
# usage: examples/nightly/run.sh      WINDLASS=/path/to/windlass uses that binary instead of building one
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 >/dev/null || { echo "this example needs python3: apt-get install python3" >&2; exit 69; }
if [ -z "${WINDLASS:-}" ]; then
    (cd "$here/../.." && cargo build --release --quiet --bin windlass)
    WINDLASS=$here/../../target/release/windlass
fi

work=$(mktemp -d)
server=
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi; rm -rf "$work"' EXIT
wrong() { echo "WRONG: $*" >&2; cat "$work/log" >&2; exit 1; }
windlass() { "$WINDLASS" --dir "$work/data" "$@"; }
now() { date +%s.%N; }
# The hours of the archive: half an hour that is not now, then one that is.
config() {
    cat >"$work/windlass.toml" <<END
[limits]
slots = 4                                # of the whole server

[queue.reports]
run = ["$here/report", "{}"]
environment = { LOG = "$work/reports" }
attempts = 1
on_failure = "mend"                      # a report that fails for good goes there, with its error

[queue.mend]
run = ["$here/mend"]
environment = { MENDED = "$work/mended" }

[queue.archive]
run = ["$here/report", "archive"]
environment = { LOG = "$work/archived" }
hours = "$1 UTC"

[schedule.nightly]
cron = "$2"                              # "0 2 * * *" in earnest
zone = "Europe/Berlin"
overlap = "skip"
push = { queue = "reports", from = ["$here/list-customers"], priority = -10 }
END
}
hours() { python3 -c "
import datetime
now = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=$1)
print(f'{now:%H}:00-{now + datetime.timedelta(hours=1):%H}:00')"; }

config "$(hours 3)" "* * * * *"
mkfifo "$work/ready"
windlass serve --config "$work/windlass.toml" >"$work/ready" 2>"$work/log" & server=$!
read -r line <"$work/ready" || wrong "no server"
echo "$line"
: >"$work/reports"; : >"$work/mended"; : >"$work/archived"

# The reports wait until the night is set up; the next full minute brings them.
windlass pause reports
exec 3< <(exec "$WINDLASS" --dir "$work/data" watch --json 'queue:_schedule.nightly')
read -r _ <&3
echo "waiting for the next minute"
read -r fired <&3 || wrong "cron fired nothing"
windlass schedule disable nightly 2>/dev/null
config "$(hours 3)" "0 2 * * *"
windlass config reload 2>/dev/null
run=$(python3 -c 'import json, sys; print(json.loads(sys.argv[1])["run"])' "$fired")

# A hundred are held back, one goes before all, one after all, two at a time; the archive is shut.
windlass suspend --yes queue:reports text:customer-19 2>/dev/null
windlass push archive "last night" >/dev/null
first=$(windlass push reports --priority 50 first)
last=$(windlass push reports --priority -50 last)
windlass scale reports 2
begun=$(now)
windlass unpause reports
windlass wait "$first"
windlass scale reports 4
scaled=$(now)
windlass wait "$last"
resumed=$(now)
windlass resume --yes queue:reports 2>/dev/null
windlass wait "$run" && wrong "twenty reports fail, and the run does not say so"
[ ! -s "$work/archived" ] || wrong "the archive was written outside its hours"
windlass why archive | grep -q hours || wrong "nobody says why the archive waits"
config "$(hours 0)" "0 2 * * *"
windlass config reload 2>/dev/null
windlass wait --drained || true
[ "$(wc -l <"$work/archived")" = 1 ] || wrong "the archive was not written in its hours"

echo "$fired" >"$work/fired"
windlass ls queue:reports state:failed -o jsonl >"$work/failed"
python3 "$here/judge.py" "$work" "$begun" "$scaled" "$resumed" || wrong "that was not the order"
echo "right: 2000 reports by cron, 100 of them held back, 1 first, 1 last, 20 mended, hours and slots kept"
