/* Jumps, calls and returns with post-handlers.
 *
 * The copy of such an instruction leads out of the detour, and nothing can be called behind it. So the
 * instruction is carried out here, on the registers in memory, between pre- and post-handlers; then the
 * program goes on where it leads, as if a handler had chosen that:
 *
 *   detour ─▶ capriole_hit ─▶ run_branch: pre-handlers, the instruction, post-handlers
 *                      └────▶ capriole_redirect ─▶ capriole_go ─▶ program
 *
 * Where it would fault, nothing is changed, and the copy is executed after all: the fault is that of the
 * program's instruction, which is not executed, and no post-handler is called.
 */
#include "internal.h"

/* As the helper describes it, in crates/helper/src/branch.rs: one word each. Never changed. */
struct branch {
	u64 kind, condition, operand;
	u64 base, index, scale;	/* registers by their numbers in machine code; 16: none */
	u64 segment;		/* 1: fs, 2: gs */
	u64 mask;		/* the bits of an address, or of the counter, that count */
	u64 number;		/* target; displacement; bytes that a return takes off the stack besides */
};
enum { IS_JUMP = 1, IS_CALL, IS_RETURN };
enum { DIRECT, REGISTER, MEMORY };
enum { ALWAYS = 16, COUNTER_IS_ZERO, LOOP, LOOP_EQUAL, LOOP_NOT_EQUAL };
#define NO_REGISTER 16
#define CARRY 1
#define PARITY 4
#define ZERO 0x40
#define SIGN 0x80
#define OVERFLOW 0x800

HIDDEN const size_t branch_size = sizeof(struct branch);

static u64 *reg(struct capriole_regs *regs, u64 number)
{
	static const unsigned char at[] = {
#define AT(name) offsetof(struct capriole_regs, name)
		AT(ax), AT(cx), AT(dx), AT(bx), AT(sp), AT(bp), AT(si), AT(di), AT(r8), AT(r9), AT(r10),
		AT(r11), AT(r12), AT(r13), AT(r14), AT(r15)
#undef AT
	};
	return (u64 *)(void *)((char *)regs + at[number & 15]);
}

/* A condition by its number in machine code. */
static int holds(u64 condition, u64 flags)
{
	int less = !(flags & SIGN) != !(flags & OVERFLOW), result;
	switch (condition >> 1) {
	case 0: result = (flags & OVERFLOW) != 0; break;
	case 1: result = (flags & CARRY) != 0; break;
	case 2: result = (flags & ZERO) != 0; break;
	case 3: result = (flags & (CARRY | ZERO)) != 0; break;
	case 4: result = (flags & SIGN) != 0; break;
	case 5: result = (flags & PARITY) != 0; break;
	case 6: result = less; break;
	default: result = less || flags & ZERO; break;
	}
	return result != (int)(condition & 1);
}

/* True if a branch is taken; counts, if it is a loop. */
static int is_taken(const struct branch *branch, struct capriole_regs *regs)
{
	u64 condition = branch->condition;
	if (condition == ALWAYS)
		return 1;
	if (condition < ALWAYS)
		return holds(condition, regs->flags);
	if (condition == COUNTER_IS_ZERO)
		return !(regs->cx & branch->mask);
	regs->cx = (regs->cx - 1) & branch->mask;
	if (condition != LOOP && !(regs->flags & ZERO) != (condition == LOOP_NOT_EQUAL))
		return 0;
	return regs->cx != 0;
}

static u64 address_of(const struct branch *branch, struct capriole_regs *regs)
{
	u64 address = branch->number;
	if (branch->base != NO_REGISTER)
		address += *reg(regs, branch->base);
	if (branch->index != NO_REGISTER)
		address += *reg(regs, branch->index) * branch->scale;
	return address & branch->mask;
}

/* Finds out where a branch leads that is taken. Returns 0 if that cannot be read. */
static int find_target(const struct branch *branch, struct capriole_regs *regs, u64 *target)
{
	if (branch->kind == IS_RETURN)
		return capriole_read(regs->sp, target, 0);
	if (branch->operand == MEMORY)
		return capriole_read(address_of(branch, regs), target, branch->segment);
	*target = branch->operand == REGISTER ? *reg(regs, branch->base) : branch->number;
	return 1;
}

/* Carries the instruction out. Returns 0, with nothing changed, if it faults. */
static int execute(const struct site *site, const struct branch *branch, struct capriole_regs *regs)
{
	u64 target;
	if (branch->condition != ALWAYS) {
		regs->ip = is_taken(branch, regs) ? branch->number : site->next;
		return 1;
	}
	/* A jump to an address that cannot be one faults before it is executed. */
	if (!find_target(branch, regs, &target) || target >> 47)
		return 0;
	if (branch->kind == IS_CALL) {
		regs->sp -= 8;
		*(u64 *)regs->sp = site->next;
	} else if (branch->kind == IS_RETURN) {
		regs->sp += 8 + branch->number;
	}
	regs->ip = target;
	return 1;
}

HIDDEN int run_branch(void *argument, struct capriole_regs *regs)
{
	struct set *set = argument;
	const struct branch *branch = __atomic_load_n(&set->site->branch, __ATOMIC_ACQUIRE);
	u64 ip = regs->ip;
	int executed = 0;
	if (set->vector)
		save_vectors();
	int skips = call_all(set, regs, 0);
	if (!skips && regs->ip == ip && branch && execute(set->site, branch, regs)) {
		call_all(set, regs, 1);
		executed = 1;
	}
	if (set->vector)
		load_vectors();
	if (!executed)
		return skips;
	/* It may lead to itself, so the address does not say it. */
	regs->flags |= EXECUTED;
	return 1;
}

HIDDEN int take_branch(struct message *message, struct site *site)
{
	u64 words[sizeof(struct branch) / 8];
	for (size_t i = 0; i < sizeof words / 8; i++)
		words[i] = take(message);
	struct branch *branch = allocate(sizeof *branch);
	if (!branch)
		return fail(-ENOMEM, "there is no memory for a probe's instruction", NULL);
	copy(branch, words, sizeof words);
	__atomic_store_n(&site->branch, branch, __ATOMIC_RELEASE);
	return branch->operand == MEMORY ? watch_faults() : 0;
}
