/*
 * A child that the C library does not know of: `raw_fork CALLS`. Parent and child, who have the
 * same stack at the same addresses and the same thread id by what the C library says, call
 * raw_work(text, n) that often at the same time. The text is a global of each, so that it is
 * "parent" in one and "child" in the other at the same address.
 */
#include "common.h"

#include <sys/syscall.h>
#include <sys/wait.h>

static char text[16] = "parent";

PROBED uint64_t raw_work(const char *who, uint64_t n)
{
	return mix(n) + (uint64_t)who[0];
}

static void work(unsigned long calls)
{
	for (uint64_t n = 1; n <= calls; n++)
		if (raw_work(text, n) != mix(n) + (uint64_t)text[0])
			BAD("raw_work(%llu)", (unsigned long long)n);
}

int main(int count, char **words)
{
	CHECK(count == 2);
	unsigned long calls = strtoul(words[1], NULL, 0);
	pid_t child = (pid_t)syscall(SYS_fork);
	CHECK(child >= 0);
	if (!child) {
		strcpy(text, "child");
		work(calls);
		_exit(0);
	}
	work(calls);
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	printf("ok %d %d\n", getpid(), child);
	return 0;
}
