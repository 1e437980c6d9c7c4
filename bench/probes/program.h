/* The program of `capriole bench probes`. */
#include <capriole/probe.h>
#include <stddef.h>
#include <stdint.h>

/* A record of the flight recorder in which handlers write: 64 bytes. */
struct record {
    uint64_t time;
    uint32_t thread, event;
    uint64_t arguments[6];
};

/* The calling thread's ring; the floor, in functions.S, knows where what is. */
struct ring {
    uint64_t bytes; /* that were written: of all records */
    uint32_t thread;
    struct record records[RING_BYTES / 64] __attribute__((aligned(64)));
};
extern __thread struct ring ring;
_Static_assert(offsetof(struct ring, thread) == 8, "see functions.S");
_Static_assert(offsetof(struct ring, records) == 64, "see functions.S");
_Static_assert(sizeof(struct record) == 64, "");

typedef void function(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

/* The classical implementation, step.c. Each returns 0, or -1. */
struct step;
int step_probe(void *address, capriole_pre_handler handler);
int step_return_probe(void *address, capriole_call_handler entry, capriole_call_handler handler);
int step_end(void);
