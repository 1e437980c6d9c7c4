/* The program of `capriole bench probes`: it probes its own functions, calls them as often as a line of
   its input says, and says how long that took.

       arm METHOD KIND WHAT COPY   ok                  puts a probe on a copy of the function
       run CALLS                   ok NANOSECONDS      all calls in a loop, of CLOCK_MONOTONIC
       single CALLS                ok P50 P99          each call timed alone, in nanoseconds
       hits                        ok HITS             that were recorded since `arm`; -1: not counted
       disarm                      ok
       latency ROUNDS THREADS WORK ok JUMPS P50 P99 ...   of registering, optimising, unregistering one
                                                       probe, in nanoseconds; JUMPS is 0 if a
                                                       breakpoint stayed
       many PROBES                 ok FIRST REGISTER OPTIMISE UNREGISTER JUMPS

   METHOD is none, floor, step, boosted or optimised; KIND is probe, argument, exits, address, replacement or
   write; WHAT is empty or record. What cannot be done is answered by `error` and the reason.
   It begins with the line `ok 0x0`, and ends with its input. With an argument it stays on that CPU. */

#define _GNU_SOURCE
#include "program.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

extern char copies[], crowd[];
extern function floor_record, floor_call;
#define COPY_BYTES 64

__thread struct ring ring;

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int refuse(const char *why, const char *more)
{
    printf("error %s%s%s\n", why, more ? ": " : "", more ? more : "");
    return -1;
}

/* The calls. The last four arguments of a call are constant. */
#define CONSTANTS 3, 4, 5, 6

static __attribute__((noinline, aligned(64))) void call(function *f, uint64_t calls)
{
    for (uint64_t i = 0; i < calls; i++)
        f(i, calls - i, CONSTANTS);
}

/* The handlers. The empty ones do nothing at all; so, before they are used, others in their place
   count. */
#define HANDLER static CAPRIOLE_HANDLER
static uint64_t counted;

HANDLER inline __attribute__((always_inline)) void record(uint32_t event, uint64_t a, uint64_t b, uint64_t c,
                                                          uint64_t d, uint64_t e, uint64_t f)
{
    uint64_t at = ring.bytes;
    struct record *r = (struct record *)((char *)ring.records + (at & (RING_BYTES - 1)));
    ring.bytes = at + 64;
    r->time = __rdtsc();
    r->thread = ring.thread;
    r->event = event;
    r->arguments[0] = a, r->arguments[1] = b, r->arguments[2] = c;
    r->arguments[3] = d, r->arguments[4] = e, r->arguments[5] = f;
}

HANDLER int empty_probe(struct capriole_probe *p, struct capriole_regs *regs)
{
    (void)p, (void)regs;
    return 0;
}

/* Called by floor_call. */
capriole_pre_handler floor_handler = empty_probe;

HANDLER int count_probe(struct capriole_probe *p, struct capriole_regs *regs)
{
    (void)p, (void)regs;
    counted++;
    return 0;
}

HANDLER int record_probe(struct capriole_probe *p, struct capriole_regs *regs)
{
    (void)p;
    record(EVENT, regs->di, regs->si, regs->dx, regs->cx, regs->r8, regs->r9);
    return 0;
}

HANDLER int empty_call(struct capriole_call *c, struct capriole_regs *regs)
{
    (void)c, (void)regs;
    return 0;
}

HANDLER int count_call(struct capriole_call *c, struct capriole_regs *regs)
{
    (void)c, (void)regs;
    counted++;
    return 0;
}

HANDLER int record_entry(struct capriole_call *c, struct capriole_regs *regs)
{
    (void)c;
    record(EVENT, regs->di, regs->si, regs->dx, regs->cx, regs->r8, regs->r9);
    return 0;
}

HANDLER int record_return(struct capriole_call *c, struct capriole_regs *regs)
{
    record(EVENT + 1, regs->ax, c->sp, c->return_address, regs->ip, regs->sp, 0);
    return 0;
}

HANDLER void empty_arguments(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
}

HANDLER void count_arguments(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    counted++;
}

HANDLER void record_arguments(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
    record(EVENT, a, b, c, d, e, f);
}

/* Replacements: each calls the function that it stands for. */
static function *original;

static void empty_replacement(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
    original(a, b, c, d, e, f);
}

static void count_replacement(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
    counted++;
    original(a, b, c, d, e, f);
}

HANDLER void record_replacement(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
    record(EVENT, a, b, c, d, e, f);
    original(a, b, c, d, e, f);
}

/* A function that writes a record itself. */
static struct capriole_record written =
    CAPRIOLE_RECORD("written", "a=$arg1:u64 b=$arg2:u64 c=$arg3:u64 d=$arg4:u64 e=$arg5:u64 f=$arg6:u64");

static void writing(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
    CAPRIOLE_WRITE(&written, a, b, c, d, e, f);
}

/* What is armed. */
enum method { NONE, FLOOR, STEP, BOOSTED, OPTIMISED };
enum kind { PROBE, ARGUMENT, EXITS, ADDRESS, REPLACEMENT, WRITE };
enum what { EMPTY, COUNT, RECORD };
static enum method method;
static enum kind kind;
static enum what what;
static function *target;
static struct capriole_probe probe;
static struct capriole_argument_probe argument;
static struct capriole_return_probe returns;
static struct capriole_replacement replacement;
static uint64_t start_bytes, lines_read;

static int put_in(void)
{
    static const capriole_pre_handler probes[] = {empty_probe, count_probe, record_probe};
    static const capriole_call_handler entries[] = {empty_call, count_call, record_entry};
    static const capriole_call_handler leaves[] = {empty_call, count_call, record_return};
    static function *const arguments[] = {empty_arguments, count_arguments, record_arguments};
    static function *const replacements[] = {empty_replacement, count_replacement, record_replacement};
    unsigned flags = method == BOOSTED ? CAPRIOLE_NO_OPTIMIZE : 0;
    int result = 0;
    if (method <= FLOOR)
        return 0;
    if (method == STEP) {
        result = kind == PROBE ? step_probe((void *)target, probes[what])
                               : step_return_probe((void *)target, entries[what], leaves[what]);
        return result ? refuse("the breakpoint cannot be written", strerror(errno)) : 0;
    }
    switch (kind) {
    case PROBE:
        probe = (struct capriole_probe){.address = (void *)target, .pre = probes[what], .flags = flags};
        result = capriole_probe_register(&probe);
        break;
    case ARGUMENT:
        argument = (struct capriole_argument_probe){.probe.flags = flags};
        CAPRIOLE_ARGUMENT_PROBE(&argument, target, arguments[what]);
        result = capriole_argument_probe_register(&argument);
        break;
    case EXITS:
    case ADDRESS:
        returns = (struct capriole_return_probe){.probe.address = (void *)target,
                                                 .probe.flags = flags,
                                                 .entry = entries[what],
                                                 .handler = leaves[what],
                                                 .by_address = kind == ADDRESS};
        result = capriole_return_probe_register(&returns);
        break;
    case REPLACEMENT:
        replacement = (struct capriole_replacement){.probe.flags = flags};
        CAPRIOLE_REPLACE(&replacement, target, replacements[what], &original);
        result = capriole_replace(&replacement);
        break;
    case WRITE:
        result = capriole_record_enable(&written);
        break;
    }
    return result < 0 ? refuse(capriole_error(), NULL) : 0;
}

static unsigned long missed(void)
{
    switch (kind) {
    case PROBE:
        return capriole_probe_missed(&probe);
    case ARGUMENT:
        return capriole_probe_missed(&argument.probe);
    case EXITS:
    case ADDRESS:
        return returns.missed;
    default:
        return 0;
    }
}

static int take_out(void)
{
    int result = 0;
    if (method <= FLOOR)
        return 0;
    if (method == STEP)
        return step_end() ? refuse("the instruction cannot be written", strerror(errno)) : 0;
    if (missed())
        return refuse("hits were missed", NULL);
    switch (kind) {
    case PROBE:
        result = capriole_probe_unregister(&probe);
        break;
    case ARGUMENT:
        result = capriole_argument_probe_unregister(&argument);
        break;
    case EXITS:
    case ADDRESS:
        result = capriole_return_probe_unregister(&returns);
        break;
    case REPLACEMENT:
        result = capriole_restore(&replacement);
        break;
    case WRITE:
        result = capriole_record_disable(&written);
        break;
    }
    return result < 0 ? refuse(capriole_error(), NULL) : 0;
}

/* Checks, by the library's own list, that all probes of the function are in the expected state. */
static int check_state(void)
{
    const char *expected = method == OPTIMISED ? "[OPTIMIZED]" : "[BREAKPOINT]";
    char text[4096];
    int found = 0;
    if (method <= STEP || kind == WRITE)
        return 0;
    if (method == OPTIMISED && capriole_optimize(10000) != 0)
        return refuse("no jump within ten seconds", NULL);
    if (kind == REPLACEMENT)
        return 0;
    int file = memfd_create("list", MFD_CLOEXEC);
    capriole_list(file);
    ssize_t size = pread(file, text, sizeof text - 1, 0);
    close(file);
    text[size > 0 ? size : 0] = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        uint64_t address = strtoull(line, NULL, 16);
        if (address < (uint64_t)target || address >= (uint64_t)target + COPY_BYTES)
            continue;
        found++;
        if (!strstr(line, expected))
            return refuse("it is not as it should be", line);
    }
    return found ? 0 : refuse("the probe is not in the list", NULL);
}

static int named(const char *const names[], int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(names[i], name))
            return i;
    return -1;
}

static int per_call(void)
{
    return kind == EXITS || kind == ADDRESS ? 2 : 1;
}

/* Has counting handlers called in the place of the empty ones. */
static int check_count(void)
{
    const uint64_t calls = 1000;
    char text[64];
    what = COUNT;
    counted = 0;
    if (put_in() || check_state())
        return -1;
    call(target, calls);
    if (take_out())
        return -1;
    what = EMPTY;
    snprintf(text, sizeof text, "%lu of %lu", (unsigned long)counted, (unsigned long)calls * per_call());
    return counted == calls * per_call() ? 0 : refuse("the handlers were called", text);
}

static int arm(const char *m, const char *k, const char *w, unsigned copy)
{
    static const char *const methods[] = {"none", "floor", "step", "boosted", "optimised"};
    static const char *const kinds[] = {"probe", "argument", "exits", "address", "replacement", "write"};
    static const char *const whats[] = {"empty", "count", "record"};
    int number[3] = {named(methods, 5, m), named(kinds, 6, k), named(whats, 3, w)};
    if (number[0] < 0 || number[1] < 0 || number[2] < 0 || copy >= COPIES)
        return refuse("there is no such row", NULL);
    method = (enum method)number[0];
    kind = (enum kind)number[1];
    what = (enum what)number[2];
    target = (function *)(copies + COPY_BYTES * copy);
    if (kind == WRITE)
        target = writing;
    else if (method == FLOOR)
        target = what == RECORD ? floor_record : floor_call;
    ring.thread = (uint32_t)syscall(SYS_gettid);
    if (method > FLOOR && what == EMPTY && check_count())
        return -1;
    start_bytes = ring.bytes;
    lines_read = 0;
    return put_in() || check_state() ? -1 : 0;
}

/* Reads the records that were written by capriole_record, and counts their lines. */
static void read_records(void)
{
    int file = memfd_create("records", MFD_CLOEXEC);
    char text[65536];
    ssize_t size;
    capriole_event_read(file);
    for (off_t at = 0; (size = pread(file, text, sizeof text, at)) > 0; at += size)
        for (ssize_t i = 0; i < size; i++)
            lines_read += text[i] == '\n';
    close(file);
}

/* As many as the helper keeps between two readings. */
#define AT_ONCE 50000

static uint64_t run(uint64_t calls)
{
    uint64_t ns = 0;
    if (kind != WRITE) {
        uint64_t start = now();
        call(target, calls);
        return now() - start;
    }
    while (calls) {
        uint64_t part = calls < AT_ONCE ? calls : AT_ONCE, start = now();
        call(target, part);
        ns += now() - start;
        read_records();
        calls -= part;
    }
    return ns;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The nearest rank: the smallest value that so many of all do not exceed. */
static uint64_t rank(uint64_t *values, uint64_t count, unsigned percent)
{
    qsort(values, count, sizeof *values, ascending);
    return values[(count * percent + 99) / 100 - 1];
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
    function *volatile pointer = target;
    function *f = pointer;
    uint64_t *taken = calloc(calls, sizeof *taken), *nothing = calloc(calls, sizeof *nothing);
    if (!taken || !nothing || !calls)
        return refuse("no call to be timed", NULL);
    for (uint64_t i = 0; i < calls; i++) {
        uint64_t start = ticks();
        nothing[i] = ticks() - start;
    }
    uint64_t ns = now(), tsc = __rdtsc();
    for (uint64_t i = 0; i < calls; i++) {
        uint64_t start = ticks();
        f(i, calls - i, CONSTANTS);
        taken[i] = ticks() - start;
    }
    tsc = __rdtsc() - tsc;
    ns = now() - ns;
    double scale = (double)ns / (double)tsc;
    double off = (double)rank(nothing, calls, 50);
    double p50 = (double)rank(taken, calls, 50) - off, p99 = (double)rank(taken, calls, 99) - off;
    printf("ok %.3f %.3f\n", p50 > 0 ? p50 * scale : 0, p99 > 0 ? p99 * scale : 0);
    free(taken);
    free(nothing);
    if (kind == WRITE)
        read_records();
    return 0;
}

static int hits(void)
{
    if (kind == WRITE) {
        printf("ok %llu\n", (unsigned long long)lines_read);
        return 0;
    }
    if (what != RECORD) {
        printf("ok -1\n");
        return 0;
    }
    uint64_t number = (ring.bytes - start_bytes) / 64;
    if (!number) {
        printf("ok 0\n");
        return 0;
    }
    const struct record *r = (const struct record *)((char *)ring.records + ((ring.bytes - 64) & (RING_BYTES - 1)));
    int entry = per_call() == 1;
    static const uint64_t constants[] = {CONSTANTS};
    if (number % per_call() || r->thread != ring.thread || r->event != EVENT + !entry ||
        (entry && memcmp(&r->arguments[2], constants, sizeof constants)) ||
        (entry && r->arguments[1] != 1))
        return refuse("the last record is wrong", NULL);
    printf("ok %llu\n", (unsigned long long)(number / per_call()));
    return 0;
}

/* Threads that run through the function, with some work in between. */
static volatile int ending;
static unsigned work;

static void *busy(void *f)
{
    while (!ending) {
        call((function *)f, 1);
        for (unsigned i = 0; i < work; i++)
            __asm__ volatile("");
    }
    return NULL;
}

/* Time for a jump to take the place of a breakpoint, in milliseconds. */
#define PATIENCE 1000

/* Of a probe that is registered, optimised and unregistered: the times of these. */
static int time_one(struct capriole_probe *one, int *wait, uint64_t times[3])
{
    uint64_t a = now();
    if (capriole_probe_register(one))
        return -1;
    uint64_t b = now(), c = b;
    if (*wait) {
        *wait = !capriole_optimize(PATIENCE);
        c = now();
    }
    if (capriole_probe_unregister(one))
        return -1;
    times[0] = b - a;
    times[1] = c - b;
    times[2] = now() - c;
    return 0;
}

static int latency(unsigned rounds, unsigned threads)
{
    pthread_t all[64];
    uint64_t *taken = calloc(3 * rounds, sizeof *taken), times[3];
    function *f = (function *)(copies + COPY_BYTES * (COPIES - 1));
    struct capriole_probe one = {.address = (void *)f, .pre = empty_probe};
    int failed, wait = 1;
    if (!rounds || threads > 64)
        return refuse("too few rounds, or too many threads", NULL);
    /* The first one, for which the helper reads the program's file, is left out. */
    failed = time_one(&one, &wait, times);
    ending = 0;
    for (unsigned i = 0; i < threads; i++)
        pthread_create(&all[i], NULL, busy, (void *)f);
    for (unsigned i = 0; i < rounds && !failed; i++) {
        failed = time_one(&one, &wait, times);
        for (int k = 0; k < 3; k++)
            taken[k * rounds + i] = times[k];
    }
    ending = 1;
    for (unsigned i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    if (failed)
        return refuse("a probe cannot be registered or unregistered", capriole_error());
    printf("ok %d", wait);
    for (int k = 0; k < 3; k++)
        printf(" %llu %llu", (unsigned long long)rank(taken + k * rounds, rounds, 50),
               (unsigned long long)rank(taken + k * rounds, rounds, 99));
    printf("\n");
    free(taken);
    return 0;
}

static int many(unsigned count)
{
    char text[64];
    if (!count || count > CROWD)
        return refuse("there are not as many functions", NULL);
    struct capriole_probe *probes = calloc(count, sizeof *probes), **list = calloc(count, sizeof *list);
    for (unsigned i = 0; i < count; i++) {
        probes[i].address = crowd + COPY_BYTES * i;
        probes[i].pre = count_probe;
        list[i] = &probes[i];
    }
    /* The first registration is timed apart: the helper attaches, and reads the program's file. */
    struct capriole_probe one = {.address = copies, .pre = empty_probe};
    uint64_t first = now();
    if (capriole_probe_register(&one) < 0)
        return refuse(capriole_error(), NULL);
    first = now() - first;
    capriole_probe_unregister(&one);
    uint64_t a = now();
    if (capriole_probes_register(list, count) < 0)
        return refuse(capriole_error(), NULL);
    uint64_t b = now();
    int left = capriole_optimize(50000);
    uint64_t c = now();
    counted = 0;
    for (unsigned i = 0; i < count; i++)
        call((function *)(crowd + COPY_BYTES * i), 2);
    uint64_t d = now();
    if (capriole_probes_unregister(list, count) < 0)
        return refuse(capriole_error(), NULL);
    uint64_t e = now();
    free(probes);
    free(list);
    snprintf(text, sizeof text, "%lu of %lu", (unsigned long)counted, 2ul * count);
    if (counted != 2ul * count)
        return refuse("the handlers were called", text);
    printf("ok %llu %llu %llu %llu %u\n", (unsigned long long)first, (unsigned long long)(b - a),
           (unsigned long long)(c - b), (unsigned long long)(e - d), count - (unsigned)left);
    return 0;
}

int main(int count, char **arguments)
{
    char line[128], words[3][16];
    unsigned long long calls;
    unsigned number, threads;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count > 1) {
        /* The helper, which inherits this, is to have another CPU. */
        if (count > 2)
            capriole_optimization(1);
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(atoi(arguments[1]), &set);
        if (sched_setaffinity(0, sizeof set, &set)) {
            perror("cannot stay on that CPU");
            return 1;
        }
    }
    printf("ok 0x0\n");
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "arm %15s %15s %15s %u", words[0], words[1], words[2], &number) == 4) {
            if (!arm(words[0], words[1], words[2], number))
                printf("ok\n");
        } else if (sscanf(line, "run %llu", &calls) == 1) {
            printf("ok %llu\n", (unsigned long long)run(calls));
        } else if (sscanf(line, "single %llu", &calls) == 1) {
            single(calls);
        } else if (!strcmp(line, "hits\n")) {
            hits();
        } else if (!strcmp(line, "disarm\n")) {
            if (!take_out())
                printf("ok\n");
            method = NONE;
        } else if (sscanf(line, "latency %u %u %u", &number, &threads, &work) == 3) {
            latency(number, threads);
        } else if (sscanf(line, "many %u", &number) == 1) {
            many(number);
        } else {
            printf("error cannot do %s", line);
        }
    }
    return 0;
}
