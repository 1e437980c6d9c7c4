/*
 * Forks children that execute another program: `executing`. For each line on standard input it calls
 * executing_work(N), forks a child, which calls it too and executes `cat`, and says "executes" when it
 * does. The children end when the input ends; then it prints "ok children=N".
 */
#include "common.h"

#include <fcntl.h>
#include <sys/wait.h>

static volatile uint64_t sum;

PROBED uint64_t executing_work(uint64_t number)
{
	sum += mix(number);
	return sum;
}

/* Standard input of the children. */
static int held[2];

static void make_child(uint64_t number)
{
	int executed[2];
	char none;
	CHECK(!pipe2(executed, O_CLOEXEC));
	executing_work(number);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		executing_work(number);
		CHECK(dup2(held[0], 0) == 0);
		execlp("cat", "cat", (char *)NULL);
		_exit(127);
	}
	close(executed[1]);
	CHECK(read(executed[0], &none, 1) == 0);
	close(executed[0]);
	puts("executes");
	fflush(stdout);
}

int main(void)
{
	char line[64];
	int count = 0;
	CHECK(!pipe2(held, O_CLOEXEC));
	ready();
	while (fgets(line, sizeof line, stdin))
		make_child((uint64_t)count++);
	close(held[1]);
	for (int i = 0; i < count; i++) {
		int status;
		CHECK(waitpid(-1, &status, 0) > 0 && status == 0);
	}
	printf("ok children=%d\n", count);
	return 0;
}
