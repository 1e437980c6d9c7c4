/* Functions in assembly that have a name and little else, called and verified. */
#include <stdio.h>

long bare_global(long value, void (*called)(void));
long bare_typed(long value);
long bare_calls(long value);
long bare_last(long value);

__asm__(
	"	.text\n"
	/* No type, no size, no call frame information. Calls its second argument. */
	"	.globl bare_global\n"
	"bare_global:\n"
	"	push %rbp\n"
	"	mov %rsp, %rbp\n"
	"	lea 1(%rdi), %rax\n"
	"	push %rax\n"
	"	push %rax\n"
	"	call *%rsi\n"
	"	pop %rax\n"
	"	pop %rax\n"
	"	pop %rbp\n"
	"	ret\n"
	/* A type and no size: with the label in it. */
	"	.globl bare_typed\n"
	"	.type bare_typed, @function\n"
	"bare_typed:\n"
	"	lea 2(%rdi), %rax\n"
	"	test %rdi, %rdi\n"
	"	je bare_out\n"
	"	add %rdi, %rax\n"
	"bare_out:\n"
	"	ret\n"
	"	.globl bare_calls\n"
	"	.type bare_calls, @function\n"
	"bare_calls:\n"
	"	push %rbp\n"
	"	mov %rsp, %rbp\n"
	"	call bare_local\n"
	"	pop %rbp\n"
	"	ret\n"
	"	.size bare_calls, . - bare_calls\n"
	/* Local, behind a function with a size. */
	"bare_local:\n"
	"	lea 3(%rdi), %rax\n"
	"	add $5, %rax\n"
	"	ret\n"
	/* Data, which nothing marks as such. */
	"bare_data:\n"
	"	.quad 0x1122334455667788, 0x99aabbccddeeff00\n"
	"	.globl bare_last\n"
	"bare_last:\n"
	"	push %rbx\n"
	"	lea bare_data(%rip), %rbx\n"
	"	mov (%rbx), %rax\n"
	"	xor %rdi, %rax\n"
	"	pop %rbx\n"
	"	ret\n");

static volatile long calls;

__attribute__((noinline)) void called(void)
{
	calls++;
}

int main(void)
{
	long i;

	for (i = 0; i < 100; i++)
		if (bare_global(i, called) != i + 1 || bare_typed(i) != 2 * i + 2 || bare_calls(i) != i + 8
		    || bare_last(i) != (0x1122334455667788 ^ i))
			return 1;
	printf("ok calls=%ld\n", calls);
	return 0;
}
