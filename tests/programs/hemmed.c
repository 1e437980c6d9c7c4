/*
 * A function of short instructions between others like them, in a program at low addresses: no jump
 * within one instruction has anywhere to lead, since each displacement that the bytes allow is
 * 0xfcfcfc.. (-50 MB). On each line "call" the function is called 100 times and the answer verified,
 * answered by "called". Ends when its input ends. To be built with -no-pie.
 */
#include "common.h"

__asm__(".pushsection .text\n.skip 300, 0xfc\n"
	".globl hemmed\n.type hemmed, @function\nhemmed:\n"
	".skip 20, 0xfc\n lea 7(%rdi,%rdi,2), %rax\n ret\n"
	".size hemmed, . - hemmed\n.skip 300, 0xfc\n.popsection\n");

extern uint64_t hemmed(uint64_t);

int main(void)
{
	char line[64];
	ready();
	while (fgets(line, sizeof line, stdin)) {
		for (uint64_t x = 0; x < 100; x++)
			if (hemmed(x) != 3 * x + 7)
				BAD("wrong answer for %d", (int)x);
		puts("called");
		fflush(stdout);
	}
	puts("ok all answers");
	return 0;
}
