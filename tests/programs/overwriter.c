/*
 * A program that writes all ones over what session memory counts: `overwriter`. At the line
 * "spoil" it does so from the free packets' bits up to the packets, after which it calls
 * counted(n) no more; else it calls that a thousand times a line, and prints "done".
 */
#include "common.h"

#include <stddef.h>

enum { RETURNS = 160, NOT_CALLED = 200, PACKETS_OFFSET = 184, TABLES = 4096 };

PROBED uint64_t counted(uint64_t n)
{
	return mix(n);
}

static int spoil(void)
{
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "re");
	int found = 0;
	while (maps && fgets(line, sizeof line, maps)) {
		unsigned long from, to;
		char access[5];
		if (sscanf(line, "%lx-%lx %4s", &from, &to, access) == 3 && !strcmp(access, "rw-s")
		    && strstr(line, "/memfd:capriole (")) {
			unsigned char *base = (unsigned char *)from;
			uint64_t packets = *(uint64_t *)(base + PACKETS_OFFSET);
			memset(base + RETURNS, 0xff, 16);
			memset(base + NOT_CALLED, 0xff, 8);
			memset(base + TABLES, 0xff, packets - TABLES);
			found = 1;
		}
	}
	if (maps)
		fclose(maps);
	return found;
}

int main(void)
{
	char line[64];
	uint64_t sum = 0;
	printf("ready %d\n", getpid());
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		if (!strcmp(line, "spoil\n")) {
			printf("spoilt %d\n", spoil());
		} else {
			for (uint64_t n = 0; n < 1000; n++)
				sum += counted(n % 100);
			printf("done\n");
		}
		fflush(stdout);
	}
	printf("ok sum=%llu\n", (unsigned long long)sum);
	return 0;
}
