/*
 * Ways out of a function that are no return: longjmp and siglongjmp over frames of
 * probed functions, and coroutines that are left in their middle and gone on with.
 * `longjmp [--seconds S]`; ends like hammer. "calls" counts rounds; in each, `descend`
 * is entered 1 + seq % 9 times and `escape` once, `coroutine` once in all.
 */
#include "common.h"

#include <setjmp.h>
#include <ucontext.h>

PROBED uint64_t descend(uint64_t thread, uint64_t seq, int depth);
PROBED void escape(uint64_t thread, uint64_t seq);
PROBED void coroutine(void);
PROBED uint64_t yield_value(uint64_t thread, uint64_t seq);

static jmp_buf plain;
static sigjmp_buf with_mask;
static ucontext_t main_context, other_context;
static uint64_t passed;
static volatile int may_return; /* never set: a way out that the compiler believes in */

PROBED void escape(uint64_t thread, uint64_t seq)
{
	(void)thread;
	if (seq % 2)
		longjmp(plain, (int)(seq % 1000) + 1);
	siglongjmp(with_mask, (int)(seq % 1000) + 1);
}

PROBED uint64_t descend(uint64_t thread, uint64_t seq, int depth)
{
	if (depth == 0) {
		escape(thread, seq);
		if (may_return)
			return 0;
	}
	return descend(thread, seq, depth - 1) + 1;
}

PROBED uint64_t yield_value(uint64_t thread, uint64_t seq)
{
	passed = mix(seq) + thread;
	CHECK(swapcontext(&other_context, &main_context) == 0);
	return seq;
}

/* Never returns; each of its calls is left in the middle and resumed. */
PROBED void coroutine(void)
{
	for (uint64_t seq = 0;; seq++)
		if (yield_value(1, seq) != seq)
			BAD("a coroutine's call %llu came back wrong", (unsigned long long)seq);
}

static void jump(uint64_t seq)
{
	volatile uint64_t kept = mix(seq);
	sigset_t mask;
	int value;
	if (seq % 2) {
		value = setjmp(plain);
	} else {
		value = sigsetjmp(with_mask, 1);
		if (value == 0) {
			sigemptyset(&mask);
			sigaddset(&mask, SIGUSR1);
			CHECK(sigprocmask(SIG_BLOCK, &mask, NULL) == 0);
		}
	}
	if (value == 0) {
		descend(0, seq, (int)(seq % 9));
		BAD("descend returned");
	}
	if (value != (int)(seq % 1000) + 1 || kept != mix(seq))
		BAD("jump %llu brought %d", (unsigned long long)seq, value);
	CHECK(sigprocmask(SIG_BLOCK, NULL, &mask) == 0);
	if (sigismember(&mask, SIGUSR1))
		BAD("jump %llu left SIGUSR1 blocked", (unsigned long long)seq);
}

int main(int argc, char **argv)
{
	double seconds = argc == 3 && !strcmp(argv[1], "--seconds") ? atof(argv[2]) : 0;
	static char stack[65536];
	CHECK(getcontext(&other_context) == 0);
	other_context.uc_stack.ss_sp = stack;
	other_context.uc_stack.ss_size = sizeof stack;
	makecontext(&other_context, coroutine, 0);
	stop_on_sigterm();
	ready();
	uint64_t seq = 0, end = now_ns() + (uint64_t)(seconds * 1e9);
	while (!stop_asked && (seconds <= 0 || now_ns() < end)) {
		for (int i = 0; i < 1000; i++, seq++) {
			jump(seq);
			CHECK(swapcontext(&main_context, &other_context) == 0);
			if (passed != mix(seq) + 1)
				BAD("the coroutine gave a wrong value at %llu", (unsigned long long)seq);
		}
		struct pollfd input = { 0, POLLIN, 0 };
		char line[64];
		if (seconds <= 0 && poll(&input, 1, 0) > 0 && read(0, line, sizeof line) >= 0)
			break;
	}
	printf("ok calls=%llu\n", (unsigned long long)seq);
	return 0;
}
