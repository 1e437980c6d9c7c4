/* Hits of keys for which a table has no row: the Space-Saving algorithm. crates/ring/src/summary.rs
 * describes the layout, the algorithm and what is known of its counts.
 *
 * Each lane of each CPU has a summary of its own, which only the holder of the lane changes. So
 * everything here is plain stores, one after the other; nothing is waited for, and no other
 * thread of any process is disturbed. Two others may see a state in between:
 *
 *   - the recorder, which reads at any time, also after a kill. All states between two stores have
 *     the same totals, if they are read as set_of in summary.rs says;
 *   - the next holder, if the last one left its signal handler by siglongjmp: it continues with a
 *     row that was being emptied.
 *
 * Numbers that are read from here are counted, compared, or masked before they are an index. */
#include "resident.h"

/* Words of a row's head. */
static inline u64 head_words(const struct table *table)
{
	return (SUMMARY_KEY + table->key_size) / 8;
}

static inline struct kept *kept_of(const struct table *table, struct set *set, u32 way)
{
	return (struct kept *)(set->words + way * head_words(table));
}

/* Returns the cells of a row; those of the others if `way` is SUMMARY_WAYS. */
static inline u64 *cells_of(const struct table *table, struct set *set, u32 way)
{
	return set->words + SUMMARY_WAYS * head_words(table) + (u64)way * table->cells;
}

/* Takes the key out of a row, and adds its cells to those of the others. May be repeated from any
 * point: the cell that is being moved, and its sum, are written down before either changes. Then
 * at most the error is greater than it had to be, by the row's count. */
static void empty(const struct table *table, struct set *set, u32 way)
{
	struct kept *kept = kept_of(table, set, way);
	u64 *cells = cells_of(table, set, way), *others = cells_of(table, set, SUMMARY_WAYS);
	u64 state = READ(set->state);
	u32 turn = (u32)state | 1;
	if (state & 1) {
		u64 cell = READ(set->cell), moved = (cell >> 1) - 1;
		if (cell & 1 && moved < table->cells) {
			WRITE(others[moved], READ(set->sum));
			WRITE(cells[moved], 0);
			WRITE(set->cell, cell - 1);
		}
	} else {
		WRITE(set->cell, 0);
		WRITE(set->state, turn | (u64)way << 32);
	}
	for (u32 i = 0; i < table->cells; i++) {
		u64 value = READ(cells[i]), other = READ(others[i]);
		if (!value)
			continue;
		u32 maximum = table->maxima[i / 64] >> (i % 64) & 1;
		u64 greater = other < value ? value : other;
		WRITE(set->sum, maximum ? greater : other + value);
		WRITE(set->cell, 2 * ((u64)i + 1) + 1);
		WRITE(others[i], maximum ? greater : other + value);
		WRITE(cells[i], 0);
		WRITE(set->cell, 2 * ((u64)i + 1));
	}
	WRITE(kept->error, READ(kept->error) + READ(kept->count));
	WRITE(kept->count, 0);
	WRITE(kept->used, 0);
	WRITE(set->state, (u64)(turn + 1));
}

static u32 has_key(const struct kept *kept, const u64 *key, u32 length)
{
	u32 same = READ(kept->used) == 1 && READ(kept->length) == length;
	for (u32 i = 0; same && i < length / 8; i++)
		same = READ(kept->key[i]) == key[i];
	return same;
}

__attribute__((cold)) u64 *capriole_summarise(const struct table *table, u32 event, const u64 *key,
					      u32 length, u32 hash, u32 cpu, u32 lane)
{
	u32 bits = table->summary_bits;
	u64 number = ((u64)(event - table->first_event) << bits) + (bits ? hash >> (32 - bits) : 0);
	if (lane - 1 >= table->summary_lanes || number >= table->summary_sets ||
	    length > table->key_size)
		return 0;
	u64 size = SUMMARY_HEAD / 8 + SUMMARY_WAYS * head_words(table)
		   + (u64)(SUMMARY_WAYS + 1) * table->cells;
	u64 first = table->summaries + ((u64)(lane - 1) * table->summary_sets + number) * size;
	struct set *set = (struct set *)(capriole_config.counters
					 + (u64)cpu * capriole_config.counter_stride + 8 * first);
	u64 state = READ(set->state);
	if (state & 1)
		empty(table, set, state >> 32 & (SUMMARY_WAYS - 1));
	u32 least = 0;
	u64 fewest = ~0ul;
	for (u32 way = 0; way < SUMMARY_WAYS; way++) {
		struct kept *kept = kept_of(table, set, way);
		if (has_key(kept, key, length)) {
			WRITE(kept->count, READ(kept->count) + 1);
			return cells_of(table, set, way);
		}
		u64 count = READ(kept->count) + READ(kept->error);
		if (count < fewest) {
			fewest = count;
			least = way;
		}
	}
	struct kept *kept = kept_of(table, set, least);
	if (READ(kept->used))
		empty(table, set, least);
	for (u32 i = 0; i < length / 8; i++)
		WRITE(kept->key[i], key[i]);
	WRITE(kept->length, length);
	WRITE(kept->entered, (u32)READ(set->state));
	/* Also where the last holder has left a row that has a count, but was not in use yet. */
	WRITE(kept->error, fewest);
	WRITE(kept->count, 1);
	/* The recorder reads the key only if the row is in use, and the row has not been emptied
	 * meanwhile. */
	WRITE(kept->used, 1);
	return cells_of(table, set, least);
}
