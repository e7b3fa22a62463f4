"""Judges a night by the order and times of its reports and by what the error handler was given."""
import datetime, json, pathlib, sys

work, scaled, resumed = pathlib.Path(sys.argv[1]), *map(float, sys.argv[2:4])
reports = [line.split(" ", 2) for line in (work / "reports").read_text().splitlines()]
reports = sorted((float(start), float(end), name) for start, end, name in reports)
names = [name for _, _, name in reports]
held = {f"customer-{n}" for n in range(1900, 2000)}


def check(what, holds):
    if not holds:
        print(f"not so: {what}", file=sys.stderr)
        sys.exit(1)


def most_at_once(since, until):
    chosen = [(start, end) for start, end, _ in reports if since <= start < until]
    marks = sorted([(start, 1) for start, _ in chosen] + [(end, -1) for _, end in chosen])
    most = now = 0
    for _, step in marks:
        now += step
        most = max(most, now)
    return most


# What is started together may write its first line in any order: so many places a report may be off.
check("each report once", sorted(names) == sorted([f"customer-{n:04}" for n in range(2000)] + ["first", "last"]))
check("the first goes first", "first" in names[:2])
customers = [int(name[-4:]) for name in names if name.startswith("customer-") and name not in held]
check("the others go in the order of the list", all(abs(place - n) <= 8 for place, n in enumerate(customers)))
check("the last goes after all that are not held back", "last" in names[-104:-100])
check("what is held back goes when it is resumed", set(names[-100:]) == held)
check("and not before", all(start >= resumed for start, _, name in reports if name in held))
check("two at a time until there are more slots", most_at_once(0, scaled) == 2)
check("then four, which is all that the server has", most_at_once(scaled, float("inf")) == 4)

failed = {job["data"]: job for job in map(json.loads, (work / "failed").read_text().splitlines())}
mended = [json.loads(line) for line in (work / "mended").read_text().splitlines()]
check("twenty have no address", sorted(failed) == [f"customer-{n:04}" for n in range(0, 2000, 100)])
check("the handler got each of them once", sorted(told["job"]["data"] for told in mended) == sorted(failed))
check("by its id", all(told["job"]["id"] == failed[told["job"]["data"]]["id"] for told in mended))
check("with its error", all(f"no address for {told['job']['data']}" in told["error"]["message"] for told in mended))
check("and its one attempt", all(len(told["error"]["attempts"]) == 1 for told in mended))

for line in (work / "clock").read_text().splitlines():
    ran, nominal = line.split(" ", 1)
    nominal = datetime.datetime.fromisoformat(nominal.replace("Z", "+00:00")).timestamp()
    check("cron means full minutes", nominal % 60 == 0)
    check("and is on time, neither early nor a minute late", nominal <= float(ran) < nominal + 60)
