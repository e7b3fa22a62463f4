#!/usr/bin/env python3
"""Pushes COUNT jobs into a Windlass inbox, one append under flock each: no server, no library.

usage: producer.py INBOX QUEUE COUNT
"""
import fcntl
import os
import sys

inbox, queue, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
fd = os.open(os.path.join(inbox, str(os.geteuid())), flags, 0o600)
for n in range(1, count + 1):
    # CAN LF in front ends whatever a torn write of somebody else left behind.
    record = f"\x18\n{queue}\tpy {n}\n".encode()
    fcntl.flock(fd, fcntl.LOCK_EX)
    written = os.write(fd, record)
    fcntl.flock(fd, fcntl.LOCK_UN)
    if written != len(record):
        # What was written is torn: the next record's CAN marks it, and it never runs.
        sys.exit(f"the disk is full: job {n} was not accepted")
os.fsync(fd)  # only for those who want to survive a power cut
