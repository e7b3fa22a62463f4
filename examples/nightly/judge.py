"""Judges a night by the order of its reports, by its times and by what the error handler was given: judge.py DIR BEGAN

`reports` has a line when a report begins (`+ NAME`), one when it is written (`- NAME`), and one for what was done
meanwhile (`= scaled`). Its order is that in which they were appended, so it is the same on any machine, however slow:
what may come in another order than the list's is only what several slots had at once.
"""
import datetime, json, pathlib, sys

work, began = pathlib.Path(sys.argv[1]), float(sys.argv[2])
lines = [tuple(line.split(" ", 1)) for line in (work / "reports").read_text().splitlines()]
names = [name for what, name in lines if what == "+"]
held = {f"customer-{n}" for n in range(1900, 2000)}
place = {name: at for at, name in enumerate(names)}
listed = [f"customer-{n:04}" for n in range(2000)]
together = [f"together-{n}" for n in range(1, 5)]
scaled, resumed = lines.index(("=", "scaled")), lines.index(("=", "resumed"))


def check(what, holds):
    if not holds:
        print(f"not so: {what}", file=sys.stderr)
        sys.exit(1)


def most_at_once(lines):
    most = now = 0
    for what, _ in lines:
        now += {"+": 1, "-": -1}.get(what, 0)
        most = max(most, now)
    return most


def overtaken(order):
    """The most that any of these has before it in the order and behind it in the night."""
    begun = [place[name] for name in order]
    return max(sum(earlier > at for earlier in begun[:n]) for n, at in enumerate(begun))


ends = [name for what, name in lines if what == "-"]
check("each report begins once", sorted(names) == sorted(listed + together + ["first", "last"]))
check("and is written once", sorted(ends) == sorted(names))

# In one slot nothing can be out of its order. Those that meet are pushed in the middle of the night, and the first of
# them has the slot when it gets company.
order = ["first"] + [name for name in listed if name not in held]
alone = names.index("together-1")
check("the first goes first, and behind it the others as they are listed", names[:alone] == order[:alone])
check("until then many have gone", alone > 150 and ("+", "together-1") in lines[:scaled])
check("one at a time until there are more slots", most_at_once(lines[:scaled]) == 1)
# A slot that has begun nothing yet has one job at most: of four, three may have one that all behind it overtake.
check("then the others still go as they are listed, the last behind them", overtaken(order + ["last"]) <= 3)
# One of the four has a slot until all of them have begun, so only two are left for those that others overtake.
late = [sum(place[one] > place[name] for one in together) for name in order[alone:]]
check("and those that are to go before them go before them", max(late) <= 2)
check("four at a time, and never five, which is all that the server has", most_at_once(lines) == 4)
check("what is held back goes when it is resumed", all(("+", name) in lines[resumed:] for name in held))
check("and what is not, before", overtaken(order + ["last"] + sorted(held)) <= 3)

failed = {job["data"]: job for job in map(json.loads, (work / "failed").read_text().splitlines())}
mended = [json.loads(line) for line in (work / "mended").read_text().splitlines()]
check("twenty have no address", sorted(failed) == [f"customer-{n:04}" for n in range(0, 2000, 100)])
check("the handler got each of them once", sorted(told["job"]["data"] for told in mended) == sorted(failed))
check("by its id", all(told["job"]["id"] == failed[told["job"]["data"]]["id"] for told in mended))
check("with its error", all(f"no address for {told['job']['data']}" in told["error"]["message"] for told in mended))
check("and its one attempt", all(len(told["error"]["attempts"]) == 1 for told in mended))

fired = []
for line in (work / "clock").read_text().splitlines():
    ran, nominal = line.split(" ", 1)
    nominal = datetime.datetime.fromisoformat(nominal.replace("Z", "+00:00")).timestamp()
    check("cron means full minutes", nominal % 60 == 0)
    # How long it takes from there to a job's first line is the machine's affair.
    check("and fires for none that had passed, nor before it is there", began - 60 < nominal <= float(ran))
    fired.append(nominal)
check("each of them once", fired and len(set(fired)) == len(fired))
