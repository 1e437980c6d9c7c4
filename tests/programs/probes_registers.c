/*
 * Executes single instructions of many kinds with all registers, flags and the red zone set at
 * random: alone, with a probe on it whose handlers use all that a handler may, and with probes that
 * change each of the registers. What the program has afterwards must be equal.
 */
#include "probes.h"

#include <cpuid.h>
#include <sys/mman.h>

#define STATE 4096
/* x87, SSE, AVX, and the three of AVX-512. */
#define FEATURES 0xe7ul
/* OF DF SF ZF AF PF CF. */
#define FLAGS 0xcd5ul

enum { AX, CX, DX, BX, SP, BP, SI, DI }; /* by their numbers in machine code; then r8 to r15 */

/* The code below knows the offsets. */
struct job {
	uint64_t registers[16];
	uint64_t flags;		/* 128 */
	uint64_t red_zone[16];	/* 136; from 8 bytes below the stack pointer on, downwards */
	void *state;		/* 264: an XSAVE area */
	uint64_t features;	/* 272 */
	uint64_t stack;		/* 280: the stack pointer at the instruction */
	uint64_t taken;		/* 288: which way the instruction has gone */
};

/* Each of these executes its instruction at NAME_at with the state of a job, and stores the state
 * behind it in another. */
typedef void executes(struct job *in, struct job *out, void *at);

struct job *out_job;	/* of the code below */
uint64_t own_stack;
uint64_t saved_ax, saved_stack;
uint64_t memory_word = 0x123456789abcdef0;
uint64_t memory_words[64];

/* Loads everything, and goes to the address in rdx. */
__asm__(".pushsection .text\n.p2align 4\n.type load_all, @function\nload_all:\n"
	"	push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
	"	mov %rsi, out_job(%rip)\n"
	"	mov %rsp, own_stack(%rip)\n"
	"	mov %rdx, target(%rip)\n"
	"	mov 272(%rdi), %eax\n"
	"	mov 276(%rdi), %edx\n"
	"	mov 264(%rdi), %rcx\n"
	"	xrstor64 (%rcx)\n"
	"	mov 280(%rdi), %rsp\n"
	"	pushq 128(%rdi)\n"
	"	popfq\n"
	".set at, 0\n.rept 16\n"
	"	mov 136 + at(%rdi), %rax\n"
	"	mov %rax, -8 - at(%rsp)\n"
	".set at, at + 8\n.endr\n"
	"	mov (%rdi), %rax\n mov 8(%rdi), %rcx\n mov 16(%rdi), %rdx\n mov 24(%rdi), %rbx\n"
	"	mov 40(%rdi), %rbp\n mov 48(%rdi), %rsi\n"
	"	mov 64(%rdi), %r8\n mov 72(%rdi), %r9\n mov 80(%rdi), %r10\n mov 88(%rdi), %r11\n"
	"	mov 96(%rdi), %r12\n mov 104(%rdi), %r13\n mov 112(%rdi), %r14\n mov 120(%rdi), %r15\n"
	"	mov 56(%rdi), %rdi\n"
	"	jmp *target(%rip)\n"
	".size load_all, . - load_all\n"
	/* Stores everything. The word in `taken` was stored already. */
	".p2align 4\n.type store_all, @function\nstore_all:\n"
	"	mov %rax, saved_ax(%rip)\n"
	"	mov out_job(%rip), %rax\n"
	"	mov %rcx, 8(%rax)\n mov %rdx, 16(%rax)\n mov %rbx, 24(%rax)\n mov %rsp, 32(%rax)\n"
	"	mov %rbp, 40(%rax)\n mov %rsi, 48(%rax)\n mov %rdi, 56(%rax)\n"
	"	mov %r8, 64(%rax)\n mov %r9, 72(%rax)\n mov %r10, 80(%rax)\n mov %r11, 88(%rax)\n"
	"	mov %r12, 96(%rax)\n mov %r13, 104(%rax)\n mov %r14, 112(%rax)\n mov %r15, 120(%rax)\n"
	"	mov saved_ax(%rip), %rcx\n"
	"	mov %rcx, (%rax)\n"
	"	mov %rsp, saved_stack(%rip)\n"
	"	mov own_stack(%rip), %rsp\n"
	"	pushfq\n"
	"	popq 128(%rax)\n"
	"	cld\n"
	"	mov saved_stack(%rip), %rdx\n"
	".set at, 0\n.rept 16\n"
	"	mov -8 - at(%rdx), %rcx\n"
	"	mov %rcx, 136 + at(%rax)\n"
	".set at, at + 8\n.endr\n"
	"	mov 264(%rax), %rdi\n"
	"	mov 276(%rax), %edx\n"
	"	mov 272(%rax), %eax\n"
	"	xsave64 (%rdi)\n"
	"	fninit\n"
	"	movl $0x1f80, -8(%rsp)\n"
	"	ldmxcsr -8(%rsp)\n"
	"	pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n"
	"	ret\n"
	".size store_all, . - store_all\n"
	".popsection\n"
	".pushsection .bss\n.balign 8\ntarget: .skip 8\n.popsection\n");
void load_all(struct job *in, struct job *out, const void *at);

/* Two ways out: behind the instruction, and `NAME_other`, which it may jump to. */
#define INSTRUCTION(name, before, instruction, behind) \
	__asm__(".pushsection .text\n.p2align 4\n.globl " #name "\n.type " #name ", @function\n" \
		#name ":\n" before #name "_at:\n" instruction "\n" #name "_next:\n" behind "\n" \
		"	jmp store_all\n" \
		#name "_other:\n	jmp store_other\n" \
		".size " #name ", . - " #name "\n.popsection\n"); \
	extern const char name[], name##_at[];
/* Notes the other way, without a flag being changed. */
__asm__(".pushsection .text\n.p2align 4\n.type store_other, @function\nstore_other:\n"
	"	mov %rax, saved_ax(%rip)\n"
	"	mov out_job(%rip), %rax\n"
	"	movq $1, 288(%rax)\n"
	"	mov saved_ax(%rip), %rax\n"
	"	jmp store_all\n"
	".size store_other, . - store_other\n.popsection\n");

#define EACH(X) \
	X(push_r, "", "push %rbx", "lea 8(%rsp), %rsp", 0) \
	X(push_imm, "", "push $0x1234567", "lea 8(%rsp), %rsp", 0) \
	X(pop_r, "", "pop %r9", "lea -8(%rsp), %rsp", 0) \
	X(lea_r, "", "lea 3(%rdi,%rsi,4), %rax", "", 0) \
	X(lea_sp, "", "lea -24(%rsp), %rsp", "lea 24(%rsp), %rsp", 0) \
	X(sub_sp, "", "sub $0x128, %rsp", "lea 0x128(%rsp), %rsp", 0) \
	X(mov_r, "", "mov %rdi, %r12", "", 0) \
	X(mov_imm, "", "mov $7, %eax", "", 0) \
	X(movabs, "", "movabs $0x1122334455667788, %r10", "", 0) \
	X(load_rip, "", "mov memory_word(%rip), %r11", "", 0) \
	X(store_rip, "", "mov %r8, memory_words + 8(%rip)", "", 0) \
	X(add_rip, "", "add %cl, memory_words + 17(%rip)", "", 0) \
	X(cmp_rip, "", "cmpl $0x40000000, memory_word(%rip)", "", 0) \
	X(red_zone_load, "", "mov -16(%rsp), %rcx", "", 0) \
	X(red_zone_store, "", "mov %rdx, -128(%rsp)", "", 0) \
	X(adc_r, "", "adc %rsi, %rdi", "", 0) \
	X(sbb_r, "", "sbb %r14, %r15", "", 0) \
	X(inc_r, "", "inc %r13", "", 0) \
	X(imul_r, "", "imul $0x33, %rdi, %rbp", "", 0) \
	X(mul_r, "", "mul %rsi", "", 0) \
	X(shl_cl, "", "shl %cl, %rdi", "", 0) \
	X(rcr_1, "", "rcr $1, %rbx", "", 0) \
	X(cmovc, "", "cmovc %r8, %r9", "", 0) \
	X(cmovle, "", "cmovle memory_word(%rip), %rax", "", 0) \
	X(seto, "", "seto %dl", "", 0) \
	X(lahf, "", "lahf", "", 0) \
	X(bt_r, "", "bt %rax, %rbx", "", 0) \
	X(cld_, "", "cld", "", 0) \
	X(std_, "", "std", "", 0) \
	X(cmc_, "", "cmc", "", 0) \
	X(pushfq_, "", "pushfq", "lea 8(%rsp), %rsp", 0) \
	X(xchg_r, "", "xchg %rax, %r15", "", 0) \
	X(cqo_, "", "cqo", "", 0) \
	X(bswap_r, "", "bswap %r11", "", 0) \
	X(jc_short, "", "jc jc_short_other", "", 0) \
	X(jg_near, "", "{disp32} jg jg_near_other", "", 0) \
	X(jp_short, "", "jp jp_short_other", "", 0) \
	X(jmp_short, "", "jmp jmp_short_other", "", 0) \
	X(jmp_near, "", "{disp32} jmp jmp_near_other", "", 0) \
	X(call_near, "", "call 1f\n1:", "lea 8(%rsp), %rsp", 0) \
	X(call_memory, "", "call *call_target(%rip)", "lea 8(%rsp), %rsp", 0) \
	X(ret_, "pushq ret_target(%rip)\n", "ret", "", 0) \
	X(ret_n, "lea -16(%rsp), %rsp\n pushq ret_n_target(%rip)\n", "ret $16", "", 0) \
	X(leave_, "mov %rsp, %rbp\n push %rbx\n", "leave", "lea -8(%rsp), %rsp", 0) \
	X(movsb_, "", "movsb", "", 1) \
	X(movsq_, "", "movsq", "", 1) \
	X(stosb_, "", "stosb", "", 1) \
	X(lodsq_, "", "lodsq", "", 1) \
	X(scasb_, "", "scasb", "", 1) \
	X(cmpsb_, "", "cmpsb", "", 1) \
	X(rep_movsb, "", "rep movsb", "", 2) \
	X(rep_stosq, "", "rep stosq", "", 2) \
	X(repne_scasb, "", "repne scasb", "", 2) \
	X(jrcxz_, "", "jrcxz jrcxz__other", "", 2) \
	X(loop_, "", "loop loop__other", "", 2) \
	X(addsd_, "", "addsd %xmm1, %xmm2", "", 0) \
	X(movdqu_, "", "movdqu %xmm5, -40(%rsp)", "", 0) \
	X(pxor_, "", "pxor %xmm9, %xmm9", "", 0) \
	X(ptest_, "", "ptest %xmm3, %xmm4", "", 0) \
	X(fxch_, "", "fxch %st(3)", "", 0) \
	X(nop_long, "", "nopl 0x0(%rax,%rax,1)", "", 0) \
	X(cpuid_, "", "cpuid", "", 3)

#define DEFINE(name, before, instruction, behind, kind) INSTRUCTION(name, before, instruction, behind)
EACH(DEFINE)

__asm__(".pushsection .data.rel.local, \"aw\"\n.balign 8\n"
	"call_target: .quad call_memory_next\n"
	"ret_target: .quad ret__next\n"
	"ret_n_target: .quad ret_n_next\n"
	".popsection\n");

static const struct kind {
	const char *name;
	const char *entry, *at;
	int kind; /* 1: rsi, rdi point to memory; 2: and rcx is small; 3: cpuid */
} kinds[] = {
#define ROW(name, before, instruction, behind, kind) { #name, name, name##_at, kind },
	EACH(ROW)
};
#define KINDS (sizeof kinds / sizeof *kinds)

static uint64_t random_state = 1, features;
static size_t part_start[8], part_size[8];
static uint64_t strings[512];

static uint64_t next(void)
{
	return mix(random_state += 0x9e3779b97f4a7c15u);
}

static void find_features(void)
{
	unsigned a, b, c, d, low, high;
	CHECK(__get_cpuid(1, &a, &b, &c, &d) && c & bit_OSXSAVE);
	__asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	features = low & FEATURES;
	for (int i = 2; i < 8; i++) {
		if (!(features >> i & 1))
			continue;
		__cpuid_count(0xd, i, a, b, c, d);
		part_start[i] = b;
		part_size[i] = a;
		CHECK(b + a <= STATE);
	}
}

static void set_state(uint8_t *state)
{
	for (size_t i = 0; i < STATE; i += 8) {
		uint64_t word = next();
		memcpy(state + i, &word, 8);
	}
	/* Header. */
	memset(state + 512, 0, 64);
	memcpy(state + 512, &features, 8);
	/* Rounding and precision as they are seldom, nothing unmasked; some registers in use. */
	uint16_t control = 0x7f | (next() & 0xf00), status = (next() & 7) << 11 | (next() & 0x4700);
	memset(state, 0, 32);
	memcpy(state, &control, 2);
	memcpy(state + 2, &status, 2);
	state[4] = (uint8_t)next();
	uint32_t mxcsr = 0x1f80 | (next() & 0x6000) | (next() & 0x803f);
	memcpy(state + 24, &mxcsr, 4);
	for (int i = 0; i < 8; i++) {
		memset(state + 32 + 16 * i + 10, 0, 6);
		state[32 + 16 * i + 7] |= 0x80;
		state[32 + 16 * i + 9] &= 0x3f;
	}
	for (int i = 0; i < 8; i++) /* mask registers of 64 bits; not all of them zero */
		if (features >> 5 & 1)
			state[part_start[5] + 8 * i] |= 1;
}

struct full {
	struct job job;
	uint8_t state[STATE] __attribute__((aligned(64)));
	uint64_t stack[256];
	uint64_t strings[512];
	uint64_t words[64];
};

/* The stack of the instruction, with room for handlers and signal frames below: the same for all
 * runs. */
static char stack_area[256 << 10] __attribute__((aligned(16)));
#define stack_of ((uint64_t *)(void *)(stack_area + (192 << 10)))
#define STACK_OF (256 * 8)

static void choose(struct full *in, const struct kind *kind)
{
	memset(in, 0, sizeof *in);
	for (int i = 0; i < 16; i++) {
		in->job.registers[i] = next();
		in->job.red_zone[i] = next();
	}
	if (kind->kind == 1 || kind->kind == 2) {
		in->job.registers[SI] = (uint64_t)(strings + 100 + next() % 50);
		in->job.registers[DI] = (uint64_t)(strings + 300 + next() % 50);
	}
	if (kind->kind >= 2)
		in->job.registers[CX] = next() % 20;
	if (kind->kind == 3)
		in->job.registers[AX] = 0;
	in->job.flags = (next() & FLAGS) | 0x202;
	in->job.features = features;
	/* Also one that is not aligned. */
	in->job.stack = (uint64_t)(stack_of + 128) + next() % 16;
	set_state(in->state);
	for (size_t i = 0; i < 512; i++)
		in->strings[i] = next();
	for (size_t i = 0; i < 64; i++)
		in->words[i] = next();
	for (size_t i = 0; i < 256; i++)
		in->stack[i] = next();
}

static void execute(const struct kind *kind, struct full *in, struct full *out)
{
	memset(out, 0, sizeof *out);
	memcpy(strings, in->strings, sizeof strings);
	memcpy(memory_words, in->words, sizeof memory_words);
	memcpy(stack_of, in->stack, STACK_OF);
	in->job.state = in->state;
	out->job.state = out->state;
	out->job.features = features;
	load_all(&in->job, &out->job, kind->entry);
	memcpy(out->strings, strings, sizeof strings);
	memcpy(out->words, memory_words, sizeof memory_words);
	memcpy(out->stack, stack_of, STACK_OF);
}

static const char *running, *mode;

static void same(const char *what, const void *a, const void *b, size_t size)
{
	const uint8_t *in = a, *out = b;
	for (size_t i = 0; i < size; i++)
		if (in[i] != out[i])
			BAD("%s, %s: %s: byte %zu is %02x, not %02x", running, mode, what, i, out[i], in[i]);
}

static void compare(const struct full *a, const struct full *b)
{
	static const char *const parts[8] = { "", "", "ymm", "", "", "k", "zmm", "zmm16" };
	same("way", &a->job.taken, &b->job.taken, 8);
	for (int i = 0; i < 16; i++)
		if (a->job.registers[i] != b->job.registers[i])
			BAD("%s, %s: register %d is %lx, not %lx", running, mode, i, b->job.registers[i],
			    a->job.registers[i]);
	if (a->job.flags != b->job.flags)
		BAD("%s, %s: flags are %lx, not %lx", running, mode, b->job.flags, a->job.flags);
	same("red zone", a->job.red_zone, b->job.red_zone, sizeof a->job.red_zone);
	same("x87 control, status and tags", a->state, b->state, 5);
	same("mxcsr", a->state + 24, b->state + 24, 4);
	for (int i = 0; i < 8; i++)
		same("st", a->state + 32 + 16 * i, b->state + 32 + 16 * i, 10);
	same("xmm", a->state + 160, b->state + 160, 256);
	for (int i = 2; i < 8; i++)
		same(parts[i], a->state + part_start[i], b->state + part_start[i], part_size[i]);
	same("strings", a->strings, b->strings, sizeof a->strings);
	same("memory", a->words, b->words, sizeof a->words);
	/* The stack above the stack pointer of the instruction; below the red zone it is anybody's. */
	size_t up = 130 * 8;
	same("stack", (const char *)a->stack + up, (const char *)b->stack + up, sizeof a->stack - up);
}

/* Trashes all that a handler may: caller-saved registers and flags. */
static void trash_general(void)
{
	__asm__ volatile("mov $-1, %%rax\n mov %%rax, %%rcx\n mov %%rax, %%rdx\n mov %%rax, %%rsi\n"
			 "mov %%rax, %%rdi\n mov %%rax, %%r8\n mov %%rax, %%r9\n mov %%rax, %%r10\n"
			 "mov %%rax, %%r11\n add %%rax, %%rax\n"
			 :
			 :
			 : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory");
}

/* And vector, x87 and mask registers, and what controls them. */
__attribute__((target("avx"), noipa)) static void trash_avx(void)
{
	__asm__ volatile("vpcmpeqd %xmm0, %xmm0, %xmm0\n vmovups %ymm0, %ymm1\n vmovups %ymm0, %ymm2\n"
			 "vmovups %ymm0, %ymm3\n vmovups %ymm0, %ymm4\n vmovups %ymm0, %ymm5\n"
			 "vmovups %ymm0, %ymm6\n vmovups %ymm0, %ymm7\n vmovups %ymm0, %ymm8\n"
			 "vmovups %ymm0, %ymm9\n vmovups %ymm0, %ymm10\n vmovups %ymm0, %ymm11\n"
			 "vmovups %ymm0, %ymm12\n vmovups %ymm0, %ymm13\n vmovups %ymm0, %ymm14\n"
			 "vmovups %ymm0, %ymm15\n");
}

__attribute__((noipa)) static void trash_avx512(void)
{
	__asm__ volatile("vpternlogd $255, %zmm0, %zmm0, %zmm0\n vmovdqa64 %zmm0, %zmm16\n"
			 "vmovdqa64 %zmm0, %zmm17\n vmovdqa64 %zmm0, %zmm31\n vmovdqa64 %zmm0, %zmm9\n"
			 "kxnorw %k1, %k1, %k1\n kxnorw %k7, %k7, %k7\n");
}

__attribute__((noipa)) static void trash_vectors(void)
{
	static const uint32_t other = 0x7f80 | 0x3f;
	static const uint16_t control = 0xc7f;
	__asm__ volatile("pcmpeqd %xmm0, %xmm0\n movdqa %xmm0, %xmm1\n movdqa %xmm0, %xmm7\n"
			 "movdqa %xmm0, %xmm15\n");
	__asm__ volatile("fninit\n fldpi\n fldpi\n fldpi\n fldz\n fldpi\n fldpi\n fldpi\n fldpi\n");
	if (features & 4)
		trash_avx();
	if ((features & 0xe0) == 0xe0)
		trash_avx512();
	__asm__ volatile("fninit\n");
	__asm__ volatile("ldmxcsr %0\n fldcw %1\n" : : "m"(other), "m"(control));
}

static const struct kind *current;
static const struct full *input;
static long pres, posts;

/* The registers that a handler finds are those of the program. */
static void check_pre(const struct capriole_regs *regs)
{
	const uint64_t *in = input->job.registers;
	pres++;
	if (current->entry != current->at)
		return; /* others have changed some */
	if (regs->ax != in[AX] || regs->cx != in[CX] || regs->dx != in[DX] || regs->bx != in[BX] ||
	    regs->bp != in[BP] || regs->si != in[SI] || regs->di != in[DI] || regs->r8 != in[8] ||
	    regs->r9 != in[9] || regs->r10 != in[10] || regs->r11 != in[11] || regs->r12 != in[12] ||
	    regs->r13 != in[13] || regs->r14 != in[14] || regs->r15 != in[15])
		BAD("%s, %s: a handler finds other registers", running, mode);
	if (regs->sp != input->job.stack)
		BAD("%s, %s: sp is %lx, not %lx", running, mode, regs->sp, input->job.stack);
	if (regs->ip != (uint64_t)current->at)
		BAD("%s, %s: ip is %lx, not %p", running, mode, regs->ip, current->at);
}

static int pre(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	check_pre(regs);
	trash_general();
	return 0;
}

static int pre_vectors(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	check_pre(regs);
	trash_vectors();
	trash_general();
	return 0;
}

/* Handlers that only read registers: those that routines store for them. `seen` has them by their
 * numbers, and behind them ip and sp. */
static uint64_t seen[18];

static int pre_reads(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	pres++;
	seen[AX] = regs->ax, seen[CX] = regs->cx, seen[DX] = regs->dx;
	seen[SI] = regs->si, seen[DI] = regs->di;
	seen[8] = regs->r8, seen[9] = regs->r9, seen[10] = regs->r10, seen[11] = regs->r11;
	seen[16] = regs->ip, seen[17] = regs->sp;
	trash_general();
	return 0;
}

/* It leaves r8 to r11 alone. */
static int pre_reads_simply(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	pres++;
	seen[AX] = regs->ax, seen[CX] = regs->cx, seen[DX] = regs->dx;
	seen[SI] = regs->si, seen[DI] = regs->di;
	seen[16] = regs->ip, seen[17] = regs->sp;
	__asm__ volatile("mov $-1, %%rax\n mov %%rax, %%rcx\n mov %%rax, %%rdx\n mov %%rax, %%rsi\n"
			 "mov %%rax, %%rdi\n add %%rax, %%rax\n"
			 :
			 :
			 : "rax", "rcx", "rdx", "rsi", "rdi", "memory");
	return 0;
}

static void check_seen(int simply)
{
	static const int read[] = { AX, CX, DX, SI, DI, 8, 9, 10, 11 };
	if (current->entry != current->at)
		return;
	for (int i = 0; i < (simply ? 5 : 9); i++)
		if (seen[read[i]] != input->job.registers[read[i]])
			BAD("%s, %s: a handler reads %lx in register %d, not %lx", running, mode,
			    seen[read[i]], read[i], input->job.registers[read[i]]);
	IS(seen[16], (uint64_t)current->at);
	IS(seen[17], input->job.stack);
}

static void post(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)p, (void)regs, (void)flags;
	posts++;
	trash_general();
}

static void post_vectors(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	post(p, regs, flags);
	trash_vectors();
	trash_general();
}

#define RUNS 20
static struct full inputs[RUNS], alone[RUNS];

/* What a handler changes, when it is to change something: a register, 16 for flags. */
static int change;
static uint64_t change_to;

static int pre_change(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	uint64_t *const by_number[] = {
		&regs->ax, &regs->cx, &regs->dx, &regs->bx, &regs->sp, &regs->bp, &regs->si, &regs->di,
		&regs->r8, &regs->r9, &regs->r10, &regs->r11, &regs->r12, &regs->r13, &regs->r14,
		&regs->r15, &regs->flags
	};
	*by_number[change] = change_to;
	trash_general();
	pres++;
	return 0;
}

static void begin(const struct kind *kind, const char *how)
{
	running = kind->name;
	mode = how;
	current = kind;
}

/* Returns the number of jumps. */
static int put(const struct kind *kind, struct capriole_probe *p)
{
	p->address = (void *)(uintptr_t)kind->at;
	int result = capriole_probe_register(p);
	if (result == -EOPNOTSUPP) {
		printf("%s, %s: refused: %s\n", running, mode, capriole_error());
		return -1;
	}
	if (result < 0)
		BAD("%s, %s: %s", running, mode, capriole_error());
	if (!(p->flags & CAPRIOLE_NO_OPTIMIZE))
		IS(capriole_optimize(PATIENCE), 0);
	int state = capriole_probe_status(p, NULL, 0);
	CHECK(state == CAPRIOLE_OPTIMIZED || state == CAPRIOLE_BREAKPOINT);
	return state == CAPRIOLE_OPTIMIZED;
}

/* Compares runs with such a probe to runs without one. */
static void compare_all(unsigned flags, capriole_pre_handler pre_handler, capriole_post_handler post_handler)
{
	int jumps = 0, refused = 0;
	static struct full probed;
	for (size_t i = 0; i < KINDS; i++) {
		const struct kind *kind = &kinds[i];
		begin(kind, "alone");
		for (int run = 0; run < RUNS; run++) {
			choose(&inputs[run], kind);
			execute(kind, &inputs[run], &alone[run]);
		}
		mode = flags & CAPRIOLE_NO_OPTIMIZE ? "breakpoint" : "jump";
		struct capriole_probe p = { .pre = pre_handler, .post = post_handler, .flags = flags };
		int jump = put(kind, &p);
		if (jump < 0) {
			refused++;
			continue;
		}
		jumps += jump;
		pres = posts = 0;
		for (int run = 0; run < RUNS; run++) {
			input = &inputs[run];
			execute(kind, &inputs[run], &probed);
			compare(&alone[run], &probed);
			if (pre_handler == pre_reads || pre_handler == pre_reads_simply)
				check_seen(pre_handler == pre_reads_simply);
		}
		IS(pres, pre_handler ? RUNS : 0);
		IS(capriole_probe_missed(&p), 0);
		/* A post-handler is called, whatever way the instruction goes. */
		IS(posts, post_handler ? RUNS : 0);
		OK(capriole_probe_unregister(&p));
		mode = "taken out";
		execute(kind, &inputs[0], &probed);
		compare(&alone[0], &probed);
	}
	printf("%zu kinds, %d jumps, %d refused\n", KINDS, jumps, refused);
	/* Some places have no bytes for a breakpoint that a jump could replace: there it is a jump. */
	CHECK(flags & CAPRIOLE_NO_OPTIMIZE ? jumps < 50 : jumps > 50);
	IS(refused, 0);
}

static void breakpoints(void)
{
	compare_all(CAPRIOLE_NO_OPTIMIZE, pre, NULL);
}

static void jumps(void)
{
	compare_all(0, pre, NULL);
}

static void breakpoints_and_posts(void)
{
	compare_all(CAPRIOLE_NO_OPTIMIZE, pre, post);
}

static void jumps_and_posts(void)
{
	compare_all(0, pre, post);
}

static void posts_only(void)
{
	compare_all(0, NULL, post);
}

/* Number of instructions that a call takes: the trap flag is set meanwhile. */
static volatile long steps;

static void step(int signal)
{
	(void)signal;
	steps++;
}

__attribute__((noipa)) static long small(long a, long b)
{
	return 3 * a + b;
}

static long count_steps(capriole_pre_handler pre_handler)
{
	struct capriole_probe p = { .address = (void *)small, .pre = pre_handler };
	struct sigaction action = { .sa_handler = step }, before;
	if (pre_handler) {
		OK(capriole_probe_register(&p));
		IS(capriole_optimize(PATIENCE), 0);
		IS(capriole_probe_status(&p, NULL, 0), CAPRIOLE_OPTIMIZED);
	}
	OK(sigaction(SIGTRAP, &action, &before));
	pres = steps = 0;
	/* The red zone is in use. */
	__asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n orl $0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp"
			 : : : "memory", "cc");
	long result = small(5, 6);
	__asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n andl $~0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp"
			 : : : "memory", "cc");
	IS(result, 21);
	IS(pres, pre_handler != NULL);
	OK(sigaction(SIGTRAP, &before, NULL));
	if (pre_handler)
		OK(capriole_probe_unregister(&p));
	return steps;
}

static int pre_counts(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	pres++;
	return 0;
}

/* The same, but it may return something else. */
static volatile int skips;
static int pre_counts_and_may_skip(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	pres++;
	return skips;
}

/* For handlers that only read registers, less is stored and put back. */
static void readers(void)
{
	compare_all(0, pre_reads, NULL);
	compare_all(0, pre_reads_simply, NULL);
	compare_all(CAPRIOLE_NO_OPTIMIZE, pre_reads, NULL);
	compare_all(CAPRIOLE_NO_OPTIMIZE, pre_reads_simply, post);
	long bare = count_steps(NULL), simple = count_steps(pre_counts), any = count_steps(pre_counts_and_may_skip);
	printf("%ld instructions, %ld with a handler that only reads, %ld with another\n", bare, simple, any);
	CHECK(simple > bare + 20 && simple < bare + 50);
	CHECK(any > simple + 20);
}

/* The library finds out that handlers use vector registers. */
static void vectors_found(void)
{
	compare_all(0, pre_vectors, NULL);
	compare_all(0, pre, post_vectors);
	compare_all(CAPRIOLE_NO_OPTIMIZE, pre_vectors, post_vectors);
}

/* It is told so. */
static void vectors_saved(void)
{
	compare_all(CAPRIOLE_SAVE_VECTOR, pre_vectors, post_vectors);
	compare_all(CAPRIOLE_SAVE_VECTOR | CAPRIOLE_NO_OPTIMIZE, pre_vectors, NULL);
}

/* Runs in which a handler changes a register are as those with another one from the beginning. */
static void change_all(unsigned flags)
{
	static struct full in, other, changed;
	for (size_t i = 0; i < KINDS; i++) {
		const struct kind *kind = &kinds[i];
		if (kind->entry != kind->at || kind->kind)
			continue;
		for (int run = 0; run < 17; run++) {
			begin(kind, "alone");
			choose(&inputs[run], kind);
			other = inputs[run];
			if (run == 16)
				other.job.flags ^= FLAGS;
			else if (run == SP)
				other.job.stack -= 48;
			else
				other.job.registers[run] = ~other.job.registers[run];
			execute(kind, &other, &alone[run]);
		}
		mode = flags & CAPRIOLE_NO_OPTIMIZE ? "breakpoint, changed" : "jump, changed";
		struct capriole_probe p = { .pre = pre_change, .flags = flags };
		CHECK(put(kind, &p) >= 0);
		for (change = 0; change < 17; change++) {
			in = inputs[change];
			change_to = change == 16 ? in.job.flags ^ FLAGS
				    : change == SP ? in.job.stack - 48
						   : ~in.job.registers[change];
			execute(kind, &in, &changed);
			if (change == SP) {
				/* The red zone is that of another place. */
				memcpy(changed.job.red_zone, alone[SP].job.red_zone,
				       sizeof changed.job.red_zone);
				memcpy(changed.stack, alone[SP].stack, sizeof changed.stack);
				IS(changed.job.registers[SP], alone[SP].job.registers[SP]);
				continue;
			}
			compare(&alone[change], &changed);
		}
		OK(capriole_probe_unregister(&p));
	}
}

static void changed(void)
{
	change_all(0);
	change_all(CAPRIOLE_NO_OPTIMIZE);
}

/* Without an analysis, and without saving: the test notices that vector registers change. */
static void vectors_not_saved(void)
{
	struct capriole_probe p = { .pre = pre_vectors, .flags = CAPRIOLE_NO_VECTOR };
	static struct full probed;
	const struct kind *kind = &kinds[0];
	begin(kind, "not saved");
	choose(&inputs[0], kind);
	execute(kind, &inputs[0], &alone[0]);
	CHECK(put(kind, &p) >= 0);
	input = &inputs[0];
	execute(kind, &inputs[0], &probed);
	CHECK(memcmp(alone[0].state + 160, probed.state + 160, 256));
	OK(capriole_probe_unregister(&p));
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "breakpoints", breakpoints },
		{ "jumps", jumps },
		{ "breakpoints_and_posts", breakpoints_and_posts },
		{ "jumps_and_posts", jumps_and_posts },
		{ "posts_only", posts_only },
		{ "readers", readers },
		{ "vectors_found", vectors_found },
		{ "vectors_saved", vectors_saved },
		{ "vectors_not_saved", vectors_not_saved },
		{ "changed", changed },
		{ NULL, NULL },
	};
	find_features();
	random_state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	return run_parts(parts, argc, argv);
}
