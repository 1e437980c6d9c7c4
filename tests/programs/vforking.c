/*
 * A thread that makes children by vfork, which live for long, and others that work: none of
 * them may stand still because that one cannot be stopped.
 *
 *   vforking SECONDS   children that live for so long
 *   vforking held      one child, which lives until the line "go", answered by "gone"
 *
 * "ready PID" comes when a first child lives. The line "tick" is answered by "ticked" when another
 * thread has worked 100 times since. The end of the input ends it: "ok MILLISECONDS", the longest
 * that a thread did not run. (On a busy machine that is not always somebody's doing.)
 */
#include "common.h"

#include <pthread.h>
#include <sys/wait.h>

static volatile int ending, children, held;
static int held_by[2];
static long seconds = 2;
static long long longest;
static volatile uint64_t work_done, ticks;

PROBED uint64_t work(uint64_t x) { return mix(x) + 1; }

static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void *make_children(void *unused)
{
	(void)unused;
	while (!ending) {
		children++;
		pid_t child = vfork();
		if (child == 0) {
			const struct timespec t = { .tv_sec = seconds };
			nanosleep(&t, NULL);
			_exit(0);
		}
		if (child < 0)
			BAD("vfork");
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
			;
		work_done += work(children);
		/* It can be stopped for so long. */
		usleep(20000);
	}
	return NULL;
}

/* In the memory of its parent. */
static void *make_held_child(void *unused)
{
	pid_t child = vfork();
	if (child == 0) {
		char byte;
		held = 1;
		while (read(held_by[0], &byte, 1) < 0 && errno == EINTR)
			;
		_exit(0);
	}
	if (child < 0)
		BAD("vfork");
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
	return unused;
}

static void *tick(void *unused)
{
	(void)unused;
	long long before = now();
	while (!ending) {
		usleep(500);
		work_done += work(before);
		ticks++;
		long long t = now();
		if (t - before > longest)
			longest = t - before;
		before = t;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t maker, ticker;
	int holds = argc > 1 && !strcmp(argv[1], "held");
	if (argc > 1)
		seconds = atoi(argv[1]);
	CHECK(pipe(held_by) == 0);
	pthread_create(&maker, NULL, holds ? make_held_child : make_children, NULL);
	pthread_create(&ticker, NULL, tick, NULL);
	while (holds ? !held : !children)
		usleep(1000);
	usleep(50000);
	printf("ready %d\n", (int)getpid());
	fflush(stdout);
	char line[64];
	while (fgets(line, sizeof line, stdin)) {
		int go = !strcmp(line, "go\n");
		uint64_t until = ticks + 100;
		if (go)
			CHECK(write(held_by[1], "x", 1) == 1);
		while (!go && ticks < until)
			usleep(1000);
		puts(go ? "gone" : "ticked");
		fflush(stdout);
	}
	ending = 1;
	pthread_join(ticker, NULL);
	pthread_join(maker, NULL);
	printf("ok %lld\n", longest / 1000000);
	return 0;
}
