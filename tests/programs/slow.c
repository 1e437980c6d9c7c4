/* Calls of known durations. Each line of the output is one call: the function, its number, and the
 * time in ns that passed inside it and around it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct span {
	long begin, end;
};

static long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return 1000000000 * time.tv_sec + time.tv_nsec;
}

static void wait_for(long ns)
{
	struct timespec time = { ns / 1000000000, ns % 1000000000 };

	nanosleep(&time, NULL);
}

/* Takes at least `ns`. */
__attribute__((noinline)) int work(int id, const char *name, long ns, struct span *inside)
{
	inside->begin = now();
	if (ns > 0)
		wait_for(ns);
	inside->end = now();
	return id + (name[0] == 's');
}

/* Takes a millisecond for each level. */
__attribute__((noinline)) int deep(int level, struct span *inside)
{
	inside[level].begin = now();
	wait_for(1000000);
	int sum = level > 0 ? deep(level - 1, inside) : 0;
	inside[level].end = now();
	return sum + 1;
}

static void *worker(void *first)
{
	for (int id = (int)(long)first; id < (int)(long)first + 40; id++) {
		struct span inside;
		int slow = id % 4 == 0;
		long before = now();

		work(id, slow ? "slow" : "quick", slow ? 15000000 : id % 4 * 1000, &inside);
		printf("work %d %ld %ld\n", id, inside.end - inside.begin, now() - before);
	}
	return NULL;
}

int main(void)
{
	struct span inside[20];
	pthread_t other;
	long before;

	pthread_create(&other, NULL, worker, (void *)100L);
	worker((void *)0L);
	pthread_join(other, NULL);
	before = now();
	deep(19, inside);
	printf("deep 19 %ld %ld\n", inside[19].end - inside[19].begin, now() - before);
	for (int level = 0; level < 19; level++)
		printf("deep %d %ld %ld\n", level, inside[level].end - inside[level].begin,
		       inside[level + 1].end - inside[level + 1].begin);
	return 0;
}
