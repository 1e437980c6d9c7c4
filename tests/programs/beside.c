/*
 * Functions for probes beside other tools' breakpoints: in `single` and `nop` a jump lies
 * within the first instruction, in `several` and `nops` over more than one. All return
 * 3 * x + 7, which is verified. On standard input: "call" has each called 100 times and is
 * answered by "called"; "hot" has a thread call `single` and `nop` until "cool", "all hot" all
 * of them. Ends when its input ends.
 */
#include "common.h"

#include <pthread.h>

#define BEGIN(name) \
	".balign 64, 0xcc\n.globl " #name "\n.type " #name ", @function\n" #name ":\n"
#define END(name) ".size " #name ", . - " #name "\n"

__asm__(".pushsection .text\n"
	BEGIN(single)
	"mov $7, %eax\n lea (%rdi,%rdi,2), %rdx\n add %rdx, %rax\n ret\n"
	END(single)
	BEGIN(several)
	"push %rbx\n mov %rdi, %rbx\n lea 7(%rbx,%rdi), %rax\n add %rbx, %rax\n pop %rbx\n ret\n"
	END(several)
	BEGIN(nop)
	".byte 0x0f, 0x1f, 0x44, 0, 0\n lea (%rdi,%rdi,2), %rax\n add $7, %rax\n ret\n"
	END(nop)
	BEGIN(nops)
	"nop\n nop\n nop\n nop\n nop\n lea (%rdi,%rdi,2), %rax\n add $7, %rax\n ret\n"
	END(nops)
	".popsection\n");

extern uint64_t single(uint64_t), several(uint64_t), nop(uint64_t), nops(uint64_t);
static uint64_t (*const functions[])(uint64_t) = { single, nop, several, nops };

static void call(int count)
{
	for (int i = 0; i < count; i++)
		for (uint64_t x = 0; x < 100; x++)
			if (functions[i](x) != 3 * x + 7)
				BAD("function %d: wrong answer for %d", i, (int)x);
}

static volatile int hot;

static void *caller(void *unused)
{
	while (hot)
		call(hot);
	return unused;
}

int main(void)
{
	char line[64];
	pthread_t thread;
	ready();
	while (fgets(line, sizeof line, stdin)) {
		if (strcmp(line, "call\n") == 0) {
			call(4);
		} else if (strcmp(line, "hot\n") == 0 || strcmp(line, "all hot\n") == 0) {
			hot = *line == 'h' ? 2 : 4;
			CHECK(pthread_create(&thread, NULL, caller, NULL) == 0);
		} else {
			hot = 0;
			pthread_join(thread, NULL);
		}
		puts("called");
		fflush(stdout);
	}
	puts("ok all answers");
	return 0;
}
