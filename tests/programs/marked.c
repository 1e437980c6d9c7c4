/*
 * Static markers of all kinds, with arguments wherever a compiler may have put them.
 *
 *   marked [ROUNDS]
 *
 * Comes to each marker 3 times for a line of standard input, or, if ROUNDS is given, so many
 * times without being asked. For each line it says how often it came to the guarded one, and
 * its semaphore: "guarded 3 semaphore 1". Values depend on the number of the round alone.
 */
#include "common.h"
#include "notes.h"

volatile uint16_t plain_guarded_semaphore __attribute__((section(".probes"), used)) = 0;
volatile uint16_t behind __attribute__((section(".probes"), used)) = 0x5aa5;

/* What operands with names of variables mean. */
int32_t marked_global[4] = {-7, 11, 13, 17};
static const char *const names[3] = {"first", "second", "a longer third"};
struct pair { uint64_t a, b; } pairs[4] = {{10, 11}, {20, 21}, {30, 31}, {40, 41}};

static unsigned guarded;

/* Registers and parts of them. 0x12345680 in rcx: cl is 0x80, ch is 0x56. */
PROBED uint64_t registers(uint64_t round)
{
	uint64_t value = 0x1122334412345680u + round;
	register uint64_t r8 __asm__("r8") = round - 1000;
	SITE("plain", "registers", NOTES_NOP1, "0",
	     "8@%%rcx 4@%%ecx -4@%%ecx 2@%%cx -1@%%cl 1@%%ch 8@%%r8 -4@%%r8d -2@%%r8w -1@%%r8b",
	     "c"(value), "r"(r8));
	return value;
}

/* Numbers of every size. */
PROBED uint64_t numbers(uint64_t round)
{
	SITE("plain", "numbers", NOTES_NOP1, "0",
	     "-4@$-5 4@$-5 8@$-1 -8@$-1 1@$300 2@$0x10 -4@$4+1 8@$marked_global+4", "r"(round));
	return round;
}

/* Memory by registers, by an index, by name. */
PROBED uint64_t memory(uint64_t round)
{
	volatile uint64_t local[4] = {round, round + 1, round + 2, round + 3};
	struct pair *base = pairs;
	uint64_t index = round % 4;
	SITE("plain", "memory", NOTES_NOP1, "0",
	     "8@8(%[local]) -4@-8+4+20(%[local]) 8@8(%[base],%[doubled],8) 8@8+pairs(%%rip) "
	     "-4@marked_global+8(%%rip) -4@marked_global",
	     [local] "r"(local), [base] "r"(base), [doubled] "r"(2 * index), "m"(local), "m"(pairs));
	return local[3];
}

/* Floating point numbers in vector registers and in memory. */
PROBED double floats(uint64_t round)
{
	register double x __asm__("xmm3") = 0.5 * (double)round;
	register float y __asm__("xmm12") = -0.25f * (float)round;
	volatile double z = 1.0 / 1024;
	SITE("plain", "floats", NOTES_NOP1, "0", "-8f@%%xmm3 -4f@%%xmm12 8f@%[z]", "x"(x), "x"(y),
	     [z] "m"(z));
	return x + y;
}

/* Texts, by an address in a register and by one in memory. */
PROBED uint64_t texts(uint64_t round)
{
	const char *volatile name = names[round % 3];
	SITE("plain", "texts", NOTES_NOP1, "0", "8@%[text] 8@%[name]", [text] "r"(names[0]),
	     [name] "m"(name));
	return round;
}

/* One marker, three places, each with its own operands; the second is in memory. */
PROBED uint64_t places(uint64_t round)
{
	volatile int32_t other = (int32_t)(round + 200);
	SITE("plain", "places", NOTES_NOP1, "0", "-4@%k[n]", [n] "r"(round + 100));
	SITE("plain", "places", NOTES_NOP1, "0", "-4@%[n]", [n] "m"(other));
	SITE("plain", "places", NOTES_NOP5, "0", "-4@%k[n]", [n] "r"(round + 300));
	return round;
}

/* Not all of it can be read. */
PROBED uint64_t strange(uint64_t round)
{
	SITE("plain", "strange", NOTES_NOP1, "0", "4@%%edi 8@%%fs:16 4@nowhere(%%rip)", "D"(round));
	return round;
}

PROBED void guard(uint64_t round)
{
	if (__builtin_expect(plain_guarded_semaphore, 0)) {
		guarded++;
		SITE("plain", "guarded", NOTES_NOP1, "plain_guarded_semaphore", "8@%[round]",
		     [round] "r"(round));
	}
}

/* Markers with a format. */
PROBED uint64_t described(uint64_t round)
{
	const char *name = names[round % 3];
	MARK("shop", "order", "id=%%d price: %%u at %%p (%%s) %%x %%c end %%ld",
	     "-4@%k[id] 4@%k[price] 8@%[at] 8@%[name] 4@%k[hex] -4@%k[c] -8@%[end]",
	     [id] "r"(-(int)round), [price] "r"((uint32_t)round + 3000000000u), [at] "r"(round * 4096),
	     [name] "r"(name), [hex] "r"(0xbeef0000u + (uint32_t)round), [c] "r"('a' + (int)round % 26),
	     [end] "r"(-1l - (long)round));
	MARK("shop", "done", "nothing to tell, 100%%%%", "", "r"(round));
	return round;
}

static double run(uint64_t from, uint64_t to)
{
	double sum = 0;
	for (uint64_t round = from; round < to; round++) {
		sum += (double)(registers(round) + numbers(round) + memory(round));
		sum += floats(round);
		sum += (double)(texts(round) + places(round) + strange(round) + described(round));
		guard(round);
		CHECK(behind == 0x5aa5);
	}
	return sum;
}

int main(int argc, char **argv)
{
	char line[64];
	uint64_t round = 0;
	double sum = 0;
	printf("ready %d\n", (int)getpid());
	fflush(stdout);
	if (argc > 1) {
		sum += run(0, strtoull(argv[1], NULL, 10));
		printf("ok sum=%g guarded=%u\n", sum, guarded);
		return 0;
	}
	while (fgets(line, sizeof line, stdin)) {
		guarded = 0;
		sum += run(round, round + 3);
		round += 3;
		printf("guarded %u semaphore %u\n", guarded, plain_guarded_semaphore);
		fflush(stdout);
	}
	printf("ok sum=%g\n", sum);
	return 0;
}
