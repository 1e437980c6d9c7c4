/* A library with two versions of a function. */
#include "common.h"

int old_sum(int a, int n);
int new_sum(int a, int n);

PROBED int old_sum(int a, int n)
{
	return (int)mix((uint64_t)a) + n;
}

PROBED int new_sum(int a, int n)
{
	return (int)mix((uint64_t)a) - n;
}

__asm__(".symver old_sum, sum@V1");
__asm__(".symver new_sum, sum@@V2");
