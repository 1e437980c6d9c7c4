/*
 * Functions that are left by conditional jumps to other functions, or that run on into the
 * next one. Prints, for each call, "FUNCTION VALUE" if it returned and "FUNCTION tail" if it
 * went on elsewhere, in order; at the end "ok".
 */
#include "common.h"

#define EVERY_CONDITION(x) \
	x(o) x(no) x(b) x(ae) x(e) x(ne) x(be) x(a) x(s) x(ns) x(p) x(np) x(l) x(ge) x(le) x(g)

/* if_CC(a, b) goes to landed if CC holds for a - b; else it returns 7. */
#define WRITTEN(cc) \
	".balign 16\n.globl if_" #cc "\n.type if_" #cc ", @function\n" \
	"if_" #cc ":\n\tcmp %rsi, %rdi\n\tmov $7, %eax\n\tj" #cc " landed\n\tret\n" \
	".size if_" #cc ", . - if_" #cc "\n"

#define BEGIN(name) ".globl " #name "\n.type " #name ", @function\n" #name ":\n"
#define END(name) ".size " #name ", . - " #name "\n"

__asm__(".text\n"
	EVERY_CONDITION(WRITTEN)
	".balign 16\n"
	BEGIN(landed) "\tmov $42, %eax\n\tret\n" END(landed)
	/* Two bytes, and both ways may be gone in one call. */
	".balign 16\n"
	BEGIN(twice) "\ttest %rdi, %rdi\n\tmov $-1, %rax\n\tjs .Lnear\n\tmov %rdi, %rax\n"
	"\tcmp $5, %rdi\n\tjl .Lnear\n\tmov $9, %eax\n\tret\n" END(twice)
	BEGIN(near) ".Lnear:\n\tadd $1000, %rax\n\tret\n" END(near)
	/* Into the next function: right behind, and over nops. */
	".balign 16\n"
	BEGIN(running_on) "\tlea 1(%rdi), %rdi\n" END(running_on)
	BEGIN(reached) "\tlea 100(%rdi), %rax\n\tret\n" END(reached)
	".balign 16\n"
	BEGIN(over_nops) "\tpush %rbx\n\tmov %rdi, %rbx\n\tlea 2(%rbx), %rdi\n\tpop %rbx\n"
	"\t.balign 32\n" END(over_nops)
	BEGIN(behind_nops) "\tlea 200(%rdi), %rax\n\tret\n" END(behind_nops)
	/* To one function or the other. */
	".balign 16\n"
	BEGIN(either) "\ttest %rdi, %rdi\n\tje landed\n" END(either)
	"\tnopl 0(%rax, %rax, 1)\n"
	BEGIN(the_other) "\tlea 300(%rdi), %rax\n\tret\n" END(the_other)
	/* Behind a loop. */
	".balign 16\n"
	BEGIN(looping) "\txor %eax, %eax\n1:\tadd $3, %eax\n\tdec %rdi\n\tjg 1b\n" END(looping)
	BEGIN(behind_loop) "\tadd %rax, %rax\n\tret\n" END(behind_loop)
	/* What cannot be recorded. */
	".balign 16\n"
	BEGIN(counted) "\tmov %rdi, %rcx\n\tjrcxz .Lzero\n\tmov $1, %eax\n\tret\n" END(counted)
	BEGIN(zero) ".Lzero:\n\txor %eax, %eax\n\tret\n" END(zero)
	".balign 16\n"
	BEGIN(framed) "\tpush %rbx\n\tmov %rdi, %rax\n\ttest %rdi, %rdi\n\tje .Lframe\n\tpop %rbx\n"
	"\tret\n" END(framed)
	BEGIN(frame) "\tpush %rbx\n.Lframe:\n\tpop %rbx\n\tret\n" END(frame));

#define DECLARED(cc) extern long if_##cc(long a, long b);
EVERY_CONDITION(DECLARED)
extern long twice(long x), running_on(long x), over_nops(long x), either(long x), looping(long x);
extern long counted(long x), framed(long x), zero(void), frame(void);

#ifdef ROOM
/* 62 MiB behind the program, where the first jump at the start of `looping` would lead. */
char room[96 << 20];
#endif

/* What is printed at the end: nothing is called meanwhile that has probes. */
static struct {
	const char *name;
	long value;
	int tail;
} notes[200000];
static unsigned noted;

static void note(const char *name, long value, int tail)
{
	CHECK(noted < sizeof notes / sizeof *notes);
	notes[noted].name = name;
	notes[noted].value = value;
	notes[noted++].tail = tail;
}

static void compare(long a, long b)
{
	unsigned long ua = (unsigned long)a, ub = (unsigned long)b;
	long difference = (long)(ua - ub), ignored;
	int overflow = __builtin_sub_overflow(a, b, &ignored);
	int parity = !__builtin_parity((unsigned)(difference & 0xff));
	int expected[] = { overflow, !overflow, ua < ub, ua >= ub, a == b, a != b, ua <= ub, ua > ub,
			   difference < 0, difference >= 0, parity, !parity, a < b, a >= b, a <= b, a > b };
	int *holds = expected;
#define CALLED(cc) \
	do { \
		long result = if_##cc(a, b); \
		CHECK(result == (*holds ? 42 : 7)); \
		note("if_" #cc, result, *holds++); \
	} while (0);
	EVERY_CONDITION(CALLED)
}

int main(void)
{
	static const long values[] = { 0, 1, -1, 2, 127, 128, 255, 256, 1L << 62, -(1L << 62) * 2, (1L << 62) - 1 + (1L << 62) };
	int count = sizeof values / sizeof *values;
	for (int i = 0; i < 5 * count; i++)
		for (int j = 0; j < count; j++)
			compare(values[i % count], values[j]);
	for (long x = -50; x < 50; x++) {
		long result = twice(x);
		CHECK(result == (x < 0 ? 999 : x < 5 ? x + 1000 : 9));
		note("twice", result, x < 5);
		CHECK(running_on(x) == x + 101);
		note("running_on", 0, 1);
		CHECK(over_nops(x) == x + 202);
		note("over_nops", 0, 1);
		CHECK(either(x) == (x ? x + 300 : 42));
		note("either", 0, 1);
		CHECK(looping(x) == 6 * (x > 0 ? x : 1));
		note("looping", 0, 1);
		CHECK(counted(x) == (x != 0) && framed(x) == x && zero() == 0);
	}
	(void)frame;
	for (unsigned i = 0; i < noted; i++)
		if (notes[i].tail)
			printf("%s tail\n", notes[i].name);
		else
			printf("%s %ld\n", notes[i].name, notes[i].value);
	puts("ok conditional_exits");
	return 0;
}
