/* The resident's summaries, as a library that a test runs store by store: summary.c as it is, with
 * stores that count, and end the call when so many have been made. */
#include "resident.h"
#include <setjmp.h>

static void step(void);

#undef WRITE
#define WRITE(x, v) (step(), (void)(*(volatile __typeof__(x) *)&(x) = (v)))

#include "summary.c"

/* The configuration, which the resident has at a place of its own. */
struct config configuration __asm__("capriole_config");

static jmp_buf end;
static long left; /* stores to make; negative: no limit */

static void step(void)
{
	if (left-- == 0)
		longjmp(end, 1);
}

struct hit {
	u32 event;
	u32 hash;
	u64 key[2]; /* a number, and another one that belongs to it */
	u64 value;
};

/* What was stored: hits, and their values added up; by event. Changed with the store. */
struct done {
	u64 hits[2];
	u64 sums[2];
	u64 greatest[2];
};

/* Makes hits until `stores` stores have been made. Each adds one to cell 0 and its value to cell 1, and
 * keeps the greatest in cell 2. Returns the number of hits that were begun. `counted` has the hits of each
 * key that are in cell 0. */
__attribute__((visibility("default"))) u64
make_hits(u64 counters, u64 stride, const struct table *table, u32 cpu, u32 lane,
	  const struct hit *hits, u64 count, long stores, volatile struct done *done,
	  volatile u64 *counted)
{
	volatile u64 i = 0;
	configuration.counters = counters;
	configuration.counter_stride = (u32)stride;
	left = stores;
	if (setjmp(end))
		return i;
	while (i < count) {
		const struct hit *hit = hits + i;
		i = i + 1;
		u64 *cells = capriole_summarise(table, hit->event, hit->key, 16, hit->hash, cpu, lane);
		u32 event = hit->event - table->first_event;
		if (!cells)
			return ~0ul;
		WRITE(cells[0], READ(cells[0]) + 1);
		done->hits[event]++;
		counted[hit->key[0]]++;
		WRITE(cells[1], READ(cells[1]) + hit->value);
		done->sums[event] += hit->value;
		if (READ(cells[2]) < hit->value)
			WRITE(cells[2], hit->value);
		if (done->greatest[event] < hit->value)
			done->greatest[event] = hit->value;
	}
	return i;
}
