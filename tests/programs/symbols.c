/*
 * Calls a function with addresses of code: `symbols [ROUNDS] [MICROSECONDS]`, 10 and 0 without. In each
 * round symbols_take() gets the addresses of symbols_first(), which nobody calls, of puts() in the C
 * library, and of data. With a pause between rounds it begins with "ready PID"; it ends with "ok".
 */
#include "common.h"

static volatile uint64_t sum;
uint64_t symbols_data = 5;

PROBED uint64_t symbols_first(uint64_t number)
{
	sum += number;
	sum *= 3;
	return sum;
}

PROBED void symbols_take(const void *address)
{
	sum += (uintptr_t)address;
	sum ^= 5;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 10;
	useconds_t pause = argc > 2 ? (useconds_t)atoi(argv[2]) : 0;
	if (pause)
		ready();
	for (int i = 0; i < rounds; i++) {
		symbols_take((const void *)symbols_first);
		symbols_take((const char *)symbols_first + 1);
		symbols_take((const void *)puts);
		symbols_take(&symbols_data);
		if (pause)
			usleep(pause);
	}
	printf("ok\n");
	return 0;
}
