/*
 * Two threads, on a CPU each where there are two, that take turns: `handover ROUNDS`.
 * handover_taken(n) is called for n from 0 on, by one thread after the other, each only when
 * the one before is over: "ok".
 */
#include "common.h"

#include <pthread.h>
#include <sched.h>

static _Alignas(64) unsigned long turn;
static unsigned long rounds;

PROBED void handover_taken(unsigned long n)
{
	__asm__ volatile("" : : "r"(n) : "memory");
}

static void *take(void *number)
{
	unsigned long own = (unsigned long)number;
	cpu_set_t allowed, one;
	CHECK(!sched_getaffinity(0, sizeof allowed, &allowed));
	if (CPU_COUNT(&allowed) > 1) {
		unsigned long skip = own;
		int cpu = 0;
		while (!CPU_ISSET(cpu, &allowed) || skip--)
			cpu++;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		CHECK(!sched_setaffinity(0, sizeof one, &one));
	}
	for (unsigned long n = own; n < rounds; n += 2) {
		/* The other one may be waiting for its processor: then somebody else can have this one. */
		for (int tries = 1; __atomic_load_n(&turn, __ATOMIC_ACQUIRE) != n; tries++)
			if (CPU_COUNT(&allowed) < 2 || tries % 10000 == 0)
				sched_yield();
		handover_taken(n);
		__atomic_store_n(&turn, n + 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

int main(int count, char **words)
{
	CHECK(count == 2);
	rounds = strtoul(words[1], NULL, 0);
	pthread_t other;
	CHECK(!pthread_create(&other, NULL, take, (void *)1));
	take((void *)0);
	CHECK(!pthread_join(other, NULL));
	puts("ok");
	return 0;
}
