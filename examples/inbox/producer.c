/* Pushes COUNT jobs into a Windlass inbox, one append under flock each: no server, no library.
 * build: cc -O2 -o producer producer.c        usage: producer INBOX QUEUE COUNT */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char path[4096], record[4096];
    if (argc != 4) {
        fprintf(stderr, "usage: producer INBOX QUEUE COUNT\n");
        return 64;
    }
    snprintf(path, sizeof path, "%s/%ld", argv[1], (long)geteuid());
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        perror(path);
        return 74;
    }
    for (long n = 1, count = atol(argv[3]); n <= count; n++) {
        /* CAN LF in front ends whatever a torn write of somebody else left behind. */
        int length = snprintf(record, sizeof record, "\x18\n%s\tc %ld\n", argv[2], n);
        if (length < 0 || (size_t)length >= sizeof record) {
            fprintf(stderr, "the queue name is too long\n");
            return 65;
        }
        flock(fd, LOCK_EX);
        ssize_t written = write(fd, record, (size_t)length);
        flock(fd, LOCK_UN);
        if (written != length) {
            fprintf(stderr, "the disk is full: job %ld was not accepted\n", n);
            return 74;
        }
    }
    return 0;
}
