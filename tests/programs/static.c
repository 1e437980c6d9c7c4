/*
 * For C libraries and ways of linking: `static [--threads N] [--seconds S] [--calls N]`. Uses
 * nothing but what every libc has; build with glibc or musl, -static, -static-pie or not.
 * Threads call `static_work(thread, seq, check)`, which calls the C library, and
 * `static_leaf(thread, seq)`. Ends like hammer.
 */
#include "common.h"

#include <pthread.h>

#define MAX_THREADS 64

PROBED uint64_t static_leaf(uint64_t thread, uint64_t seq)
{
	return mix(thread + 7) ^ seq;
}

PROBED uint64_t static_work(uint64_t thread, uint64_t seq, uint64_t check)
{
	char text[64];
	snprintf(text, sizeof text, "%llu", (unsigned long long)(seq ^ check));
	return strtoull(text, NULL, 10) + thread + static_leaf(thread, seq);
}

static int threads = 2;
static volatile int stop;
static uint64_t most;
static uint64_t calls_of[MAX_THREADS];
static __thread uint64_t own = 1234; /* thread-local storage goes on to work */

static void *run(void *argument)
{
	uint64_t thread = (uint64_t)(uintptr_t)argument, seq = 0;
	for (; most ? seq < most : !stop; seq++) {
		uint64_t check = mix(seq);
		uint64_t got = static_work(thread, seq, check);
		if (got != (seq ^ check) + thread + (mix(thread + 7) ^ seq))
			BAD("thread %llu seq %llu: got %llx", (unsigned long long)thread,
			    (unsigned long long)seq, (unsigned long long)got);
		own += seq;
	}
	if (own != 1234 + (seq ? seq * (seq - 1) / 2 : 0))
		BAD("thread-local storage of thread %llu is wrong", (unsigned long long)thread);
	calls_of[thread] = seq;
	return NULL;
}

int main(int argc, char **argv)
{
	double seconds = 0;
	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--threads"))
			threads = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--seconds"))
			seconds = atof(argv[i + 1]);
		else if (!strcmp(argv[i], "--calls"))
			most = strtoull(argv[i + 1], NULL, 10);
	}
	if (threads < 1 || threads > MAX_THREADS)
		return 2;
	stop_on_sigterm();
	pthread_t pool[MAX_THREADS];
	for (int i = 0; i < threads; i++)
		CHECK(pthread_create(&pool[i], NULL, run, (void *)(uintptr_t)i) == 0);
	ready();
	if (!most)
		wait_for_stop(seconds);
	stop = 1;
	uint64_t sum = 0;
	for (int i = 0; i < threads; i++) {
		CHECK(pthread_join(pool[i], NULL) == 0);
		printf("thread %d calls %llu\n", i, (unsigned long long)calls_of[i]);
		sum += calls_of[i];
	}
	printf("ok calls=%llu\n", (unsigned long long)sum);
	return 0;
}
