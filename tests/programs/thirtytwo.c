/* A 32-bit program (build with -m32), which Capriole refuses. `thirtytwo [--seconds S]`;
 * ends like hammer. */
#include "common.h"

PROBED uint32_t thirtytwo_work(uint32_t thread, uint32_t seq)
{
	return (thread + 3) * 2654435761u ^ seq;
}

int main(int argc, char **argv)
{
	double seconds = argc == 3 && !strcmp(argv[1], "--seconds") ? atof(argv[2]) : 0;
	if (sizeof(void *) != 4)
		BAD("pointers have %u bytes: this is no 32-bit program", (unsigned)sizeof(void *));
	stop_on_sigterm();
	ready();
	for (uint32_t seq = 0; seq < 100000; seq++)
		if (thirtytwo_work(1, seq) != (4 * 2654435761u ^ seq))
			BAD("seq %u went wrong", (unsigned)seq);
	wait_for_stop(seconds);
	printf("ok calls=100000\n");
	return 0;
}
