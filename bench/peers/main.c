/* What a peer's program is but for the function that is seen: it calls that as often as a
   line of its input says, and says how long it took.

       run CALLS       ok NANOSECONDS          all calls in a loop, of CLOCK_MONOTONIC
       single CALLS    ok P50 P99              each call timed alone, in nanoseconds

   It begins with the line `ok ADDRESS`, where the function is, and ends with its input. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>
#include <x86intrin.h>

void capriole_peer(long a, long b);

/* A debugger stops here when all calls are made. */
__attribute__((noinline)) void capriole_peer_end(void) { __asm__ volatile("nop; nop; nop; nop; nop; nop"); }

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t run(uint64_t calls)
{
    void (*volatile pointer)(long, long) = capriole_peer;
    void (*function)(long, long) = pointer;
    uint64_t start = now();
    for (uint64_t i = 0; i < calls; i++)
        function((long)i, (long)(calls - i));
    return now() - start;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Nothing of the call runs before the first reading or after the second one. */
static inline __attribute__((always_inline)) uint64_t ticks(void)
{
    _mm_lfence();
    uint64_t t = __rdtsc();
    _mm_lfence();
    return t;
}

static int single(uint64_t calls)
{
    void (*volatile pointer)(long, long) = capriole_peer;
    void (*function)(long, long) = pointer;
    uint64_t *taken = calloc(calls, sizeof *taken), *empty = calloc(calls, sizeof *empty);
    if (!taken || !empty || !calls)
        return -1;
    for (uint64_t i = 0; i < calls; i++) {
        uint64_t start = ticks();
        empty[i] = ticks() - start;
    }
    uint64_t ns = now(), tsc = __rdtsc();
    for (uint64_t i = 0; i < calls; i++) {
        uint64_t start = ticks();
        function((long)i, (long)(calls - i));
        taken[i] = ticks() - start;
    }
    tsc = __rdtsc() - tsc;
    ns = now() - ns;
    qsort(taken, calls, sizeof *taken, ascending);
    qsort(empty, calls, sizeof *empty, ascending);
    /* The nearest rank: the smallest value that so many of all do not exceed. */
    double scale = (double)ns / (double)tsc;
    double off = (double)empty[(calls * 50 + 99) / 100 - 1];
    double p50 = (double)taken[(calls * 50 + 99) / 100 - 1] - off;
    double p99 = (double)taken[(calls * 99 + 99) / 100 - 1] - off;
    printf("ok %.3f %.3f\n", p50 > 0 ? p50 * scale : 0, p99 > 0 ? p99 * scale : 0);
    free(taken);
    free(empty);
    return 0;
}

int main(void)
{
    char line[64];
    unsigned long long calls;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ok %p\n", (void *)capriole_peer);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "run %llu", &calls) == 1)
            printf("ok %llu\n", (unsigned long long)run(calls));
        else if (sscanf(line, "single %llu", &calls) != 1 || single(calls))
            printf("error cannot do %s", line);
    }
    capriole_peer_end();
    return 0;
}
