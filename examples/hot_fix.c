/*
 * A hot fix: a wrong function of the running program is replaced by a right one, which asks the wrong
 * one where that is right; and the replacement is taken off again.
 *
 *   cc -O2 -g -o hot_fix hot_fix.c $(pkg-config --cflags --libs capriole)
 */
#include <capriole/probe.h>
#include <stdio.h>

/* Forgets that 1900 and 2100 are no leap years. */
__attribute__((noinline, noclone)) int days_of_february(int year)
{
	__asm__ volatile("");
	return year % 4 == 0 ? 29 : 28;
}

static int (*original)(int year);

static int fixed(int year)
{
	return year % 100 == 0 && year % 400 != 0 ? 28 : original(year);
}

static void show(const char *when)
{
	static const int years[] = { 1900, 2000, 2023, 2024, 2100 };
	printf("%-9s", when);
	for (int i = 0; i < 5; i++)
		printf("  %d: %d", years[i], days_of_february(years[i]));
	printf("\n");
}

int main(void)
{
	struct capriole_replacement fix = { 0 };
	/* Does not compile if one of the three has another type. */
	CAPRIOLE_REPLACE(&fix, days_of_february, fixed, &original);
	show("before");
	if (capriole_replace(&fix) < 0) {
		fprintf(stderr, "%s\n", capriole_error());
		return 1;
	}
	show("fixed");
	if (capriole_restore(&fix) < 0) {
		fprintf(stderr, "%s\n", capriole_error());
		return 1;
	}
	show("restored");
	return 0;
}
