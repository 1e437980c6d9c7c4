/*
 * Two functions that jump to each other, down to 0; the first call waits. Says how many times what
 * followed the wait took less than 4 ms.
 */
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

static double waited;

static double now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

__attribute__((noipa)) long even(long n, long waits)
{
	if (waits) {
		struct timespec pause = { 0, 5000000 };
		nanosleep(&pause, NULL);
		waited = now_ms();
	}
	if (n == 0)
		return 222;
	return odd(n - 1, 0);
}

int main(int argc, char **argv)
{
	long from = argc > 1 ? atol(argv[1]) : 4, sum = 0, quick = 0;

	for (int i = 0; i < 10; i++) {
		sum += even(from, 1);
		/* Less a tenth, by which clocks may differ. */
		quick += now_ms() - waited < 3.6;
	}
	printf("quick %ld\n", quick);
	puts(sum == (from % 2 ? 1110 : 2220) ? "ok jumps" : "wrong");
	return 0;
}
