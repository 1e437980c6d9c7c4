/* A program that was bound to two versions of a function, and calls the old one twice as often. It ends by saying
 * "ok calls=N". */
#include "common.h"

#define CALLS 100

extern int sum(int a, int n);
extern int first_sum(int a, int n);
__asm__(".symver first_sum, sum@V1");

int main(void)
{
	for (int i = 0; i < CALLS; i++) {
		CHECK(sum(i, 3) == (int)mix((uint64_t)i) - 3);
		CHECK(first_sum(i, 5) == (int)mix((uint64_t)i) + 5);
		CHECK(first_sum(i, 7) == (int)mix((uint64_t)i) + 7);
	}
	printf("ok calls=%d\n", 3 * CALLS);
	return 0;
}
