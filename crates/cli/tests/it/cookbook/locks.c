#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;

__attribute__((noinline)) void rebuild(void)
{
	pthread_mutex_lock(&table);
	usleep(20000);
	pthread_mutex_unlock(&table);
}

__attribute__((noinline)) void lookup(void)
{
	pthread_mutex_lock(&table);
	pthread_mutex_unlock(&table);
}

static void *rebuilder(void *unused)
{
	for (;;) {
		rebuild();
		usleep(20000);
	}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 60);

	pthread_create(&thread, NULL, rebuilder, NULL);
	while (time(NULL) < end) {
		lookup();
		usleep(3000);
	}
	return 0;
}
