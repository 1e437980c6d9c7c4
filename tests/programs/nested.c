/* Functions whose symbols have a number that the compiler adds to make them unique: nested functions
   of GCC, which get the frame around them in a register of its own, and with -flto-partition=max
   `static` ones. Prints "FUNCTION VALUE" for the first parameter of each call. */

#include <stdio.h>

static volatile int sink;

static __attribute__((noinline, noclone)) int unique(int value, int other)
{
	printf("unique %d\n", value);
	sink = other;
	return value + other;
}

int (*volatile by_pointer)(int, int) = unique;

__attribute__((noinline)) static int around(int base, int count)
{
	__attribute__((noinline)) int nested(int value, int other)
	{
		printf("nested %d\n", value);
		sink = other;
		return value + other + base;
	}
	int sum = 0;

	for (int i = 0; i < count; i++)
		sum += nested(7 * i, i);
	return sum;
}

int main(int argc, char **argv)
{
	(void)argv;
	for (int i = 0; i < 3; i++)
		sink = around(argc, 3) + by_pointer(i, argc);
	return 0;
}
