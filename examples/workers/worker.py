"""A kept worker: a line in, a line out. Bytes, since data need not be text."""
import sys

for line in sys.stdin.buffer:
    line = line.removesuffix(b"\n")
    reply = line if line.startswith((b"fail ", b"retry ")) else b"ok " + line.upper()
    sys.stdout.buffer.write(reply + b"\n")
    sys.stdout.buffer.flush()
