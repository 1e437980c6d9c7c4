/*
 * A program whose threads do not have the C library's thread-local storage.
 *
 *   own_storage clone | raw | arch_prctl | wrfsbase
 *
 * A thread made with 64 bytes of storage of its own (by the C library's clone, or the system
 * call); or a thread that changes its thread pointer for a while. Around that storage nothing
 * may change. It ends by saying "ok calls=N".
 */
#include "own_storage.h"

#include <sys/auxv.h>

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "clone";
	prepare();
	works();
	if (!strcmp(how, "clone")) {
		CHECK(clone(thread, stack + STACK, FLAGS, 0, 0, storage, 0) > 0);
	} else if (!strcmp(how, "raw")) {
		long result;
		register void *tls __asm__("r8") = storage;
		register void *child __asm__("r10") = 0;
		__asm__ volatile("syscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\txor %%ebp, %%ebp\n\tcall thread\n1:"
				 : "=a"(result)
				 : "0"(SYS_clone), "D"(FLAGS), "S"(stack + STACK), "d"(0), "r"(child), "r"(tls)
				 : "rcx", "r11", "memory");
		CHECK(result > 0);
	} else {
		void *own;
		__asm__ volatile("mov %%fs:0x10, %0" : "=r"(own));
		if (!strcmp(how, "arch_prctl")) {
			long result;
			__asm__ volatile("syscall" : "=a"(result) : "0"(158), "D"(0x1002), "S"(storage)
					 : "rcx", "r11", "memory");
			works();
			__asm__ volatile("syscall" : "=a"(result) : "0"(158), "D"(0x1002), "S"(own)
					 : "rcx", "r11", "memory");
		} else if (getauxval(AT_HWCAP2) & 2) { /* HWCAP2_FSGSBASE */
			__asm__ volatile("wrfsbase %0" : : "r"(storage) : "memory");
			works();
			__asm__ volatile("wrfsbase %0" : : "r"(own) : "memory");
		} else {
			works();
		}
		done = 1;
	}
	while (!done)
		sched_yield();
	usleep(10000);
	look();
	printf("ok calls=%d\n", 2 * CALLS);
	return 0;
}
