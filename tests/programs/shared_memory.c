/*
 * A process of its own that has the same memory (CLONE_VM without CLONE_THREAD), as LinuxThreads,
 * some sandboxes and language runtimes make them. Both call the same functions all the time.
 *
 *   shared_memory
 *
 * The end of the input ends both: "ok N" if the other one came to the same results, and died
 * of nothing.
 */
#include "common.h"

#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static volatile int ending;
static volatile uint64_t rounds, wrong;
static char stack[1 << 18] __attribute__((aligned(64)));

PROBED uint64_t work_one(uint64_t x) { return mix(x) ^ 0x5a5a; }
PROBED uint64_t work_two(uint64_t x, uint64_t y)
{
	uint64_t sum = 0;
	for (uint64_t i = 0; i < (y & 7) + 1; i++)
		sum += work_one(x + i);
	return sum;
}

static uint64_t plainly(uint64_t x, uint64_t y)
{
	uint64_t sum = 0;
	for (uint64_t i = 0; i < (y & 7) + 1; i++)
		sum += mix(x + i) ^ 0x5a5a;
	return sum;
}

static int other(void *unused)
{
	(void)unused;
	for (uint64_t i = 0; !ending; i++) {
		if (work_two(i, i >> 3) != plainly(i, i >> 3))
			wrong++;
		rounds++;
	}
	syscall(SYS_exit, 0);
	return 0;
}

int main(void)
{
	pid_t child = clone(other, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
	CHECK(child > 0);
	printf("ready %d\n", (int)getpid());
	fflush(stdout);
	struct pollfd in = { .fd = 0, .events = POLLIN };
	for (uint64_t i = 0; poll(&in, 1, 0) == 0; i++)
		CHECK(work_two(i, i) == plainly(i, i));
	ending = 1;
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	if (!WIFEXITED(status) || wrong)
		BAD("the other process ended with %x, %d wrong", status, (int)wrong);
	printf("ok %llu\n", (unsigned long long)rounds);
	return 0;
}
