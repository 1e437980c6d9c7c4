/* A signal that interrupts code of the vDSO: each instruction of a call of clock_gettime raises SIGTRAP, as the trap flag is
 * set, and the handler calls hit() at the first one that is in the vDSO.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>
#include <ucontext.h>

#define NOINLINE __attribute__((noinline, noclone))
#define TRAP_FLAG 0x100
/* More than the vDSO has bytes. */
#define SIZE 0x10000

static uintptr_t vdso;
/* The number of instructions in the vDSO before that with the hit. */
static long wanted, seen;

NOINLINE long hit(long n)
{
	volatile long room[9];

	room[n & 7] = n;
	__asm__ volatile("" ::: "memory");
	return room[n & 7] + 1;
}

static void trapped(int number, siginfo_t *info, void *context)
{
	ucontext_t *interrupted = context;
	uintptr_t at = (uintptr_t)interrupted->uc_mcontext.gregs[REG_RIP];

	(void)number;
	(void)info;
	if (at - vdso < SIZE && seen++ == wanted)
		hit(wanted);
}

NOINLINE static int asks(struct timespec *time)
{
	int result;

	__asm__ volatile("pushfq; orq %0, (%%rsp); popfq" : : "i"(TRAP_FLAG) : "memory", "cc");
	result = clock_gettime(CLOCK_MONOTONIC, time);
	__asm__ volatile("pushfq; andq %0, (%%rsp); popfq" : : "i"(~TRAP_FLAG) : "memory", "cc");
	return result;
}

int main(int count, char **words)
{
	struct sigaction action;
	struct timespec time;
	long most = count > 1 ? atol(words[1]) : 1;

	vdso = getauxval(AT_SYSINFO_EHDR);
	memset(&action, 0, sizeof(action));
	action.sa_sigaction = trapped;
	action.sa_flags = SA_SIGINFO;
	sigaction(SIGTRAP, &action, 0);
	for (wanted = 0; wanted < most; wanted++) {
		seen = 0;
		if (asks(&time))
			return 1;
		/* It has no more instructions. */
		if (seen <= wanted)
			break;
	}
	printf("%ld\n", wanted);
	return 0;
}
