/*
 * A program with a handler of faults and a function that makes any system call. Addresses of
 * instructions behind that call stand on its stack: as if a thread, or a signal frame, were there.
 *
 * The line "leave" removes them, and is answered by "left". The line "fault" has an instruction in
 * occupied_fault fault; the handler checks where, and steps over it; then it says "faulted".
 */
#include "common.h"

#include <signal.h>
#include <ucontext.h>

extern char fault_at[], fault_behind[], own_behind[];
long own_call(long number, long a, long b, long c, long d);

__asm__(
	".text\n"
	".globl own_call, own_behind\n"
	".type own_call, @function\n"
	"own_call:\n"
	"	mov %rdi, %rax\n"
	"	mov %rsi, %rdi\n"
	"	mov %rdx, %rsi\n"
	"	mov %rcx, %rdx\n"
	"	mov %r8, %r10\n"
	"	syscall\n"
	"own_behind:\n"
	"	mov %rax, %rdx\n"
	"	mov %rdx, %rax\n"
	"	ret\n"
	".size own_call, . - own_call\n");

enum { WORDS = 7 };

PROBED uint64_t occupied_fault(const uint64_t *from)
{
	uint64_t value = 7;
	__asm__ volatile(".globl fault_at, fault_behind\n"
	                 "fault_at: mov 200(%1), %0\n"
	                 "fault_behind:"
	                 : "+r"(value) : "r"(from) : "memory");
	return value;
}

static void faulted(int signal, siginfo_t *info, void *context)
{
	ucontext_t *at = context;
	(void)signal;
	(void)info;
	if (at->uc_mcontext.gregs[REG_RIP] != (greg_t)(uintptr_t)fault_at) {
		static const char text[] = "BAD address of a fault\n";
		_exit(write(1, text, sizeof text - 1) > 0 ? 1 : 2);
	}
	at->uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)fault_behind;
}

int main(void)
{
	volatile uintptr_t words[WORDS];
	char line[64];
	struct sigaction action = { .sa_sigaction = faulted, .sa_flags = SA_SIGINFO };
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
	CHECK(own_call(39, 0, 0, 0, 0) == getpid());
	for (int i = 0; i < WORDS; i++)
		words[i] = (uintptr_t)own_behind + (uintptr_t)i;
	ready();
	while (fgets(line, sizeof line, stdin)) {
		int leave = !strcmp(line, "leave\n");
		for (int i = 0; leave && i < WORDS; i++)
			words[i] = 0;
		if (!leave && occupied_fault(NULL) != 7)
			BAD("the value");
		puts(leave ? "left" : "faulted");
		fflush(stdout);
	}
	printf("ok %d\n", words[0] == 0);
	return 0;
}
