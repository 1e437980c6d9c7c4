/* Frames of our own code, for an unwinder of the program.
 *
 * A signal can interrupt a detour. When its handler makes a backtrace, throws an exception or is left by
 * the cancellation of its thread, libgcc's unwinder looks up the address that was interrupted in
 * `_Unwind_Find_FDE`, where a guard asks here first:
 *
 *     struct _Unwind_Context { void *reg[18]; void *cfa, *ra, *lsda; struct dwarf_eh_bases bases;
 *                              _Unwind_Word flags, version, args_size; char by_value[18]; };
 *     const fde *_Unwind_Find_FDE(void *pc, struct dwarf_eh_bases *bases);
 *
 * The offsets are the same since GCC 4.3. For code of a detour the context becomes that of the site, as if
 * the signal had arrived there: what the program's registers held is in them, or in words that the detour
 * has saved below the stack pointer, as the places tell. The resident has call frame information, whose
 * entry is the answer; it leads to the detour that has called the resident.
 *
 * Everything that is not known is left to the unwinder, which then finds nothing, as it does in code
 * without call frame information. */
#include "resident.h"

struct bases {
	void *text;
	void *data;
	u64 function;
};

struct context {
	u64 registers[18]; /* addresses of where their values are, by their numbers in DWARF */
	u64 cfa;
	u64 ra;
	u64 lsda;
	struct bases bases;
	u64 flags;
	u64 version;
	u64 arguments;
	u8 by_value[18];
};

/* Flags of a context. */
#define SIGNAL_FRAME (1ul << 63)
#define EXTENDED (1ul << 62)

#define DWARF_RSP 7
/* The registers that a function preserves, in the order of the places, by their numbers in DWARF. */
static const u8 preserved[] = { 3, 6, 12, 13, 14, 15 };

/* Where the program is. */
struct site {
	u64 address;
	u64 below; /* how far the stack pointer is below that of the site, bytes */
	u64 row;   /* the row of the places; 0: all registers hold what they held */
};

/* Steps from one piece of code to another, at most: shared code, a detour, the next one of its chain. */
#define MOST_STEPS 16

/* Returns the row of the places for an offset in the code; 0 if it is not known there. */
static u64 place_at(const u64 *places, u64 offset)
{
	u64 found = 0;
	for (u32 i = 0; i < PLACE_MOST; i++) {
		u64 row = READ(places[i]);
		if ((row & PLACE_END) > offset)
			return (found >> PLACE_BELOW_SHIFT & PLACE_UNKNOWN) == PLACE_UNKNOWN ? 0 : found;
		found = row | 1ul << 63;
	}
	return 0;
}

/* Returns the row of the tables for an address in our code, the last that starts at or before it; 0 if
 * there is none. The next row follows it. */
static const struct trap *row_of(const struct traps *table, u64 at)
{
	for (; table; table = (const struct traps *)table->older) {
		const struct trap *row = last_row(table, at);
		/* Behind the last code of a table there is a row with 0. */
		if (row && row->detour)
			return row;
	}
	return 0;
}

/* Returns the value of a general register of the context by its number in machine code. */
static u64 value_of(const struct context *context, u64 number)
{
	static const u8 dwarf[] = { 0, 2, 1, 3, 7, 6, 4, 5 };
	u64 index = number < 8 ? dwarf[number] : number;
	if (context->flags & EXTENDED && context->by_value[index])
		return context->registers[index];
	return context->registers[index] ? READ(*(u64 *)context->registers[index]) : 0;
}

/* Returns the stack pointer of the context. */
static u64 stack_of(const struct context *context)
{
	return context->registers[DWARF_RSP] ? value_of(context, 4) : context->cfa;
}

/* The copy of a call pushes the return address from memory, and jumps. */
#define PUSH_FROM_MEMORY 0x35ff
#define PUSH_SIZE 6

/* Finds the site of an address in a detour, or in code that detours share. Returns 0 if it is not
 * known. */
static u32 find_site(const struct traps *table, const struct context *context, struct site *site)
{
	const struct trap *row = row_of(table, site->address);
	if (!row)
		return 0;
	u64 at = site->address;
	u64 places = row->detour & ~COPY_CODE;
	if (row->detour & COPY_EXACT) {
		if (at == row->site + PUSH_SIZE && *(const u16 *)row->site == PUSH_FROM_MEMORY)
			site->below = 8;
	} else if (row->detour & COPY_CODE) {
		if (places <= COPY_RESIDENT)
			return 0;
		site->row = place_at((const u64 *)places, at - row->site);
		if (!site->row)
			return 0;
		site->below = 8 * (site->row >> PLACE_BELOW_SHIFT & 0xff);
		u64 way = site->row >> PLACE_DETOUR_SHIFT & 0xff;
		if (way >= PLACE_STACK)
			at = READ(*(u64 *)(stack_of(context) + site->below - 8 * (way - PLACE_STACK)));
		else if (way != PLACE_NOWHERE)
			at = value_of(context, way - PLACE_REGISTER);
	}
	/* To the copies of the detour; those of a chain lead to the next detour. */
	for (u32 step = 0; step < MOST_STEPS; step++) {
		row = row_of(table, at);
		if (!row) {
			site->address = at;
			return 1;
		}
		if (row->detour & COPY_CODE)
			row++;
		if (!row->detour || row->detour & COPY_CODE)
			return 0;
		at = (row->detour & ~(COPY_CHANGED | COPY_EXACT)) + (row->detour & COPY_EXACT || at < row->site ? 0 : at - row->site);
	}
	return 0;
}

/* In entry.S. */
extern const u8 capriole_blob_start[] __attribute__((visibility("hidden")));
extern const u8 capriole_blob_end[] __attribute__((visibility("hidden")));

/* Returns the entry of the call frame information for an address in the resident, `offset` bytes from
 * its start; 0 if there is none. Sets the offset of the function. The information was linked behind the
 * resident; addresses there are relative to where they stand. */
static u64 entry_of(u64 offset, u64 *function)
{
	u64 start = capriole_config.own_frames, size = capriole_config.own_frames_size;
	u64 linked = (u64)(capriole_blob_end - capriole_blob_start);
	for (u64 at = 0; start && at + 16 <= size;) {
		/* u32 length; u32 0 for common information; then the function's start and its length. */
		const u32 *words = (const u32 *)(start + at);
		u64 first = linked + at + 8 + (u64)(s64)(s32)words[2];
		if (!words[0])
			return 0;
		if (words[1] && offset - first < words[3]) {
			*function = first;
			return start + at;
		}
		at += 4 + words[0];
	}
	return 0;
}

/* Has the unwinder go on at the site. */
static void lead_to(struct context *context, const struct site *site)
{
	u64 stack = stack_of(context) + site->below;
	u64 saved = stack - (site->row >> PLACE_RED_ZONE & 1 ? 128 : 0);
	for (u32 i = 0; i < sizeof preserved; i++) {
		u32 shift = PLACE_SAVED_SHIFT + PLACE_SAVED_BITS * i;
		u64 word = site->row >> shift & ((1 << PLACE_SAVED_BITS) - 1);
		if (!word)
			continue;
		context->registers[preserved[i]] = saved - 8 * word;
		if (context->flags & EXTENDED)
			context->by_value[preserved[i]] = 0;
	}
	context->registers[DWARF_RSP] = 0;
	if (context->flags & EXTENDED)
		context->by_value[DWARF_RSP] = 0;
	context->cfa = stack;
	context->ra = site->address;
	context->flags |= SIGNAL_FRAME;
}

/* Answers an unwinder that looks up an address. `registers`: those at the entry of `_Unwind_Find_FDE`.
 * Returns the entry to return instead of it; 0: it goes on, maybe with another address. */
__attribute__((cold)) u64 capriole_find_frame(u64 *registers)
{
	const struct traps *table = (const struct traps *)READ(*(u64 *)&capriole_config.copies);
	struct context *context = (struct context *)(registers[6] - __builtin_offsetof(struct context, bases));
	struct site site = { .address = registers[7] };
	const struct trap *row = row_of(table, site.address);
	if (!row)
		return 0;
	if (row->detour == (COPY_CODE | COPY_RESIDENT)) {
		u64 function = 0, entry = entry_of(site.address - row->site, &function);
		if (entry) {
			context->bases.text = 0;
			context->bases.data = 0;
			context->bases.function = row->site + function;
		}
		return entry;
	}
	/* The unwinder asks for the address that it returns to less one, or for one that was interrupted.
	 * Somebody else may ask. */
	if (!(context->flags & SIGNAL_FRAME))
		site.address++;
	if (context->ra == site.address && find_site(table, context, &site)) {
		lead_to(context, &site);
		registers[7] = site.address;
	}
	return 0;
}
