/*
 * A program whose threads do not have the C library's thread-local storage.
 *
 *   own_storage clone | raw | arch_prctl | wrfsbase
 *
 * A thread made with 64 bytes of storage of its own (by the C library's clone, or the system
 * call); or a thread that changes its thread pointer for a while. Around that storage nothing
 * may change. It ends by saying "ok calls=N".
 */
#include "common.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define CALLS 20000
#define CANARY 0x5a
#define AROUND 8192

static unsigned char *storage; /* in the middle of canaries */
static volatile int tid, done;

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
__attribute__((optimize("no-stack-protector"), used)) static int thread(void *unused)
{
	(void)unused;
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

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "clone";
	unsigned char *page = mmap(0, 2 * AROUND, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *stack = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED && stack != MAP_FAILED);
	memset(page, CANARY, 2 * AROUND);
	storage = page + AROUND;
	memset(storage, 0, 64);
	*(void **)storage = storage;
	*(void **)(storage + 16) = storage;
	works();
	if (!strcmp(how, "clone")) {
		CHECK(clone(thread, stack + 65536, FLAGS, 0, 0, storage, 0) > 0);
	} else if (!strcmp(how, "raw")) {
		long result;
		register void *tls __asm__("r8") = storage;
		register void *child __asm__("r10") = 0;
		__asm__ volatile("syscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\txor %%ebp, %%ebp\n\tcall thread\n1:"
				 : "=a"(result)
				 : "0"(SYS_clone), "D"(FLAGS), "S"(stack + 65536), "d"(0), "r"(child), "r"(tls)
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
