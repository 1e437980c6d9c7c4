/*
 * More threads than processors: `crowd THREADS CALLS [PAUSE]`. Each thread calls
 * crowd_work(text, n) that often, with a text that is not in its caller's page of the stack, and
 * checks the results. It sleeps PAUSE microseconds after each 16 calls.
 */
#include "common.h"

#include <pthread.h>

static unsigned long calls, pause_us;

PROBED uint64_t crowd_work(const char *text, uint64_t n)
{
	return mix(n) + (uint64_t)text[0];
}

static void *work(void *name)
{
	const char *text = name;
	for (uint64_t n = 0; n < calls; n++) {
		if (crowd_work(text, n) != mix(n) + (uint64_t)text[0])
			BAD("crowd_work(%llu)", (unsigned long long)n);
		if (pause_us && n % 16 == 15)
			usleep(pause_us);
	}
	return NULL;
}

int main(int count, char **words)
{
	CHECK(count == 3 || count == 4);
	unsigned long threads = strtoul(words[1], NULL, 0);
	calls = strtoul(words[2], NULL, 0);
	if (count == 4)
		pause_us = strtoul(words[3], NULL, 0);
	CHECK(threads && threads <= 1024);
	static pthread_t all[1024];
	static char names[1024][32];
	for (unsigned long i = 0; i < threads; i++) {
		snprintf(names[i], sizeof names[i], "thread %lu", i);
		CHECK(!pthread_create(&all[i], NULL, work, names[i]));
	}
	for (unsigned long i = 0; i < threads; i++)
		CHECK(!pthread_join(all[i], NULL));
	printf("ok %lu\n", threads * calls);
	return 0;
}
