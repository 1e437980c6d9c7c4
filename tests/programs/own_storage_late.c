/*
 * A program whose threads get thread-local storage of its own, by system calls whose numbers are not in its
 * code: nobody can tell in advance that it will do so.
 *
 *   own_storage_late arch_prctl | clone | clone3 | loaded | fork | none
 *
 * "loaded" is there if it was built with LOADED.
 *
 * A thread sets its thread pointer by syscall(2) for a while; a thread is made with 64 bytes of storage, by
 * numbers that arrive in a register or are loaded right before the call; a child does the former; or nothing of
 * the kind happens, but such calls with other arguments. Around that storage nothing may change. It ends by saying "ok calls=N".
 */
#include "own_storage.h"

#include <linux/sched.h>
#include <sys/wait.h>

#define SET_FS 0x1002
#define GET_FS 0x1003

/* Not constants. */
static volatile long arch_prctl_number = SYS_arch_prctl, clone_number = SYS_clone, clone3_number = SYS_clone3;

/* The number arrives in a register. */
__attribute__((noipa)) static void new_thread(long number, uint64_t first, uint64_t second)
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

#ifdef LOADED
/* The number is loaded by the instruction before the call, which is a jump's target: no guard has room there. */
__attribute__((noipa)) static void new_thread_loaded(uint64_t first, uint64_t second)
{
	long result;
	register void *tls __asm__("r8") = storage;
	register void *child __asm__("r10") = 0;
	__asm__ volatile("jmp 2f\n\tnop\n2:\tmov %[number], %%rax\n3:\tsyscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\tcall thread\n\tjmp 3b\n1:"
			 : "=&a"(result)
			 : [number] "m"(clone_number), "D"(first), "S"(second), "d"(0), "r"(child), "r"(tls)
			 : "rcx", "r11", "memory");
	CHECK(result > 0);
	while (!done)
		sched_yield();
}
#endif

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "none";
	prepare();
	works();
	if (!strcmp(how, "arch_prctl")) {
		moves();
	} else if (!strcmp(how, "clone")) {
		new_thread(clone_number, FLAGS, (uint64_t)stack + STACK);
#ifdef LOADED
	} else if (!strcmp(how, "loaded")) {
		new_thread_loaded(FLAGS, (uint64_t)stack + STACK);
#endif
	} else if (!strcmp(how, "clone3")) {
		struct clone_args args = { 0 };
		args.flags = FLAGS;
		args.stack = (uint64_t)stack;
		args.stack_size = STACK;
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
