/* Ends, or goes on, in a way that its first argument names. */
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

/* A function of a library, too. */
extern "C" __attribute__((noinline)) long labs(long n) noexcept
{
	__asm__ volatile("" : "+r"(n));
	return n < 0 ? -n : n;
}

namespace talk {

__attribute__((noinline)) void work(int turns)
{
	for (volatile int i = 0; i < turns; i++) {
	}
}

__attribute__((noinline)) int fib(int n)
{
	return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

} // namespace talk

/* Each child says so when it has called, and lives until a byte comes on standard input. */
static void fork_children()
{
	for (int i = 0; i < 2; i++) {
		pid_t child = fork();

		if (child == 0) {
			char byte;
			talk::work(100);
			if (write(1, "called\n", 7) != 7 || read(0, &byte, 1) != 1)
				_exit(1);
			_exit(0);
		}
		waitpid(child, nullptr, 0);
	}
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";

	talk::work(100);
	talk::fib(2);
	if (strcmp(how, "crash") == 0) {
		raise(SIGSEGV);
	} else if (strcmp(how, "fail") == 0) {
		return 3;
	} else if (strcmp(how, "exec") == 0) {
		execlp("sleep", "sleep", "0.1", nullptr);
	} else if (strcmp(how, "forks") == 0) {
		fork_children();
	} else if (strcmp(how, "stays") == 0) {
		signal(SIGINT, SIG_IGN);
		printf("ready %d\n", getpid());
		fflush(stdout);
		/* Until it is killed; but not for ever, if nobody is left to do that. */
		for (int i = 0; i < 60000; i++) {
			talk::work(100);
			labs(-i);
			usleep(10000);
		}
	}
	return 0;
}
