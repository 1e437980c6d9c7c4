/* Known chains of calls that end in hit(), each with what backtrace(3) says of it.
 *
 *     stacked CASE
 *
 * Built as C, also without frame pointers, and as C++. For each hit that is to have a
 * backtrace, a line is printed: the addresses that glibc finds, from hit()'s caller outwards.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <execinfo.h>
#endif

#define NOINLINE __attribute__((noinline, noclone))

/* What is to be recorded; also in the middle, where the stack pointer has moved. */
NOINLINE long hit(long n)
{
	volatile long room[9];
	room[n & 7] = n;
	__asm__ volatile("" ::: "memory", "rbx", "r12");
	return room[n & 7] + 1;
}

/* One hit, and what is around it. */
NOINLINE long point(long n)
{
#ifdef __GLIBC__
	void *found[100];
	int count = backtrace(found, 100);
	/* The first is this function, at another call than that of hit(). */
	for (int i = 1; i < count; i++)
		printf("%s%p", i == 1 ? "" : " ", found[i]);
	printf("\n");
#endif
	return hit(n) + 1;
}

NOINLINE long third(long n) { return point(n) + 1; }
NOINLINE long second(long n) { return third(n + 1) + 1; }
NOINLINE long first(long n) { return second(n + 1) + 1; }

NOINLINE long again(long n, long depth)
{
	volatile char room[160];
	room[0] = (char)n;
	return (depth ? again(n, depth - 1) : point(n)) + room[0];
}

static void handler(int signal)
{
	first(signal);
}

/* Handles what cannot go on. */
static void ended_by(int signal)
{
	first(signal);
	exit(0);
}

static void *thread(void *unused)
{
	(void)unused;
	first(5);
	return 0;
}

/* A function that nobody can say who called it: like those of a JIT compiler. */
static long generated(long (*function)(long))
{
	/* sub $8,%rsp; mov $3,%edi; call *%rax; add $8,%rsp; ret */
	static const unsigned char code[] = { 0x48, 0x89, 0xf8, 0x48, 0x83, 0xec, 0x08, 0xbf, 3, 0, 0, 0,
					      0xff, 0xd0, 0x48, 0x83, 0xc4, 0x08, 0xc3 };
	void *at = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return -1;
	memcpy(at, code, sizeof(code));
	if (mprotect(at, 4096, PROT_READ | PROT_EXEC))
		return -1;
	return ((long (*)(long (*)(long)))(uintptr_t)at)(function);
}

int main(int count, char **words)
{
	const char *which = count > 1 ? words[1] : "";
	setvbuf(stdout, 0, _IOLBF, 0);
	if (!strcmp(which, "chain")) {
		first(1);
	} else if (!strcmp(which, "deep")) {
		again(1, 60);
	} else if (!strcmp(which, "signal")) {
		struct sigaction action;
		memset(&action, 0, sizeof(action));
		action.sa_handler = handler;
		sigaction(SIGUSR1, &action, 0);
		raise(SIGUSR1);
	} else if (!strcmp(which, "fault")) {
		struct sigaction action;
		memset(&action, 0, sizeof(action));
		action.sa_handler = ended_by;
		sigaction(SIGSEGV, &action, 0);
		*(volatile int *)8 = 1;
	} else if (!strcmp(which, "alternate")) {
		struct sigaction action;
		stack_t stack;
		memset(&action, 0, sizeof(action));
		memset(&stack, 0, sizeof(stack));
		stack.ss_size = 1 << 16;
		stack.ss_sp = malloc(stack.ss_size);
		sigaltstack(&stack, 0);
		action.sa_handler = handler;
		action.sa_flags = SA_ONSTACK;
		sigaction(SIGUSR1, &action, 0);
		raise(SIGUSR1);
	} else if (!strcmp(which, "thread")) {
		pthread_t id;
		pthread_create(&id, 0, thread, 0);
		pthread_join(id, 0);
	} else if (!strcmp(which, "waiting")) {
		char line[4096];
		long (*through)(long (*)(long), long) = 0;
		void *library = 0;
		printf("ready %d\n", (int)getpid());
		while (fgets(line, sizeof(line), stdin)) {
			line[strcspn(line, "\n")] = 0;
			if (!strncmp(line, "load ", 5)) {
				if (library)
					dlclose(library);
				library = dlopen(line + 5, RTLD_NOW);
				*(void **)&through = dlsym(library, "through");
			} else if (!strncmp(line, "exec ", 5)) {
				execl(line + 5, line + 5, "tail", (char *)0);
			} else if (!strcmp(line, "through")) {
				through(third, 1);
			} else if (!strcmp(line, "done")) {
				printf("done\n");
			} else {
				first(1);
			}
		}
		printf("ok \n");
	} else if (!strcmp(which, "generated")) {
		generated(third);
	} else {
		fprintf(stderr, "stacked: no such case: %s\n", which);
		return 2;
	}
	return 0;
}
