/*
 * Maps or copies its code a second time, and calls both copies: mapped_again HOW. `file` maps all code of the
 * program's file once more, `page` only the page of `worked`, and `memory` copies it to memory without a file.
 * On a line "first" or "second", calls the function 10 times there, answered by "called".
 */
#define _GNU_SOURCE
#include "common.h"

#include <fcntl.h>
#include <sys/mman.h>

#define PAGE 4096ul
#define OWN_PAGE __attribute__((noinline, noclone, aligned(4096)))

volatile long known = 77;

/* It uses nothing outside itself. */
OWN_PAGE long worked(long value, long rounds)
{
	long sum = value;

	for (long i = 0; i < rounds; i++)
		sum = sum * 31 + (sum >> 7) + i;
	return (sum ^ value) * 3 + rounds;
}

OWN_PAGE long worked_too(long value)
{
	return value + 1;
}

/* Finds the mapping of code, and its offset in the file. */
static void find(uintptr_t code, uintptr_t *start, uintptr_t *end, unsigned long *offset)
{
	char line[512], perms[8];
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	while (fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx %7s %lx", start, end, perms, offset) == 4 && *start <= code && code < *end)
			break;
	CHECK(*start <= code && code < *end);
	fclose(maps);
}

int main(int argc, char **argv)
{
	char line[64];
	uintptr_t code = (uintptr_t)worked, start = 0, end = 0;
	unsigned long offset = 0;
	void *copy;
	CHECK(argc == 2);
	find(code, &start, &end, &offset);
	if (!strcmp(argv[1], "page")) {
		offset += (code & -PAGE) - start;
		start = code & -PAGE;
		end = start + PAGE;
	}
	if (!strcmp(argv[1], "memory")) {
		copy = mmap(NULL, end - start, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(copy != MAP_FAILED);
		memcpy(copy, (void *)start, end - start);
		CHECK(mprotect(copy, end - start, PROT_READ | PROT_EXEC) == 0);
	} else {
		int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
		CHECK(file >= 0);
		copy = mmap(NULL, end - start, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, (off_t)offset);
		CHECK(copy != MAP_FAILED);
		close(file);
	}
	long (*second)(long, long) = (long (*)(long, long))((uintptr_t)copy + (code - start));
	long (*volatile first)(long, long) = worked;
	ready();
	while (fgets(line, sizeof line, stdin)) {
		for (long i = 0; i < 10; i++) {
			long expected = i + 1;
			long value = !strcmp(line, "second\n") ? second(i, 1) : first(i, 1);
			if (value != (i * 31 ^ i) * 3 + 1 || worked_too(i) != expected)
				BAD("wrong answer for %ld", i);
		}
		puts("called");
		fflush(stdout);
	}
	puts("ok all answers");
	return 0;
}
