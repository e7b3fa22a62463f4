#!/usr/bin/env bash
# Makes thumbnails of 500 images with `windlass run`, kills it with -9 in the middle, says the same command again, and
# judges every thumbnail with `identify`.
# usage: examples/list/run.sh      WINDLASS=/path/to/windlass uses that binary instead of building one
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
count=500 seen=100

# ImageMagick has these names, and so have other programs.
real() { command -v "$1" >/dev/null && "$1" -version 2>/dev/null | grep -q ImageMagick; }
find_tools() {
    convert= identify=
    for folder in /usr/bin/ ''; do
        if real "${folder}convert" && real "${folder}identify"; then
            convert=${folder}convert identify=${folder}identify
            return
        fi
    done
    return 1
}
if ! find_tools; then
    echo "installing: imagemagick" >&2
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends imagemagick >/dev/null; } ||
        { echo "this example needs ImageMagick: apt-get install imagemagick" >&2; exit 69; }
    find_tools
fi
if [ -z "${WINDLASS:-}" ]; then
    (cd "$here/../.." && cargo build --release --quiet --bin windlass)
    WINDLASS=$here/../../target/release/windlass
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export WINDLASS_DIR=$work/data
mkdir "$work/images" && cd "$work/images"
export MAGICK_THREAD_LIMIT=1                 # the jobs share the cores, not the threads of one
for ((first = 1; first <= count; first += 50)); do
    images=()
    for ((n = first; n < first + 50; n++)); do images+=("gradient:rgb($((n % 256)),$((n / 2)),90)-gold"); done
    "$convert" -size 320x240 "${images[@]}" -quality 10 -scene "$first" %d.png
done
ls -- *.png >"$work/list"

# What a person would type: windlass run -j 2 --name thumbs -- convert {} -thumbnail 200x {.}.thumb.jpg < list
# Here each job also says its name when its file is written, so that the script can tell how far it is.
thumbs() {
    exec "$WINDLASS" run -j 2 --name thumbs -- \
        "$convert" {} -thumbnail 200x -write {.}.thumb.jpg -print '%f\n' null: <"$work/list"
}

mkfifo "$work/said"
thumbs >"$work/said" & run=$!
exec 3<"$work/said"
for ((n = 0; n < seen; n++)); do
    read -r line <&3 || { echo "WRONG: it ended after $n jobs" >&2; exit 1; }
    echo "$line"
done >"$work/first"
kill -9 "$run"
wait "$run" 2>/dev/null && { echo "WRONG: it ended before it could be killed" >&2; exit 1; }
cat <&3 >>"$work/first"                      # what it had said before it died
exec 3<&-
before=$(wc -l <"$work/first")
echo "killed with -9 after $before of $count jobs; the same command again:"

(thumbs) >"$work/second"
after=$(wc -l <"$work/second")

# Signatures make identify read every pixel; a torn file is an error.
"$identify" -regard-warnings -format '%f %m %w %h %#\n' -- *.thumb.jpg >"$work/judged" ||
    { echo "WRONG: a thumbnail is damaged" >&2; exit 1; }
whole=$(awk '$2 == "JPEG" && $3 == 200 && $4 == 150' "$work/judged" | wc -l)
again=$(cat "$work/first" "$work/second" | sort | uniq -d | wc -l)
[ "$whole" -eq "$count" ] || { echo "WRONG: $whole of $count thumbnails are whole and 200 x 150" >&2; exit 1; }
[ "$before" -lt "$count" ] && [ "$((before + after - again))" -le "$count" ] ||
    { echo "WRONG: $before jobs before the kill, $after after it, $again in both" >&2; exit 1; }
echo "right: $whole of $count thumbnails are whole and 200 x 150; $before before the kill, $after after it, $again in both"
