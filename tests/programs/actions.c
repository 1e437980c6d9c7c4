/*
 * A program that has handlers for its own faults, looks at them all the time, puts others in
 * their place, and calls what it found there: never anything but its own.
 *
 *   actions
 *
 * It says "ready PID" and goes on until the end of its input.
 */
#include "common.h"

#include <setjmp.h>
#include <sys/syscall.h>

static sigjmp_buf back;
static volatile uint64_t faults[2];

PROBED uint64_t work(const char *text, uint64_t n)
{
	return mix(n) ^ (uint64_t)text;
}

/* A load that is all of what a probe displaces. */
PROBED uint64_t load(const uint64_t *from)
{
	return *from;
}

static void first(int signal)
{
	(void)signal;
	faults[0]++;
	siglongjmp(back, 1);
}

static struct sigaction found;

static void second(int signal)
{
	faults[1]++;
	found.sa_handler(signal); /* chains to what was there before */
}

static void check(const struct sigaction *action, void (*handler)(int), int flags)
{
	/* the C library adds SA_RESTORER */
	if (action->sa_handler != handler || (action->sa_flags & ~0x04000000) != flags)
		BAD("handler %p flags %#x, not %p %#x", (void *)action->sa_handler, action->sa_flags,
		    (void *)handler, flags);
	if (!sigismember(&action->sa_mask, SIGUSR1) || sigismember(&action->sa_mask, SIGUSR2))
		BAD("another mask");
}

static void fault(void)
{
	if (!sigsetjmp(back, 1)) {
		load((const uint64_t *)8);
		BAD("that could be read");
	}
}

struct kernel_action {
	void (*handler)(int);
	unsigned long flags;
	void *restorer;
	unsigned long mask;
};

int main(void)
{
	static const int signals[2] = { SIGSEGV, SIGBUS };
	struct sigaction one = { .sa_handler = first, .sa_flags = SA_RESTART };
	struct sigaction two = { .sa_handler = second, .sa_flags = SA_NODEFER };
	sigaddset(&one.sa_mask, SIGUSR1);
	sigaddset(&two.sa_mask, SIGUSR1);
	for (int i = 0; i < 2; i++)
		CHECK(!sigaction(signals[i], &one, 0));
	printf("ready %d\n", getpid());
	fflush(stdout);
	struct pollfd input = { .fd = 0, .events = POLLIN };
	uint64_t rounds = 0;
	for (; poll(&input, 1, 0) == 0; rounds++) {
		int signal = signals[rounds & 1];
		struct kernel_action raw = { 0 };
		if (work((const char *)(rounds << 40 | 1), rounds) != (mix(rounds) ^ (rounds << 40 | 1)))
			BAD("work() gave something else");
		CHECK(!sigaction(signal, 0, &found));
		check(&found, first, SA_RESTART);
		CHECK(!syscall(SYS_rt_sigaction, signal, 0, &raw, 8));
		if (raw.handler != first)
			BAD("handler %p by syscall()", (void *)raw.handler);
		fault();
		/* Another one for a while, in every other period. */
		if (rounds >> 8 & 1) {
			struct sigaction other;
			CHECK(!sigaction(signal, &two, &found));
			check(&found, first, SA_RESTART);
			CHECK(!sigaction(signal, 0, &other));
			check(&other, second, SA_NODEFER);
			if (signal == SIGSEGV)
				fault();
			CHECK(!sigaction(signal, &found, &other));
			check(&other, second, SA_NODEFER);
		}
	}
	/* What was found while others were there is good for ever. */
	CHECK(!sigaction(SIGSEGV, &two, 0));
	fault();
	CHECK(faults[0] > rounds && faults[1] > 0);
	printf("ok rounds=%llu\n", (unsigned long long)rounds);
	return 0;
}
