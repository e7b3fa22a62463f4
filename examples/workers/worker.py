"""A kept worker: a line in, a line out."""
import sys

for line in sys.stdin:
    line = line.rstrip("\n")
    if line.startswith(("fail ", "retry ")):
        print(line, flush=True)
    else:
        print("ok", line.upper(), flush=True)
