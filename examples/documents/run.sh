#!/usr/bin/env bash
# PDFs to text, through a parser that loads slowly and holds memory, to XML: three stages in directories, with a feeder
# and a driver of another program beside ours, watchdogs, and one driver killed in the middle.
# usage: examples/documents/run.sh      WINDLASS=/path/to/windlass uses that binary instead of building one
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
for needed in pdftotext:poppler-utils python3:python3; do
    command -v "${needed%:*}" >/dev/null || { echo "this example needs ${needed%:*}: apt-get install ${needed#*:}" >&2; exit 69; }
done
if [ -z "${WINDLASS:-}" ]; then
    (cd "$here/../.." && cargo build --release --quiet --bin windlass)
    WINDLASS=$here/../../target/release/windlass
fi
count=120
budget=430 # MB: 1 x 30, 3 x 100 and 2 x 50, a twentieth of 600 MB, 2 GB and 1 GB

work=$(mktemp -d)
export EXAMPLE=$work LOADED=$work/loaded WORKED=$work/worked
dogs=() sampler=
end() {
    for process in "${dogs[@]}" $sampler; do kill "$process" 2>/dev/null || true; done
    wait || true
    rm -rf "$work"
}
trap end EXIT
wrong() { echo "WRONG: $*" >&2; cat "$work"/log.* >&2; exit 1; }
windlass() { "$WINDLASS" "$@"; }
watch() { # NAME, and what windlass watchdog takes
    local name=$1
    shift
    windlass watchdog "$@" >"$work/log.$name" 2>&1 & dogs+=($!)
}

queues=$work/queues
mkdir -p "$work/pdfs" "$work/results" "$work/again" "$queues"/{1-pdfs,2-texts,3-parsed,4-xml}
: >"$work/drivers"; : >"$LOADED"; : >"$WORKED"
python3 "$here/make-pdfs.py" "$count" "$work/pdfs"
python3 "$here/sampler.py" "$work" >"$work/sampled" & sampler=$!

# Values: one driver, a process for each document. Parse: three, each with a program that stays. Output: one that knows
# only mv, whose number the watchdog leases, and one of ours.
watch 1 "$queues/1-pdfs" -- "$WINDLASS" drive --in "$queues/1-pdfs" --out "$queues/2-texts" --memory 30M --limit 40 \
    -- pdftotext {in} {out}
parse='echo $$ >>"$0"; export DRIVER=$$; exec "$@"'
watch 2 "$queues/2-texts" -j 3 -- sh -c "$parse" "$work/drivers" "$WINDLASS" drive --in "$queues/2-texts" \
    --out "$queues/3-parsed" --keep --memory 100M --limit 40 -- python3 "$here/parser.py"
watch 4 "$queues/3-parsed" --out "$queues/4-xml" -- "$here/driver" "$queues/3-parsed" "$queues/4-xml" {n} "$here/to-xml"

# Half of them come from a script that knows only mv, and half from ours when a driver has been killed.
"$here/feeder" "$queues/1-pdfs" "$work"/pdfs/*[02468].pdf
# Ours is so much quicker that the other has to be let in first.
until [ -s "$WORKED" ]; do sleep 0.1; done
watch 3 "$queues/3-parsed" -- "$WINDLASS" drive --in "$queues/3-parsed" --out "$queues/4-xml" --memory 50M \
    -- "$here/to-xml" {in} {out}

# Whatever comes out is taken at once: a document that came twice would find its name taken.
killed=
until [ -e "$queues/4-xml/done" ] && [ -z "$(find "$queues/4-xml" -name '*.ready')" ]; do
    windlass -q spool take "$queues/4-xml" --to "$work/results" >>"$work/taken" || wrong "a document came out twice"
    if [ -z "$killed" ] && [ "$(wc -l <"$work/taken")" -ge 10 ]; then
        killed=$(head -1 "$work/drivers")
        kill -9 "$killed"
        windlass spool graph "$queues" | tee "$work/picture-middle"
        windlass -q spool status "$queues"
        windlass -q spool put "$queues/1-pdfs" "$work"/pdfs/*[13579].pdf --done >/dev/null
    fi
    for at in "${!dogs[@]}"; do
        kill -0 "${dogs[at]}" 2>/dev/null && continue
        wait "${dogs[at]}" || wrong "a watchdog has ended with $?"
        unset "dogs[at]"
    done
    sleep 0.1
done
for dog in "${dogs[@]}"; do wait "$dog" || wrong "a watchdog has ended with $?"; done
dogs=()
[ -n "$killed" ] || wrong "nobody was killed"
windlass spool graph "$queues" | tee "$work/picture-end"

# The same stages from one description: one process drives all of them, and no more drivers start than fit the budget.
printf '%s\n' "$work"/pdfs/*.pdf | LOADED=$work/loaded-again windlass --store "dir:$work/stages" \
    pipeline run --config "$here/pipeline.toml" 2>"$work/log.pipeline" || wrong "the pipeline has ended with $?"
windlass -q spool take "$work/stages/results" --to "$work/again" >/dev/null || wrong "a document came out twice"
kill "$sampler"; wait "$sampler" || true; sampler=
read -r most parsers <"$work/sampled"
[ "$most" -le "$budget" ] || wrong "the stages had $most MB, and the budget is $budget MB"
[ "$parsers" -le 3 ] || wrong "$parsers parsers lived at once, and there is memory for three"
judged=$(python3 "$here/judge.py" "$work" "$count") || wrong "that is not what was put in"
read -r models theirs <<<"$judged"
echo "right: $count documents once and whole, one killed driver started again, $models models for $models drivers," \
    "$theirs documents by a driver that knows only mv, $most MB of $budget MB;" \
    "once more from one pipeline file; the pictures tell the same"
