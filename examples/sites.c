/*
 * Functions that are entered in different ways, for `capriole list` and `capriole check`.
 *
 *   cc -O2 -g -o sites sites.c
 *   capriole list ':site_*' ./sites
 *
 * Their bodies are assembly, so that their bytes do not depend on the compiler.
 */
#include <stdio.h>

long site_long(long x);
long site_short(long x);
long site_nops(long x);
long site_loop(long x);
void site_ret(void);

__asm__(
	".macro function name\n"
	"	.p2align 4\n"
	"	.globl \\name\n"
	"	.type \\name, @function\n"
	"\\name:\n"
	".endm\n"
	"	.text\n"
	/* An instruction of five bytes: a jump takes just its place. */
	"function site_long\n"
	"	mov $12345, %eax\n"
	"	add %rdi, %rax\n"
	"	ret\n"
	"	.size site_long, . - site_long\n"
	/* Shorter ones: a jump takes the place of two. */
	"function site_short\n"
	"	lea 1(%rdi), %rax\n"
	"	imul %rdi, %rax\n"
	"	ret\n"
	"	.size site_short, . - site_short\n"
	/* What -fpatchable-function-entry=5 leaves for tools like this one. */
	"function site_nops\n"
	"	.nops 5\n"
	"	lea 2(%rdi), %rax\n"
	"	ret\n"
	"	.size site_nops, . - site_nops\n"
	/* The loop's head is the third byte: a jump would lie across it. */
	"function site_loop\n"
	"	xor %eax, %eax\n"
	"1:	add %rdi, %rax\n"
	"	dec %rdi\n"
	"	jnz 1b\n"
	"	ret\n"
	"	.size site_loop, . - site_loop\n"
	/* One byte, and unused padding behind it. */
	"function site_ret\n"
	"	ret\n"
	"	.size site_ret, . - site_ret\n"
	"	.p2align 4\n");

int main(void)
{
	long sum = 0;
	for (long i = 1; i <= 1000; i++) {
		sum += site_long(i) + site_short(i) + site_nops(i) + site_loop(i);
		site_ret();
	}
	printf("%ld\n", sum);
	return 0;
}
