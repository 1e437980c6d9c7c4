/*
 * A program whose threads get thread-local storage of its own, by system calls whose numbers are not in its
 * code: nobody can tell in advance that it will do so.
 *
 *   own_storage_late arch_prctl | clone | clone3 | fork | none
 *
 * A thread sets its thread pointer by syscall(2) for a while; a thread is made with 64 bytes of storage; a
 * child does the former; or nothing of the kind happens, but such calls with other arguments. Around that
 * storage nothing may change. It ends by saying "ok calls=N".
 */
#include "common.h"

#include <linux/sched.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define CALLS 20000
#define CANARY 0x5a
#define AROUND 8192
#define SET_FS 0x1002
#define GET_FS 0x1003

static unsigned char *storage; /* in the middle of canaries */
static volatile int done;
/* Not constants. */
static volatile long arch_prctl_number = SYS_arch_prctl, clone_number = SYS_clone, clone3_number = SYS_clone3;

PROBED uint64_t work(uint64_t a, uint64_t n)
{
	return mix(a) + n;
}

__attribute__((optimize("no-stack-protector"))) static void works(void)
{
	for (uint64_t i = 0; i < CALLS; i++)
		if (work(i, 3) != mix(i) + 3)
			__builtin_trap();
}

/* It must not look at its thread pointer. */
__attribute__((optimize("no-stack-protector"), used)) static int thread(void)
{
	works();
	done = 1;
	for (;;)
		__asm__ volatile("syscall" : : "a"(SYS_exit), "D"(0) : "rcx", "r11", "memory");
	return 0;
}

static void look(void)
{
	for (int i = -AROUND; i < AROUND; i++)
		if ((i < 0 || i >= 64) && storage[i] != CANARY)
			BAD("byte %d of the storage changed", i);
}

#define FLAGS (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS)

static void new_thread(long number, uint64_t first, uint64_t second)
{
	long result;
	register void *tls __asm__("r8") = storage;
	register void *child __asm__("r10") = 0;
	__asm__ volatile("syscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\txor %%ebp, %%ebp\n\tcall thread\n1:"
			 : "=a"(result)
			 : "0"(number), "D"(first), "S"(second), "d"(0), "r"(child), "r"(tls)
			 : "rcx", "r11", "memory");
	CHECK(result > 0);
	while (!done)
		sched_yield();
}

__attribute__((optimize("no-stack-protector"))) static void moves(void)
{
	void *own;
	CHECK(!syscall(arch_prctl_number, GET_FS, &own));
	syscall(arch_prctl_number, SET_FS, storage);
	works();
	syscall(arch_prctl_number, SET_FS, own);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "none";
	unsigned char *page = mmap(0, 2 * AROUND, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *stack = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED && stack != MAP_FAILED);
	memset(page, CANARY, 2 * AROUND);
	storage = page + AROUND;
	memset(storage, 0, 64);
	*(void **)storage = storage;
	*(void **)(storage + 16) = storage;
	works();
	if (!strcmp(how, "arch_prctl")) {
		moves();
	} else if (!strcmp(how, "clone")) {
		new_thread(clone_number, FLAGS, (uint64_t)stack + 65536);
	} else if (!strcmp(how, "clone3")) {
		struct clone_args args = { 0 };
		args.flags = FLAGS;
		args.stack = (uint64_t)stack;
		args.stack_size = 65536;
		args.tls = (uint64_t)storage;
		new_thread(clone3_number, (uint64_t)&args, sizeof args);
	} else if (!strcmp(how, "fork")) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			moves();
			look();
			_exit(7);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
		works();
	} else {
		void *own;
		CHECK(!syscall(arch_prctl_number, GET_FS, &own));
		pid_t child = (pid_t)syscall(clone_number, SIGCHLD, 0, 0, 0, 0);
		CHECK(child >= 0);
		if (!child)
			_exit(0);
		CHECK(waitpid(child, 0, 0) == child);
		works();
	}
	usleep(10000);
	look();
	printf("ok calls=%d\n", 2 * CALLS);
	return 0;
}
