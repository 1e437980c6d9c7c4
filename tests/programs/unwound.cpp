/*
 * Unwinds its stack from its handler of SIGSEGV: by an exception that passes through the signal
 * frame, and by a backtrace, which has the same frames each time. Does so
 * until its input ends, in turns (see has_turn()).
 *
 * Needs -fnon-call-exceptions and -fasynchronous-unwind-tables.
 */
#include "common.h"

#include <execinfo.h>

static volatile unsigned long thrown, caught, traces;
static int frames;

PROBED int unwound_fault(volatile int *pointer)
{
	int read = *pointer;
	__asm__ volatile("" ::: "memory");
	return read + 1;
}

/* Other code, farther from what faults than a handler steps. */
extern "C" PROBED __attribute__((aligned(256))) int unwound_other(int n)
{
	__asm__ volatile("" ::: "memory");
	return n + 1;
}

static void handler(int)
{
	void *stack[64];
	int found = backtrace(stack, 64);
	if (!frames)
		frames = found;
	if (found != frames)
		BAD("a backtrace has %d frames instead of %d", found, frames);
	traces = traces + 1;
	throw 7;
}

int main()
{
	struct sigaction action = {};
	action.sa_handler = handler;
	action.sa_flags = SA_NODEFER;
	CHECK(sigaction(SIGSEGV, &action, 0) == 0);
	printf("ready %d\n", getpid());
	fflush(stdout);
	while (has_turn()) {
		thrown = thrown + 1;
		try {
			unwound_fault((int *)8);
		} catch (int value) {
			caught = caught + (value == 7);
		}
		CHECK(unwound_other(3) == 4);
	}
	if (thrown != caught || thrown != traces)
		BAD("thrown %lu, caught %lu, backtraces %lu", thrown, caught, traces);
	printf("ok thrown=%lu\n", thrown);
	return 0;
}
