#!/bin/sh
# A kept worker: a line in, a line out.
while IFS= read -r line; do
    case $line in
        fail*) echo "fail ${line#fail }" ;;
        retry*) echo "retry ${line#retry }" ;;
        *) echo "ok $(printf %s "$line" | tr a-z A-Z)" ;;
    esac
done
