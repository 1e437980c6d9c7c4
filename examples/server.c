/* A function that the compiler has put into both of its callers. Runs for a moment.
 *
 *   cc -O2 -g -o server server.c
 */
#include <stdio.h>

struct request {
	int length;
	const char *path;
};

/* The compiler must not melt these into their callers. */
#define STEP __attribute__((noinline))

static volatile int sink;

static inline __attribute__((always_inline)) int handle_request(struct request *request, int tries)
{
	int sum = tries + request->length;
	for (int i = 0; i < request->length; i++)
		sum = sum * 31 + request->path[i];
	sink = sum;
	return sum;
}

STEP int first(struct request *request)
{
	return handle_request(request, 1) + 1;
}

STEP int second(struct request *request, int tries)
{
	if (tries > 100)
		return 0;
	return handle_request(request, tries * 2) + tries;
}

int main(void)
{
	struct request request = { 11, "/index.html" };
	int sum = 0;
	for (int i = 0; i < 100; i++)
		sum += first(&request) + second(&request, i);
	printf("%d\n", sum);
	return 0;
}
