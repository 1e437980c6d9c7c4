/*
 * Static markers some of whose arguments are constants, of every size, at places of their own
 * and in one marker together with registers.
 *
 *   constants ROUNDS
 *
 * Comes to each marker ROUNDS times. Values depend on the number of the round alone.
 */
#include "common.h"
#include "notes.h"
#include <capriole/marker.h>

const char hello[] = "hello";

/* Of each size the smallest and the largest, signed and unsigned; 32 bits are extended. */
PROBED void sizes(uint64_t round)
{
	SITE("fixed", "sizes", NOTES_NOP5, "0",
	     "-1@$-128 1@$255 -2@$-32768 2@$65535 -4@$-2147483648 4@$4294967295 "
	     "-8@$-9223372036854775808 8@$18446744073709551615 8@$0x7fffffff 8@$0x80000000",
	     "r"(round));
}

/* Floating point numbers, by their bits: 0.5, 2 and -1/1024. */
PROBED void floats(uint64_t round)
{
	SITE("fixed", "floats", NOTES_NOP5, "0",
	     "4f@$0x3f000000 8f@$0x4000000000000000 8f@$0xbf50000000000000", "r"(round));
}

/* Between registers. */
PROBED uint64_t mixed(uint64_t round)
{
	SITE("fixed", "mixed", NOTES_NOP5, "0", "8@%[round] -4@$-5 8@%[other] 8@$0x1122334455667788",
	     [round] "r"(round), [other] "r"(round * 3));
	return round;
}

/* One marker: a constant at one place, a register at the other. */
PROBED uint64_t places(uint64_t round)
{
	SITE("fixed", "places", NOTES_NOP5, "0", "-4@$-7 8@%[round]", [round] "r"(round));
	SITE("fixed", "places", NOTES_NOP5, "0", "-4@%k[kind] 8@$100", [kind] "r"(-(int)(round % 2)));
	return round;
}

/* The text that a constant points to is in memory. */
PROBED uint64_t text(uint64_t round)
{
	SITE("fixed", "text", NOTES_NOP5, "0", "8@$hello 8@%[round]", [round] "r"(round));
	return round;
}

/* As the header has them. */
PROBED uint64_t described(uint64_t round)
{
	const int below = -5;
	const signed char small = -3;
	const unsigned large = 0xfffffff0;
	CAPRIOLE_MARK(fixed, described, "round=%lu line=%d f=%f d=%f small=%hhd c=%c nowhere=%p",
	              round, 4711, 0.5f, -1.0 / 1024, small, 'x', (void *)0x1000);
	return round + large + below;
}

int main(int argc, char **argv)
{
	uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 0, sum = hello[0];
	for (uint64_t round = 0; round < rounds; round++) {
		sizes(round);
		floats(round);
		sum += mixed(round) + places(round) + text(round) + described(round);
	}
	printf("ok sum=%lu\n", (unsigned long)sum);
	return 0;
}
