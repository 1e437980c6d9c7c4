/* Symbols as compilers make them of one name: copies of a function, and parts of it. */
#include "common.h"

static volatile int sink;

PROBED int helper(int n)
{
	sink = n;
	return n + 1;
}

int isra(int n) __asm__("helper.isra.0");
PROBED int isra(int n)
{
	sink = n + 2;
	return n + 2;
}

int part(int n) __asm__("helper.part.0");
PROBED int part(int n)
{
	sink = n + 3;
	return n + 3;
}

int cold(int n) __asm__("helper.cold");
PROBED int cold(int n)
{
	sink = n + 4;
	return n + 4;
}

PROBED int helper_of_another_name(int n)
{
	sink = n + 5;
	return n + 5;
}

int main(void)
{
	int sum = 0;
	for (int i = 0; i < 10; i++)
		sum += helper(i) + isra(i) + part(i) + cold(i) + helper_of_another_name(i);
	printf("ok sum=%d\n", sum);
	return 0;
}
