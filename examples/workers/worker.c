/* A kept worker: a line in, a line out. cc -o worker worker.c */
#define _POSIX_C_SOURCE 200809L
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    while ((length = getline(&line, &room, stdin)) > 0) {
        if (strncmp(line, "fail ", 5) != 0 && strncmp(line, "retry ", 6) != 0) {
            fputs("ok ", stdout);
            for (ssize_t i = 0; i < length; i++) line[i] = (char)toupper((unsigned char)line[i]);
        }
        fwrite(line, 1, (size_t)length, stdout);
        fflush(stdout);
    }
    free(line);
    return 0;
}
