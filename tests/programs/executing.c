/*
 * Forks children that execute another program: `executing COUNT`. Calls executing_work(N) before each
 * fork, and once in each child before it executes `sleep`, one after the other; then prints
 * "ok children=COUNT".
 */
#include "common.h"

#include <sys/wait.h>

static volatile uint64_t sum;

PROBED uint64_t executing_work(uint64_t number)
{
	sum += mix(number);
	return sum;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 3;
	usleep(100000);
	for (int i = 0; i < count; i++) {
		executing_work((uint64_t)i);
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			executing_work((uint64_t)i);
			execlp("sleep", "sleep", "0.5", (char *)NULL);
			_exit(127);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	printf("ok children=%d\n", count);
	return 0;
}
