/*
 * Loads a library from memory, as programs with plug-ins in archives do: in_memory LIBRARY NAME [OTHER]. Its
 * function `plugged` is called 10 times on each line "call", answered by "called". With OTHER it is loaded once
 * more, from memory of that name.
 */
#define _GNU_SOURCE
#include "common.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

static void *load(const char *source, const char *name)
{
	char path[64];
	struct stat status;
	int file = open(source, O_RDONLY | O_CLOEXEC), memory = memfd_create(name, MFD_CLOEXEC);
	CHECK(file >= 0 && memory >= 0 && fstat(file, &status) == 0);
	CHECK(sendfile(memory, file, NULL, (size_t)status.st_size) == status.st_size);
	snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
	return dlopen(path, RTLD_NOW);
}

int main(int argc, char **argv)
{
	char line[64];
	CHECK(argc == 3 || argc == 4);
	void *library = load(argv[1], argv[2]);
	CHECK(argc == 3 || load(argv[1], argv[3]));
	long (*plugged)(long) = library ? (long (*)(long))dlsym(library, "plugged") : NULL;
	CHECK(plugged);
	ready();
	while (fgets(line, sizeof line, stdin)) {
		for (long i = 0; i < 10; i++)
			if (plugged(i) != 3 * i)
				BAD("wrong answer for %ld", i);
		puts("called");
		fflush(stdout);
	}
	puts("ok all answers");
	return 0;
}
