/*
 * No room near its text: maps all that is free within 2 GiB of `nospace_work`, without
 * any access and without reserving memory, and then works. `nospace [--seconds S]
 * [--leave BYTES]`: leaves one hole of that size (a multiple of 4096) after its own
 * image. Ends like hammer.
 */
#include "common.h"

#include <sys/mman.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#define REACH (1ull << 31)

PROBED uint64_t nospace_work(uint64_t thread, uint64_t seq)
{
	return mix(thread + 11) ^ mix(seq);
}

static void fill(uint64_t start, uint64_t end)
{
	void *got = mmap((void *)start, end - start, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	if (got != (void *)start)
		BAD("cannot fill %llx-%llx: %s", (unsigned long long)start, (unsigned long long)end,
		    strerror(errno));
}

struct range { uint64_t start, end; };

/* The free ranges within reach, from the kernel's list of mappings. */
static int holes(struct range *found, int most)
{
	static char text[1 << 16];
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps && setvbuf(maps, text, _IOFBF, sizeof text) == 0);
	uint64_t here = (uint64_t)(uintptr_t)nospace_work;
	uint64_t low = here > REACH + 65536 ? (here - REACH) & ~4095ull : 65536;
	uint64_t high = (here + REACH + 4095) & ~4095ull, at = low;
	char line[512];
	int n = 0;
	while (fgets(line, sizeof line, maps) && at < high) {
		unsigned long long start, end;
		if (sscanf(line, "%llx-%llx", &start, &end) != 2)
			BAD("a line of maps: %s", line);
		if (start > at) {
			CHECK(n < most);
			found[n++] = (struct range){ at, start < high ? start : high };
		}
		if (end > at)
			at = end;
	}
	fclose(maps);
	if (at < high) {
		CHECK(n < most);
		found[n++] = (struct range){ at, high };
	}
	return n;
}

int main(int argc, char **argv)
{
	double seconds = 0;
	uint64_t leave = 0;
	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--seconds"))
			seconds = atof(argv[i + 1]);
		else if (!strcmp(argv[i], "--leave"))
			leave = strtoull(argv[i + 1], NULL, 0);
	}
	stop_on_sigterm();
	static struct range found[256];
	free(malloc(1)); /* so that the heap is where it will be */
	uint64_t here = (uint64_t)(uintptr_t)nospace_work, left = 0;
	/* Twice: stdio may have mapped and unmapped something in between. */
	for (int turn = 0; turn < 2; turn++) {
		int n = holes(found, 256);
		for (int i = 0; i < n; i++) {
			uint64_t start = found[i].start;
			if (start == left && left)
				continue;
			if (leave && !left && start > here && found[i].end - start > leave) {
				left = start;
				start += leave;
			}
			fill(start, found[i].end);
		}
	}
	int n = holes(found, 256);
	uint64_t free_bytes = 0;
	for (int i = 0; i < n; i++)
		free_bytes += found[i].end - found[i].start;
	if (free_bytes != leave)
		BAD("%llu bytes are still free", (unsigned long long)free_bytes);
	ready();
	uint64_t seq = 0, end = now_ns() + (uint64_t)(seconds * 1e9);
	while (!stop_asked && (seconds <= 0 || now_ns() < end)) {
		for (int i = 0; i < 10000; i++, seq++)
			if (nospace_work(0, seq) != (mix(11) ^ mix(seq)))
				BAD("seq %llu went wrong", (unsigned long long)seq);
		struct pollfd input = { 0, POLLIN, 0 };
		char line[64];
		if (seconds <= 0 && poll(&input, 1, 0) > 0 && read(0, line, sizeof line) >= 0)
			break;
	}
	printf("ok calls=%llu\n", (unsigned long long)seq);
	return 0;
}
