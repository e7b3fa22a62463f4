#!/usr/bin/env bash
# Crawls a site of 5,000 pages by `windlass crawl`, and again by curl and a small extractor in a pipeline; judges what
# came of both against `wget -r`.
# usage: examples/crawl/run.sh      WINDLASS=/path/to/windlass uses that binary instead of building one
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

for need in nginx:nginx-light python3:python3 curl:curl wget:wget; do
    command -v "${need%:*}" >/dev/null && continue
    echo "installing: ${need#*:}" >&2
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${need#*:}" >/dev/null; } ||
        { echo "this example needs ${need%:*}: apt-get install ${need#*:}" >&2; exit 69; }
done
if [ -z "${WINDLASS:-}" ]; then
    (cd "$here/../.." && cargo build --release --quiet --bin windlass)
    WINDLASS=$here/../../target/release/windlass
fi

work=$(mktemp -d)
started=()
trap 'kill "${started[@]}" 2>/dev/null; wait; rm -rf "$work"' EXIT
cd "$work"
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
python3 "$here/site.py" "$work" "$port" 5000 10000
nginx -p "$work" -c "$work/nginx.conf" 2>/dev/null & started+=($!)
curl --silent --fail --retry 30 --retry-all-errors --retry-delay 1 "http://127.0.0.1:$port/" >/dev/null
start=http://127.0.0.1:$port/

# The same depth for both: the trap has no end.
wget --quiet --recursive --level 12 --directory-prefix mirrored "$start" & mirror=$!
"$WINDLASS" crawl "$start" --depth 12 --out crawled --report json >report.json &&
    { echo "WRONG: nothing is broken" >&2; exit 1; }
wait "$mirror" || [ $? = 8 ]

# Every page has words of its own: the same set of contents is the same set of pages.
contents() { find "$1" -path '*/.*' -prune -o -type f ! -name robots.txt -exec sha256sum {} + | cut -c1-64 | sort -u; }
contents crawled/127.0.0.1:* >ours; contents mirrored >theirs
cmp ours theirs || { echo "WRONG: windlass has $(wc -l <ours) pages, wget $(wc -l <theirs)" >&2; exit 1; }
python3 - <<'END' || { echo "WRONG: that is not what the site has" >&2; exit 1; }
import json, sys
report = json.load(open("report.json"))
broken = [page for page in report["pages"] if "error" in page]
right = len(broken) == 50 and all(page["status"] == 404 and page["referrers"] for page in broken)
counts = report["counts"]
print(f'windlass: {counts["pages"]} pages, {counts["broken"]} broken, {report["seconds"]:.1f} s')
# 5,000 pages, and of the trap what is at most twelve links away.
sys.exit(not (right and counts["pages"] == 5000 + 11 and counts["forbidden"] == 1 and counts["redirects"] == 1))
END

# Once more by curl and an extractor, two stages that feed each other. They know no depth and no robots.txt, so the trap
# and what is private are left out by name, and of what wget has the trap is taken away by the same name.
left_out='/(trap|private)/'
mkdir pages
cat >windlass.toml <<END
[[pipeline.crawl.stage]]
name = "fetch"
batch = ["$here/fetch"]
environment = { PAGES = "$work/pages" }
batch_size = 50
slots = 4
attempts = 1
unique = "run"
pass = "message"
to = ["links"]

[[pipeline.crawl.stage]]
name = "links"
worker = ["python3", "$here/links.py", "$left_out"]
slots = 1
to = ["fetch"]
END
echo "$start" | "$WINDLASS" --dir data --quiet pipeline run crawl --config windlass.toml 2>said && code=0 || code=$?
[ "$code" = 1 ] || { echo "WRONG: the pipeline ended with $code, and some links are broken" >&2; cat said >&2; exit 1; }
contents pages >by_curl
find mirrored -type f ! -name robots.txt | grep -vE "$left_out" | xargs sha256sum | cut -c1-64 | sort -u >theirs
cmp by_curl theirs ||
    { echo "WRONG: the pipeline has $(wc -l <by_curl) pages, wget without the trap $(wc -l <theirs)" >&2; exit 1; }
fetched=$(find pages -type f | wc -l)
# The address that leads to another page is saved with that page's content.
[ "$fetched" = 5001 ] || { echo "WRONG: the pipeline fetched $fetched pages and not each of 5001 once" >&2; exit 1; }
echo "the pipeline of curl and links.py: $(wc -l <by_curl) pages"

echo "right: $(wc -l <ours) pages of a site with loops, broken links, slow pages and a trap, as wget -r has them"
