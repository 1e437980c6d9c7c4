/* Static functions with parameters that nobody uses: an optimiser drops them, and passes the others in other registers.
 * It ends by saying "ok calls=N". */
#include "common.h"

#define CALLS 100

static volatile uint64_t sink;

__attribute__((noinline)) static uint64_t first_unused(uint64_t unused, uint64_t n, uint64_t sum)
{
	(void)unused;
	sink += n;
	return mix(n) + sum;
}

__attribute__((noinline)) static uint64_t middle_unused(uint64_t n, uint64_t unused, uint64_t sum)
{
	(void)unused;
	sink += n;
	return mix(n) + sum;
}

__attribute__((noinline)) static uint64_t all_used(uint64_t n, double real, uint64_t sum)
{
	sink += n;
	return mix(n) + sum + (uint64_t)real;
}

struct large {
	uint64_t words[4];
};

__attribute__((noinline)) static struct large in_memory(uint64_t n, uint64_t sum)
{
	struct large made = { { n, sum, mix(n), sink } };
	return made;
}

int main(void)
{
	for (uint64_t i = 0; i < CALLS; i++) {
		CHECK(first_unused(77, i, 1000 + i) == mix(i) + 1000 + i);
		CHECK(middle_unused(i, 77, 1000 + i) == mix(i) + 1000 + i);
		CHECK(all_used(i, (double)i, 1000 + i) == mix(i) + 1000 + i + i);
		CHECK(in_memory(i, 1000 + i).words[1] == 1000 + i);
	}
	printf("ok calls=%d\n", 4 * CALLS);
	return 0;
}
