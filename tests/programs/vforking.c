/*
 * A thread that makes children by vfork, which live for long, and others that work: none of
 * them may stand still because that one cannot be stopped.
 *
 *   vforking SECONDS
 *
 * "ready PID" comes when a first child lives. The end of the input ends it:
 * "ok MILLISECONDS", the longest that a thread did not run. (On a busy machine that is not
 * always somebody's doing.)
 */
#include "common.h"

#include <pthread.h>
#include <sys/wait.h>

static volatile int ending, children;
static long seconds = 2;
static long long longest;
static volatile uint64_t work_done;

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

static void *tick(void *unused)
{
	(void)unused;
	long long before = now();
	while (!ending) {
		usleep(500);
		work_done += work(before);
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
	if (argc > 1)
		seconds = atoi(argv[1]);
	pthread_create(&maker, NULL, make_children, NULL);
	pthread_create(&ticker, NULL, tick, NULL);
	while (!children)
		usleep(1000);
	usleep(50000);
	printf("ready %d\n", (int)getpid());
	fflush(stdout);
	char c;
	while (read(0, &c, 1) > 0)
		;
	ending = 1;
	pthread_join(ticker, NULL);
	pthread_join(maker, NULL);
	printf("ok %lld\n", longest / 1000000);
	return 0;
}
