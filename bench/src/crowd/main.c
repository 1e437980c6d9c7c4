/* Calls all functions of the crowd in turn, in several threads, and checks what they
   return. Lines on standard input:

   go       the threads call                          ok
   quiet    they pause                                ok ROUNDS
   check    has any of them ever got a wrong sum?     ok SUM | error
   time N   calls crowd_measured N times, here        ok NANOSECONDS

   ROUNDS is how often a thread has called the whole crowd so far. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef long function(long, long);
extern function *const crowd_table[];
extern const long crowd_size;
extern function crowd_measured;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int running, busy;
static atomic_int stop;
static atomic_long rounds, wrong;
static unsigned long expected;

static unsigned long call_all(int may_stop)
{
	unsigned long sum = 0;
	for (long i = 0; i < crowd_size; i++) {
		sum = sum * 31 + (unsigned long)crowd_table[i](i & 15, i);
		if (may_stop && i % 256 == 0 && atomic_load_explicit(&stop, memory_order_relaxed))
			return expected;
	}
	atomic_fetch_add(&rounds, 1);
	return sum;
}

static void *work(void *unused)
{
	for (;;) {
		pthread_mutex_lock(&lock);
		while (!running)
			pthread_cond_wait(&changed, &lock);
		busy++;
		pthread_mutex_unlock(&lock);
		while (!atomic_load(&stop))
			if (call_all(1) != expected)
				atomic_fetch_add(&wrong, 1);
		pthread_mutex_lock(&lock);
		busy--;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
	}
	return unused;
}

static void run(int on)
{
	pthread_mutex_lock(&lock);
	running = on;
	atomic_store(&stop, !on);
	pthread_cond_broadcast(&changed);
	while (!on && busy)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

static long nanoseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000L + now.tv_nsec;
}

/* Only the thread that measures stays on one processor, the last. */
static void stay(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof set, &set))
		return;
	for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--)
		if (CPU_ISSET(cpu, &set)) {
			CPU_ZERO(&set);
			CPU_SET(cpu, &set);
			sched_setaffinity(0, sizeof set, &set);
			return;
		}
}

int main(int argc, char **argv)
{
	long threads = argc > 1 ? atol(argv[1]) : 1;
	char line[64];
	expected = call_all(0);
	for (long i = 0; i < threads; i++) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, work, NULL)) {
			puts("error no threads");
			return 1;
		}
	}
	stay();
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ok");
	while (fgets(line, sizeof line, stdin)) {
		if (!strcmp(line, "go\n")) {
			run(1);
			puts("ok");
		} else if (!strcmp(line, "quiet\n")) {
			run(0);
			printf("ok %ld\n", atomic_load(&rounds));
		} else if (!strcmp(line, "check\n")) {
			unsigned long sum = call_all(0);
			if (sum != expected || atomic_load(&wrong))
				puts("error a function has returned something wrong");
			else
				printf("ok %lu\n", sum);
		} else if (!strncmp(line, "time ", 5)) {
			long calls = atol(line + 5), begun = nanoseconds();
			for (long i = 0; i < calls; i++)
				crowd_measured(i, calls - i);
			printf("ok %ld\n", nanoseconds() - begun);
		} else {
			puts("error no such command");
		}
	}
	return 0;
}
