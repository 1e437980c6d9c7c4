/*
 * Many functions, one in each STRIDE bytes of text. All return their argument plus one, which is
 * verified. Each line on standard input has them called, and is answered by "called".
 */
#include "common.h"

#define COUNT 150
/* A power of two. */
#ifndef STRIDE
#define STRIDE 32768
#endif
#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)

__asm__(".altmacro\n"
	".macro FUNCTION n\n"
	".pushsection .text\n"
	".balign " TEXT(STRIDE) ", 0xcc\n"
	".globl far_\\n\n .type far_\\n, @function\n"
	"far_\\n: push %rbx\n mov %rdi, %rbx\n lea 1(%rbx), %rax\n pop %rbx\n ret\n"
	".size far_\\n, . - far_\\n\n"
	".popsection\n"
	".pushsection .data.rel.ro, \"aw\"\n .quad far_\\n\n .popsection\n"
	".endm\n"
	".pushsection .data.rel.ro, \"aw\"\n .balign 8\n all_of_them:\n .popsection\n"
	".set number, 0\n"
	".rept 150\n FUNCTION %number\n .set number, number + 1\n .endr\n"
	".noaltmacro\n");

extern uint64_t (*const all_of_them[COUNT])(uint64_t) __attribute__((visibility("hidden")));

int main(void)
{
	char line[64];
	ready();
	while (fgets(line, sizeof line, stdin)) {
		for (uint64_t i = 0; i < COUNT; i++)
			if (all_of_them[i](i) != i + 1)
				BAD("far_%d: wrong answer", (int)i);
		puts("called");
		fflush(stdout);
	}
	puts("ok all answers");
	return 0;
}
