/*
 * A process that ends soon, while its threads work:
 *
 *   exit_race [--after-us N] [--how return|exit|thread|last-thread|kill|abort]
 *
 * `return`: from main; `exit`: _exit in main; `thread`: exit in another thread;
 * `last-thread`: main leaves by pthread_exit, the process ends with its last thread;
 * `kill` and `abort`: by SIGKILL, SIGABRT. But for the last two the exit status is 7,
 * or 1 after "BAD ..." if a call went wrong. Prints "ready PID" first and nothing later.
 */
#include "common.h"

#include <pthread.h>

PROBED uint64_t race_work(uint64_t thread, uint64_t seq)
{
	return mix(thread + 3) + seq;
}

static const char *how = "return";
static long after_us = 1000;
static volatile int stop;

static void *run(void *argument)
{
	uint64_t thread = (uint64_t)(uintptr_t)argument;
	uint64_t end = now_ns() + (uint64_t)after_us * 1000;
	for (uint64_t seq = 0; !stop; seq++) {
		uint64_t got = race_work(thread, seq);
		if (got != mix(thread + 3) + seq)
			BAD("thread %llu seq %llu: got %llx", (unsigned long long)thread,
			    (unsigned long long)seq, (unsigned long long)got);
		if (thread == 0 && !strcmp(how, "thread") && now_ns() >= end)
			exit(7);
		if (thread == 0 && !strcmp(how, "last-thread") && now_ns() >= end) {
			stop = 1;
			usleep(1000); /* the others go first, or not */
			exit(7);
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--after-us"))
			after_us = atol(argv[i + 1]);
		else if (!strcmp(argv[i], "--how"))
			how = argv[i + 1];
	}
	ready();
	for (uintptr_t i = 0; i < 4; i++) {
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, run, (void *)i) == 0);
	}
	if (!strcmp(how, "last-thread"))
		pthread_exit(NULL);
	if (!strcmp(how, "thread"))
		for (;;)
			pause();
	uint64_t end = now_ns() + (uint64_t)after_us * 1000;
	for (uint64_t seq = 0; now_ns() < end; seq++)
		race_work(1000, seq);
	if (!strcmp(how, "exit"))
		_exit(7);
	if (!strcmp(how, "kill"))
		kill(getpid(), SIGKILL);
	if (!strcmp(how, "abort"))
		abort();
	return 7;
}
