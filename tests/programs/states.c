/*
 * Threads in unusual states. `states timeless`: the program may not read the time stamp counter.
 * `states painted`: on each line of standard input calls `painted` on a stack filled with a
 * pattern, and answers with the greatest number of bytes below the stack pointer at its entry
 * that were changed. `states stepping`: it sets the trap flag for most of the time, with a handler for
 * SIGTRAP. All but `painted` answer "called". Ends when the input ends.
 */
#include "common.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>

#define PATTERN 0xa5
#define STACK 65536
/* so much of it is painted and looked at: more than any probe needs */
#define DEPTH 8192

__asm__(".pushsection .text\n"
	".balign 64, 0xcc\n.globl painted\n.type painted, @function\npainted:\n"
	"mov $7, %eax\n add %rdi, %rax\n ret\n.size painted, . - painted\n"
	/* (argument, pointer, stack): calls painted on that stack */
	".balign 64, 0xcc\n.globl on_stack\n.type on_stack, @function\non_stack:\n"
	"push %rbx\n mov %rsp, %rbx\n mov %rdx, %rsp\n call painted\n mov %rbx, %rsp\n"
	"pop %rbx\n ret\n.size on_stack, . - on_stack\n"
	".popsection\n");

extern uint64_t on_stack(uint64_t, const char *, void *), painted(uint64_t);

static unsigned char stack[STACK] __attribute__((aligned(4096)));

/* The greatest depth of many calls: some of them change packets. */
static long deepest(void)
{
	/* where the stack pointer is when painted is entered */
	unsigned char *top = stack + STACK - 4096;
	long most = 0;
	for (uint64_t i = 0; i < 20000; i++) {
		memset(top - DEPTH, PATTERN, DEPTH);
		CHECK(on_stack(i, "a text that is recorded", top + 8) == i + 7);
		unsigned char *at = top - DEPTH;
		while (at < top && *at == PATTERN)
			at++;
		if (top - at > most)
			most = top - at;
	}
	return most;
}

static volatile long steps;

static void on_step(int signal)
{
	(void)signal;
	steps++;
}

/* Steps itself through calls until there is input. */
static void step(void)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	CHECK(signal(SIGTRAP, on_step) != SIG_ERR);
	while (!poll(&input, 1, 0)) {
		__asm__ volatile("sub $128, %%rsp; pushfq; orl $0x100, (%%rsp); popfq; add $128, %%rsp" ::: "cc", "memory");
		for (int i = 0; i < 200; i++)
			CHECK(painted(1) == 8);
		__asm__ volatile("sub $128, %%rsp; pushfq; andl $~0x100, (%%rsp); popfq; add $128, %%rsp" ::: "cc", "memory");
	}
	CHECK(steps);
}

int main(int count, char **words)
{
	char line[64];
	CHECK(count == 2);
	if (strcmp(words[1], "timeless") == 0)
		CHECK(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0);
	ready();
	if (strcmp(words[1], "stepping") == 0)
		step();
	while (fgets(line, sizeof line, stdin)) {
		if (strcmp(words[1], "painted") == 0)
			printf("%ld\n", deepest());
		else
			puts("called");
		fflush(stdout);
	}
	puts("ok all answers");
	return 0;
}
