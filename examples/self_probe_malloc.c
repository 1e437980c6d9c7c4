/*
 * A program that counts its own calls of malloc(), and how much they ask for.
 *
 *   cc -O2 -g -o self_probe_malloc self_probe_malloc.c $(pkg-config --cflags --libs capriole)
 */
#include <capriole/probe.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned long calls, bytes, sizes[65];

static CAPRIOLE_HANDLER int on_malloc(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	calls++;
	bytes += regs->di;
	sizes[regs->di ? 64 - __builtin_clzl(regs->di) : 0]++;
	return 0;
}

static struct capriole_probe probe = { .object = "libc", .symbol = "malloc", .pre = on_malloc };

/* The program: makes a list of words, and sorts it. */
static int by_text(const void *a, const void *b)
{
	return **(char *const *)a - **(char *const *)b;
}

int main(void)
{
	char *words[1000];
	if (capriole_probe_register(&probe) != 0) {
		fprintf(stderr, "%s\n", capriole_error());
		return 1;
	}
	for (int i = 0; i < 1000; i++)
		snprintf(words[i] = malloc(16 + i % 50), 16, "%c%d", 'a' + i % 26, i);
	qsort(words, 1000, sizeof *words, by_text);
	capriole_probe_unregister(&probe);
	printf("malloc: %lu calls, %lu bytes\n", calls, bytes);
	for (int i = 0; i < 65; i++)
		if (sizes[i])
			printf("%6lu .. %-6lu %6lu\n", i ? 1ul << (i - 1) : 0, (1ul << i) - 1, sizes[i]);
	return 0;
}
