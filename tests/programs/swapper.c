/*
 * Puts descriptors of a file in the place of whatever is opened: it has that file open for
 * its name only (O_PATH), and may not write to it.
 *
 *   swapper FILE
 */
#include "common.h"

#include <fcntl.h>
#include <pthread.h>

static volatile int ending;
static int file;

static void *swap(void *unused)
{
	(void)unused;
	while (!ending)
		for (int i = 3; i < 8; i++) {
			/* EBUSY: somebody is just opening something there. */
			if (dup2(file, i) >= 0 || errno != EBUSY)
				close(i);
		}
	return NULL;
}

PROBED uint64_t work(uint64_t x) { return mix(x) + 1; }

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	file = open(argv[1], O_PATH);
	CHECK(file >= 0);
	file = dup2(file, 100);
	pthread_t thread;
	pthread_create(&thread, NULL, swap, NULL);
	printf("ready %d\n", (int)getpid());
	fflush(stdout);
	struct pollfd in = { .fd = 0, .events = POLLIN };
	volatile uint64_t sum = 0;
	while (poll(&in, 1, 1) == 0)
		sum += work(sum);
	ending = 1;
	pthread_join(thread, NULL);
	printf("ok %llu\n", (unsigned long long)sum);
	return 0;
}
