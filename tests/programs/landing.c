/*
 * Functions that are left by the first instruction behind their `endbr64`: one that does nothing,
 * wrappers, and such with others right behind them. Each is called 1,000 times, some time apart
 * from the next round: "ok calls=1000".
 */
#include "common.h"

__asm__(
	".text\n"
	".macro function name\n"
	".globl \\name\n.type \\name, @function\n\\name:\n"
	"	endbr64\n"
	".endm\n"
	".macro over name\n"
	".size \\name, . - \\name\n"
	".endm\n"
	/* There is room behind it. */
	".p2align 4\n"
	"function landing_empty\n"
	"	ret\n"
	"over landing_empty\n"
	".p2align 4\n"
	"function landing_wrapper\n"
	"	jmp landing_work\n"
	"over landing_wrapper\n"
	/* There is none. */
	".p2align 4\n"
	"function landing_tight\n"
	"	ret\n"
	"over landing_tight\n"
	"function landing_behind\n"
	"	mov %rdi, %rax\n"
	"	add $1, %rax\n"
	"	ret\n"
	"over landing_behind\n"
	".p2align 4\n");

void landing_empty(void);
uint64_t landing_wrapper(uint64_t n);
void landing_tight(void);
uint64_t landing_behind(uint64_t n);

PROBED uint64_t landing_work(uint64_t n)
{
	return mix(n);
}

int main(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	for (uint64_t n = 0; n < 1000; n++) {
		landing_empty();
		landing_tight();
		if (landing_wrapper(n) != mix(n) || landing_behind(n) != n + 1)
			BAD("a result for %llu", (unsigned long long)n);
	}
	printf("ok calls=1000\n");
	return 0;
}
