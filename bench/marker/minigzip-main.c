/* The `main` of minigzip for `capriole bench marker`: it has a text of so many blocks compressed
   as a line of the input says, and says how long that took.

       run blocks CALLS    ok NANOSECONDS     of CLOCK_MONOTONIC

   It begins with the line `ok ADDRESS`, and ends with its input. With an argument it stays on
   that CPU. */

#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

enum { BLOCK = 128, TEXT = 1 << 16 };

void gz_compress(FILE *in, gzFile out);

static char text[TEXT];

/* Words of different frequency, always the same ones. */
static void make_text(void)
{
    static const char *words[] = {"the ", "marker ", "of ", "a ", "program ", "and ", "costs ",
                                  "nothing ", "while ", "nobody ", "looks ", "at ", "it.\n"};
    uint32_t state = 1;
    size_t at = 0;
    while (at < TEXT) {
        state = state * 1664525u + 1013904223u;
        const char *word = words[(state >> 24) * (state >> 16 & 255) % 13];
        for (; *word && at < TEXT; word++)
            text[at++] = *word;
    }
}

/* How much is left of what is to be read. */
static uint64_t left;

static ssize_t give(void *cookie, char *buffer, size_t size)
{
    (void)cookie;
    size_t at = (TEXT - left % TEXT) % TEXT;
    size_t most = TEXT - at;
    size_t given = size < most ? size : most;
    if (given > left)
        given = (size_t)left;
    memcpy(buffer, text + at, given);
    left -= given;
    return (ssize_t)given;
}

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int main(int count, char **arguments)
{
    char line[96];
    unsigned long long calls;
    if (count > 1) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(atoi(arguments[1]), &set);
        if (sched_setaffinity(0, sizeof set, &set)) {
            perror("cannot stay on that CPU");
            return 1;
        }
    }
    make_text();
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ok %p\n", (void *)gz_compress);
    while (fgets(line, sizeof line, stdin)) {
        cookie_io_functions_t functions = {.read = give};
        if (sscanf(line, "run blocks %llu", &calls) != 1) {
            printf("error cannot do %s", line);
            continue;
        }
        left = calls * BLOCK;
        uint64_t start = now();
        FILE *in = fopencookie(NULL, "r", functions);
        gzFile out = gzopen("/dev/null", "wb1");
        if (!in || !out) {
            printf("error cannot open files\n");
            return 1;
        }
        gz_compress(in, out);
        printf("ok %llu\n", (unsigned long long)(now() - start));
    }
    return 0;
}
