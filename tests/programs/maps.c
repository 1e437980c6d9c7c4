/*
 * Two functions that are called with known keys and amounts.
 *
 * Answers each line "N" with "done" once `taken(key, amount)` was called for amount 0 to N - 1 and
 * `given(key, amount)` for each second of them, with key = amount % 4.
 */
#include "common.h"

PROBED uint64_t taken(uint64_t key, uint64_t amount)
{
	return mix(key) + amount;
}

PROBED uint64_t given(uint64_t key, uint64_t amount)
{
	return mix(key) - amount;
}

int main(void)
{
	char line[256];
	unsigned long long lines = 0;
	ready();
	while (fgets(line, sizeof line, stdin)) {
		uint64_t calls = strtoull(line, NULL, 10);
		for (uint64_t i = 0; i < calls; i++) {
			if (taken(i % 4, i) != mix(i % 4) + i)
				BAD("taken %llu went wrong", (unsigned long long)i);
			if (i % 2 == 0 && given(i % 4, i) != mix(i % 4) - i)
				BAD("given %llu went wrong", (unsigned long long)i);
		}
		lines++;
		printf("done\n");
		fflush(stdout);
	}
	printf("ok lines=%llu\n", lines);
	return 0;
}
