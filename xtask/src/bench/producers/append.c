/* Appends COUNT records of 100 bytes to PATH, each under its lock, and prints the seconds it took.
   `bare` writes the same bytes again and again; `push` writes jobs: queue, tab, data, line feed. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int open_end(const char *path) {
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        perror(path);
        exit(74);
    }
    return fd;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 64;
    int jobs = strcmp(argv[1], "push") == 0;
    long count = atol(argv[3]);
    char line[101];
    memset(line, 'x', 100);
    line[99] = '\n';
    int fd = open_end(argv[2]);
    double begun = now();
    for (long n = 0; n < count; n++) {
        if (jobs) {
            /* The name may lead to another file by now; a late append is late, not lost. */
            if (n % 1000 == 999) {
                close(fd);
                fd = open_end(argv[2]);
            }
            int length = snprintf(line, sizeof line, "push\t%010ld", n);
            line[length] = ' ';
        }
        if (flock(fd, LOCK_EX) != 0 || write(fd, line, 100) != 100 || flock(fd, LOCK_UN) != 0) {
            perror(argv[2]);
            return 74;
        }
    }
    printf("%.9f\n", now() - begun);
    return 0;
}
