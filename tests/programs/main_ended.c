/*
 * A program that ends its main thread, and goes on in another one: before "ready PID" with the argument
 * "now", else at the command "end". "call" makes ten calls of `work`; each command is answered by
 * "done". The end of the input ends the program: "ok calls=N".
 */
#include "common.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>

static volatile int created, ends;
static uint64_t calls, sum;

PROBED uint64_t work(uint64_t seq, const char *text)
{
	return mix(seq) + (uint64_t)text[0];
}

/* Waits until the kernel shows the main thread as ended. */
static void main_ends(void)
{
	ends = 1;
	for (;;) {
		char line[256] = "";
		int file = open("/proc/self/stat", O_RDONLY);
		CHECK(file >= 0 && read(file, line, sizeof line - 1) > 0);
		close(file);
		char *name_ends = strrchr(line, ')');
		if (name_ends && name_ends[2] == 'Z')
			return;
		usleep(1000);
	}
}

static void *commands(void *is_alone)
{
	char line[64];
	while (!created) /* the main thread blocks all signals meanwhile */
		usleep(1000);
	if (is_alone)
		main_ends();
	ready();
	while (fgets(line, sizeof line, stdin)) {
		if (!strcmp(line, "end\n"))
			main_ends();
		for (int i = 0; !strcmp(line, "call\n") && i < 10; i++, calls++)
			sum += work(calls, "text");
		printf("done\n");
		fflush(stdout);
	}
	uint64_t expected = 0;
	for (uint64_t i = 0; i < calls; i++)
		expected += mix(i) + 't';
	if (sum != expected)
		BAD("the sum is %llx, not %llx", (unsigned long long)sum, (unsigned long long)expected);
	printf("ok calls=%llu\n", (unsigned long long)calls);
	exit(0);
}

int main(int argc, char **argv)
{
	pthread_t thread;
	(void)argv;
	CHECK(pthread_create(&thread, NULL, commands, argc > 1 ? &thread : NULL) == 0);
	created = 1;
	while (!ends)
		usleep(1000);
	syscall(SYS_exit, 0); /* pthread_exit would load a library */
}
