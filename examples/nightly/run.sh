#!/usr/bin/env bash
# 2,000 reports of a night: from a list command, with priorities, hours, slots, suspended jobs and an error handler; and
# cron once in earnest.
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
wrong() { echo "WRONG: $*" >&2; tail -n 50 "$work/log" >&2; exit 1; }
windlass() { "$WINDLASS" --dir "$work/data" "$@"; }
# An hour of the day, so many from now.
hour() { date -u -d "$1 hours" +%H:00; }
# The archive is open from the first of these hours to the second.
config() {
    cat >"$work/windlass.toml" <<END
[limits]
slots = 4                                # of the whole server

[queue.reports]
run = ["$here/report", "{}"]
environment = { LOG = "$work/reports", MEETING = "$work/meeting" }
attempts = 1
on_failure = "mend"                      # a report that fails for good goes there, with its error

[queue.mend]
run = ["$here/mend"]
environment = { MENDED = "$work/mended" }

[queue.archive]
run = ["$here/report", "archive"]
environment = { LOG = "$work/archived", MEETING = "$work/meeting" }
hours = "$1-$2 UTC"

[queue.clock]
run = ["sh", "-c", 'echo "\$(date +%s) \$0" >>$work/clock', "{}"]

[schedule.nightly]
cron = "0 2 * * *"
zone = "Europe/Berlin"
overlap = "skip"
push = { queue = "reports", from = ["$here/list-customers"], priority = -10 }

[schedule.minute]
cron = "* * * * *"
push = { queue = "clock", data = "{time}", priority = 90 }
END
}

config "$(hour 3)" "$(hour 4)"
mkfifo "$work/ready"
windlass serve --config "$work/windlass.toml" >"$work/ready" 2>"$work/log" & server=$!
read -r line <"$work/ready" || wrong "no server"
echo "$line"
: >"$work/reports"; : >"$work/mended"; : >"$work/archived"; : >"$work/clock"; mkdir "$work/meeting"
began=$(date +%s)
exec 3< <(exec "$WINDLASS" --dir "$work/data" watch --json queue:clock 2>/dev/null)
# What happens between the reports stands among their lines: judged is the order of lines, and no clock.
mark() { echo "= $1" >>"$work/reports"; }

# The reports wait until the night is set up: nobody sits up until two for it.
windlass pause reports
run=$(windlass schedule run nightly)
windlass wait queue:_schedule.nightly
# A hundred are held back, one goes before all, one after all, one at a time; the archive is shut.
windlass suspend --yes queue:reports text:customer-19 2>/dev/null
windlass push archive "last night" >/dev/null
first=$(windlass push reports --priority 50 first)
last=$(windlass push reports --priority -50 last)
windlass scale reports 1
windlass unpause reports
windlass wait "$first"
windlass wait queue:reports text:customer-0150
# Four that wait for each other: the first of them has the only slot, and they go through once there are four.
together=$(windlass push reports --priority 40 together-1 together-2 together-3 together-4 2>/dev/null)
until [ -e "$work/meeting/together-1" ]; do kill -0 "$server" 2>/dev/null || wrong "the server has ended"; sleep 0.05; done
mark scaled
windlass scale reports 4
windlass wait --timeout 5m $together || wrong "four reports that wait for each other have not met in four slots"
windlass wait "$last"
mark resumed
windlass resume --yes queue:reports 2>/dev/null
windlass wait "$run" && wrong "twenty reports fail, and the run does not say so"
[ ! -s "$work/archived" ] || wrong "the archive was written outside its hours"
windlass why archive | grep hours >/dev/null || wrong "nobody says why the archive waits"
config "$(hour -1)" "$(hour 2)"
windlass config reload 2>/dev/null
windlass wait queue:archive
[ "$(wc -l <"$work/archived")" = 2 ] || wrong "the archive was not written in its hours"

# Cron has had its minute by now, or has it soon.
echo "2000 reports, $(($(date +%s) - began)) s; waiting for a full minute"
while [ ! -s "$work/clock" ]; do
    read -r -t 300 _ <&3 || wrong "cron fired nothing"
done
windlass ls queue:reports state:failed -o jsonl >"$work/failed"
python3 "$here/judge.py" "$work" "$began" || wrong "that was not the order"
echo "right: 2000 reports of a night, 100 of them held back, 1 first, 1 last, 20 mended, hours and slots kept, cron on time"
