/*
 * A program whose children forge whatever they can reach of a session, and itself a fake one.
 *
 *   forger                        waits for commands while it works
 *   forger --fake NAME FILE SIZE  has mapped a memfd of that name before (privately, but if it is
 *                                 `capriole`), SIZE bytes that begin with FILE's
 *
 * It calls forger_work all the time and verifies the results. A line on standard input is a
 * command:
 *
 *   where   prints "at PUBLIC SECRET", the addresses of two texts; forger_follow is called with
 *           the address of a pointer to the first one, all the time
 *   forge   a child is forked that seeks, in all memory of the session, what could be an entry
 *           of the journal for the code of this program, changes the bytes that it says were
 *           there, and overwrites all of session memory. Prints "forged N", N entries
 *   damage  a child is forked that overwrites its ledger. Prints "damaged"
 *   drop    a child is forked that becomes user and group 65534. Prints "dropped PID"
 *   keep    a child is forked that maps session memory once more and becomes user and group 65534.
 *           Prints "kept PID"
 *   share   a child is made that shares the memory, as one of vfork does, and becomes user 65534.
 *           Prints "shares PID"
 *
 * At the end of the input it kills the children and prints "ok calls=N".
 */
#include "common.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

PROBED uint64_t forger_work(uint64_t number)
{
	return mix(number) ^ mix(number + 1);
}

static const char public_text[] = "public", secret_text[] = "secret";
static const char *followed = public_text;

PROBED uint64_t forger_follow(const char **text)
{
	return (uint64_t)(*text)[0];
}

static uint64_t calls;

static void work(void)
{
	if (forger_follow(&followed) != 'p')
		BAD("a wrong text");
	for (int i = 0; i < 1000; i++, calls++)
		if (forger_work(calls) != (mix(calls) ^ mix(calls + 1)))
			BAD("a wrong result at call %llu", (unsigned long long)calls);
}

/* Changes what could be journal entries, of 64 bytes, in [start, end): what was before. */
static int forge_entries(unsigned char *start, unsigned char *end)
{
	uint64_t function = (uint64_t)(uintptr_t)forger_work;
	int forged = 0;
	for (unsigned char *at = start; at + 64 <= end; at += 64) {
		uint64_t address;
		memcpy(&address, at, 8);
		if (address < function || address >= function + 64 || !at[8] || at[8] > 16)
			continue;
		memset(at + 16, 0xf4, 16); /* hlt */
		forged++;
	}
	return forged;
}

enum deed { FORGE, DAMAGE, KEEP };

static int child_of_session(enum deed deed)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int forged = 0;
	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		unsigned long start, end;
		char flags[5];
		CHECK(sscanf(line, "%lx-%lx %4s", &start, &end, flags) == 3);
		unsigned char *memory = (unsigned char *)start;
		int ledger = strstr(line, "/memfd:capriole-ledger") != NULL;
		if (!strstr(line, "/memfd:capriole") || flags[1] != 'w')
			continue;
		if (deed == DAMAGE && ledger)
			memset(memory, 0xff, end - start);
		if (deed == FORGE) {
			forged += forge_entries(memory, (unsigned char *)end);
			if (!ledger)
				memset(memory, 0xff, end - start);
		}
		if (deed == KEEP && !ledger && flags[3] == 's') {
			CHECK(mremap(memory, 0, end - start, MREMAP_MAYMOVE) != MAP_FAILED);
			forged++;
		}
	}
	fclose(maps);
	return forged;
}

static void say(const char *format, ...)
{
	char text[64];
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	CHECK(write(1, text, (size_t)length) == length);
}

/* By itself, not by the C library, which would ask the other threads, of another process, to. */
static void drop(void)
{
	CHECK(!syscall(SYS_setgroups, 0, NULL));
	CHECK(!syscall(SYS_setresgid, 65534, 65534, 65534));
	CHECK(!syscall(SYS_setresuid, 65534, 65534, 65534));
}

static pid_t children[16];
static int count;
static int wanted[2];

/* In the memory of its parent. */
static int until_wanted(void *unused)
{
	char byte;
	(void)unused;
	drop();
	say("shares %d\n", (int)syscall(SYS_getpid));
	while (read(wanted[0], &byte, 1) < 0 && errno == EINTR)
		;
	_exit(0);
}

static pid_t share(void)
{
	static char stack[1 << 16] __attribute__((aligned(16)));
	pid_t child = clone(until_wanted, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
	CHECK(child > 0);
	return child;
}

static void child(const char *command)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!strcmp(command, "forge"))
		say("forged %d\n", child_of_session(FORGE));
	if (!strcmp(command, "damage")) {
		child_of_session(DAMAGE);
		say("damaged\n");
	}
	int keeps = !strcmp(command, "keep");
	if (keeps || !strcmp(command, "drop")) {
		if (keeps)
			CHECK(child_of_session(KEEP) > 0);
		drop();
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		say("%s %d\n", keeps ? "kept" : "dropped", getpid());
		for (;;) {
			work();
			usleep(1000);
		}
	}
	for (;;)
		pause();
}

static void fake(char **words)
{
	static char bytes[1 << 16];
	unsigned long size = strtoul(words[2], NULL, 0);
	int file = open(words[1], O_RDONLY);
	int fd = (int)syscall(SYS_memfd_create, words[0], 0);
	CHECK(file >= 0 && fd >= 0 && !ftruncate(fd, (off_t)size));
	int flags = strcmp(words[0], "capriole") ? MAP_PRIVATE : MAP_SHARED;
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);
	CHECK(memory != MAP_FAILED);
	ssize_t length = read(file, bytes, sizeof bytes);
	CHECK(length >= 0);
	memcpy(memory, bytes, (size_t)length);
	close(file);
	close(fd);
}

int main(int words, char **word)
{
	pid_t sharer = 0;
	if (words > 4 && !strcmp(word[1], "--fake"))
		fake(word + 2);
	CHECK(!pipe(wanted));
	ready();
	for (;;) {
		struct pollfd input = { .fd = 0, .events = POLLIN };
		char line[64] = "";
		work();
		if (poll(&input, 1, 1) <= 0)
			continue;
		ssize_t length = read(0, line, sizeof line - 1);
		CHECK(length >= 0);
		if (!length)
			break;
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "share")) {
			sharer = share();
			continue;
		}
		if (!strcmp(line, "where")) {
			say("at %lu %lu\n", (unsigned long)public_text, (unsigned long)secret_text);
			continue;
		}
		CHECK(count < (int)(sizeof children / sizeof children[0]));
		children[count] = fork();
		CHECK(children[count] >= 0);
		if (!children[count])
			child(line);
		count++;
	}
	if (sharer) {
		int status;
		CHECK(write(wanted[1], "x", 1) == 1);
		CHECK(waitpid(sharer, &status, 0) == sharer && !status);
	}
	for (int i = 0; i < count; i++) {
		CHECK(!kill(children[i], SIGKILL));
		CHECK(waitpid(children[i], NULL, 0) == children[i]);
	}
	printf("ok calls=%llu\n", (unsigned long long)calls);
	return 0;
}
