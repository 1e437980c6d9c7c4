/*
 * A marker at many places, with a format of its own at each, which is printed as well.
 *
 *   formats [ROUNDS]
 *
 * Each line of standard output is the text of a marker shop:said, in order. Others:
 * shop:lost has a text that cannot be read, shop:hostile what a terminal would take for commands,
 * and capriole:message is the same each time.
 */
#include "common.h"
#include "notes.h"
#include <capriole/marker.h>
#include <stddef.h>
#include <sys/mman.h>

#define SAY(...) \
	do { \
		printf(__VA_ARGS__); \
		puts(""); \
		CAPRIOLE_MARK(shop, said, __VA_ARGS__); \
	} while (0)

enum taste { SWEET, SOUR = -2 };

static void say(int round, const char *name)
{
	signed char small = (signed char)(round - 100);
	short less = (short)(round - 1000);
	unsigned char byte = (unsigned char)(250 + round % 3);
	long large = round * -10000000000L;
	unsigned long long huge = ~0ULL - (unsigned)round;
	double took = round * 3.14159;
	float share = (float)round / 7;

	SAY("number=%u path=%s took %.2f ms", (unsigned)round, name, took);
	/* The same types, and another format. */
	SAY("%d apples", round);
	SAY("%d pears", round);
	SAY("no arguments, 100%%");
	SAY("%-8s|%8s|%.2s|%*d|%-*d|", name, name, name, 4 + round % 3, round, 6, round);
	SAY("%.*s|%+.*f|", round % 6, name, round % 4, took);
	SAY("%hhd %hhx %hd %hx %u %x %o", small, small, less, less, less, (unsigned)small, byte);
	SAY("%ld %+ld %#lx %#lo %llu %zu %jd %td", large, large, huge, huge, huge, sizeof name,
	    (intmax_t)large, (ptrdiff_t)round);
	SAY("%e %G %g %A %.3f %10.1f|%-10.1f|", took, took, took / 1e9, took, share, took, took);
	SAY("%c%c %5c|%p %p %i", 'a' + round % 26, 0x41, 'z', (void *)name, (void *)0, SOUR);
	SAY("% d %05d %-5d| %x %X %#o", round, -round, round, round * 1000, round * 1000, 8);
	SAY("%d %d %d %d %d %d %d %d %d %d %d %d", 1, round, 3, round, 5, round, 7, round, 9, round,
	    11, round);
	SAY("%s", name);
}

int main(int argc, char **argv)
{
	static const char *const names[3] = {"tea", "größe", ""};
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	char *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(nowhere != MAP_FAILED);
	for (int round = 0; round < rounds; round++) {
		say(round, names[round % 3]);
		CAPRIOLE_MARK(shop, lost, "%s of %d at %-9s|\n", names[0], round, nowhere);
		CAPRIOLE_MARK(shop, hostile, "[%s]\r%d", "\033[2J\n\x9b\xe2\x80\xae", round);
		capriole_mark_text("what happened");
	}
	return 0;
}
