/* Two functions that jump to each other, down to 0; the first call waits. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

__attribute__((noipa)) long even(long n, long waits);

__attribute__((noipa)) long odd(long n, long waits)
{
	if (n == 0)
		return 111;
	return even(n - 1, waits);
}

__attribute__((noipa)) long even(long n, long waits)
{
	if (waits) {
		struct timespec pause = { 0, 5000000 };
		nanosleep(&pause, NULL);
	}
	if (n == 0)
		return 222;
	return odd(n - 1, 0);
}

int main(int argc, char **argv)
{
	long from = argc > 1 ? atol(argv[1]) : 4, sum = 0;

	for (int i = 0; i < 10; i++)
		sum += even(from, 1);
	puts(sum == (from % 2 ? 1110 : 2220) ? "ok jumps" : "wrong");
	return 0;
}
