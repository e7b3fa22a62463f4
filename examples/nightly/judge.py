"""Judges a night by the order and times of its reports and by what the error handler was given."""
import datetime, json, pathlib, sys

work, begun, scaled, resumed = pathlib.Path(sys.argv[1]), *map(float, sys.argv[2:5])
reports = [line.split(" ", 2) for line in (work / "reports").read_text().splitlines()]
reports = sorted((float(start), float(end), name) for start, end, name in reports)
names = [name for _, _, name in reports]


def check(what, holds):
    if not holds:
        print(f"not so: {what}", file=sys.stderr)
        sys.exit(1)


def most_at_once(since, until):
    marks = [(start, 1) for start, _, _ in reports] + [(end, -1) for _, end, _ in reports]
    most = now = 0
    for at, step in sorted(marks):
        now += step
        most = max(most, now) if since <= at < until else most
    return most


held = {f"customer-{n}" for n in range(1900, 2000)}
check("each report once", sorted(names) == sorted([f"customer-{n:04}" for n in range(2000)] + ["first", "last"]))
check("the first goes first", names[0] == "first")
check("the last goes after all that are not held back", set(names[-100:]) == held and names[-101] == "last")
check("what is held back begins when it is resumed", all(start >= resumed for start, _, name in reports if name in held))
check("two at a time", most_at_once(begun, scaled) <= 2)
check("then four, the server's slots", most_at_once(scaled, float("inf")) <= 4)
check("and four are used", most_at_once(scaled, float("inf")) == 4)
fired = json.loads((work / "fired").read_text())
nominal = datetime.datetime.fromisoformat(fired["data"]).timestamp()
check("cron means full minutes", nominal % 60 == 0)
check("no report before its time", reports[0][0] >= nominal)

failed = {job["data"]: job for job in map(json.loads, (work / "failed").read_text().splitlines())}
mended = [json.loads(line) for line in (work / "mended").read_text().splitlines() if line]
check("twenty have no address", sorted(failed) == [f"customer-{n:04}" for n in range(0, 2000, 100)])
check("the handler got each of them once", sorted(told["job"]["data"] for told in mended) == sorted(failed))
check("with its error", all(f"no address for {told['job']['data']}" in told["error"]["message"] for told in mended))
