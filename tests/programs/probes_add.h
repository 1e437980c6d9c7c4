/* A function, and a probe of it whose handler counts. */
#ifndef CAPRIOLE_TEST_PROBES_ADD_H
#define CAPRIOLE_TEST_PROBES_ADD_H

#include "probes.h"

PROBED long add(long a, long b)
{
	return a + 2 * b;
}

static volatile long hits;

static CAPRIOLE_HANDLER int count(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	__atomic_fetch_add(&hits, 1, __ATOMIC_RELAXED);
	return 0;
}

static struct capriole_probe probe = { .symbol = "add", .pre = count };

/* Calls the function, and checks how often the probe is hit. */
static inline void is_hit(long times)
{
	long before = hits;
	IS(add(1, 2), 5);
	IS(hits - before, times);
}

#endif
