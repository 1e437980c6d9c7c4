/* The resident's open intervals, as a library that a test runs access by access: interval.c as it is,
 * with accesses that count. Before a chosen one the thread is killed, or is interrupted by others, after
 * which it goes on. */
#include "resident.h"
#include <setjmp.h>

static void step(void);

#undef READ
#define READ(x) ({ step(); *(volatile __typeof__(x) *)&(x); })
#undef WRITE
#define WRITE(x, v) (step(), (void)(*(volatile __typeof__(x) *)&(x) = (v)))
#define __sync_bool_compare_and_swap(at, old, new) \
	({ \
		__typeof__(*(at)) expected = (old); \
		step(); \
		__atomic_compare_exchange_n(at, &expected, new, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
	})
/* The upper halves of times differ, too. */
#define TICK (1ul << 28)
#define read_tsc() (clock += TICK)

static u64 clock;

#include "interval.c"

/* The configuration, which the resident has at a place of its own. */
struct config configuration __asm__("capriole_config");

static jmp_buf end;
static long left; /* accesses until the stop; negative: there is none */
static void (*others)(void); /* what interrupts the thread there; 0: it is killed */

static void step(void)
{
	if (left-- != 0)
		return;
	left = -1;
	if (!others)
		longjmp(end, 1);
	others();
	left = -1;
}

/* All keys of a test are looked for in the same slots; keys that are equal modulo 256 have one hash. */
u32 capriole_hash(u32 tag, const u64 *key, u32 length)
{
	(void)length;
	return ((u32)key[0] & 255) << 8 | tag << 16;
}

void capriole_count(u64 counter)
{
	((u64 *)capriole_config.counters)[counter]++;
}

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void set_up(u64 session, u64 directories, u64 counters, u64 own)
{
	configuration.session = session;
	configuration.directories = directories;
	configuration.counters = counters;
	configuration.own = own;
}

/* A word of which both halves tell what it is. */
static u64 both(u64 number)
{
	return number | number << 32;
}

EXPORTED u64 now(void)
{
	return clock;
}

/* Starts an interval with a key of two words; `kept` is kept. Returns 0 if the thread was killed. */
EXPORTED long start(const struct intervals *intervals, u64 key, u64 kept, long stop, void (*interrupt)(void))
{
	struct words words = { .word = { both(key), ~both(key), both(kept) } };
	left = stop;
	others = interrupt;
	if (setjmp(end))
		return 0;
	capriole_start(intervals, &words);
	return left < 0 ? 1 : 2; /* 2: it did not come to the stop */
}

/* Ends an interval. Returns 0 if the thread was killed; else 2 or 3 if it did not come to the stop, and 4 or
 * 5 if it did. Odd: an interval ended, of which this was kept (~0: it is not known), and which took this
 * long. */
EXPORTED long finish(const struct intervals *intervals, u64 key, u64 *kept, u64 *ticks, long stop,
		     void (*interrupt)(void))
{
	struct words words = { .word = { both(key), ~both(key) } };
	left = stop;
	others = interrupt;
	if (setjmp(end))
		return 0;
	u32 ended = capriole_end(intervals, &words, clock += TICK, ticks);
	*kept = (u32)words.word[2];
	if (words.unread || words.word[2] != both(*kept))
		*kept = ~0ul;
	return (left < 0 ? 4 : 2) + (long)ended;
}
