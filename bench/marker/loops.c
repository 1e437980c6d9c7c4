/* The loops that `capriole bench marker` measures: each as often as a line of the input says,
   and how long that took.

       run LOOP CALLS      ok NANOSECONDS     of CLOCK_MONOTONIC
       run CALLS                              the last loop

   It begins with the line `ok ADDRESS` of nothing in particular, and ends with its input. With an
   argument it stays on that CPU. With CAPRIOLE_BENCH_LTTNG the loop is one around a tracepoint of
   LTTng-UST. */

#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NOTHING(i) __asm__ volatile("" : : "r"(i))
/* All loops begin at the same place of a cache line. */
#define LOOP(name) static __attribute__((noinline, aligned(64))) void name(uint64_t calls)
#define EACH for (uint64_t i = 0; i < calls; i++)

LOOP(empty) { EACH { NOTHING(i); } }

#ifdef CAPRIOLE_BENCH_LTTNG

#include "lttng-tracepoint.h"

LOOP(traced) { EACH { lttng_ust_tracepoint(capriole_bench, hit, (int)i, (void *)(calls - i)); } }

#else

#include <capriole/marker.h>

LOOP(empty_off) { EACH { NOTHING(i); CAPRIOLE_MARK(bench, empty, "number=%lu", i); } }
LOOP(empty_guarded) { EACH { NOTHING(i); CAPRIOLE_MARK_GUARDED(bench, guarded, "number=%lu", i); } }

/* Of the whole program, so that the copy cannot be left out. */
char capriole_bench_from[4096], capriole_bench_to[4096];
#define COPY \
    memcpy(capriole_bench_to, capriole_bench_from, sizeof capriole_bench_to); \
    __asm__ volatile("" : : : "memory")

LOOP(copy) { EACH { COPY; } }
LOOP(copy_off) { EACH { COPY; CAPRIOLE_MARK(bench, copy, "number=%lu", i); } }
LOOP(copy_guarded) { EACH { COPY; CAPRIOLE_MARK_GUARDED(bench, copy_guarded, "number=%lu", i); } }

LOOP(on_nothing) { EACH { CAPRIOLE_MARK(bench, nothing, "number=%lu left=%lu", i, calls - i); } }
LOOP(on_count) { EACH { CAPRIOLE_MARK(bench, count, "number=%lu left=%lu", i, calls - i); } }
LOOP(on_record2) { EACH { CAPRIOLE_MARK(bench, record2, "number=%lu left=%lu", i, calls - i); } }
LOOP(on_format2) { EACH { CAPRIOLE_MARK(bench, format2, "number=%lu left=%lu", i, calls - i); } }
LOOP(on_format6)
{
    EACH {
        CAPRIOLE_MARK(bench, format6, "number=%lu left=%lu parity=%d byte=%hhu at=%p twice=%lu", i,
                      calls - i, (int)(i & 1), (unsigned char)i,
                      (void *)(capriole_bench_from + (i & 255)), 2 * i);
    }
}
LOOP(on_constant) { EACH { CAPRIOLE_MARK(bench, constant, "number=%lu what=%d", i, 7); } }
LOOP(on_guarded)
{
    EACH { CAPRIOLE_MARK_GUARDED(bench, guarded_on, "number=%lu left=%lu", i, calls - i); }
}
/* The kernel puts its probes into private copies of pages: no business of any other loop. */
static __attribute__((noinline, aligned(4096))) void on_uprobe(uint64_t calls)
{
    EACH { CAPRIOLE_MARK(bench, uprobe, "number=%lu left=%lu", i, calls - i); }
}

/* A probe as sys/sdt.h makes it: a nop of one byte, and a note. */
#define SDT(name) \
    __asm__ volatile( \
        "990: nop\n" \
        ".pushsection .note.stapsdt,\"\",\"note\"\n" \
        ".balign 4\n" \
        ".4byte 992f-991f, 994f-993f, 3\n" \
        "991: .asciz \"stapsdt\"\n" \
        "992: .balign 4\n" \
        "993: .8byte 990b\n" \
        ".8byte _.stapsdt.base\n" \
        ".8byte 0\n" \
        ".asciz \"bench\"\n.asciz \"" name "\"\n.asciz \"8@%0 8@%1\"\n" \
        "994: .balign 4\n" \
        ".popsection\n" \
        : : "r"(i), "r"(calls - i) : "memory")

static __attribute__((noinline, aligned(4096))) void on_sdt_uprobe(uint64_t calls)
{
    EACH { SDT("sdt_uprobe"); }
}
static __attribute__((noinline, aligned(4096))) void on_sdt(uint64_t calls)
{
    EACH { SDT("sdt"); }
}

#endif

static const struct {
    const char *name;
    void (*loop)(uint64_t calls);
} loops[] = {
    {"empty", empty},
#ifdef CAPRIOLE_BENCH_LTTNG
    {"traced", traced},
#else
    {"empty_off", empty_off},   {"empty_guarded", empty_guarded}, {"copy", copy},
    {"copy_off", copy_off},     {"copy_guarded", copy_guarded},   {"nothing", on_nothing},
    {"count", on_count},        {"record2", on_record2},          {"format2", on_format2},
    {"format6", on_format6},    {"guarded_on", on_guarded},     {"constant", on_constant},
          {"uprobe", on_uprobe},
    {"sdt_uprobe", on_sdt_uprobe}, {"sdt", on_sdt},
#endif
};
enum { LOOPS = sizeof loops / sizeof *loops };

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int run(const char *name, uint64_t calls)
{
    for (unsigned i = 0; i < LOOPS; i++)
        if (!strcmp(loops[i].name, name)) {
            uint64_t start = now();
            loops[i].loop(calls);
            printf("ok %llu\n", (unsigned long long)(now() - start));
            return 1;
        }
    return 0;
}

int main(int count, char **arguments)
{
    char line[96], name[64];
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
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ok %p\n", (void *)empty);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "run %llu", &calls) == 1)
            strcpy(name, loops[LOOPS - 1].name);
        else if (sscanf(line, "run %63s %llu", name, &calls) != 2)
            strcpy(name, "");
        if (!run(name, calls))
            printf("error cannot do %s", line);
    }
    return 0;
}
