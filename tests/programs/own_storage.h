/* What the programs with thread-local storage of their own share. */
#ifndef CAPRIOLE_TEST_OWN_STORAGE_H
#define CAPRIOLE_TEST_OWN_STORAGE_H

#include "common.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define CALLS 20000
#define CANARY 0x5a
#define AROUND 8192
#define STACK 65536

static unsigned char *storage; /* 64 bytes in the middle of canaries */
static char *stack;
static volatile int done;

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

/* Makes the storage, and a stack for a thread. */
static void prepare(void)
{
	unsigned char *page = mmap(0, 2 * AROUND, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	stack = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED && stack != MAP_FAILED);
	memset(page, CANARY, 2 * AROUND);
	storage = page + AROUND;
	memset(storage, 0, 64);
	*(void **)storage = storage;
	*(void **)(storage + 16) = storage;
}

#endif
