/* Calls that do not return: a thread ends in `thread_work`, a forked child in `child_work`, and
 * `sleeper_work` goes on until the program ends. Meanwhile `main_work` takes half a second. */
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

/* Never 0; the functions look as if they returned as well. */
static volatile int ends = 1;

NOINLINE void thread_work(void)
{
	usleep(1000);
	if (ends)
		pthread_exit(NULL);
}

NOINLINE void child_work(void)
{
	usleep(1000);
	if (ends)
		_exit(0);
}

NOINLINE void sleeper_work(void)
{
	while (ends)
		pause();
}

/* Says that all others have ended, and waits until a byte comes on standard input. */
NOINLINE void main_work(void)
{
	char byte;
	if (write(1, "ended\n", 6) != 6 || read(0, &byte, 1) != 1)
		_exit(1);
	__asm__ volatile("" ::: "memory");
}

static void *thread(void *argument)
{
	thread_work();
	return argument;
}

static void *sleeper(void *argument)
{
	sleeper_work();
	return argument;
}

int main(void)
{
	pthread_t id;
	if (pthread_create(&id, NULL, sleeper, NULL))
		return 1;
	for (int i = 0; i < 5; i++) {
		if (pthread_create(&id, NULL, thread, NULL))
			return 1;
		pthread_join(id, NULL);
		pid_t child = fork();
		if (!child)
			child_work();
		waitpid(child, NULL, 0);
	}
	main_work();
	puts("ok");
	return 0;
}
