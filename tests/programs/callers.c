/* Calls of hit() by chains of all kinds: recursion with frames of varying size, aligned frames,
 * tail calls, functions that end with a call, callbacks of the C library, signal handlers on the
 * same and on another stack, threads.
 *
 *     callers CASE [TIMES [LIBRARY]]
 */
#include <alloca.h>
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/wait.h>

#define NOINLINE __attribute__((noinline, noclone))

static jmp_buf out;
volatile long sum;

/* The event. A leaf, without a frame. */
NOINLINE long hit(long n)
{
	sum += n;
	return n + 1;
}

/* A frame whose size is known when it runs only. */
NOINLINE long varied(long n, long depth)
{
	volatile char *room = (volatile char *)alloca((size_t)(24 + 40 * (depth & 7)));
	room[0] = (char)n;
	return (depth ? varied(n, depth - 1) : hit(n)) + room[0];
}

/* A frame at a multiple of 64 bytes: where it is says no register but rbp. */
NOINLINE long aligned(long n, long depth)
{
	volatile long room[8] __attribute__((aligned(64)));
	room[n & 7] = n;
	return (depth ? aligned(n, depth - 1) : hit(n)) + room[n & 7];
}

/* A frame larger than many pages. */
NOINLINE long large(long n)
{
	volatile char room[50000];
	room[n & 1023] = 1;
	return hit(n) + room[n & 1023];
}

/* With -O2 a jump: its caller is the caller of hit(). */
NOINLINE long tail(long n) { return hit(n + 1); }
NOINLINE long by_tail(long n) { return tail(n) * 3 + 1; }

/* A call that does not return is the last instruction of its function. */
NOINLINE __attribute__((noreturn)) void stop(long n)
{
	hit(n);
	longjmp(out, 1);
}
NOINLINE __attribute__((noreturn)) void ends(long n) { stop(n + 1); }

static int compare(const void *a, const void *b)
{
	hit(3);
	return *(const int *)a - *(const int *)b;
}

static void handler(int signal)
{
	varied(signal, 2);
}

static void *thread(void *unused)
{
	(void)unused;
	varied(5, 4);
	return 0;
}

static void raise_with(int flags)
{
	struct sigaction action;
	memset(&action, 0, sizeof(action));
	action.sa_handler = handler;
	action.sa_flags = flags;
	sigaction(SIGUSR1, &action, 0);
	raise(SIGUSR1);
}

NOINLINE void once(const char *which, const char *library)
{
	if (!strcmp(which, "varied")) {
		for (long depth = 0; depth < 12; depth++)
			varied(1, depth);
	} else if (!strcmp(which, "aligned")) {
		for (long depth = 0; depth < 12; depth++)
			aligned(1, depth);
	} else if (!strcmp(which, "deep")) {
		varied(1, 400);
	} else if (!strcmp(which, "large")) {
		large(2);
	} else if (!strcmp(which, "tail")) {
		by_tail(1);
	} else if (!strcmp(which, "ends")) {
		if (!setjmp(out))
			ends(1);
	} else if (!strcmp(which, "sorted")) {
		int numbers[] = { 5, 2, 7, 1, 9, 3 };
		qsort(numbers, 6, sizeof(numbers[0]), compare);
		bsearch(&numbers[2], numbers, 6, sizeof(numbers[0]), compare);
	} else if (!strcmp(which, "signal")) {
		raise_with(0);
	} else if (!strcmp(which, "alternate")) {
		static char room[1 << 16];
		stack_t stack;
		memset(&stack, 0, sizeof(stack));
		stack.ss_size = sizeof(room);
		stack.ss_sp = room;
		sigaltstack(&stack, 0);
		raise_with(SA_ONSTACK);
	} else if (!strcmp(which, "thread")) {
		pthread_t id;
		pthread_create(&id, 0, thread, 0);
		pthread_join(id, 0);
	} else if (!strcmp(which, "loaded")) {
		void *handle = dlopen(library, RTLD_NOW);
		long (*through)(long (*)(long), long) = handle ? dlsym(handle, "through") : 0;
		if (!through)
			exit(3);
		through(by_tail, 1);
		usleep(100000); /* so that the library is seen */
	} else if (!strcmp(which, "forked")) {
		pid_t child = fork();
		varied(1, 3);
		if (!child)
			_exit(0);
		waitpid(child, 0, 0);
	} else {
		fprintf(stderr, "callers: no such case: %s\n", which);
		exit(2);
	}
}

int main(int count, char **words)
{
	long times = count > 2 ? atol(words[2]) : 1;
	for (long i = 0; i < times; i++)
		once(count > 1 ? words[1] : "", count > 3 ? words[3] : 0);
	return 0;
}
