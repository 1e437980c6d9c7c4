/* Open intervals: the time from the hit of one event to that of another one with the same key.
 * crates/ring/src/intervals.rs describes the layout, and why this is correct.
 *
 * The slots are in session memory, so any thread of any process may be here, and may write anything
 * there. A slot is changed by compare-and-swap of its state; whoever loses looks again, a bounded
 * number of times. Nothing that is read here becomes an address or an index: the number of a slot is
 * made of the key's hash and masked. */
#include "resident.h"

typedef u64 tagged[2];
_Static_assert(sizeof(tagged) == INTERVAL_WORD_SIZE, "a word of a slot");

static inline u64 *states_of(const struct intervals *intervals)
{
	return (u64 *)(capriole_config.directories + intervals->states);
}

static inline tagged *slot_of(const struct intervals *intervals, u32 index)
{
	tagged *first = (tagged *)(states_of(intervals) + intervals->mask + 1ul);
	return first + (u64)index * (INTERVAL_KEY + intervals->words);
}

static inline void count(const struct intervals *intervals, u32 counter)
{
	capriole_count((u64)intervals->first_counter + counter);
}

static inline u32 generation_of(u64 state)
{
	return (u32)(state >> INTERVAL_GENERATION_SHIFT);
}

/* The state of a slot that is claimed after `state`, for a key with this hash. */
static inline u64 claimed_after(u64 state, u32 hash)
{
	u64 generation = (u64)(generation_of(state) + 1) << INTERVAL_GENERATION_SHIFT;
	return generation | (hash & ~INTERVAL_STATUS) | INTERVAL_CLAIMED;
}

/* The state of a slot that is freed after `state`. */
static inline u64 freed_after(u64 state)
{
	return (u64)generation_of(state) << INTERVAL_GENERATION_SHIFT | INTERVAL_FREE;
}

static inline void write_word(tagged *word, u64 value, u32 tag)
{
	WRITE((*word)[0], (u32)value | (u64)tag << INTERVAL_GENERATION_SHIFT);
	WRITE((*word)[1], value >> 32 | (u64)tag << INTERVAL_GENERATION_SHIFT);
}

/* Reads a word. Returns 0 if it was not written, in both halves, in this generation of the slot. */
static u32 read_word(const tagged *word, u32 generation, u64 *value)
{
	u64 low = READ((*word)[0]), high = READ((*word)[1]);
	*value = (u32)low | high << 32;
	return generation_of(low) == generation && generation_of(high) == generation;
}

/* Returns the number of this process. A forked child gets another one than its parent: addresses
 * that are equal in both are keys of different intervals. */
static u32 process_number(void)
{
	u32 own = READ(OWN->number);
	if (own)
		return own;
	u32 new = __sync_add_and_fetch((u32 *)(capriole_config.session + HEADER_PROCESSES), 1);
	new += !new;
	own = __sync_val_compare_and_swap(&OWN->number, 0, new);
	return own ? own : new;
}

/* A key that is looked for. */
struct wanted {
	const struct intervals *intervals;
	const u64 *key;
	u32 process;
	u32 hash;
};

/* An interval that was found. */
struct found {
	u64 state; /* of its slot */
	u64 begin;
	u32 index; /* ~0: there is none */
	u32 again; /* another thread is just changing an interval that may be the one */
};

static inline u32 index_of(const struct wanted *wanted, u32 i)
{
	return ((wanted->hash >> wanted->intervals->shift) + i) & wanted->intervals->mask;
}

static u32 has_key(const struct wanted *wanted, u32 index, u64 state, u64 *begin)
{
	const tagged *slot = slot_of(wanted->intervals, index);
	u32 generation = generation_of(state);
	u64 value;
	if (!read_word(&slot[INTERVAL_PROCESS], generation, &value) || value != wanted->process)
		return 0;
	for (u32 i = 0; i < wanted->intervals->keys; i++)
		if (!read_word(&slot[INTERVAL_KEY + i], generation, &value) || value != wanted->key[i])
			return 0;
	return read_word(&slot[INTERVAL_TIME], generation, begin);
}

/* Finds the open interval of a key. Threads that have started one at the same moment may have left
 * several: then all but the latest are dropped. */
static __attribute__((noinline)) void find(const struct wanted *wanted, struct found *found)
{
	u64 *states = states_of(wanted->intervals);
	found->index = ~0u;
	found->again = 0;
	for (u32 i = 0; i < INTERVAL_WINDOW; i++) {
		u32 index = index_of(wanted, i);
		u64 state = READ(states[index]), begin;
		u32 status = (u32)state & INTERVAL_STATUS;
		if (((u32)state ^ wanted->hash) & ~INTERVAL_STATUS)
			continue;
		if (status == INTERVAL_CLAIMED)
			found->again = 1;
		if (status != INTERVAL_OPEN || !has_key(wanted, index, state, &begin))
			continue;
		if (found->index != ~0u) {
			u32 is_older = (s64)(begin - found->begin) < 0;
			u32 older = is_older ? index : found->index;
			u64 old = is_older ? state : found->state;
			if (__sync_bool_compare_and_swap(&states[older], old, freed_after(old)))
				count(wanted->intervals, INTERVAL_RESTARTED);
			if (is_older)
				continue;
		}
		found->index = index;
		found->state = state;
		found->begin = begin;
	}
}

/* True if a slot has no interval that can ever be found: a thread that had claimed it in an earlier
 * generation has written there since. */
static u32 is_broken(const struct intervals *intervals, u32 index, u64 state)
{
	const tagged *slot = slot_of(intervals, index);
	u64 value;
	for (u32 i = 0; i < INTERVAL_KEY + intervals->keys; i++)
		if (!read_word(&slot[i], generation_of(state), &value))
			return 1;
	return 0;
}

/* Claims a slot, and returns its number; ~0 if there is no room. Taken are, in this order: the slot of
 * a thread that did not finish writing an interval with this hash; a free slot; that of any thread
 * that did not finish, or one that is broken. The thread will notice. */
static __attribute__((noinline)) u32 claim(const struct wanted *wanted, u64 *claimed)
{
	u64 *states = states_of(wanted->intervals);
	for (u32 pass = 0; pass < 3; pass++) {
		for (u32 i = 0; i < INTERVAL_WINDOW; i++) {
			u32 index = index_of(wanted, i), fits = 0;
			u64 state = READ(states[index]);
			u32 status = (u32)state & INTERVAL_STATUS;
			if (pass == 0)
				fits = status == INTERVAL_CLAIMED &&
				       !(((u32)state ^ wanted->hash) & ~INTERVAL_STATUS);
			else if (pass == 1)
				fits = status == INTERVAL_FREE;
			else
				fits = status != INTERVAL_OPEN ||
				       is_broken(wanted->intervals, index, state);
			*claimed = claimed_after(state, wanted->hash);
			if (fits && __sync_bool_compare_and_swap(&states[index], state, *claimed))
				return index;
		}
	}
	return ~0u;
}

/* Returns what to look for; counts a key that could not be read, and returns 0. */
static u32 want(const struct intervals *intervals, const struct words *words, struct wanted *wanted)
{
	if (words->unread & ((1u << intervals->keys) - 1)) {
		count(intervals, INTERVAL_UNREADABLE);
		return 0;
	}
	wanted->intervals = intervals;
	wanted->key = words->word;
	wanted->process = process_number();
	/* Spread: numbers of processes and low bits of addresses would cancel each other out. */
	wanted->hash = capriole_hash(wanted->process * DIRECTORY_HASH_FACTOR, words->word, 8 * intervals->keys);
	return 1;
}

void capriole_start(const struct intervals *intervals, const struct words *words)
{
	struct wanted wanted;
	struct found found;
	u64 *states = states_of(intervals), claimed = 0;
	u32 index = ~0u;
	if (!want(intervals, words, &wanted))
		return;
	count(intervals, INTERVAL_STARTED);
	for (u32 attempt = 0; attempt < INTERVAL_ATTEMPTS; attempt++) {
		find(&wanted, &found);
		if (found.index != ~0u) {
			claimed = claimed_after(found.state, wanted.hash);
			if (__sync_bool_compare_and_swap(&states[found.index], found.state, claimed)) {
				index = found.index;
				count(intervals, INTERVAL_RESTARTED);
				break;
			}
		} else if (!found.again) {
			break;
		}
	}
	if (index == ~0u)
		index = claim(&wanted, &claimed);
	if (index == ~0u) {
		count(intervals, INTERVAL_NO_ROOM);
		return;
	}
	tagged *slot = slot_of(intervals, index);
	u32 generation = generation_of(claimed);
	write_word(&slot[INTERVAL_PROCESS], wanted.process, generation);
	for (u32 i = 0; i < intervals->words; i++) {
		u32 unread = words->unread >> i & 1;
		write_word(&slot[INTERVAL_KEY + i], READ(words->word[i]), unread ? ~generation : generation);
	}
	/* Last, so that the interval does not include this. */
	write_word(&slot[INTERVAL_TIME], read_tsc(), generation);
	/* If another thread has taken the slot meanwhile, this interval is lost. */
	__sync_bool_compare_and_swap(&states[index], claimed, claimed ^ INTERVAL_CLAIMED ^ INTERVAL_OPEN);
}

/* A start that is later than its end, by less than this: both were at the same moment, on two CPUs. */
#define SAME_MOMENT (1ul << 32)

u32 capriole_end(const struct intervals *intervals, struct words *words, u64 time, u64 *ticks)
{
	struct wanted wanted;
	struct found found;
	u64 *states = states_of(intervals);
	if (!want(intervals, words, &wanted))
		return 0;
	for (u32 attempt = 0; attempt < INTERVAL_ATTEMPTS; attempt++) {
		find(&wanted, &found);
		if (found.index == ~0u) {
			if (!found.again)
				break;
			continue;
		}
		const tagged *slot = slot_of(intervals, found.index);
		words->unread = 0;
		for (u32 i = intervals->keys; i < intervals->words; i++)
			if (!read_word(&slot[INTERVAL_KEY + i], generation_of(found.state), &words->word[i]))
				words->unread |= 1u << i;
		if (!__sync_bool_compare_and_swap(&states[found.index], found.state,
						  freed_after(found.state)))
			continue;
		*ticks = time - found.begin;
		if ((s64)*ticks < 0) {
			if (-*ticks >= SAME_MOMENT)
				return 0; /* not a time that a start has written */
			*ticks = 0;
		}
		return 1;
	}
	count(intervals, INTERVAL_UNMATCHED);
	return 0;
}
