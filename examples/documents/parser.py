"""The second stage: a program that takes a second to start and holds a model in memory. It is started once for each
driver, gets a line IN<TAB>OUT for each document, counts its words, and answers with a line."""
import collections, os, sys, time

model = bytearray(80 << 20)
model[:: 4096] = b"m" * len(model[:: 4096])
time.sleep(1)
with open(os.environ["LOADED"], "a") as log:
    log.write(f"{os.environ.get('DRIVER', os.getpid())}\n")

for line in sys.stdin:
    source, target = line.rstrip("\n").split("\t")
    with open(source) as text:
        counts = collections.Counter(text.read().split())
    time.sleep(0.05)
    with open(target, "w") as parsed:
        parsed.writelines(f"{word} {count}\n" for word, count in sorted(counts.items()))
    print("ok", flush=True)
