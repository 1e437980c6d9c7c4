/*
 * Functions that need more than their name in a table: `rows [COUNT] [MICROSECONDS]`, 40 and 0
 * without. Each is called COUNT times, with a pause between rounds, then the program prints
 * "ok rows=COUNT". With a pause it begins with "ready PID".
 */
#include "common.h"

#include <setjmp.h>

struct request {
	int64_t size;
	int kind;
};

static jmp_buf back;
static volatile int rounds;

/* Reads its argument. */
PROBED int64_t taken(struct request *request)
{
	rounds += 0;
	return request->size;
}

/* Is long enough for a jump in front of both its exits. */
PROBED int halved(int x)
{
	if (x & 1) {
		rounds += 0;
		return x / 2 + 1000000;
	}
	rounds -= 0;
	return x / 2 + 2000000;
}

/* Never returns. */
PROBED int left(int x)
{
	rounds += 0;
	if (x >= 0)
		longjmp(back, 1);
	rounds -= 0;
	return x + 3000000;
}

/* Returns from each fourth call. */
PROBED int mostly(int x)
{
	rounds += 0;
	if (x % 4)
		longjmp(back, 1);
	rounds -= 0;
	return x + 4000000;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 40;
	useconds_t pause = argc > 2 ? (useconds_t)atoi(argv[2]) : 0;
	if (pause)
		ready();
	volatile int64_t sum = 0;
	volatile int i;
	for (i = 0; i < count; i++) {
		struct request request = {i * 10, i % 2};
		sum += taken(&request) + halved(i);
		if (!setjmp(back))
			sum += left(i);
		if (!setjmp(back))
			sum += mostly(i);
		if (pause)
			usleep(pause);
	}
	printf("ok rows=%d\n", count);
	return sum == 0;
}
