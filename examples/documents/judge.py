"""Judges what came out: each document once and whole, and each driver with one model."""
import collections, pathlib, re, sys

work, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])


def check(what, holds):
    if not holds:
        print(f"not so: {what}", file=sys.stderr)
        sys.exit(1)


for place in ("results", "again"):
    results = {path.name: path.read_text() for path in (work / place).iterdir()}
    check("each document came out, and nothing else", sorted(results) == [f"doc {n:03}.pdf" for n in range(count)])
    for name, text in results.items():
        words = collections.Counter((work / "pdfs" / name).with_suffix(".words").read_text().split())
        found = re.findall(r'<word count="(\d+)">(\w+)</word>', text)
        check(f"{name} is whole", text.startswith("<document>\n") and text.endswith("</document>\n"))
        check(f"{name} has its words", {word: int(count) for count, word in found} == words)

drivers = (work / "drivers").read_text().split()
loaded = (work / "loaded").read_text().split()
check("no driver loaded its model twice", len(set(loaded)) == len(loaded) and set(loaded) <= set(drivers))
check("one driver was started again", len(drivers) == 4)
again = (work / "loaded-again").read_text().split()
check("no more parsers than there is memory for, each loaded once", 1 <= len(set(again)) == len(again) <= 3)
worked = (work / "worked").read_text().splitlines()
check("the driver that knows only mv has done some", worked and len(set(worked)) == len(worked))
print(len(loaded), len(worked))
