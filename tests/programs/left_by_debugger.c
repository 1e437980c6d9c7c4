/* left_by_debugger: calls probed functions until its input ends. Prints `places WORK FLAGGED START END` first, the
 * addresses of two places to be probed and of the program's code.
 *
 * left_by_debugger PID PLACE START END: is a debugger of it, again and again: stops at the place with a breakpoint
 * of its own, goes on by single steps, more each time, and leaves. Ends once the steps have led through the detour
 * of the place, back into the program's code, or after MOST_STEPS. Prints `ok rounds=N steps=N`. */
#include "common.h"

#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

enum { MOST_STEPS = 4000 };

struct parts {
	long a, b;
	char text[16];
};

PROBED long work(long n, struct parts *p, const char *text)
{
	__asm__ volatile("" : "+r"(n) : "r"(p), "r"(text) : "memory");
	return n * 3 + p->a;
}

/* The status flags are used behind the place. */
__asm__(".pushsection .text\n .balign 64, 0xcc\n .globl flagged\n .type flagged, @function\n"
	"flagged: cmp $5, %rdi\n.globl flagged_place\nflagged_place: lea 8(%rsi), %rax\n lea 1(%rdi), %rdx\n"
	" cmovg %rdx, %rax\n ret\n .size flagged, . - flagged\n.popsection\n");
extern long flagged(long, struct parts *);
extern char flagged_place[], __executable_start[], etext[];

static unsigned long next_stop(pid_t pid, int expected)
{
	int status;
	CHECK(waitpid(pid, &status, 0) == pid);
	if (!WIFSTOPPED(status) || WSTOPSIG(status) != expected)
		BAD("no stop by signal %d but status %#x", expected, status);
	struct user_regs_struct registers;
	CHECK(ptrace(PTRACE_GETREGS, pid, NULL, &registers) == 0);
	return registers.rip;
}

static int leaves(pid_t pid, unsigned long place, unsigned long start, unsigned long end, int steps)
{
	CHECK(ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0 && ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0);
	next_stop(pid, SIGTRAP);
	errno = 0;
	long word = ptrace(PTRACE_PEEKTEXT, pid, (void *)place, NULL);
	CHECK(errno == 0);
	CHECK(ptrace(PTRACE_POKETEXT, pid, (void *)place, (void *)((word & ~0xffL) | 0xcc)) == 0);
	CHECK(ptrace(PTRACE_CONT, pid, NULL, NULL) == 0);
	CHECK(next_stop(pid, SIGTRAP) == place + 1);
	CHECK(ptrace(PTRACE_POKETEXT, pid, (void *)place, (void *)word) == 0);
	struct user_regs_struct registers;
	CHECK(ptrace(PTRACE_GETREGS, pid, NULL, &registers) == 0);
	registers.rip = place;
	CHECK(ptrace(PTRACE_SETREGS, pid, NULL, &registers) == 0);
	unsigned long at = 0;
	for (int step = 0; step < steps; step++) {
		CHECK(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == 0);
		at = next_stop(pid, SIGTRAP);
	}
	CHECK(ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0);
	return at >= start && at < end;
}

int main(int argc, char **argv)
{
	if (argc > 4) {
		pid_t pid = atoi(argv[1]);
		unsigned long address[3];
		for (int i = 0; i < 3; i++)
			address[i] = strtoul(argv[i + 2], NULL, 16);
		int rounds = 0, steps = 1;
		/* each number of them at first, then a quarter more */
		for (; !leaves(pid, address[0], address[1], address[2], steps) && steps < MOST_STEPS; steps += 1 + steps / 4)
			rounds++;
		CHECK(rounds > 5);
		printf("ok rounds=%d steps=%d\n", rounds, steps);
		return 0;
	}
	static struct parts parts = { 7, 8, "some text" };
	char text[16] = "other text";
	printf("ready %d\nplaces %lx %lx %lx %lx\n", getpid(), (unsigned long)work, (unsigned long)flagged_place,
	       (unsigned long)__executable_start, (unsigned long)etext);
	fflush(stdout);
	long calls = 0;
	for (struct pollfd input = { 0, POLLIN, 0 }; poll(&input, 1, 0) == 0; calls++) {
		long n = calls & 7;
		CHECK(work(n, &parts, text) == n * 3 + 7);
		CHECK(flagged(n, &parts) == (n > 5 ? n + 1 : (long)&parts + 8));
	}
	printf("ok calls=%ld\n", calls);
	return 0;
}
