/*
 * A process that executes itself again and again: `exec_chain [LINKS]`, 20 without. After `3wait`
 * the last of three waits for the end of its input.
 * Each link calls `link_work(0, N)` 1000 times; every other one executes the next from
 * a second thread, while the first one works. The sum is handed on as an argument and
 * verified by the last link, which prints "ok links=N".
 */
#include "common.h"

#include <pthread.h>

PROBED uint64_t link_work(uint64_t thread, uint64_t seq)
{
	return mix(thread + 1) + mix(seq);
}

static char **next_arguments;

static void *execute(void *unused)
{
	(void)unused;
	execv("/proc/self/exe", next_arguments);
	BAD("cannot execute: %s", strerror(errno));
}

int main(int argc, char **argv)
{
	char *after = "";
	unsigned long links = argc > 1 ? strtoul(argv[1], &after, 10) : 20;
	unsigned long link = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
	uint64_t sum = argc > 3 ? strtoull(argv[3], NULL, 16) : 0;
	pid_t pid = argc > 4 ? atoi(argv[4]) : getpid();
	if (link == 0)
		ready();
	if (pid != getpid())
		BAD("the process id changed in link %lu", link);
	for (int i = 0; i < 1000; i++)
		sum += link_work(0, link);
	if (link + 1 < links) {
		char count[32], number[32], total[32], self[32];
		snprintf(count, sizeof count, "%lu%s", links, after);
		snprintf(number, sizeof number, "%lu", link + 1);
		snprintf(total, sizeof total, "%llx", (unsigned long long)sum);
		snprintf(self, sizeof self, "%d", (int)pid);
		char *arguments[] = { argv[0], count, number, total, self, NULL };
		next_arguments = arguments;
		if (link % 2) {
			pthread_t thread;
			CHECK(pthread_create(&thread, NULL, execute, NULL) == 0);
			for (;;) /* until the other thread's exec ends this one */
				link_work(1, link);
		}
		execute(NULL);
	}
	while (*after && getchar() != EOF)
		;
	uint64_t expected = 0;
	for (uint64_t i = 0; i < links; i++)
		expected += 1000 * (mix(1) + mix(i));
	if (sum != expected)
		BAD("the sum is %llx, not %llx", (unsigned long long)sum, (unsigned long long)expected);
	printf("ok links=%lu\n", links);
	return 0;
}
