/*
 * Fault injection: every third malloc() of the program returns NULL, without being executed. Shows
 * whether the program's error paths work.
 *
 *   cc -O2 -g -o fault_injection fault_injection.c $(pkg-config --cflags --libs capriole)
 */
#include <capriole/probe.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVERY 3

static unsigned long calls, failed;

/* Returns from the function in its place: at its first instruction the return address is on top of
 * the stack. */
static CAPRIOLE_HANDLER int fail(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	if (++calls % EVERY)
		return 0;
	failed++;
	regs->ax = 0;
	regs->ip = *(uint64_t *)regs->sp;
	regs->sp += 8;
	return 1;
}

static struct capriole_probe probe = { .object = "libc", .symbol = "malloc", .pre = fail };

/* What is tested: copies a text, or says that it could not. */
static char *copy(const char *text)
{
	char *memory = malloc(strlen(text) + 1);
	return memory ? strcpy(memory, text) : NULL;
}

int main(void)
{
	char *copies[9];
	if (capriole_probe_register(&probe) < 0) {
		fprintf(stderr, "%s\n", capriole_error());
		return 1;
	}
	for (int i = 0; i < 9; i++)
		copies[i] = copy("a text");
	capriole_probe_unregister(&probe);
	for (int i = 0; i < 9; i++) {
		printf("copy %d: %s\n", i, copies[i] ? copies[i] : "no memory");
		free(copies[i]);
	}
	printf("%lu of %lu calls of malloc failed\n", failed, calls);
	return 0;
}
