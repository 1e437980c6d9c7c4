/*
 * A server that forks its workers first: prefork WORKERS CALLS. The workers run the same code
 * at the same places of their stacks at the same time. Each calls `prefork_work` CALLS times,
 * with numbers that no other call has, and gets them back. Prints "ok calls=N".
 */
#include "common.h"

#include <sched.h>
#include <sys/wait.h>

PROBED uint64_t prefork_work(uint64_t number)
{
	volatile uint64_t spent = 0;
	for (uint64_t i = 0; i < 2000 + number % 7 * 500; i++)
		spent += mix(i);
	/* The others are in it, too. */
	sched_yield();
	return number;
}

int main(int count, char **words)
{
	long workers = count > 1 ? strtol(words[1], NULL, 10) : 4;
	long calls = count > 2 ? strtol(words[2], NULL, 10) : 100;
	for (long worker = 0; worker < workers; worker++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child)
			continue;
		for (long i = 0; i < calls; i++) {
			uint64_t number = (uint64_t)(worker * calls + i);
			if (prefork_work(number) != number)
				_exit(1);
		}
		_exit(0);
	}
	for (long worker = 0; worker < workers; worker++) {
		int status;
		CHECK(wait(&status) > 0);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	printf("ok calls=%ld\n", workers * calls);
	return 0;
}
