#!/bin/sh
# A kept worker: a line in, a line out. A shell cannot hold a NUL byte; `printf`, since `echo` may read backslashes.
while IFS= read -r line; do
    case $line in
        "fail "* | "retry "*) printf '%s\n' "$line" ;;
        *) printf 'ok %s\n' "$(printf %s "$line" | tr a-z A-Z)" ;;
    esac
done
