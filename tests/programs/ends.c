/*
 * A program that ends as it is told, and forks when it is told: ends [reaped]. It calls `begin`, and that `once`,
 * whose return addresses stay on the stack below; all else happens in `served`, which is left at the end. On standard input, each answered by
 * "done": "call" calls `told_to`; "fork" makes a child that waits for its parent's end; "crash" ends by
 * SIGSEGV; "exit N". With "reaped" the program is a grandchild whose parent waits for it at once, and says
 * "gone" then. At the end of its input it says "ok as told" and ends with 0.
 */
#include "common.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static volatile int calls;

PROBED void told_to(int what)
{
	calls += what;
}

static void make_child(void)
{
	int ready[2];
	pid_t parent = getpid();
	char byte = 0;
	CHECK(pipe(ready) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
		CHECK(write(ready[1], &byte, 1) == 1);
		while (getppid() == parent)
			pause();
		_exit(0);
	}
	CHECK(read(ready[0], &byte, 1) == 1);
}

/* Leaves its return address on the stack. */
PROBED void once(void)
{
	calls++;
}

PROBED void begin(void)
{
	volatile char room[4096];
	room[0] = room[sizeof room - 1] = 1;
	once();
	calls += room[0];
}

PROBED int served(int status, int reaped)
{
	char line[64];
	volatile char room[8192];
	room[0] = 1;
	if (reaped) {
		printf("is %d\n", (int)getpid());
		fflush(stdout);
	} else {
		ready();
	}
	while (fgets(line, sizeof line, stdin)) {
		if (!strcmp(line, "call\n")) {
			told_to(1);
		} else if (!strcmp(line, "fork\n")) {
			make_child();
		} else if (!strcmp(line, "crash\n")) {
			signal(SIGSEGV, SIG_DFL);
			raise(SIGSEGV);
		} else {
			CHECK(sscanf(line, "exit %d", &status) == 1);
			exit(status);
		}
		puts("done");
		fflush(stdout);
	}
	return status;
}

int main(int argc, char **argv)
{
	int reaped = argc > 1 && !strcmp(argv[1], "reaped");
	if (reaped) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child) {
			CHECK(waitpid(child, NULL, 0) == child);
			puts("gone");
			puts("ok as told");
			return 0;
		}
	}
	begin();
	int status = served(0, reaped);
	puts("ok as told");
	return status;
}
