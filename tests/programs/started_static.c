/*
 * A static program whose constructor and `main` each call `memcpy` and `strlen`, which the C library chooses when
 * the program starts, 500 and 700 times, and `own` 1 and 2 times. With -DPREINIT it has a function in
 * .preinit_array, which calls `own` once more, before all of them.
 */
#include "common.h"

static char from[4096], to[4096];
static volatile size_t size = 100;
static volatile int calls;

PROBED void own(void)
{
	calls++;
}

static void copy(int count)
{
	for (int i = 0; i < count; i++) {
		memcpy(to, from, size);
		size = 100 + (strlen(to) & 1);
	}
	own();
}

__attribute__((constructor)) static void begin(void)
{
	copy(500);
}

#ifdef PREINIT
__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = own;
#endif

int main(void)
{
	copy(700);
	own();
	puts("ok started");
	return 0;
}
