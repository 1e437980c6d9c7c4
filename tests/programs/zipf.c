/* Calls a function with many keys, of which few are frequent, and says how often with each:
 *
 *   zipf [--wait] THREADS CALLS FLOOD
 *
 * First FLOOD keys that come once each: 1000000, 1000001, ... Then each thread makes CALLS calls,
 * with keys below 20000; key k is chosen with a probability proportional to 1 / (k + 1). The
 * second argument is a number below 1000 that the key determines. With odd keys it calls another
 * function, too. At the end there is a line with
 * "KEY CALLS" for each key below 20000, and "ok". With --wait it waits for a line before the calls,
 * and for another one at the end. */
#include "common.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEYS 20000

static long calls;
static unsigned long below[KEYS]; /* sums of weights */
static long counts[64][KEYS];

/* Room for a jump at the entry and at the exit. */
#define ROOM __asm__ volatile("nopl 0(%rax,%rax,1); nopl 0(%rax,%rax,1)")

PROBED long zipf_call(long key, long size, const char *name)
{
	ROOM;
	__asm__ volatile("" : : "r"(key), "r"(size), "r"(name) : "memory");
	ROOM;
	return key;
}

PROBED long zipf_odd(long key)
{
	ROOM;
	__asm__ volatile("" : : "r"(key) : "memory");
	return key;
}

static void call(long key)
{
	char name[32];
	snprintf(name, sizeof name, "key-%ld", key);
	zipf_call(key, key * 7 % 1000, name);
	if (key % 2)
		zipf_odd(key);
}

static void *thread(void *argument)
{
	long number = (long)argument;
	unsigned long state = (unsigned long)number * 0x9e3779b97f4a7c15 + 1;
	for (long n = 0; n < calls; n++) {
		/* Marsaglia's xorshift64. */
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		unsigned long point = (state >> 11) % below[KEYS - 1];
		long low = 0, high = KEYS - 1;
		while (low < high) {
			long middle = (low + high) / 2;
			if (below[middle] > point)
				high = middle;
			else
				low = middle + 1;
		}
		counts[number][low]++;
		call(low);
	}
	return 0;
}

int main(int argc, char **argv)
{
	char line[16];
	int wait = argc > 1 && !strcmp(argv[1], "--wait");
	argv += wait;
	argc -= wait;
	long threads = argc > 1 ? atol(argv[1]) : 1;
	calls = argc > 2 ? atol(argv[2]) : 1000;
	long flood = argc > 3 ? atol(argv[3]) : 0;
	unsigned long sum = 0;
	for (long k = 0; k < KEYS; k++)
		below[k] = sum += 1000000000 / (k + 1);
	if (threads > 64)
		return 1;
	if (wait) {
		printf("ready %d\n", getpid());
		fflush(stdout);
		if (!fgets(line, sizeof line, stdin))
			return 1;
	}
	for (long n = 0; n < flood; n++)
		call(1000000 + n);
	pthread_t all[64];
	for (long t = 0; t < threads; t++)
		if (pthread_create(&all[t], 0, thread, (void *)t))
			return 1;
	for (long t = 0; t < threads; t++)
		pthread_join(all[t], 0);
	for (long k = 0; k < KEYS; k++) {
		long count = 0;
		for (long t = 0; t < threads; t++)
			count += counts[t][k];
		if (count)
			printf("%ld %ld\n", k, count);
	}
	printf("ok\n");
	fflush(stdout);
	if (wait && !fgets(line, sizeof line, stdin))
		return 1;
	return 0;
}
