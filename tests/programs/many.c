/*
 * A program with 100,000 functions many_0, many_1, ..., which it does not call: planning probes
 * in all of them takes a while. Ends when its input ends, or a line comes.
 */
#include "common.h"

__asm__(
	".text\n"
	".altmacro\n"
	".macro function n\n"
	".globl many_\\n\n"
	".type many_\\n, @function\n"
	"many_\\n:\n"
	"	push %rbx\n"
	"	mov %rdi, %rbx\n"
	"1:	dec %rbx\n"
	"	jnz 1b\n"
	"	pop %rbx\n"
	"	ret\n"
	".size many_\\n, . - many_\\n\n"
	".endm\n"
	".set number, 0\n"
	".rept 100000\n"
	"function %number\n"
	".set number, number + 1\n"
	".endr\n");

int main(void)
{
	char c;
	ready();
	CHECK(read(0, &c, 1) >= 0);
	printf("ok\n");
	return 0;
}
