/* Twenty calls with texts, of which every fifth takes 20 ms. */
#include "common.h"

struct request {
	int id;
	const char *name;
};

PROBED int work(const char *path, struct request *r, const unsigned char *data, long size)
{
	struct timespec time = { 0, 20000000 };

	if (r->id % 5 == 0)
		while (nanosleep(&time, &time) != 0)
			;
	return (int)strlen(path) + data[0] + (int)size + r->id;
}

int main(void)
{
	for (int i = 0; i < 20; i++) {
		char path[32], name[32];
		snprintf(path, sizeof path, "/p/%d", i);
		snprintf(name, sizeof name, "name%d", i);
		struct request r = { i, name };
		work(path, &r, (const unsigned char *)"abcdefgh", i % 8);
	}
	puts("ok");
	return 0;
}
