/*
 * Post-handlers of jumps, calls and returns, which the library carries out itself: executes them with
 * registers, flags, stack and memory set at random, alone and with probes, and compares what the
 * program has afterwards, and what handlers see.
 */
#include "probes.h"

#include <pthread.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>

#ifdef __GLIBC__
#include <execinfo.h>
#else
static int backtrace(void **frames, int size)
{
	(void)frames, (void)size;
	return 0;
}
#endif
#define ARCH_SET_GS 0x1001
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

/* OF DF SF ZF AF PF CF. */
#define FLAGS 0xcd5ul
enum { AX, CX, DX, BX, SP, BP, SI, DI, NONE = 16 };

/* The code below knows the offsets. */
struct job {
	uint64_t registers[16];
	uint64_t flags;		/* 128 */
	uint64_t way;		/* 136: 1 behind the instruction, 2 at its target */
};
struct job *out_job;	/* of the code below */
uint64_t own_stack, saved_ax, saved_stack;

/* Loads everything, and goes to the address in rdx. */
__asm__(".pushsection .text\n.p2align 4\n.type load_all, @function\nload_all:\n"
	"	push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
	"	mov %rsi, out_job(%rip)\n"
	"	mov %rsp, own_stack(%rip)\n"
	"	mov %rdx, target(%rip)\n"
	"	pushq 128(%rdi)\n"
	"	popfq\n"
	"	mov (%rdi), %rax\n mov 8(%rdi), %rcx\n mov 16(%rdi), %rdx\n mov 24(%rdi), %rbx\n"
	"	mov 32(%rdi), %rsp\n mov 40(%rdi), %rbp\n mov 48(%rdi), %rsi\n"
	"	mov 64(%rdi), %r8\n mov 72(%rdi), %r9\n mov 80(%rdi), %r10\n mov 88(%rdi), %r11\n"
	"	mov 96(%rdi), %r12\n mov 104(%rdi), %r13\n mov 112(%rdi), %r14\n mov 120(%rdi), %r15\n"
	"	mov 56(%rdi), %rdi\n"
	"	jmp *target(%rip)\n"
	".size load_all, . - load_all\n"
	/* Stores everything. */
	".p2align 4\n.type store_next, @function\nstore_next:\n"
	"	mov %rax, saved_ax(%rip)\n"
	"	mov out_job(%rip), %rax\n"
	"	movq $1, 136(%rax)\n"
	"	jmp store_all\n"
	".size store_next, . - store_next\n"
	".p2align 4\n.type store_other, @function\nstore_other:\n"
	"	mov %rax, saved_ax(%rip)\n"
	"	mov out_job(%rip), %rax\n"
	"	movq $2, 136(%rax)\n"
	"store_all:\n"
	"	mov %rcx, 8(%rax)\n mov %rdx, 16(%rax)\n mov %rbx, 24(%rax)\n mov %rsp, 32(%rax)\n"
	"	mov %rbp, 40(%rax)\n mov %rsi, 48(%rax)\n mov %rdi, 56(%rax)\n"
	"	mov %r8, 64(%rax)\n mov %r9, 72(%rax)\n mov %r10, 80(%rax)\n mov %r11, 88(%rax)\n"
	"	mov %r12, 96(%rax)\n mov %r13, 104(%rax)\n mov %r14, 112(%rax)\n mov %r15, 120(%rax)\n"
	"	mov saved_ax(%rip), %rcx\n"
	"	mov %rcx, (%rax)\n"
	"	mov own_stack(%rip), %rsp\n"
	"	pushfq\n"
	"	popq 128(%rax)\n"
	"	cld\n"
	"	pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n"
	"	ret\n"
	".size store_other, . - store_other\n"
	".popsection\n"
	".pushsection .bss\n.balign 8\ntarget: .skip 8\n.popsection\n");
void load_all(struct job *in, struct job *out, uint64_t at);

/* An instruction, and how it finds its target. The file has distances from load_all: with addresses,
 * something else might lead to these instructions, and no jump may cover them. */
struct kind {
	const char *text;
	uint64_t at, next, other;
	int64_t how, base, index, scale, displacement, segment;
};
/* How: the target is in the instruction; in register `base`; in memory; in memory at an address of 32
 * bits; in the word of this program, or in that of low memory; on the stack; and it counts. */
enum { DIRECT, REGISTER, MEMORY, MEMORY32, WORD, LOW, RETURN, COUNTS };
#define LOW_MEMORY 0x20000000
uint64_t word;

extern struct kind __start_kinds[], __stop_kinds[];
#define KINDS ((size_t)(__stop_kinds - __start_kinds))
#define STRING_(text) #text
#define STRING(text) STRING_(text)
#define KIND_(number, text, how, base, index, scale, displacement, segment) \
	__asm__(".pushsection .text\n.balign 16\n.type kind_" STRING(number) ", @function\n" \
		"kind_" STRING(number) ":\n1: " text "\n2: jmp store_next\n3: jmp store_other\n" \
		".size kind_" STRING(number) ", . - kind_" STRING(number) "\n.popsection\n" \
		".pushsection .rodata\n4: .asciz \"" text "\"\n.popsection\n" \
		".pushsection kinds, \"aw\"\n.balign 8\n.quad 4b, 1b - load_all, 2b - load_all, 3b - load_all, " STRING(how) ", " STRING(base) \
		", " STRING(index) ", " STRING(scale) ", " STRING(displacement) ", " STRING(segment) "\n" \
		".popsection\n")
#define KIND(...) KIND_(__COUNTER__, __VA_ARGS__)
/* Numbers, as the assembler does not know the names above. */
#define HOW_DIRECT 0
#define HOW_REGISTER 1
#define HOW_MEMORY 2
#define HOW_MEMORY32 3
#define HOW_WORD 4
#define HOW_LOW 5
#define HOW_RETURN 6
#define HOW_COUNTS 7

#define CONDITION(name) \
	KIND("j" #name " 3f", HOW_DIRECT, 16, 16, 1, 0, 0); \
	KIND("{disp32} j" #name " 3f", HOW_DIRECT, 16, 16, 1, 0, 0);
CONDITION(o) CONDITION(no) CONDITION(b) CONDITION(ae) CONDITION(e) CONDITION(ne) CONDITION(be) CONDITION(a)
CONDITION(s) CONDITION(ns) CONDITION(p) CONDITION(np) CONDITION(l) CONDITION(ge) CONDITION(le) CONDITION(g)

KIND("jmp 3f", HOW_DIRECT, 16, 16, 1, 0, 0);
KIND("{disp32} jmp 3f", HOW_DIRECT, 16, 16, 1, 0, 0);
KIND("call 3f", HOW_DIRECT, 16, 16, 1, 0, 0);
KIND("jrcxz 3f", HOW_COUNTS, 16, 16, 1, 0, 0);
KIND("jecxz 3f", HOW_COUNTS, 16, 16, 1, 0, 0);
KIND("loop 3f", HOW_COUNTS, 16, 16, 1, 0, 0);
KIND("loope 3f", HOW_COUNTS, 16, 16, 1, 0, 0);
KIND("loopne 3f", HOW_COUNTS, 16, 16, 1, 0, 0);
KIND("addr32 loop 3f", HOW_COUNTS, 16, 16, 1, 0, 0);
KIND("addr32 loope 3f", HOW_COUNTS, 16, 16, 1, 0, 0);
KIND("addr32 loopne 3f", HOW_COUNTS, 16, 16, 1, 0, 0);
/* To itself, until the counter is 0. */
KIND("loop 1b", HOW_COUNTS, 16, 16, 1, 0, 1);

KIND("ret", HOW_RETURN, 16, 16, 1, 0, 0);
KIND("rep ret", HOW_RETURN, 16, 16, 1, 0, 0);
KIND("ret $0", HOW_RETURN, 16, 16, 1, 0, 0);
KIND("ret $8", HOW_RETURN, 16, 16, 1, 8, 0);
KIND("ret $24", HOW_RETURN, 16, 16, 1, 24, 0);
KIND("ret $0x7fe", HOW_RETURN, 16, 16, 1, 0x7fe, 0);

KIND("jmp *word(%rip)", HOW_WORD, 16, 16, 1, 0, 0);
KIND("call *word(%rip)", HOW_WORD, 16, 16, 1, 0, 0);
KIND("jmp *0x20000010", HOW_LOW, 16, 16, 1, 0x20000010, 0);
KIND("call *0x20000011", HOW_LOW, 16, 16, 1, 0x20000011, 0);

KIND("jmp *(%rsp)", HOW_MEMORY, 4, 16, 1, 0, 0);
KIND("jmp *-128(%rsp)", HOW_MEMORY, 4, 16, 1, -128, 0);
KIND("jmp *16(%rsp,%rcx,2)", HOW_MEMORY, 4, 1, 2, 16, 0);
KIND("call *(%rsp)", HOW_MEMORY, 4, 16, 1, 0, 0);
KIND("call *8(%rsp)", HOW_MEMORY, 4, 16, 1, 8, 0);
KIND("call *-32(%rsp)", HOW_MEMORY, 4, 16, 1, -32, 0);
KIND("call *0x200(%rsp)", HOW_MEMORY, 4, 16, 1, 0x200, 0);

/* Each register as an operand, a base, an index. */
#define REGISTER_(name, number, following, its_number) \
	KIND("jmp *%" #name, HOW_REGISTER, number, 16, 1, 0, 0); \
	KIND("call *%" #name, HOW_REGISTER, number, 16, 1, 0, 0); \
	KIND("jmp *(%" #name ")", HOW_MEMORY, number, 16, 1, 0, 0); \
	KIND("call *-0x15(%" #name ")", HOW_MEMORY, number, 16, 1, -0x15, 0); \
	KIND("jmp *0x12345678(%" #name ")", HOW_MEMORY, number, 16, 1, 0x12345678, 0); \
	KIND("call *0x40(%" #name ",%" #following ",2)", HOW_MEMORY, number, its_number, 2, 0x40, 0); \
	KIND("jmp *-0x4321(%" #name ",%" #following ",8)", HOW_MEMORY, number, its_number, 8, -0x4321, 0); \
	KIND("call *(%" #name ",%" #following ")", HOW_MEMORY, number, its_number, 1, 0, 0); \
	KIND("jmp *0x1008(,%" #name ",8)", HOW_MEMORY, 16, number, 8, 0x1008, 0); \
	KIND("call *-0x1004(,%" #name ",4)", HOW_MEMORY, 16, number, 4, -0x1004, 0); \
	KIND("jmp *%fs:0x18(%" #name ")", HOW_MEMORY, number, 16, 1, 0x18, 1); \
	KIND("call *%gs:-0x18(%" #name ",%" #following ",4)", HOW_MEMORY, number, its_number, 4, -0x18, 2);
REGISTER_(rax, 0, rcx, 1) REGISTER_(rcx, 1, rdx, 2) REGISTER_(rdx, 2, rbx, 3) REGISTER_(rbx, 3, rbp, 5)
REGISTER_(rbp, 5, rsi, 6) REGISTER_(rsi, 6, rdi, 7) REGISTER_(rdi, 7, r8, 8) REGISTER_(r8, 8, r9, 9)
REGISTER_(r9, 9, r10, 10) REGISTER_(r10, 10, r11, 11) REGISTER_(r11, 11, r12, 12) REGISTER_(r12, 12, r13, 13)
REGISTER_(r13, 13, r14, 14) REGISTER_(r14, 14, r15, 15) REGISTER_(r15, 15, rax, 0)

KIND("jmp *(%eax)", HOW_MEMORY32, 0, 16, 1, 0, 0);
KIND("call *-0x30(%r13d)", HOW_MEMORY32, 13, 16, 1, -0x30, 0);
KIND("jmp *0x123(%ebx,%r12d,4)", HOW_MEMORY32, 3, 12, 4, 0x123, 0);
KIND("call *0x7fffff00(%r9d,%ebp,8)", HOW_MEMORY32, 9, 5, 8, 0x7fffff00, 0);

static uint64_t random_state = 1;
static uint64_t next(void)
{
	return mix(random_state += 0x9e3779b97f4a7c15u);
}
static unsigned below(unsigned limit)
{
	return (unsigned)(next() >> 16) % limit;
}

#define TABLE 2048
static uint8_t table[TABLE];
static uint8_t *low; /* of TABLE bytes as well */
/* The stack of the instruction, with room for handlers and signal frames below, and for what a return
 * takes off above. */
static char stack_area[256 << 10] __attribute__((aligned(16)));
#define STACK_FROM (192 << 10)
#define STACK_SIZE 8192
static uint64_t segments[3];

struct full {
	struct job job;
	uint8_t stack[STACK_SIZE], table[TABLE], low[TABLE];
	uint64_t word;
};

static void fill(void *at, size_t size)
{
	for (size_t i = 0; i < size; i += 8) {
		uint64_t value = next();
		memcpy((char *)at + i, &value, 8);
	}
}

/* Puts the target into the memory of a run. */
static void put_word(struct full *in, uint64_t at, uint64_t value)
{
	uint64_t from = (uint64_t)stack_area + STACK_FROM;
	if (at - from <= STACK_SIZE - 8)
		memcpy(in->stack + (at - from), &value, 8);
	else if (at - (uint64_t)table <= TABLE - 8)
		memcpy(in->table + (at - (uint64_t)table), &value, 8);
	else if (at - (uint64_t)low <= TABLE - 8)
		memcpy(in->low + (at - (uint64_t)low), &value, 8);
	else
		BAD("%lx is nowhere", at);
}

static void choose(struct full *in, const struct kind *kind)
{
	uint64_t *registers = in->job.registers;
	fill(in, sizeof *in);
	in->job.flags = (next() & FLAGS) | 0x202;
	/* Also one that is not aligned. */
	uint64_t sp = registers[SP] = (uint64_t)stack_area + STACK_FROM + STACK_SIZE / 2 + below(256);
	uint64_t to = below(4) ? kind->other : kind->next, at;
	int64_t displacement = kind->displacement;
	switch (kind->how) {
	case REGISTER:
		registers[kind->base] = to;
		break;
	case COUNTS:
		if (kind->segment)
			registers[CX] = 1 + below(20);
		else if (below(4) == 0)
			registers[CX] = below(3);
		else if (below(2))
			registers[CX] = registers[CX] << 32 | below(3);
		break;
	case WORD:
		in->word = to;
		break;
	case LOW:
		put_word(in, (uint64_t)displacement, to);
		break;
	case RETURN:
		put_word(in, sp, to);
		break;
	case MEMORY:
		if (kind->base == SP) {
			at = sp + (uint64_t)displacement;
			if (kind->index != NONE) {
				registers[kind->index] = below(40);
				at += registers[kind->index] * (uint64_t)kind->scale;
			}
		} else if (kind->base == NONE) {
			at = (uint64_t)table + below(TABLE - 16);
			at -= (at - (uint64_t)displacement) % (uint64_t)kind->scale;
			if (at < (uint64_t)table)
				at += (uint64_t)kind->scale;
			registers[kind->index] =
				(uint64_t)((int64_t)(at - (uint64_t)displacement) / kind->scale);
		} else {
			at = (uint64_t)table + below(TABLE - 8);
			registers[kind->base] = at - (uint64_t)displacement - segments[kind->segment];
			if (kind->index != NONE)
				registers[kind->base] -= registers[kind->index] * (uint64_t)kind->scale;
		}
		put_word(in, at, to);
		break;
	case MEMORY32:
		at = (uint64_t)low + below(TABLE - 8);
		/* The upper half does not matter. */
		registers[kind->base] = at - (uint64_t)displacement;
		if (kind->index != NONE)
			registers[kind->base] -= registers[kind->index] * (uint64_t)kind->scale;
		registers[kind->base] = (uint32_t)registers[kind->base] | next() << 32;
		put_word(in, at, to);
		break;
	default:
		break;
	}
}

static void execute(const struct kind *kind, struct full *in, struct full *out)
{
	char *stack = stack_area + STACK_FROM;
	memcpy(stack, in->stack, STACK_SIZE);
	memcpy(table, in->table, TABLE);
	memcpy(low, in->low, TABLE);
	word = in->word;
	out->job.way = 0;
	load_all(&in->job, &out->job, kind->at);
	memcpy(out->stack, stack, STACK_SIZE);
	memcpy(out->table, table, TABLE);
	memcpy(out->low, low, TABLE);
	out->word = word;
}

static const char *mode;
static const struct kind *current;

static void same(const struct full *in, const struct full *a, const struct full *b)
{
	if (a->job.way != b->job.way)
		BAD("%s, %s: way %lu, not %lu", current->text, mode, b->job.way, a->job.way);
	for (int i = 0; i < 16; i++)
		if (a->job.registers[i] != b->job.registers[i])
			BAD("%s, %s: register %d is %lx, not %lx", current->text, mode, i, b->job.registers[i],
			    a->job.registers[i]);
	if (a->job.flags != b->job.flags)
		BAD("%s, %s: flags are %lx, not %lx", current->text, mode, b->job.flags, a->job.flags);
	/* Down to the end of the red zone, that before and that after the instruction: a signal, as that of
	 * a breakpoint, changes what is below either. */
	uint64_t sp = a->job.registers[SP] > in->job.registers[SP] ? a->job.registers[SP] : in->job.registers[SP];
	size_t from = (size_t)(sp - (uint64_t)stack_area - STACK_FROM) - 128;
	for (size_t i = from; i < STACK_SIZE; i++)
		if (a->stack[i] != b->stack[i])
			BAD("%s, %s: byte %zd of the stack is %02x, not %02x", current->text, mode,
			    (ssize_t)(i - from) - 128, b->stack[i], a->stack[i]);
	CHECK(!memcmp(a->table, b->table, TABLE) && !memcmp(a->low, b->low, TABLE) && a->word == b->word);
}

/* The registers that a handler sees are these. */
static void sees(const struct capriole_regs *regs, const struct job *job, uint64_t ip)
{
	const uint64_t seen[16] = { regs->ax, regs->cx, regs->dx, regs->bx, regs->sp, regs->bp, regs->si,
				    regs->di, regs->r8, regs->r9, regs->r10, regs->r11, regs->r12, regs->r13,
				    regs->r14, regs->r15 };
	for (int i = 0; i < 16; i++)
		if (seen[i] != job->registers[i])
			BAD("%s, %s: a handler sees %lx, not %lx, in register %d", current->text, mode, seen[i],
			    job->registers[i], i);
	if ((regs->flags & FLAGS) != (job->flags & FLAGS))
		BAD("%s, %s: a handler sees the flags %lx, not %lx", current->text, mode, regs->flags, job->flags);
	if (regs->ip != ip)
		BAD("%s, %s: a handler sees ip %lx, not %lx", current->text, mode, regs->ip, ip);
}

static struct capriole_regs first_seen, last_seen;
static long pres, posts;

static int pre(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	if (!pres++)
		first_seen = *regs;
	return 0;
}

static void post(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)p, (void)flags;
	posts++;
	last_seen = *regs;
}

#define RUNS 40
static struct capriole_probe probes[1000], *all[1000];

static size_t in_count;

/* Registers a probe at an instruction, unless a neighbour's jump needs its bytes. */
static void put(const struct capriole_probe *like, size_t i)
{
	probes[i] = *like;
	probes[i].address = (void *)(uintptr_t)__start_kinds[i].at;
	int result = capriole_probe_register(&probes[i]);
	if (result == -EOPNOTSUPP && strstr(capriole_error(), "another probe"))
		return;
	OK(result);
	all[in_count++] = &probes[i];
}

/* Executes each kind with probes that are there, and compares: with runs that are made without. All
 * probes are there at a time; those that are to be breakpoints one by one, as not all can be. */
static void compare_all(unsigned flags, capriole_pre_handler pre_handler, capriole_post_handler post_handler)
{
	static struct full in, alone[1000][RUNS], probed;
	int held = flags & CAPRIOLE_NO_OPTIMIZE, jumps = 0;
	uint64_t start = random_state;
	long ways[3] = { 0 };
	CHECK(KINDS < 1000);
	for (size_t i = 0; i < KINDS; i++) {
		current = &__start_kinds[i];
		for (int run = 0; run < RUNS; run++) {
			choose(&in, current);
			execute(current, &in, &alone[i][run]);
			ways[alone[i][run].job.way]++;
		}
	}
	mode = held ? "breakpoint" : "jump";
	in_count = 0;
	struct capriole_probe like = { .pre = pre_handler, .post = post_handler, .flags = flags };
	for (size_t i = 0; i < KINDS && !held; i++)
		put(&like, i);
	IS(capriole_optimize(PATIENCE), 0);
	random_state = start;
	for (size_t i = 0; i < KINDS; i++) {
		current = &__start_kinds[i];
		if (held)
			put(&like, i);
		int state = capriole_probe_status(&probes[i], NULL, 0);
		jumps += state == CAPRIOLE_OPTIMIZED;
		int is_in = state != CAPRIOLE_UNREGISTERED;
		CHECK(state == CAPRIOLE_OPTIMIZED || state == CAPRIOLE_BREAKPOINT || held || !is_in);
		for (int run = 0; run < RUNS; run++) {
			struct job *after = &alone[i][run].job;
			/* The same numbers as before. */
			choose(&in, current);
			if (!is_in)
				continue;
			pres = posts = 0;
			execute(current, &in, &probed);
			same(&in, &alone[i][run], &probed);
			long hits = current->how == COUNTS && current->segment ? (long)in.job.registers[CX] : 1;
			IS(pres, pre_handler ? hits : 0);
			IS(posts, post_handler ? hits : 0);
			if (pre_handler)
				sees(&first_seen, &in.job, current->at);
			if (post_handler)
				sees(&last_seen, after, after->way == 1 ? current->next : current->other);
		}
		IS(capriole_probe_missed(&probes[i]), 0);
		if (held && is_in)
			OK(capriole_probe_unregister(&probes[i]));
	}
	if (!held)
		OK(capriole_probes_unregister(all, in_count));
	mode = "taken out";
	current = &__start_kinds[0];
	execute(current, &in, &probed);
	printf("%zu kinds, %zu probed, %d jumps, %ld and %ld runs by the two ways\n", KINDS, in_count, jumps,
	       ways[1], ways[2]);
	fflush(stdout);
	CHECK(in_count > KINDS - 40);
	CHECK(!ways[0] && ways[1] > 1000 && ways[2] > 1000);
	/* Where a jump needs the bytes of the next instruction as they are, it is no breakpoint. */
	CHECK(held ? jumps < 150 : jumps > 200);
}

static void jumps(void)
{
	compare_all(0, pre, post);
}

static void breakpoints(void)
{
	compare_all(CAPRIOLE_NO_OPTIMIZE, pre, post);
}

static void posts_only(void)
{
	compare_all(0, NULL, post);
	compare_all(CAPRIOLE_NO_OPTIMIZE, NULL, post);
}

/* Handlers that use vector registers. */
static void post_vectors(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	volatile double x = (double)regs->ax;
	x *= 1.5;
	post(p, regs, flags);
}

static void vectors(void)
{
	compare_all(0, pre, post_vectors);
	compare_all(CAPRIOLE_SAVE_VECTOR, NULL, post);
}

/* Finds an instruction by its text. */
static const struct kind *kind(const char *text)
{
	for (size_t i = 0; i < KINDS; i++)
		if (!strcmp(__start_kinds[i].text, text))
			return current = &__start_kinds[i];
	BAD("there is no %s", text);
}

static void run_one(const struct kind *kind, struct full *in, struct full *out)
{
	pres = posts = 0;
	execute(kind, in, out);
}

static void in_both(struct capriole_probe *p, const struct kind *kind, void (*check)(void))
{
	unsigned flags = p->flags;
	for (int held = 0; held < 2; held++) {
		mode = held ? "breakpoint" : "jump";
		p->address = (void *)(uintptr_t)kind->at;
		p->flags = flags | (held ? CAPRIOLE_NO_OPTIMIZE : 0);
		OK(capriole_probe_register(p));
		check();
		IS(capriole_optimize(PATIENCE), 0);
		check();
		OK(capriole_probe_unregister(p));
	}
	p->flags = flags;
}

static int turn_flags(struct capriole_probe *p, struct capriole_regs *regs)
{
	regs->flags ^= 0x40;
	regs->si += 3;
	return pre(p, regs);
}

static void change_after(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	post(p, regs, flags);
	regs->bx = 77;
	regs->flags ^= 0x801;
}

static void is_turned(void)
{
	static struct full in, probed;
	for (int run = 0; run < 20; run++) {
		choose(&in, current);
		run_one(current, &in, &probed);
		IS(pres, 1);
		IS(posts, 1);
		uint64_t turned = in.job.flags ^ 0x40;
		IS(probed.job.way, turned & 0x40 ? 2 : 1);
		IS(probed.job.registers[SI], in.job.registers[SI] + 3);
		IS(probed.job.registers[BX], 77);
		IS(probed.job.flags, turned ^ 0x801);
		IS(last_seen.ip, turned & 0x40 ? current->other : current->next);
	}
}

static int change_target(struct capriole_probe *p, struct capriole_regs *regs)
{
	regs->r9 = current->other;
	return pre(p, regs);
}

static void is_other(void)
{
	static struct full in, out;
	choose(&in, current);
	in.job.registers[9] = 5;
	run_one(current, &in, &out);
	IS(posts, 1);
	IS(out.job.way, 2);
	IS(out.job.registers[9], current->other);
}

/* A post-handler goes on elsewhere, takes a return address off. */
static void undo_call(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	post(p, regs, flags);
	IS(*(uint64_t *)regs->sp, current->next);
	regs->ip = *(uint64_t *)regs->sp;
	regs->sp += 8;
}

static void is_undone(void)
{
	static struct full in, out;
	choose(&in, current);
	run_one(current, &in, &out);
	IS(posts, 1);
	IS(out.job.way, 1);
	IS(out.job.registers[SP], in.job.registers[SP]);
}

/* Pre-handlers change what an instruction depends on, post-handlers what it has done. */
static void changes(void)
{
	struct capriole_probe turn = { .pre = turn_flags, .post = change_after };
	in_both(&turn, kind("je 3f"), is_turned);
	in_both(&turn, kind("{disp32} je 3f"), is_turned);
	struct capriole_probe target = { .pre = change_target, .post = post };
	in_both(&target, kind("jmp *%r9"), is_other);
	in_both(&target, kind("call *%r9"), is_other);
	struct capriole_probe undo = { .pre = pre, .post = undo_call };
	in_both(&undo, kind("call 3f"), is_undone);
	in_both(&undo, kind("call *8(%rsp)"), is_undone);
}

static int skip(struct capriole_probe *p, struct capriole_regs *regs)
{
	pre(p, regs);
	return 1;
}

static int elsewhere(struct capriole_probe *p, struct capriole_regs *regs)
{
	pre(p, regs);
	regs->ip = current->other;
	return 0;
}

static void is_skipped(void)
{
	static struct full in, out;
	choose(&in, current);
	run_one(current, &in, &out);
	IS(pres, 1);
	IS(posts, 0);
	IS(out.job.way, 1);
	IS(out.job.registers[SP], in.job.registers[SP]);
	IS(out.job.registers[CX], in.job.registers[CX]);
}

static void is_elsewhere(void)
{
	static struct full in, out;
	choose(&in, current);
	in.job.registers[CX] = 1;
	run_one(current, &in, &out);
	IS(pres, 1);
	IS(posts, 0);
	IS(out.job.way, 2);
	IS(out.job.registers[CX], 1);
}

/* A pre-handler skips the instruction: no post-handler is called. */
static void skipped(void)
{
	static const char *const texts[] = { "jmp 3f", "call 3f", "jg 3f", "loop 3f", "ret $8", "jmp *(%rsp)",
					     "call *%rax" };
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		struct capriole_probe p = { .pre = skip, .post = post };
		in_both(&p, kind(texts[i]), is_skipped);
		struct capriole_probe q = { .pre = elsewhere, .post = post };
		in_both(&q, kind(texts[i]), is_elsewhere);
	}
}

/* Several probes at an instruction: the order of their handlers. */
static char order[64];
static void note(char letter)
{
	size_t size = strlen(order);
	order[size] = letter;
	order[size + 1] = 0;
}
#define NOTES(letter, big) \
	__attribute__((unused)) static int pre_##letter(struct capriole_probe *p, struct capriole_regs *regs) \
	{ \
		(void)p; \
		IS(regs->ip, current->at); \
		note(#letter[0]); \
		return 0; \
	} \
	__attribute__((unused)) static void post_##letter(struct capriole_probe *p, struct capriole_regs *regs, \
							  unsigned long flags) \
	{ \
		(void)p, (void)flags; \
		CHECK(regs->ip == current->other || regs->ip == current->next); \
		note(#big[0]); \
	}
NOTES(a, A) NOTES(b, B) NOTES(c, C)

static void is_ordered(const char *wanted)
{
	static struct full in, out;
	for (int i = 0; i < 4; i++) {
		choose(&in, current);
		order[0] = 0;
		execute(current, &in, &out);
		CHECK(out.job.way);
		if (strcmp(order, wanted))
			BAD("%s, %s: %s, not %s", current->text, mode, order, wanted);
	}
}

static void several_at(const char *text, unsigned flags)
{
	void *at = (void *)(uintptr_t)kind(text)->at;
	struct capriole_probe a = { .address = at, .pre = pre_a, .flags = flags };
	struct capriole_probe b = { .address = at, .pre = pre_b, .post = post_b, .flags = flags };
	struct capriole_probe c = { .address = at, .post = post_c, .flags = flags };
	mode = flags ? "breakpoint" : "jump";
	OK(capriole_probe_register(&a));
	is_ordered("a");
	if (!flags)
		optimize(&a);
	is_ordered("a");
	/* Post-handlers come to a site that had none, */
	OK(capriole_probe_register(&b));
	is_ordered("abB");
	OK(capriole_probe_register(&c));
	is_ordered("abBC");
	IS(capriole_optimize(PATIENCE), 0);
	is_ordered("abBC");
	OK(capriole_probe_disable(&b));
	is_ordered("aC");
	OK(capriole_probe_disable(&c));
	is_ordered("a");
	OK(capriole_probe_enable(&b));
	is_ordered("abB");
	OK(capriole_probe_disable(&a));
	is_ordered("bB");
	OK(capriole_probe_disable(&b));
	is_ordered("");
	OK(capriole_probe_enable(&c));
	is_ordered("C");
	/* and go. */
	OK(capriole_probe_enable(&a));
	OK(capriole_probe_enable(&b));
	is_ordered("abBC");
	OK(capriole_probe_unregister(&b));
	is_ordered("aC");
	OK(capriole_probe_unregister(&c));
	is_ordered("a");
	OK(capriole_probe_unregister(&a));
	is_ordered("");
	/* A post-handler alone, disabled first, with another helper. */
	OK(capriole_finish());
	c.flags |= CAPRIOLE_DISABLED;
	OK(capriole_probe_register(&c));
	is_ordered("");
	OK(capriole_probe_enable(&c));
	is_ordered("C");
	OK(capriole_probe_unregister(&c));
}

static void several(void)
{
	static const char *const texts[] = { "je 3f", "jmp 3f", "call 3f", "ret", "jmp *%rdx" };
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		several_at(texts[i], 0);
		several_at(texts[i], CAPRIOLE_NO_OPTIMIZE);
	}
}

/* A handler that hits another such probe: that is missed, and its instruction executed. */
static struct full inner_in, inner_out;
static const struct kind *inner_kind;
static void post_hits(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	static struct job *outer;
	static uint64_t stack, ax, sp;
	outer = out_job, stack = own_stack, ax = saved_ax, sp = saved_stack;
	inner_out.job.way = 0;
	load_all(&inner_in.job, &inner_out.job, inner_kind->at);
	out_job = outer, own_stack = stack, saved_ax = ax, saved_stack = sp;
	IS(inner_out.job.way, 2);
	post(p, regs, flags);
}

static void missed(void)
{
	static struct full in, out;
	static char stack[64 << 10] __attribute__((aligned(16)));
	inner_kind = kind("jmp *%rsi");
	choose(&inner_in, inner_kind);
	inner_in.job.registers[SI] = inner_kind->other;
	inner_in.job.registers[SP] = (uint64_t)(stack + sizeof stack - 256);
	struct capriole_probe inner = { .address = (void *)(uintptr_t)inner_kind->at, .pre = pre, .post = post };
	OK(capriole_probe_register(&inner));
	struct capriole_probe p = { .address = (void *)(uintptr_t)kind("jmp 3f")->at, .post = post_hits };
	OK(capriole_probe_register(&p));
	for (int i = 0; i < 10; i++) {
		if (i == 5)
			IS(capriole_optimize(PATIENCE), 0);
		choose(&in, current);
		run_one(current, &in, &out);
		IS(pres, 0);
		IS(posts, 1);
		IS(out.job.way, 2);
	}
	IS(capriole_probe_missed(&inner), 10);
	IS(capriole_probe_missed(&p), 0);
	OK(capriole_probe_unregister(&inner));
	OK(capriole_probe_unregister(&p));
}

/* Faults of the instruction: it has not been executed, and its address is that of the program's. */
static volatile long faults;
static uint64_t fault_ip, fault_address;
static struct job fault_job;
static uint64_t go_on_at;
static char *hidden_page;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	static const int numbers[16] = { REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
					 REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15 };
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
	CHECK(signal == SIGSEGV);
	faults++;
	fault_ip = (uint64_t)regs[REG_RIP];
	fault_address = (uint64_t)info->si_addr;
	for (int i = 0; i < 16; i++)
		fault_job.registers[i] = (uint64_t)regs[numbers[i]];
	fault_job.flags = (uint64_t)regs[REG_EFL];
	if (go_on_at)
		regs[REG_RIP] = (greg_t)go_on_at;
	else
		CHECK(!mprotect(hidden_page, 4096, PROT_READ | PROT_WRITE));
}

static void was_fault(const struct full *in, uint64_t at)
{
	IS(faults, 1);
	if (fault_ip != at)
		BAD("%s, %s: the fault is at %lx, not %lx", current->text, mode, fault_ip, at);
	/* The copy of a call pushes first. */
	if (!strncmp(current->text, "call", 4))
		fault_job.registers[SP] += 8;
	for (int i = 0; i < 16; i++)
		IS(fault_job.registers[i], in->job.registers[i]);
	IS(fault_job.flags & FLAGS, in->job.flags & FLAGS);
}

/* An operand in a page that cannot be read. The program's handler makes it readable, and has the
 * instruction tried again. */
static void cannot_be_read(void)
{
	static struct full in, out;
	choose(&in, current);
	uint64_t at = (uint64_t)hidden_page + 64;
	memcpy((void *)at, &current->other, 8);
	CHECK(!mprotect(hidden_page, 4096, PROT_NONE));
	in.job.registers[current->base] = at - (uint64_t)current->displacement - segments[current->segment];
	if (current->index != NONE)
		in.job.registers[current->base] -= in.job.registers[current->index] * (uint64_t)current->scale;
	faults = 0;
	go_on_at = 0;
	run_one(current, &in, &out);
	was_fault(&in, current->at);
	IS(fault_address, at);
	IS(pres, 1);
	IS(posts, 0);
	IS(out.job.way, 2);
	run_one(current, &in, &out);
	IS(faults, 1);
	IS(pres, 1);
	IS(posts, 1);
	IS(out.job.way, 2);
}

/* A target that cannot be an address: the instruction itself faults. */
static void is_no_address(void)
{
	static struct full in, out;
	choose(&in, current);
	uint64_t to = 0x123456789abcdef0;
	if (current->how == RETURN)
		put_word(&in, in.job.registers[SP], to);
	else
		in.job.registers[current->base] = to;
	faults = 0;
	go_on_at = current->next;
	run_one(current, &in, &out);
	was_fault(&in, current->at);
	IS(pres, 1);
	IS(posts, 0);
	IS(out.job.way, 1);
}

/* A target where nothing is mapped: the instruction is executed, and the next one faults. */
static void is_unmapped(void)
{
	static struct full in, out;
	choose(&in, current);
	in.job.registers[current->base] = 0x10;
	faults = 0;
	go_on_at = current->other;
	run_one(current, &in, &out);
	IS(faults, 1);
	IS(fault_ip, 0x10);
	IS(fault_job.registers[SP], in.job.registers[SP] - (strncmp(current->text, "call", 4) ? 0 : 8));
	IS(pres, 1);
	IS(posts, 1);
	IS(last_seen.ip, 0x10);
	IS(out.job.way, 2);
}

static void faulting(void)
{
	static const char *const texts[] = { "jmp *(%rax)", "call *-0x15(%r12)", "jmp *%fs:0x18(%rbp)",
					     "call *%gs:-0x18(%rdi,%r8,4)", "jmp *-0x4321(%r15,%rax,8)" };
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = on_fault;
	action.sa_flags = SA_SIGINFO | SA_NODEFER;
	CHECK(!sigaction(SIGSEGV, &action, NULL));
	hidden_page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(hidden_page != MAP_FAILED);
	struct capriole_probe p = { .pre = pre, .post = post };
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		in_both(&p, kind(texts[i]), cannot_be_read);
	in_both(&p, kind("jmp *%rcx"), is_no_address);
	in_both(&p, kind("call *%rbx"), is_no_address);
	in_both(&p, kind("ret $24"), is_no_address);
	in_both(&p, kind("jmp *%r14"), is_unmapped);
	in_both(&p, kind("call *%rbp"), is_unmapped);
}

/* Without a handler, it ends the program. */
static void fatal(void)
{
	static struct full in, out;
	struct capriole_probe p = { .address = (void *)(uintptr_t)kind("call *-0x15(%r12)")->at, .post = post };
	OK(capriole_probe_register(&p));
	IS(capriole_optimize(PATIENCE), 0);
	choose(&in, current);
	in.job.registers[12] = 0x1000;
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		execute(current, &in, &out);
		_exit(1);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	OK(capriole_probe_unregister(&p));
}

/* A fault in a post-handler, which its probe's fault handler abandons. */
static volatile int *volatile nowhere = (volatile int *)8;
static void post_faults(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	post(p, regs, flags);
	*nowhere = 1;
	BAD("it goes on behind a fault");
}

static int abandon(struct capriole_probe *p, struct capriole_regs *regs, int signal)
{
	(void)p, (void)regs;
	IS(signal, SIGSEGV);
	faults++;
	return 1;
}

static void is_abandoned(void)
{
	static struct full in, out;
	choose(&in, current);
	faults = 0;
	run_one(current, &in, &out);
	IS(faults, 1);
	IS(posts, 1);
	CHECK(out.job.way == 1 || out.job.way == 2);
	CHECK(out.job.registers[CX] == in.job.registers[CX]);
}

static void handler_faults(void)
{
	struct capriole_probe p = { .post = post_faults, .fault = abandon };
	in_both(&p, kind("jbe 3f"), is_abandoned);
	in_both(&p, kind("call *0x200(%rsp)"), is_abandoned);
	in_both(&p, kind("ret"), is_abandoned);
}

/* A forked child: probes are called there, also by a helper of its own, and come and go. */
static void runs_once(long wanted)
{
	static struct full in, out;
	choose(&in, current);
	run_one(current, &in, &out);
	IS(posts, wanted);
	CHECK(out.job.way == 1 || out.job.way == 2);
}

static void forked(void)
{
	struct capriole_probe p = { .post = post }, q = { .post = post }, other = { .pre = pre, .post = post };
	p.address = q.address = (void *)(uintptr_t)kind("call *-0x15(%r12)")->at;
	other.address = (void *)(uintptr_t)kind("jae 3f")->at;
	kind("call *-0x15(%r12)");
	OK(capriole_probe_register(&p));
	IS(capriole_optimize(PATIENCE), 0);
	runs_once(1);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		runs_once(1);
		OK(capriole_probe_register(&q));
		runs_once(2);
		OK(capriole_probe_register(&other));
		IS(capriole_optimize(PATIENCE), 0);
		runs_once(2);
		OK(capriole_probe_unregister(&p));
		runs_once(1);
		kind("jae 3f");
		runs_once(1);
		OK(capriole_probe_unregister(&other));
		OK(capriole_probe_unregister(&q));
		OK(capriole_finish());
		runs_once(0);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	IS(status, 0);
	runs_once(1);
	OK(capriole_probe_unregister(&p));
	runs_once(0);
}

/* Behind an endbr64, as in tables of imported functions: the address is that of the landing pad. */
extern const char landing[], landing_jump[];
__asm__(".pushsection .text\n.balign 16\n.type landing, @function\nlanding:\n	endbr64\n"
	"landing_jump:\n	jmp *landing_target(%rip)\n	nopl 0(%rax,%rax,1)\n"
	".size landing, . - landing\n.popsection\n");
static long landed(long a)
{
	return a + 5;
}
long (*landing_target)(long) = landed;

static void behind_landing_pads(void)
{
	long (*function)(long) = (long (*)(long))(uintptr_t)landing;
	for (int held = 0; held < 2; held++) {
		struct capriole_probe p = { .address = (void *)(uintptr_t)landing, .pre = pre, .post = post };
		p.flags = held ? CAPRIOLE_NO_OPTIMIZE : 0;
		OK(capriole_probe_register(&p));
		for (int i = 0; i < 2; i++) {
			pres = posts = 0;
			IS(function(3), 8);
			IS(pres, 1);
			IS(posts, 1);
			IS(first_seen.ip, landing_jump);
			IS(last_seen.ip, landed);
			IS(last_seen.di, 3);
			IS(capriole_optimize(PATIENCE), 0);
		}
		OK(capriole_probe_unregister(&p));
		IS(function(3), 8);
		IS(posts, 1);
	}
}

/* Instructions without post-handlers. */
__asm__(".pushsection .text\n.balign 16\n.type refused_code, @function\nrefused_code:\n"
	"refused_syscall: syscall\n nop\n nop\n nop\n nop\n"
	"refused_int3: int3\n nop\n nop\n nop\n nop\n"
	"refused_int: int $0x80\n nop\n nop\n nop\n nop\n"
	"refused_ud2: ud2\n nop\n nop\n nop\n nop\n"
	"refused_iret: iretq\n nop\n nop\n nop\n nop\n"
	"refused_far_return: lretq\n nop\n nop\n nop\n nop\n"
	"refused_far_jump: ljmp *(%rax)\n nop\n nop\n nop\n nop\n"
	"refused_far_call: lcall *(%rax)\n nop\n nop\n nop\n nop\n"
	"refused_short_return: .byte 0x66, 0xc3\n nop\n nop\n nop\n nop\n"
	"refused_short_jump: .byte 0x66, 0xff, 0x20\n nop\n nop\n nop\n nop\n"
	"refused_xbegin: .byte 0xc7, 0xf8, 0, 0, 0, 0\n nop\n nop\n nop\n nop\n"
	"refused_xabort: .byte 0xc6, 0xf8, 0\n nop\n nop\n nop\n nop\n"
	"refused_xend: .byte 0x0f, 0x01, 0xd5\n nop\n nop\n nop\n nop\n"
	".size refused_code, . - refused_code\n.popsection\n");
extern const char refused_syscall[], refused_int3[], refused_int[], refused_ud2[], refused_iret[],
	refused_far_return[], refused_far_jump[], refused_far_call[], refused_short_return[], refused_short_jump[],
	refused_xbegin[], refused_xabort[], refused_xend[];

static void refuses(const char *at, const char *text)
{
	struct capriole_probe p = { .address = (void *)(uintptr_t)at, .post = post };
	FAILS(capriole_probe_register(&p), EOPNOTSUPP, text);
}

static void refused(void)
{
	refuses(refused_syscall, "a system call");
	refuses(refused_int3, "an interrupt");
	refuses(refused_int, "an interrupt");
	refuses(refused_ud2, "an interrupt");
	refuses(refused_iret, "another code segment");
	refuses(refused_far_return, "another code segment");
	refuses(refused_far_jump, "another code segment");
	refuses(refused_far_call, "another code segment");
	refuses(refused_short_return, "16 bits");
	refuses(refused_short_jump, "16 bits");
	const char *const transactions[] = { refused_xbegin, refused_xabort, refused_xend };
	for (int i = 0; i < 3; i++) {
		refuses(transactions[i], "transactional memory");
		struct capriole_probe p = { .address = (void *)(uintptr_t)transactions[i], .pre = pre };
		FAILS(capriole_probe_register(&p), EOPNOTSUPP, "transactional memory");
	}
}

/* Functions, with their calls and returns probed in other ways as well. */
long doubled(long a);
extern const char doubled_call[], doubled_return[], increased_return[];
__asm__(".pushsection .text\n.balign 16\n.type increased, @function\nincreased:\n.cfi_startproc\n"
	"	lea 1(%rdi), %rax\n"
	"increased_return:\n	ret\n"
	".cfi_endproc\n.size increased, . - increased\n"
	".balign 16\n.globl doubled\n.type doubled, @function\ndoubled:\n.cfi_startproc\n"
	"	sub $8, %rsp\n"
	".cfi_def_cfa_offset 16\n"
	"doubled_call:\n	call increased\n"
	"	add %rax, %rax\n"
	"	add $8, %rsp\n"
	".cfi_def_cfa_offset 8\n"
	"doubled_return:\n	ret\n"
	".cfi_endproc\n.size doubled, . - doubled\n.popsection\n");

static long returns, entries;
static int entered(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	entries++;
	return 0;
}

static int returned(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call;
	returns++;
	IS(regs->ax, 2 * (entries + 1));
	return 0;
}

static void post_return(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)p, (void)flags;
	posts++;
	IS(regs->ax, 2 * (entries + 1));
}

/* Return probes, which are at the same return. */
static void with_return_probes_in(unsigned flags, unsigned by_address, int first)
{
	struct capriole_probe p = { .address = (void *)(uintptr_t)doubled_return, .post = post_return, .flags = flags };
	struct capriole_return_probe r = { .entry = entered, .handler = returned, .by_address = by_address };
	r.probe.address = (void *)doubled;
	r.probe.flags = flags;
	if (first)
		OK(capriole_probe_register(&p));
	OK(capriole_return_probe_register(&r));
	if (!first)
		OK(capriole_probe_register(&p));
	entries = returns = posts = 0;
	for (long i = 1; i <= 100; i++) {
		if (i == 50)
			IS(capriole_optimize(PATIENCE), 0);
		IS(doubled(i), 2 * (i + 1));
		IS(entries, i);
		IS(returns, i);
		IS(posts, i);
	}
	if (first) {
		OK(capriole_probe_unregister(&p));
		IS(doubled(101), 204);
		IS(returns, 101);
	}
	OK(capriole_return_probe_unregister(&r));
	if (!first) {
		IS(doubled(100), 202);
		IS(posts, 101);
		OK(capriole_probe_unregister(&p));
	}
	IS(doubled(100), 202);
	IS(posts, first ? 100 : 101);
}

static void with_return_probes(void)
{
	for (int i = 0; i < 8; i++)
		with_return_probes_in(i & 1 ? CAPRIOLE_NO_OPTIMIZE : 0, i >> 1 & 1, i >> 2);
}

/* A backtrace in a post-handler begins where the instruction leads. */
static const char *wanted_frames[8];
static int frame_count;
static void post_looks(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)p, (void)regs, (void)flags;
	void *frames[64];
	int count = backtrace(frames, 64), at = 0;
	posts++;
	while (at < count && (uint64_t)frames[at] != regs->ip)
		at++;
	if (at == count)
		BAD("there is no frame of %lx", regs->ip);
	/* Then the callers, to `main` at least. */
	frame_count = count - at;
	if (wanted_frames[0] && (count - at < 3 || frames[at + 1] != wanted_frames[0]))
		BAD("%p calls %p, not %p", frames[at + 1], frames[at], wanted_frames[0]);
}

static void backtraces(void)
{
	static struct capriole_probe list[] = {
		{ .post = post_looks }, { .post = post_looks }, { .post = post_looks },
	};
	const char *const at[] = { doubled_call, increased_return, doubled_return };
	/* Behind the call instruction. */
	const char *const callers[] = { doubled_call + 5, NULL, NULL };
	void *frames[64];
	CHECK(backtrace(frames, 64) > 2);
	for (int i = 0; i < 6; i++) {
		struct capriole_probe *p = &list[i % 3];
		p->address = (void *)(uintptr_t)at[i % 3];
		p->flags = i < 3 ? 0 : CAPRIOLE_NO_OPTIMIZE;
		OK(capriole_probe_register(p));
		IS(capriole_optimize(PATIENCE), 0);
		wanted_frames[0] = callers[i % 3];
		posts = 0;
		IS(doubled(4), 10);
		IS(posts, 1);
		/* This function, its callers; `doubled` if it has not returned. */
		int own = backtrace(frames, 64);
		IS(frame_count, own + (i % 3 == 0 ? 2 : i % 3 == 1 ? 1 : 0));
		OK(capriole_probe_unregister(p));
	}
}

/* Under load: threads with a thousand signals a second, and probes that come and go. */
#define THREADS 4
extern const uint64_t load_places[];
#define PLACES 12
uint64_t load_work(uint64_t a, uint64_t b);
__asm__(".pushsection .text\n.balign 16\n.type load_inner, @function\nload_inner:\n"
	"	lea 3(%rdi,%rdi,4), %rax\n"
	"18: ret\n"
	".size load_inner, . - load_inner\n"
	".balign 16\n.globl load_work\n.type load_work, @function\nload_work:\n"
	"	push %rbx\n push %rbp\n mov %rdi, %rbx\n mov %rsi, %rbp\n"
	"	mov %esi, %ecx\n and $7, %ecx\n inc %ecx\n"
	"1:	rol $5, %rbx\n xor %rcx, %rbx\n"
	"11: loop 1b\n"
	"	mov %rbx, %rdi\n"
	"12: call load_inner\n"
	"	test $1, %al\n"
	"13: je 1f\n"
	"	lea 7(%rax,%rbp), %rax\n"
	"1:	mov %rax, %rdi\n lea load_table(%rip), %rdx\n mov %eax, %ecx\n and $1, %ecx\n"
	"14: call *(%rdx,%rcx,8)\n"
	"	mov %eax, %ecx\n and $3, %ecx\n"
	"15: jrcxz 2f\n"
	"	lea load_next(%rip), %rdx\n mov -8(%rdx,%rcx,8), %rdx\n"
	"16: jmp *%rdx\n"
	"3:	add $5, %rax\n"
	"4:	xor %rbp, %rax\n"
	"5:	cmp %rbx, %rax\n"
	"17: jb 2f\n"
	"	imul $77, %rax, %rax\n"
	"2:	pop %rbp\n pop %rbx\n"
	"	push %rax\n push %rdi\n mov %rax, %rdi\n"
	"19: call load_taking\n"
	"	ret\n"
	".size load_work, . - load_work\n"
	/* Takes two words off. */
	".balign 16\n.type load_taking, @function\nload_taking:\n"
	"	mov 16(%rsp), %rax\n add %rdi, %rax\n"
	"20: ret $16\n"
	".size load_taking, . - load_taking\n"
	".balign 16\n.type load_tail, @function\nload_tail:\n"
	"	not %rdi\n"
	"21: jmp load_inner\n"
	".size load_tail, . - load_tail\n.popsection\n"
	".pushsection .data.rel.local, \"aw\"\n.balign 8\nload_table: .quad load_inner, load_tail\n"
	"load_next: .quad 3b, 4b, 5b\n"
	".globl load_places\nload_places: .quad 11b, 12b, 13b, 14b, 15b, 16b, 17b, 18b, 19b, 20b, 21b, load_inner\n"
	".popsection\n");

#define ARGUMENTS 64
static uint64_t expected[ARGUMENTS];
static struct counts {
	unsigned long calls, pres, posts, signals;
	char apart[96];
} counts[THREADS + 1];
static __thread struct counts *own = &counts[THREADS];
static volatile int over;
static unsigned long other_posts;

static unsigned long now(unsigned long *counter)
{
	return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

static void call_once(uint64_t i)
{
	uint64_t result = load_work(i * 0x123456789abcdefu, i);
	own->calls++;
	if (result != expected[i])
		BAD("%lu: %lx, not %lx", i, result, expected[i]);
}

static int load_pre(struct capriole_probe *p, struct capriole_regs *regs)
{
	IS(regs->ip, p->address);
	own->pres++;
	return 0;
}

static void load_post(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)flags;
	if (regs->ip == (uint64_t)p->address)
		BAD("ip is that of the return");
	own->posts++;
}

static int load_pre_other(struct capriole_probe *p, struct capriole_regs *regs)
{
	IS(regs->ip, p->address);
	return 0;
}

static void load_post_other(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)p, (void)flags, (void)regs;
	__atomic_fetch_add(&other_posts, 1, __ATOMIC_RELAXED);
}

static void on_signal(int signal)
{
	(void)signal;
	int error = errno;
	own->signals++;
	call_once(own->signals % ARGUMENTS);
	errno = error;
}

static void *run_load(void *argument)
{
	own = &counts[(size_t)argument];
	struct sigevent event;
	memset(&event, 0, sizeof event);
	event.sigev_notify = SIGEV_THREAD_ID;
	event.sigev_signo = SIGUSR1;
	event.sigev_notify_thread_id = (int)syscall(SYS_gettid);
	struct itimerspec often = { { 0, 1000000 }, { 0, 1000000 } };
	timer_t timer;
	CHECK(!timer_create(CLOCK_MONOTONIC, &event, &timer));
	CHECK(!timer_settime(timer, 0, &often, NULL));
	for (uint64_t i = 0; !over; i++)
		call_once(i % ARGUMENTS);
	CHECK(!timer_delete(timer));
	return NULL;
}

static long load_cycles = 300;

static void load(void)
{
	enum { PROBES = 24 };
	static struct capriole_probe some[PROBES];
	int in[PROBES] = { 0 };
	struct capriole_probe always = { .pre = load_pre, .post = load_post };
	for (uint64_t i = 0; i < ARGUMENTS; i++)
		expected[i] = load_work(i * 0x123456789abcdefu, i);
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_handler = on_signal;
	action.sa_flags = SA_RESTART;
	CHECK(!sigaction(SIGUSR1, &action, NULL));
	always.address = (void *)load_places[9]; /* the return that takes words off: once in each call */
	OK(capriole_probe_register(&always));
	pthread_t threads[THREADS];
	for (size_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, run_load, (void *)i));
	unsigned long registered = 0;
	for (long cycle = 0; cycle < load_cycles; cycle++) {
		unsigned i = below(PROBES);
		struct capriole_probe *p = &some[i];
		if (in[i] && below(3) == 0) {
			if (below(2))
				OK(capriole_probe_disable(p));
			else
				OK(capriole_probe_enable(p));
		} else if (in[i]) {
			OK(capriole_probe_unregister(p));
			in[i] = 0;
		} else {
			*p = (struct capriole_probe){ .address = (void *)load_places[below(PLACES)] };
			p->pre = below(3) ? load_pre_other : NULL;
			p->post = below(3) ? load_post_other : NULL;
			p->flags = (below(4) ? 0 : CAPRIOLE_NO_OPTIMIZE) | (below(8) ? 0 : CAPRIOLE_DISABLED);
			OK(capriole_probe_register(p));
			in[i] = 1;
			registered++;
		}
		if (below(16) == 0)
			OK(capriole_optimize(below(50)));
		if (below(64) == 0)
			usleep(below(50000));
		if (below(128) == 0) {
			OK(capriole_optimization(0));
			OK(capriole_optimization(1));
		}
	}
	/* This thread may have had the processor all the time: now the others get it. */
	struct capriole_probe last = { .address = (void *)load_places[9], .post = load_post_other };
	unsigned long posts_before = now(&other_posts);
	OK(capriole_probe_register(&last));
	UNTIL(now(&other_posts) > posts_before);
	OK(capriole_probe_unregister(&last));
	for (size_t i = 0; i < THREADS; i++)
		UNTIL(now(&counts[i].signals));
	over = 1;
	for (size_t i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	unsigned long calls = 0, hits = 0, afters = 0, signals = 0;
	for (size_t i = 0; i <= THREADS; i++) {
		calls += counts[i].calls;
		hits += counts[i].pres;
		afters += counts[i].posts;
		signals += counts[i].signals;
	}
	unsigned long not_called = capriole_probe_missed(&always);
	printf("%lu registered; %lu calls, %lu hits, %lu missed, %lu other posts, %lu signals\n", registered, calls,
	       hits, not_called, other_posts, signals);
	IS(hits + not_called, calls);
	IS(afters, hits);
	CHECK(other_posts && signals);
	for (unsigned i = 0; i < PROBES; i++)
		if (in[i])
			OK(capriole_probe_unregister(&some[i]));
	OK(capriole_probe_unregister(&always));
	for (uint64_t i = 0; i < ARGUMENTS; i++)
		call_once(i);
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "jumps", jumps },
		{ "breakpoints", breakpoints },
		{ "posts_only", posts_only },
		{ "vectors", vectors },
		{ "changes", changes },
		{ "skipped", skipped },
		{ "several", several },
		{ "missed", missed },
		{ "faulting", faulting },
		{ "fatal", fatal },
		{ "handler_faults", handler_faults },
		{ "forked", forked },
		{ "behind_landing_pads", behind_landing_pads },
		{ "refused", refused },
		{ "with_return_probes", with_return_probes },
		{ "backtraces", backtraces },
		{ "load", load },
		{ NULL, NULL },
	};
	random_state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	load_cycles = argc > 3 ? atol(argv[3]) : load_cycles;
	low = mmap((void *)LOW_MEMORY, 4096, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK((uint64_t)low == LOW_MEMORY);
	for (size_t i = 0; i < KINDS; i++) {
		__start_kinds[i].at += (uint64_t)load_all;
		__start_kinds[i].next += (uint64_t)load_all;
		__start_kinds[i].other += (uint64_t)load_all;
	}
	segments[2] = 0x123456789000;
	CHECK(!syscall(SYS_arch_prctl, ARCH_SET_GS, segments[2]));
	__asm__("mov %%fs:0, %0" : "=r"(segments[1]));
	return run_parts(parts, argc, argv);
}
