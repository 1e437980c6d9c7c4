/* Calls a function with numbers that the test knows, in threads and in a child:
 *
 *   added THREADS CALLS
 *
 * Call n (from 0) of thread t: fd = (t + n) % 5, size = (n * 2654435761) % 100000 - 1000,
 * name = "file-K" with K = n % 7, or, in each 50th call, a pointer that leads nowhere; and
 * delta leads to size, or, in each 50th call, nowhere. The program handles SIGSEGV, and ends
 * with status 9 if there ever is one. The child does the same as a thread of the number
 * THREADS. */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static long calls;

__attribute__((noinline)) void added_call(int fd, long size, const char *name, const int *delta)
{
	__asm__ volatile("" : : "r"(fd), "r"(size), "r"(name), "r"(delta) : "memory");
}

static void *thread(void *argument)
{
	static const char *const names[7] = { "file-0", "file-1", "file-2", "file-3",
					      "file-4", "file-5", "file-6" };
	long t = (long)argument;
	for (long n = 0; n < calls; n++) {
		long size = n * 2654435761 % 100000 - 1000;
		int delta = (int)size;
		int wild = n % 50 == 49;
		added_call((int)((t + n) % 5), size,
			   wild ? (const char *)0xdead000000000000 : names[n % 7],
			   wild ? (const int *)8 : &delta);
	}
	return 0;
}

static void fault(int signal)
{
	(void)signal;
	_exit(9);
}

int main(int argc, char **argv)
{
	long threads = argc > 1 ? atol(argv[1]) : 1;
	calls = argc > 2 ? atol(argv[2]) : 1000;
	signal(SIGSEGV, fault);
	signal(SIGBUS, fault);
	pthread_t all[64];
	for (long t = 0; t < threads; t++)
		if (pthread_create(&all[t], 0, thread, (void *)t))
			return 1;
	for (long t = 0; t < threads; t++)
		pthread_join(all[t], 0);
	pid_t child = fork();
	if (child == 0) {
		thread((void *)threads);
		_exit(0);
	}
	int status = 1;
	waitpid(child, &status, 0);
	return status != 0;
}
