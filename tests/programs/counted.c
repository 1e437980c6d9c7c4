/*
 * Counts its calls exactly, from the first instruction on, and ends as it is told.
 *
 *   counted [--calls N] [--threads N] [--wait] [--ignore-sigtrap] [--block-sigtrap]
 *           [--exit CODE] [--raise SIGNAL]
 *
 * A constructor calls `counted_work` 3 times as thread 1000, each of the threads N times
 * (100 unless told) with (thread, seq). With --wait it prints "ready PID" and waits for a
 * line on standard input before the threads start, and again before it ends; SIGTERM
 * counts as all lines that are missing. Prints "ok calls=N", where N has the
 * constructor's too.
 */
#include "common.h"

#include <pthread.h>

#define MAX_THREADS 200

PROBED uint64_t counted_work(uint64_t thread, uint64_t seq, uint64_t check)
{
	return (mix(thread + 5) ^ seq) + check;
}

/*
 * One byte, and code that is jumped to right behind it: no jump has room here.
 */
void counted_short(void);
__asm__(".text\n"
	".globl counted_short\n.type counted_short, @function\n"
	"counted_short: ret\n.size counted_short, .-counted_short\n"
	".globl counted_behind\n.type counted_behind, @function\n"
	"counted_behind: mov %edi, %eax\n ret\n.size counted_behind, .-counted_behind\n");

/*
 * Code elsewhere jumps into the middle of the first instruction: only a breakpoint at
 * its first byte leaves that alone. Its second byte is clc.
 */
int counted_stubborn(int same);
__asm__(".text\n"
	".globl counted_stubborn\n.type counted_stubborn, @function\n"
	"counted_stubborn: mov %edi, %eax\n ret\n.size counted_stubborn, .-counted_stubborn\n"
	".type counted_overlap, @function\n"
	"counted_overlap: test %edi, %edi\n jmp counted_stubborn + 1\n"
	".size counted_overlap, .-counted_overlap\n");

static int calls = 100, threads = 1;
static uint64_t made[MAX_THREADS], early;

__attribute__((constructor)) static void counted_constructor(void)
{
	for (int i = 0; i < 3; i++, early++)
		if (counted_work(1000, i, 1) != (mix(1005) ^ i) + 1)
			BAD("early call %d went wrong", i);
}

static void *run(void *argument)
{
	uint64_t thread = (uint64_t)(uintptr_t)argument;
	for (int i = 0; i < calls; i++, made[thread]++) {
		uint64_t check = mix(i);
		if (counted_work(thread, i, check) != (mix(thread + 5) ^ (uint64_t)i) + check)
			BAD("call %d of thread %llu went wrong", i, (unsigned long long)thread);
		counted_short();
		if (counted_stubborn(i) != i)
			BAD("call %d of the stubborn function went wrong", i);
	}
	return NULL;
}

/* A line, in however many pieces it comes, its end, or SIGTERM. */
static void wait_for_line(void)
{
	char c = 0;
	while (c != '\n' && !stop_asked) {
		struct pollfd input = { 0, POLLIN, 0 };
		if (poll(&input, 1, 10) > 0 && read(0, &c, 1) <= 0)
			return;
	}
}

int main(int argc, char **argv)
{
	int code = 0, wait = 0, fatal = 0;
	for (int i = 1; i < argc; i++) {
		const char *word = argv[i], *next = i + 1 < argc ? argv[i + 1] : "";
		sigset_t trap;
		sigemptyset(&trap);
		sigaddset(&trap, SIGTRAP);
		if (!strcmp(word, "--wait"))
			wait = 1;
		else if (!strcmp(word, "--ignore-sigtrap"))
			signal(SIGTRAP, SIG_IGN);
		else if (!strcmp(word, "--block-sigtrap"))
			sigprocmask(SIG_BLOCK, &trap, NULL);
		else if (!strcmp(word, "--calls"))
			calls = atoi(next), i++;
		else if (!strcmp(word, "--threads"))
			threads = atoi(next), i++;
		else if (!strcmp(word, "--exit"))
			code = atoi(next), i++;
		else if (!strcmp(word, "--raise"))
			fatal = atoi(next), i++;
		else
			return 2;
	}
	if (threads < 1 || threads > MAX_THREADS)
		return 2;
	if (wait) {
		stop_on_sigterm();
		ready();
		wait_for_line();
	}
	pthread_t pool[MAX_THREADS];
	for (int i = 0; i < threads; i++)
		CHECK(pthread_create(&pool[i], NULL, run, (void *)(uintptr_t)i) == 0);
	uint64_t sum = early;
	for (int i = 0; i < threads; i++) {
		CHECK(pthread_join(pool[i], NULL) == 0);
		sum += made[i];
	}
	printf("ok calls=%llu\n", (unsigned long long)sum);
	fflush(stdout);
	if (wait)
		wait_for_line();
	if (fatal)
		raise(fatal);
	return code;
}
