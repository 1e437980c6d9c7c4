/*
 * A program that has handlers for its own faults, looks at them all the time, puts others in
 * their place, and calls what it found there: never anything but its own. All of them are told where the
 * program stood: in its own code. With "steady" it leaves the first ones there.
 *
 *   actions [steady | prctl]
 *
 * With "prctl" it also is in that system call for most of its time, which may install a filter of
 * system calls: an attach has to wait until it is not.
 *
 * It says "ready PID" and goes on until the end of its input, in turns (see has_turn()); others are in
 * their place in 256 of 512 turns.
 */
#include "common.h"

#include <setjmp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

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

/* Several instructions are displaced, and both loads can be stepped over. */
extern uint64_t loads(const uint64_t *one, const uint64_t *two, uint64_t result);
__asm__(".text\n.balign 16\n.globl loads\n.type loads, @function\nloads:\n"
	"\tmov (%rdi), %al\n\tmov (%rsi), %al\n\tadd $3, %rdx\n\tmov %rdx, %rax\n\tret\n"
	".size loads, . - loads\n");

static volatile uint64_t steps;
static int steady;

/* Steps over a load of two bytes. */
static int step(siginfo_t *info, greg_t *at)
{
	uint64_t into = (uint64_t)*at - (uint64_t)(uintptr_t)loads;
	if (info->si_addr == (void *)8)
		return 0;
	if (into != (info->si_addr == (void *)32 ? 2 : 0))
		BAD("a fault of %p at %llx, not in loads() at %p", info->si_addr,
		    (unsigned long long)*at, (void *)loads);
	*at += 2;
	steps++;
	return 1;
}

static void first(int signal, siginfo_t *info, void *context)
{
	greg_t *at = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
	uint64_t into = (uint64_t)*at - (uint64_t)(uintptr_t)load;
	if (step(info, at))
		return;
	if (signal == SIGSEGV && info->si_addr != (void *)8)
		BAD("a fault at %p", info->si_addr);
	if (into >= 16)
		BAD("a fault at %llx, not in load() at %p", (unsigned long long)*at, (void *)load);
	faults[0]++;
	siglongjmp(back, 1);
}

static struct sigaction found;

typedef void handler(int signal, siginfo_t *info, void *context);

static void second(int signal, siginfo_t *info, void *context)
{
	faults[1]++;
	found.sa_sigaction(signal, info, context); /* chains to what was there before */
}

static void check(const struct sigaction *action, handler *handler, int flags)
{
	flags |= SA_SIGINFO;
	/* the C library adds SA_RESTORER */
	if (action->sa_sigaction != handler || (action->sa_flags & ~0x04000000) != flags)
		BAD("handler %p flags %#x, not %p %#x", (void *)action->sa_sigaction, action->sa_flags,
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
	handler *handler;
	unsigned long flags;
	void *restorer;
	unsigned long mask;
};

int main(int argc, char **argv)
{
	steady = argc > 1 && !strcmp(argv[1], "steady");
	static const int signals[2] = { SIGSEGV, SIGBUS };
	struct sigaction one = { .sa_sigaction = first, .sa_flags = SA_RESTART | SA_SIGINFO };
	struct sigaction two = { .sa_sigaction = second, .sa_flags = SA_NODEFER | SA_SIGINFO };
	sigaddset(&one.sa_mask, SIGUSR1);
	sigaddset(&two.sa_mask, SIGUSR1);
	for (int i = 0; i < 2; i++)
		CHECK(!sigaction(signals[i], &one, 0));
	printf("ready %d\n", getpid());
	fflush(stdout);
	uint64_t rounds = 0;
	int calls = argc > 1 && !strcmp(argv[1], "prctl") ? 100 : 0;
	for (; has_turn(); rounds++) {
		for (int i = 0; i < calls; i++)
			CHECK(prctl(PR_GET_DUMPABLE) >= 0);
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
		const uint64_t *one = rounds % 3 == 1 ? (void *)16 : &rounds;
		uint64_t stepped = loads(one, rounds % 3 ? &rounds : (void *)32, rounds);
		if (stepped != rounds + 3)
			BAD("loads() gave %llx", (unsigned long long)stepped);
		/* Another one for a while, in every other period. */
		if (!steady && rounds >> 8 & 1) {
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
	CHECK(steps > 0);
	CHECK(faults[0] > rounds && faults[1] > 0);
	printf("ok rounds=%llu\n", (unsigned long long)rounds);
	return 0;
}
