/*
 * A library that probes the program which loads it, for probes_loader.c.
 */
#include "probes.h"

static long hits;

static CAPRIOLE_HANDLER int count(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	hits++;
	return 0;
}

static struct capriole_probe probe = { .symbol = "add", .pre = count };

__attribute__((visibility("default"))) int plugin_register(unsigned flags);
int plugin_register(unsigned flags)
{
	probe.flags = flags;
	return capriole_probe_register(&probe);
}

__attribute__((visibility("default"))) int plugin_optimize(void);
int plugin_optimize(void)
{
	return capriole_optimize(PATIENCE);
}

__attribute__((visibility("default"))) int plugin_unregister(void);
int plugin_unregister(void)
{
	return capriole_probe_unregister(&probe);
}

__attribute__((visibility("default"))) int plugin_finish(void);
int plugin_finish(void)
{
	return capriole_finish();
}

__attribute__((visibility("default"))) long plugin_hits(void);
long plugin_hits(void)
{
	return hits;
}

__attribute__((visibility("default"))) const char *plugin_error(void);
const char *plugin_error(void)
{
	return capriole_error();
}

/* To be probed. */
PROBED long thrice(long n)
{
	return 3 * n;
}
