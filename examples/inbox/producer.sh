#!/bin/sh
# Pushes COUNT jobs into a Windlass inbox, one append under flock each: no server, no library.
# usage: producer.sh INBOX QUEUE COUNT
set -eu
inbox=$1 queue=$2 count=$3
exec 9>>"$inbox/$(id -u)"
n=1
while [ "$n" -le "$count" ]; do
    flock 9
    # CAN LF in front ends whatever a torn write of somebody else left behind.
    printf '\030\n%s\tsh %d\n' "$queue" "$n" >&9
    flock -u 9
    n=$((n + 1))
done
