/*
 * Calls as often as it is told, while its recorder comes and goes.
 *
 * Answers each line "THREADS CALLS PAUSE", once all is done, with "done": as many new threads,
 * each with a number of its own, call `saved_work` so often with (thread, seq, text), and sleep
 * so many microseconds behind each call. `fork` in place of a line forks a child that calls as
 * thread 1000, 100 times, 1 ms apart, and then sleeps until its parent is gone; `join` waits until it
 * has called.
 */
#include "common.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define MAX_THREADS 64

PROBED uint64_t saved_work(uint64_t thread, uint64_t seq, const char *text)
{
	return mix(thread ^ seq) + (unsigned char)text[0];
}

static uint64_t first;
static int calls, pause_us;

static void call(uint64_t thread, uint64_t seq)
{
	char text[32];
	snprintf(text, sizeof text, "%llu:%llu", (unsigned long long)thread, (unsigned long long)seq);
	if (saved_work(thread, seq, text) != mix(thread ^ seq) + (unsigned char)text[0])
		BAD("call %llu went wrong", (unsigned long long)seq);
	if (pause_us)
		usleep((useconds_t)pause_us);
}

static void *run(void *argument)
{
	for (int i = 0; i < calls; i++)
		call(first + (uint64_t)(uintptr_t)argument, (uint64_t)i);
	return NULL;
}

int main(void)
{
	char line[256];
	int called[2];
	CHECK(pipe(called) == 0);
	ready();
	while (fgets(line, sizeof line, stdin)) {
		int threads;
		pthread_t pool[MAX_THREADS];
		if (!strcmp(line, "fork\n")) {
			pid_t parent = getpid();
			if (fork() == 0) {
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				pause_us = 1000;
				for (uint64_t i = 0; i < 100; i++)
					call(1000, i);
				CHECK(write(called[1], "", 1) == 1);
				while (getppid() == parent)
					usleep(10000);
				_exit(0);
			}
			printf("done\n");
			fflush(stdout);
			continue;
		}
		if (!strcmp(line, "join\n")) {
			CHECK(read(called[0], line, 1) == 1);
			printf("done\n");
			fflush(stdout);
			continue;
		}
		CHECK(sscanf(line, "%d %d %d", &threads, &calls, &pause_us) == 3);
		CHECK(threads >= 1 && threads <= MAX_THREADS);
		for (int i = 0; i < threads; i++)
			CHECK(pthread_create(&pool[i], NULL, run, (void *)(uintptr_t)i) == 0);
		for (int i = 0; i < threads; i++)
			CHECK(pthread_join(pool[i], NULL) == 0);
		first += (uint64_t)threads;
		printf("done\n");
		fflush(stdout);
	}
	printf("ok threads=%llu\n", (unsigned long long)first);
	return 0;
}
