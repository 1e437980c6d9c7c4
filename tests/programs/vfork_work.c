/*
 * Children that share their parent's memory and thread structure (vfork, posix_spawn), and
 * threads that have just been made, work while other threads do: on every CPU somebody is
 * interrupted all the time. vfork_work [children [calls of each]]
 *
 * While each child works, each of those threads makes as many calls as the child.
 */
#include "common.h"

#include <pthread.h>
#include <spawn.h>
#include <sched.h>
#include <sys/wait.h>

#define BUSY 4

extern char **environ;

static volatile int stop;
static volatile uint64_t allowed;

/* Works for `who`, for the seq-th time. Returns seq. */
PROBED uint64_t vfork_work(uint64_t who, uint64_t seq);
uint64_t vfork_work(uint64_t who, uint64_t seq)
{
	return seq ^ (who - who);
}

static void *busy(void *argument)
{
	uint64_t who = (uint64_t)(uintptr_t)argument;
	uint64_t seq = 0;
	while (!stop || seq < allowed) {
		if (seq == allowed) {
			sched_yield();
			continue;
		}
		CHECK(vfork_work(who, seq) == seq);
		seq++;
	}
	return (void *)(uintptr_t)seq;
}

/* What a child of vfork may do: no more than this. */
static void child_of_vfork(uint64_t who, uint64_t calls)
{
	pid_t child = vfork();
	if (child == 0) {
		for (uint64_t seq = 0; seq < calls; seq++)
			vfork_work(who, seq);
		_exit(7);
	}
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

int main(int count, char **words)
{
	uint64_t children = count > 1 ? strtoul(words[1], NULL, 10) : 20;
	uint64_t calls = count > 2 ? strtoul(words[2], NULL, 10) : 1000;
	pthread_t threads[BUSY];
	ready();
	for (uintptr_t i = 0; i < BUSY; i++)
		CHECK(pthread_create(&threads[i], NULL, busy, (void *)i) == 0);
	for (uint64_t i = 0; i < children; i++) {
		allowed += calls;
		child_of_vfork(100 + i, calls);
		char *words_of_true[] = { "true", NULL };
		pid_t child;
		int status;
		CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, words_of_true, environ) == 0);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	stop = 1;
	printf("ok children=%llu calls=%llu", (unsigned long long)children, (unsigned long long)calls);
	for (int i = 0; i < BUSY; i++) {
		void *done;
		CHECK(pthread_join(threads[i], &done) == 0);
		printf(" busy=%llu", (unsigned long long)(uintptr_t)done);
	}
	printf("\n");
	return 0;
}
