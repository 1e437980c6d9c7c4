/*
 * Threads that are in the middle of a probe and never come back: `jumped MODE`. First
 * jumped_before(text, n) is left in the middle again and again, then, when all that is over,
 * jumped_after(text, n) is called 20,000 times, and verifies its results:
 *
 *   alarm     a signal handler comes every 200 us and leaves by siglongjmp; the same thread goes on
 *   other     the same, but another thread goes on, while the first one waits
 *   overflow  a thread calls itself until its stack is full; a handler on another stack leaves
 *             by siglongjmp
 *   killed    children are killed
 *
 * Before the calls it says "left" and waits for a line: for whoever records to find out what the
 * thread itself cannot. With `alarm` it can, and there is no line.
 */
#include "common.h"

#include <pthread.h>
#include <setjmp.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { AFTER = 20000 };

static sigjmp_buf back;
static volatile unsigned long left;

PROBED uint64_t jumped_before(const char *text, uint64_t n)
{
	return mix(n) + (uint64_t)text[0];
}

PROBED uint64_t jumped_after(const char *text, uint64_t n)
{
	return mix(n) + (uint64_t)text[0];
}

/* Not in the caller's page of the stack, so that the kernel is asked for it. */
static char text[] = "some text";

static void *after(void *unused)
{
	(void)unused;
	for (uint64_t n = 0; n < AFTER; n++)
		if (jumped_after(text, n) != mix(n) + (uint64_t)text[0])
			BAD("jumped_after(%llu)", (unsigned long long)n);
	return NULL;
}

static void leave(int signal)
{
	(void)signal;
	left++;
	siglongjmp(back, 1);
}

static void handle(int signal, int flags)
{
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_handler = leave;
	action.sa_flags = flags;
	CHECK(!sigaction(signal, &action, NULL));
}

static void interval(long us)
{
	struct itimerval timer = { { 0, us }, { 0, us } };
	CHECK(!setitimer(ITIMER_REAL, &timer, NULL));
}

static void be_interrupted(void)
{
	handle(SIGALRM, 0);
	if (!sigsetjmp(back, 1) || left < 1000)
		interval(200);
	else
		interval(0);
	for (uint64_t n = 0; left < 1000; n++)
		jumped_before(text, n);
	interval(0);
}

__attribute__((noinline)) static uint64_t deeper(uint64_t n)
{
	volatile uint64_t here = n;
	if (n == UINT64_MAX)
		return here;
	return jumped_before(text, n) + deeper(n + 1) + here;
}

static void *overflow(void *unused)
{
	static char other_stack[1 << 16];
	stack_t stack = { .ss_sp = other_stack, .ss_size = sizeof other_stack };
	(void)unused;
	CHECK(!sigaltstack(&stack, NULL));
	handle(SIGSEGV, SA_ONSTACK);
	sigsetjmp(back, 1);
	/* Each time it starts somewhere else. */
	volatile char room[16 * (1 + left % 64)];
	room[0] = 0;
	if (left < 100)
		deeper(room[0]);
	return NULL;
}

static void kill_children(void)
{
	for (int i = 0; i < 30; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0)
			for (uint64_t n = 0;; n++)
				jumped_before(text, n);
		usleep(3000);
		CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	}
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	pthread_attr_t attributes;
	pthread_t thread;
	CHECK(!pthread_attr_init(&attributes));
	ready();
	if (!strcmp(mode, "alarm") || !strcmp(mode, "other")) {
		be_interrupted();
	} else if (!strcmp(mode, "overflow")) {
		CHECK(!pthread_attr_setstacksize(&attributes, 64 << 10));
		CHECK(!pthread_create(&thread, &attributes, overflow, NULL));
		CHECK(!pthread_join(thread, NULL));
	} else {
		kill_children();
	}
	if (strcmp(mode, "alarm")) {
		puts("left");
		fflush(stdout);
		wait_for_stop(0);
	}
	if (!strcmp(mode, "other")) {
		CHECK(!pthread_create(&thread, NULL, after, NULL));
		CHECK(!pthread_join(thread, NULL));
	} else {
		after(NULL);
	}
	printf("ok left=%lu\n", left);
	return 0;
}
