/* What programs share that probe themselves. Each has parts; its argument says which one runs. */
#ifndef CAPRIOLE_TEST_PROBES_H
#define CAPRIOLE_TEST_PROBES_H

#include "common.h"

#include <capriole/probe.h>

#define OK(call) \
	do { \
		int ok_ = (call); \
		if (ok_ < 0) \
			BAD("%s: %d: %s", #call, ok_, capriole_error()); \
	} while (0)

/* Checks that a call fails, with an error code and a message that contains a text. */
#define FAILS(call, code, text) \
	do { \
		int failed_ = (call); \
		if (failed_ != -(code) || !strstr(capriole_error(), text)) \
			BAD("%s: %d, not %d: %s", #call, failed_, -(code), \
			    failed_ < 0 ? capriole_error() : "no error"); \
	} while (0)

#define IS(value, wanted) \
	do { \
		long is_ = (long)(value), wanted_ = (long)(wanted); \
		if (is_ != wanted_) \
			BAD("%s is %ld (%#lx), not %ld", #value, is_, is_, wanted_); \
	} while (0)

/* Time in milliseconds within which jumps are written, on the busiest machine. */
#define PATIENCE 300000

/* Waits until something is so, which another thread or process does: its test kills this program if it
 * never is. */
#define UNTIL(condition) \
	do { \
		while (!(condition)) \
			usleep(500); \
	} while (0)

/* Number of rounds: in `make test`, in the soak, and in the long form of a test. */
__attribute__((unused)) static int rounds(int test, int soak, int long_form)
{
	const char *is_long = getenv("CAPRIOLE_LONG"), *is_soak = getenv("CAPRIOLE_SOAK");
	if (is_long && !strcmp(is_long, "1"))
		return long_form;
	return is_soak && !strcmp(is_soak, "1") ? soak : test;
}

/* For threads that call while probes come and go: they rest in `make test`, not in the soak. */
__attribute__((unused)) static void rest_unless_soak(void)
{
	static __thread uint64_t round;
	static __thread int rests;
	if (!round++)
		rests = rounds(1, 0, 0);
	if (rests)
		rest(round);
}

struct part {
	const char *name;
	void (*run)(void);
};

__attribute__((unused)) static int run_parts(const struct part *parts, int argc, char **argv)
{
	CHECK(argc > 1);
	for (; parts->name; parts++) {
		if (strcmp(parts->name, argv[1]))
			continue;
		parts->run();
		printf("ok %s\n", argv[1]);
		return 0;
	}
	BAD("there is no part %s", argv[1]);
}

/* True if a mapping has this in its name. */
__attribute__((unused)) static int is_mapped(const char *name)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int found = 0;
	CHECK(maps);
	while (fgets(line, sizeof line, maps))
		found |= strstr(line, name) != NULL;
	fclose(maps);
	return found;
}

/* Checks a probe's state, and that its reason contains a text. */
__attribute__((unused)) static void is_in_state(struct capriole_probe *probe, int wanted, const char *text)
{
	char why[1024];
	int state = capriole_probe_status(probe, why, sizeof why);
	if (state != wanted || !strstr(why, text))
		BAD("state %d (%s), not %d (%s)", state, state < 0 ? capriole_error() : why, wanted, text);
}

/* Waits until a probe is in by a jump. */
__attribute__((unused)) static void optimize(struct capriole_probe *probe)
{
	IS(capriole_optimize(PATIENCE), 0);
	is_in_state(probe, CAPRIOLE_OPTIMIZED, "");
}

#endif
