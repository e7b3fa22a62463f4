"""Judges what came out: each document once and whole, each driver with one model, and pictures that tell so."""
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

STAGES = ["1-pdfs", "2-texts", "3-parsed", "4-xml"]


def picture(moment):
    """What a box says of each stage: waiting, working, drivers, set aside, whether it is done."""
    names, _, *rows, _ = (work / f"picture-{moment}").read_text().splitlines()
    check(f"the picture in the {moment} has the stages in their order", names.split() == STAGES)
    parts = [row.split("|") for row in rows]
    boxes = list(zip(*(part[1::2] for part in parts)))
    seen = []
    for waiting, works, aside in boxes:
        numbers = re.fullmatch(r"(\d+) working, (\d+) drivers?", works.strip())
        check(f"a box tells of work and drivers: {works}", numbers)
        done = aside.strip().endswith(", done")
        seen.append((int(waiting.split()[0]), int(numbers[1]), int(numbers[2]), int(aside.split()[0]), done))
    # The last column of each row is what stands behind the last box.
    arrows = [sum(">" in gap for gap in gaps) for gaps in zip(*(part[2:-1:2] for part in parts))]
    drivers = [drivers for _, _, drivers, _, _ in seen]
    check(f"an arrow for each driver: {arrows} for {drivers}", arrows == [min(3, one) for one in drivers[:-1]])
    return seen


middle, end = picture("middle"), picture("end")
# The queues are looked at one after the other while documents move: one may be seen in two of them.
check("in the middle no queue had more than were put in", all(box[0] <= count // 2 for box in middle))
check("in the middle nothing was set aside, and nothing done", not any(box[3] or box[4] for box in middle))
ranges = [(1, 1), (2, 3), (1, 2), (0, 0)]
check(f"the drivers in the middle: {middle}", all(few <= box[2] <= many for box, (few, many) in zip(middle, ranges)))
check(f"in the end nothing is left, and all is done: {end}", end == [(0, 0, 0, 0, True)] * len(STAGES))

drivers = (work / "drivers").read_text().split()
loaded = (work / "loaded").read_text().split()
check("no driver loaded its model twice", len(set(loaded)) == len(loaded) and set(loaded) <= set(drivers))
check("one driver was started again", len(drivers) == 4)
again = (work / "loaded-again").read_text().split()
check("no more parsers than there is memory for, each loaded once", 1 <= len(set(again)) == len(again) <= 3)
worked = (work / "worked").read_text().splitlines()
check("the driver that knows only mv has done some", worked and len(set(worked)) == len(worked))
print(len(loaded), len(worked))
