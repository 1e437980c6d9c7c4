/*
 * Comes to a place only while somebody watches it, as a reference counter tells.
 *
 *   watched
 *
 * For each line on standard input it would call `watched_step` 100 times; it says the
 * counter and how often it did: "counter 1 calls 100". At the line "fork" a child is made
 * first; from then on the child answers as well, before its parent: "child counter 1 calls
 * 100".
 */
#include "common.h"

#include <sys/wait.h>

volatile uint16_t watched_counter __attribute__((section(".probes"), used)) = 0;
/* Whatever is written beside the counter shows here. */
static volatile uint16_t behind __attribute__((section(".probes"), used)) = 0x5aa5;

PROBED uint64_t watched_step(uint64_t number)
{
	return mix(number + 1);
}

/* Where somebody else can watch, with the same counter. */
PROBED uint64_t watched_other(uint64_t number)
{
	return mix(number + 2);
}

static int to_child = -1, from_child = -1;

static void work(FILE *to, const char *who)
{
	unsigned calls = 0;
	for (uint64_t i = 0; i < 100; i++)
		if (watched_counter) {
			CHECK(watched_step(i) == mix(i + 1) && watched_other(i) == mix(i + 2));
			calls++;
		}
	CHECK(behind == 0x5aa5);
	fprintf(to, "%scounter %u calls %u\n", who, watched_counter, calls);
	fflush(to);
}

static void make_child(void)
{
	int down[2], up[2];
	CHECK(pipe(down) == 0 && pipe(up) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	to_child = down[1], from_child = up[0];
	if (child)
		return;
	close(to_child);
	FILE *answers = fdopen(up[1], "w");
	char byte;
	while (read(down[0], &byte, 1) == 1)
		work(answers, "child ");
	_exit(0);
}

int main(void)
{
	char line[256];
	ready();
	while (fgets(line, sizeof line, stdin)) {
		if (strncmp(line, "fork", 4) == 0)
			make_child();
		if (to_child >= 0) {
			char answer[256];
			CHECK(write(to_child, "x", 1) == 1);
			ssize_t length = read(from_child, answer, sizeof answer);
			CHECK(length > 0);
			printf("%.*s", (int)length, answer);
		}
		work(stdout, "");
	}
	if (to_child >= 0) {
		close(to_child);
		CHECK(wait(NULL) > 0);
	}
	printf("ok counter=%u\n", watched_counter);
	return 0;
}
