/*
 * A thread that gets no processor: it may run on one only, which a process of the class for real time
 * keeps. The other thread, which answers each line "tick" with "ticked", must not stand still for it.
 *
 * "ready PID", then "starved", or "skipped: REASON". The end of the input ends it: "ok".
 */
#include "common.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static volatile int ending;
static volatile uint64_t work_done;

PROBED uint64_t work(uint64_t x) { return mix(x) + 1; }

static void run_on(const cpu_set_t *cpus)
{
	CHECK(sched_setaffinity(0, sizeof *cpus, cpus) == 0);
}

static void *starve(void *cpu)
{
	run_on(cpu);
	while (!ending)
		work_done += work(1);
	return NULL;
}

/* Keeps a processor, but for what the kernel leaves to others: a twentieth of each second. */
static pid_t start_keeper(const cpu_set_t *cpu)
{
	int ready[2];
	char byte;
	CHECK(pipe(ready) == 0);
	pid_t keeper = fork();
	CHECK(keeper >= 0);
	if (keeper == 0) {
		const struct sched_param first = { .sched_priority = 1 };
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run_on(cpu);
		if (sched_setscheduler(0, SCHED_FIFO, &first) != 0)
			_exit(1);
		CHECK(write(ready[1], "x", 1) == 1);
		/* Nobody else could end a test that hangs. */
		alarm(100);
		for (;;)
			;
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) == 1)
		return keeper;
	waitpid(keeper, NULL, 0);
	return 0;
}

int main(void)
{
	cpu_set_t all, one;
	pthread_t thread;
	pid_t keeper = 0;
	int cpu = CPU_SETSIZE - 1;
	CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
	while (!CPU_ISSET(cpu, &all))
		cpu--;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	CPU_CLR(cpu, &all);
	printf("ready %d\n", (int)getpid());
	if (CPU_COUNT(&all) == 0) {
		puts("skipped: there is one processor only");
	} else {
		run_on(&all);
		keeper = start_keeper(&one);
		if (keeper)
			CHECK(pthread_create(&thread, NULL, starve, &one) == 0);
		puts(keeper ? "starved" : "skipped: no real-time scheduling is permitted here");
	}
	fflush(stdout);
	char line[64];
	while (fgets(line, sizeof line, stdin)) {
		work_done += work(2);
		puts("ticked");
		fflush(stdout);
	}
	ending = 1;
	if (keeper) {
		kill(keeper, SIGKILL);
		waitpid(keeper, NULL, 0);
		pthread_join(thread, NULL);
	}
	printf("ok %llu\n", (unsigned long long)work_done);
	return 0;
}
