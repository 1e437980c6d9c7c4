/* Uses clone, and has bytes that look like an instruction that loads flags for it, ba 00 01 08 00, mov
 * $(CLONE_VM | CLONE_SETTLS), %edx: in a constant, and from the last instruction of a function on. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>

static volatile unsigned long sum;

static __attribute__((noinline)) void mix(unsigned long n)
{
	sum = (sum ^ n) * 0x755b00080100ba45;
}

__attribute__((noinline)) void work(unsigned long n)
{
	mix(n);
}

/* A jump, never executed. */
__asm__(".text; .type crossing, @function; crossing: .cfi_startproc; nop; .byte 0xe9, 0, 0, 0, 0xba\n"
	".cfi_endproc; .size crossing, . - crossing; .byte 0x00, 0x01, 0x08, 0x00\n");

static int child(void *unused)
{
	(void)unused;
	return 0;
}

int main(int argc, char **argv)
{
	static char stack[1 << 16];
	(void)argv;
	if (argc > 1)
		return clone(child, stack + sizeof stack, SIGCHLD, 0) < 0;
	for (unsigned long n = 0; n < 100; n++)
		work(n);
	printf("ok calls=100\n");
	return 0;
}
