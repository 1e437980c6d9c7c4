/*
 * A program whose children, which have given their privileges up, write over what they share
 * with it: `scribbler [all]`. It calls hostile_record(n, m), hostile_text(text, n) and, from
 * there, hostile_inner(n) as fast as it can, verifies what they return and that the memory
 * which it has set aside is as it was, and forks one child after the other. A child that finds
 * session memory writes 500,000 random words there: to everything that detours use, or with
 * `all` to all of it; where a record goes most of all, as what may stand there. Ends when its
 * input ends, or a line comes: "ok calls=N children=M", M those that have found session memory.
 * When 5 of them have, it says "written over".
 */
#include "common.h"

#include <fcntl.h>
#include <sys/wait.h>

/* What is where, see crates/ring/src/layout.rs. */
enum {
	CPUS = 56, JOURNAL_CAPACITY = 72, JOURNAL_OFFSET = 128, PACKETS_OFFSET = 184,
	FREE = 256, FREE_END = 768, CONTROLS = 5 * 4096, LANES = 10, STREAM = 64,
};

static uint64_t kept[4096];
static uint64_t state = 88172645463325252u;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

PROBED uint64_t hostile_inner(uint64_t n)
{
	return mix(n);
}

PROBED uint64_t hostile_text(const char *text, uint64_t n)
{
	return hostile_inner(n) + (uint64_t)text[n % 5];
}

PROBED uint64_t hostile_record(uint64_t n, uint64_t m)
{
	return mix(n) ^ mix(m + 1);
}

static void scribble(volatile unsigned char *base, uint64_t size, int all)
{
	uint64_t journal = *(volatile uint64_t *)(base + JOURNAL_OFFSET);
	uint64_t behind = journal + 64ull * *(volatile uint32_t *)(base + JOURNAL_CAPACITY);
	uint64_t packets = *(volatile uint64_t *)(base + PACKETS_OFFSET);
	uint64_t streams = (uint64_t)LANES * STREAM * *(volatile uint32_t *)(base + CPUS) + 512;
	/* An earlier child may have written over these. */
	if (packets > size || packets <= streams) {
		packets = size;
		streams = size / 2;
	}
	for (int round = 0; round < 10000; round++) {
		for (int i = 0; i < 50; i++) {
			uint64_t at = next() % size, word = next();
			if (next() % 2)
				at = packets - streams + next() % streams / STREAM * STREAM;
			else if (next() % 2)
				at = next() % packets;
			at &= ~7ull;
			if (!all && at < CONTROLS && (at < FREE || at >= FREE_END))
				continue;
			if (!all && at >= journal && at < behind)
				continue;
			switch (next() % 5) {
			case 0:
				word %= 64;
				break;
			case 1:
				word = 0;
				break;
			case 2: /* both halves as far as one gets, or farther */
				word = (size / 8 + word % 4096 - 2048) * 0x100000001u;
				break;
			case 3:
				word = (uint64_t)base + word % size & ~63ull;
				break;
			}
			*(volatile uint64_t *)(base + at) = word;
		}
	}
}

/* At the end of a recording session memory is unmapped, here too. */
static void it_is_gone(int signal)
{
	(void)signal;
	_exit(1);
}

/* What a child does. Its exit status is 1 if there is session memory. */
static int child(int all)
{
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "re");
	int found = 0;
	if (!maps || (setresuid(65534, 65534, 65534) && getuid() == 0))
		return 2;
	while (fgets(line, sizeof line, maps)) {
		unsigned long from, to;
		char access[5];
		if (sscanf(line, "%lx-%lx %4s", &from, &to, access) == 3 && !strcmp(access, "rw-s")
		    && strstr(line, "/memfd:capriole (")) {
			found = 1;
			signal(SIGSEGV, it_is_gone);
			state += (uint64_t)getpid();
			scribble((unsigned char *)from, to - from, all);
		}
	}
	return found;
}

static void expect_kept(void)
{
	for (uint64_t i = 0; i < sizeof kept / sizeof *kept; i++)
		if (kept[i] != mix(i))
			BAD("word %llu became %llx", (unsigned long long)i, (unsigned long long)kept[i]);
}

int main(int argc, char **argv)
{
	int all = argc > 1 && !strcmp(argv[1], "all");
	const char *texts[] = { "one and two", "three", "a longer text, which takes more room" };
	unsigned long calls = 0, children = 0;
	pid_t one = 0;
	for (uint64_t i = 0; i < sizeof kept / sizeof *kept; i++)
		kept[i] = mix(i);
	ready();
	for (;;) {
		struct pollfd input = { 0, POLLIN, 0 };
		int status = 0;
		for (int i = 0; i < 2000; i++, calls++) {
			const char *text = texts[calls % 3];
			if (hostile_record(calls, calls * 3) != (mix(calls) ^ mix(calls * 3 + 1)))
				BAD("hostile_record(%lu)", calls);
			if (hostile_text(text, calls) != mix(calls) + (uint64_t)text[calls % 5])
				BAD("hostile_text(%lu)", calls);
		}
		expect_kept();
		if (one && waitpid(one, &status, WNOHANG) == one) {
			one = 0;
			if (!WIFEXITED(status) || WEXITSTATUS(status) > 1)
				BAD("a child ended with status %#x", status);
			children += WEXITSTATUS(status);
			if (WEXITSTATUS(status) && children == 5) {
				puts("written over");
				fflush(stdout);
			}
		}
		if (!one) {
			one = fork();
			CHECK(one >= 0);
			if (one == 0)
				_exit(child(all));
		}
		if (poll(&input, 1, 0) > 0)
			break;
	}
	CHECK(waitpid(one, NULL, 0) == one);
	printf("ok calls=%lu children=%lu\n", calls, children);
	return 0;
}
