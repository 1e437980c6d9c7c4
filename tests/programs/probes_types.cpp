/*
 * The macros that check types, in C++: `noexcept` may differ, all else may not. WRONG selects a call that
 * must not compile.
 */
#include "probes.h"

#include <stdlib.h>

static long long (*original)(long long);
static int (*original_print)(const char *, ...);
static long wrong(long n)
{
	return n;
}

static long long negative(long long n)
{
	return -original(n);
}

static volatile long long seen;
static long long see(long long n)
{
	seen = n;
	return 0;
}

static int prints(const char *format, ...)
{
	(void)format;
	return -1;
}

int main()
{
	struct capriole_replacement r = {}, print = {};
	struct capriole_argument_probe p = {}, of_print = {};
	long long (*volatile llabs_)(long long) = llabs;
	CAPRIOLE_REPLACE(&r, llabs, negative, &original);
	CAPRIOLE_ARGUMENT_PROBE(&p, llabs, see);
	CAPRIOLE_REPLACE(&print, printf, prints, &original_print);
	CAPRIOLE_ARGUMENT_PROBE(&of_print, printf, prints);
#if __cplusplus >= 201703L
	static long long (*with_noexcept)(long long) noexcept;
	CAPRIOLE_REPLACE(&r, &llabs, negative, &with_noexcept);
	CAPRIOLE_REPLACE(&r, &llabs, negative, &original);
#endif
#if WRONG == 1
	CAPRIOLE_REPLACE(&r, llabs, wrong, &original);
#elif WRONG == 2
	static long (*other)(long);
	CAPRIOLE_REPLACE(&r, llabs, negative, &other);
#elif WRONG == 3
	CAPRIOLE_ARGUMENT_PROBE(&p, llabs, wrong);
#elif WRONG == 4
	CAPRIOLE_ARGUMENT_PROBE(&p, printf, see);
#endif
	OK(capriole_argument_probe_register(&p));
	IS(llabs_(-3), 3);
	IS(seen, -3);
	OK(capriole_argument_probe_unregister(&p));
	OK(capriole_replace(&r));
	IS(llabs_(-4), -4);
	OK(capriole_restore(&r));
	IS(llabs_(-5), 5);
	IS(seen, -3);
	CHECK(wrong(1) == 1);
	printf("ok\n");
	return 0;
}
