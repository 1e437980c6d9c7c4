/*
 * Functions for probes beside other tools' breakpoints: in `single` and `nop` a jump lies
 * within the first instruction, in `several` and `nops` over more than one. All return
 * 3 * x + 7, which is verified. On standard input: "call" has each called 100 times and is
 * answered by "called"; "hot" has a thread call `single` and `nop` until "cool", "all hot" all
 * of them; "fork" makes a child that calls them whenever "call" does. Ends when its input ends.
 */
#include "common.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>

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

static int to_child = -1, from_child;

/* A child that calls the functions for each byte it reads, and answers each. */
static void make_child(void)
{
	int down[2], up[2];
	CHECK(pipe(down) == 0 && pipe(up) == 0);
	pid_t parent = getpid(), child = fork();
	CHECK(child >= 0);
	if (child) {
		close(down[0]);
		close(up[1]);
		to_child = down[1];
		from_child = up[0];
		return;
	}
	char byte;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(down[1]);
	while (getppid() == parent && read(down[0], &byte, 1) == 1) {
		call(4);
		CHECK(write(up[1], &byte, 1) == 1);
	}
	_exit(0);
}

static void let_child_call(void)
{
	char byte = 0;
	CHECK(write(to_child, &byte, 1) == 1);
	if (read(from_child, &byte, 1) != 1)
		BAD("the child has ended");
}

int main(int argc, char **argv)
{
	char line[64];
	pthread_t thread;
	static char locked;
	/* Text of a program that has locked memory is not covered. */
	if (argc > 1 && !strcmp(argv[1], "locked"))
		CHECK(!mlock(&locked, 1));
	ready();
	while (fgets(line, sizeof line, stdin)) {
		if (strcmp(line, "call\n") == 0) {
			call(4);
			if (to_child >= 0)
				let_child_call();
		} else if (strcmp(line, "fork\n") == 0) {
			make_child();
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
