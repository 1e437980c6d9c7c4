/* Chains of callers: the return addresses on the stack, from the site outwards.
 *
 * Where a frame has its return address is told by a table, which the tracer has made of the call
 * frame information of all files that the program had mapped as code. Nothing is guessed: where the
 * table has no rule, the chain ends, and says so.
 *
 * The table is in the arena: private, and read-only for the program. When code is mapped later, a
 * further table is written, which has all of it, and then the word with the table's address. No table
 * goes as long as there are probes: a walk uses the one that it began with. The stack is read where it is
 * in the page of the stack pointer, above it, which is certainly mapped. All other pages are read by
 * the kernel, into memory that is private to the process as well: addresses that were read there
 * are followed, which session memory, where other processes can write, is not trusted for.
 *
 * Every address is looked up, never followed as code. A walk takes at most CHAIN_MOST steps and
 * CHAIN_MOST_READS system calls, whatever the stack contains. */
#include "resident.h"

/* The stack, as far as it was read. */
struct walk {
	u64 stack; /* the stack pointer at the site */
	u64 window; /* private memory for a copy of some pages; 0: there is none */
	u64 copied; /* address of the first */
	u64 length; /* of the copy, bytes */
	const struct unwinding *table; /* 0: there is none */
	const struct module *module; /* of the last rule: callers are often in the same */
	u32 reads;
};

/* Reads a word. Returns 0 if it cannot be read. */
static __attribute__((noinline)) u32 word_at(struct walk *walk, u64 address, u64 *word)
{
	u64 page = address & ~4095ul;
	if (address & 7)
		return 0;
	/* At the very start of a page the stack may be empty, and end there. */
	if (address >= walk->stack && page == ((walk->stack - 1) & ~4095ul)) {
		*word = READ(*(u64 *)address);
		return 1;
	}
	if (address - walk->copied >= walk->length) {
		u64 size = walk->reads ? CHAIN_WINDOW : CHAIN_FIRST_READ;
		walk->length = 0;
		if (!walk->window || walk->reads == CHAIN_MOST_READS)
			return 0;
		walk->reads++;
		/* Whole pages, up to the first that is missing. */
		walk->length = capriole_read_memory(walk->window, page, size) & ~4095ul;
		walk->copied = page;
		if (!walk->length)
			return 0;
	}
	*word = READ(*(u64 *)(walk->window + (address - walk->copied)));
	return 1;
}

/* Returns the module of an address; 0 if there is none. */
static const struct module *module_of(const struct unwinding *table, u64 address)
{
	u64 low = 0, high = table ? table->modules : 0;
	while (low < high) {
		u64 middle = low + (high - low) / 2;
		if (table->module[middle].start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low && address < table->module[low - 1].end ? &table->module[low - 1] : 0;
}

/* Returns the rule for an address. */
static __attribute__((noinline)) u32 rule_at(struct walk *walk, u64 address)
{
	const struct module *module = walk->module;
	if (!module || address < module->start || address >= module->end)
		module = module_of(walk->table, address);
	if (!module)
		return ROW_UNKNOWN;
	walk->module = module;
	if (module->blocks == UNWINDING_WHOLE)
		return module->rows;
	const u64 *base = (const u64 *)walk->table->base, *rows = base + module->rows;
	const u32 *blocks = (const u32 *)(base + module->blocks);
	u64 place = address - module->start;
	blocks += place >> UNWINDING_BLOCK_SHIFT;
	/* The row is among those that begin in the block, or the one that holds at its start. */
	u32 first = blocks[0], last = blocks[1];
	while (first < last) {
		u32 middle = last - (last - first) / 2;
		if (rows[middle] >> 32 <= place)
			first = middle;
		else
			last = middle - 1;
	}
	return (u32)rows[first];
}

u32 capriole_chain(u64 *content, const struct step *step, u64 stack, u64 rbp, u64 window)
{
	struct walk walk = { .stack = stack, .window = window };
	if (capriole_config.unwinding)
		walk.table = (const struct unwinding *)READ(*(u64 *)capriole_config.unwinding);
	u64 address = step->value, rsp = stack, cfa;
	u32 count = 0, most = step->count, rule, end;
	u32 on_top = step->a, exact = 1, has_rbp = 1;
	for (;;) {
		end = CHAIN_FULL;
		if (count == most || count == CHAIN_MOST)
			break;
		WRITE(content[1 + count], address);
		count++;
		/* A call may be the last instruction of its function. */
		rule = rule_at(&walk, exact ? address : address - 1);
		if (on_top)
			rule = ROW_RSP | 1 << ROW_KIND_BITS;
		on_top = 0;
		u32 kind = rule & ((1 << ROW_KIND_BITS) - 1);
		u64 distance = 8ul * (rule >> ROW_KIND_BITS & ((1 << ROW_DISTANCE_BITS) - 1));
		u32 saved = rule >> ROW_RBP_SHIFT;
		end = CHAIN_UNREADABLE;
		if (kind == ROW_SIGNAL) {
			if (!word_at(&walk, rsp + CHAIN_SIGNAL_RBP, &rbp)
			    || !word_at(&walk, rsp + CHAIN_SIGNAL_RIP, &address)
			    || !word_at(&walk, rsp + CHAIN_SIGNAL_RSP, &rsp))
				break;
			exact = has_rbp = 1;
			continue;
		}
		if (kind == ROW_RSP) {
			cfa = rsp + distance;
		} else if (kind == ROW_PLT) {
			cfa = rsp + ((address & 15) >= 11 ? 16 : 8);
		} else if ((kind == ROW_RBP || (kind == ROW_CALLED && !exact)) && has_rbp) {
			cfa = rbp + distance;
		} else if (kind == ROW_SAVED && has_rbp) {
			if (!word_at(&walk, rbp - distance, &cfa))
				break;
		} else {
			end = kind == ROW_OUTERMOST ? CHAIN_OUTERMOST : CHAIN_UNKNOWN;
			break;
		}
		/* Only a signal handler may be on another stack than the code that it interrupted. */
		end = CHAIN_UNKNOWN;
		if (cfa <= rsp)
			break;
		end = CHAIN_UNREADABLE;
		if (saved == ROW_RBP_THERE ? has_rbp && !word_at(&walk, rbp, &rbp)
		    : saved && saved != ROW_RBP_UNKNOWN && !word_at(&walk, cfa - 8ul * saved, &rbp))
			break;
		if (saved == ROW_RBP_UNKNOWN)
			has_rbp = 0;
		else if (saved != ROW_RBP_UNCHANGED && saved != ROW_RBP_THERE)
			has_rbp = 1;
		if (!word_at(&walk, cfa - 8, &address))
			break;
		end = CHAIN_OUTERMOST;
		if (!address)
			break;
		rsp = cfa;
		exact = 0;
	}
	WRITE(content[0], count | (u64)end << 32);
	return count;
}
