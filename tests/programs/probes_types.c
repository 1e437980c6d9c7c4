/* The macros that check types, with functions that have attributes. WRONG selects a mistake. */
#include "probes.h"

static long called;

static int other_abs(int n)
{
	called++;
	return n < 0 ? -n : n;
}

static void sees_abs_as_handler(int n)
{
	(void)n;
}

static int sees_abs(int n)
{
	called += n == -7;
	return 0;
}

static void other_exit(int status)
{
	called += status;
}

static long other_type(int n)
{
	return n;
}

static int other_parameter(long n)
{
	return (int)n;
}

static int (*original)(int);
static long (*wrong_original)(int);
static void (*original_exit)(int);

int main(void)
{
	static struct capriole_argument_probe at_abs;
	static struct capriole_replacement of_abs, of_exit;
	int (*volatile function)(int) = abs;
	CAPRIOLE_ARGUMENT_PROBE(&at_abs, abs, sees_abs);
	CAPRIOLE_REPLACE(&of_abs, abs, other_abs, &original);
	CAPRIOLE_REPLACE(&of_abs, &abs, &other_abs, &original);
	CAPRIOLE_REPLACE(&of_exit, exit, other_exit, &original_exit);
#if WRONG == 1
	CAPRIOLE_REPLACE(&of_abs, abs, other_type, &original);
#elif WRONG == 2
	CAPRIOLE_REPLACE(&of_abs, abs, other_parameter, &original);
#elif WRONG == 3
	CAPRIOLE_REPLACE(&of_abs, abs, other_abs, &wrong_original);
#elif WRONG == 4
	CAPRIOLE_ARGUMENT_PROBE(&at_abs, abs, sees_abs_as_handler);
#endif
	(void)other_type, (void)other_parameter, (void)wrong_original, (void)sees_abs_as_handler;
	OK(capriole_argument_probe_register(&at_abs));
	IS(function(-7), 7);
	IS(called, 1);
	OK(capriole_argument_probe_unregister(&at_abs));
	OK(capriole_replace(&of_abs));
	IS(function(-5), 5);
	IS(called, 2);
	OK(capriole_restore(&of_abs));
	printf("ok types\n");
	return 0;
}
