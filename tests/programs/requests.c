/* Requests with members of several types; a slow function, and one that calls itself. */
#include "common.h"
#include <unistd.h>

struct request {
	int fd;
	int size;
	const char *path;
	char name[16];
	unsigned address;
	double weight;
};

PROBED int handle(struct request *r, int i)
{
	return r->size + i;
}

PROBED int middle(struct request *r, int i)
{
	return handle(r, i) + 1;
}

PROBED void sleepy(int us)
{
	usleep(us);
}

PROBED int rec(int n)
{
	return n ? rec(n - 1) + n : 0;
}

int main(void)
{
	int sum = 0;
	for (int i = 0; i < 10; i++) {
		struct request r = {
			i, i * 1000, i & 1 ? "/odd" : "/even", "name", 0x0100007f, 1.5,
		};
		sum += middle(&r, i) + rec(3);
		sleepy(i > 7 ? 400000 : 1);
	}
	printf("%d\n", sum);
	return 0;
}
