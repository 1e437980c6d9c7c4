/*
 * Children made by fork, vfork and posix_spawn: `forker [COUNT]` makes COUNT (30) of
 * each in turn. Parent and children call `forker_work(thread, seq)`: the parent as
 * thread 0, seq counting up, once before and once after each child is made; a forked
 * child 100 times as thread 1 + its number; a child of vfork once as thread 1000000,
 * in the parent's memory; an executed one 100 times as thread 2000000. Each verifies
 * its results, and the parent verifies the children's status. Prints "ok children=N".
 */
#include "common.h"

#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

PROBED uint64_t forker_work(uint64_t thread, uint64_t seq)
{
	return mix(thread ^ 5) + mix(seq);
}

static void call(uint64_t thread, uint64_t seq)
{
	uint64_t got = forker_work(thread, seq);
	if (got != mix(thread ^ 5) + mix(seq))
		BAD("thread %llu seq %llu: got %llx", (unsigned long long)thread, (unsigned long long)seq,
		    (unsigned long long)got);
}

static void call_100(uint64_t thread)
{
	for (uint64_t seq = 0; seq < 100; seq++)
		call(thread, seq);
}

static void expect_exit(pid_t child, int code, const char *how)
{
	int status;
	CHECK(child > 0);
	while (waitpid(child, &status, 0) < 0)
		CHECK(errno == EINTR);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != code)
		BAD("a child of %s ended with status %#x", how, status);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "--executed")) {
		call_100(2000000);
		return 44;
	}
	int count = argc > 1 ? atoi(argv[1]) : 30;
	char flag[] = "--executed";
	char *arguments[] = { argv[0], flag, NULL };
	uint64_t seq = 0;
	volatile uint64_t shared = 0; /* written by the children of vfork */
	ready();
	for (int i = 0; i < count; i++) {
		call(0, seq++);
		pid_t child = fork();
		if (child == 0) {
			call_100(1 + (uint64_t)i);
			_exit(42);
		}
		expect_exit(child, 42, "fork");
		call(0, seq++);

		call(0, seq++);
		child = vfork();
		if (child == 0) {
			shared += forker_work(1000000, (uint64_t)i) != mix(1000000 ^ 5) + mix((uint64_t)i) ? 1000 : 1;
			if (i % 2)
				execv("/proc/self/exe", arguments);
			_exit(43);
		}
		expect_exit(child, i % 2 ? 44 : 43, "vfork");
		if (shared != (uint64_t)i + 1)
			BAD("the children of vfork have added %llu", (unsigned long long)shared);
		call(0, seq++);

		call(0, seq++);
		int error = posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ);
		if (error)
			BAD("posix_spawn: %s", strerror(error));
		expect_exit(child, 44, "posix_spawn");
		call(0, seq++);
	}
	printf("ok children=%d\n", 3 * count);
	return 0;
}
