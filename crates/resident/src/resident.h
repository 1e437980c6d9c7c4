/* Layout of session memory and of the resident's own tables, for the resident. The numbers are
 * those of crates/ring/src/numbers.rs, from which numbers.h is generated. */
#ifndef CAPRIOLE_RESIDENT_H
#define CAPRIOLE_RESIDENT_H

#include "numbers.h"

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long u64;
typedef long s64;

/* A plain access that the compiler neither splits, repeats nor moves across
 * another one; on x86-64 stores become visible in program order. */
#define READ(x) (*(volatile __typeof__(x) *)&(x))
#define WRITE(x, v) (*(volatile __typeof__(x) *)&(x) = (v))
#define barrier() __asm__ volatile("" ::: "memory")

/* Checks a structure against the offsets that the Rust side uses. */
#define AT(type, field, offset) \
	_Static_assert(__builtin_offsetof(struct type, field) == (offset), #type "." #field)
#define HAS_SIZE(type, size) _Static_assert(sizeof(struct type) == (size), #type)

/* 64 bytes, one for each (lane, cpu). Any process that shares session memory may write anything
 * here at any time. */
struct stream {
	u64 head; /* u32 where the next record goes, u32 where the packet ends; see layout.rs */
	u64 lost; /* events lost; only ever added to, atomically */
	u64 lock; /* lanes 1..: the holder, see LOCK_TID_SHIFT; 0: free */
	u64 busy; /* lost events for which all lanes were taken */
	u32 turns; /* how often the lane has been taken */
	u32 pad[7]; /* includes the reader's own notes */
};

/* 64 bytes, one for each packet. */
struct control {
	u64 seq;
	u64 begin;
	u64 lost;
	u32 prev;
	u32 prev_len;
	u32 cpu;
	u32 lane;
	u64 pad[3];
};

struct record {
	u64 time;
	u32 id;
	u32 tid;
	u64 field[];
};

AT(stream, head, STREAM_HEAD);
AT(stream, lost, STREAM_LOST);
AT(stream, lock, STREAM_LOCK);
AT(stream, busy, STREAM_BUSY);
AT(stream, turns, STREAM_TURNS);
HAS_SIZE(stream, STREAM_SIZE);
AT(control, seq, CONTROL_SEQ);
AT(control, begin, CONTROL_BEGIN);
AT(control, lost, CONTROL_LOST);
AT(control, prev, CONTROL_PREV);
AT(control, prev_len, CONTROL_PREV_LEN);
AT(control, cpu, CONTROL_CPU);
AT(control, lane, CONTROL_LANE);
HAS_SIZE(control, CONTROL_SIZE);
AT(record, time, RECORD_TIME);
AT(record, id, RECORD_ID);
AT(record, tid, RECORD_TID);
AT(record, field, RECORD_FIELDS);

/* Configuration that the tracer writes when it places the resident; read-only in the target. */
struct config {
	u64 session;     /* address of session memory */
	u64 streams;     /* address of the stream table */
	u64 controls;    /* address of the controls */
	u64 packets;     /* address of packet 0 */
	u32 cpus;
	u32 packet_count;
	u32 packet_shift; /* log2 of the packet size */
	u32 flags;       /* FLAG_... */
	s32 rseq_offset; /* of struct rseq from the thread pointer */
	s32 tid_offset;  /* of the thread id from the thread pointer */
	u64 traps;       /* address of a struct traps; the tracer may replace it by another one */
	u64 pad;
	u64 old_handler; /* the program's own SIGTRAP handler, 0 default, 1 ignored */
	u64 old_flags;
	u32 limit;       /* no record of any stream ends behind this position */
	u32 clock_step;  /* for tests: step of the time stamp counter; 0: unchanged */
	u64 copies;      /* address of a struct traps: (start of a copy, the original) */
	u64 own_frames;  /* address of the call frame information of the resident; 0: there is none */
	u64 own_frames_size; /* bytes of it */
	u64 pad2[2];
	u64 directories; /* address of the tables' directories */
	u64 counters;    /* address of the counters of CPU 0 */
	u32 counter_stride; /* bytes to those of the next CPU; the shared ones follow the last */
	u32 frame_mask;  /* slots for open calls, less one */
	u64 frames;      /* address of the first slot; 0: there are none */
	u32 frame_shift; /* log2 of the bytes of a slot */
	u32 pkru;        /* offset of PKRU in an XSAVE area; 0: the processor has none */
	u64 own;         /* address of this process's own words, a struct own */
	u64 actions[OWN_SIGNALS][4]; /* the program's own actions of SIGILL, SIGBUS, SIGFPE, SIGSEGV,
	                      SIGTRAP (struct kernel_sigaction), where they were replaced */
	u64 unwinding;   /* address of a struct unwinding; 0: there is none */
	u64 windows;     /* address of the memory for copies of the stack, CHAIN_WINDOW for each lane */
};

AT(config, session, CONFIG_SESSION);
AT(config, streams, CONFIG_STREAMS);
AT(config, controls, CONFIG_CONTROLS);
AT(config, packets, CONFIG_PACKETS);
AT(config, cpus, CONFIG_CPUS);
AT(config, packet_count, CONFIG_PACKET_COUNT);
AT(config, packet_shift, CONFIG_PACKET_SHIFT);
AT(config, flags, CONFIG_FLAGS);
AT(config, rseq_offset, CONFIG_RSEQ_OFFSET);
AT(config, tid_offset, CONFIG_TID_OFFSET);
AT(config, traps, CONFIG_TRAPS);
AT(config, old_handler, CONFIG_OLD_HANDLER);
AT(config, old_flags, CONFIG_OLD_FLAGS);
AT(config, limit, CONFIG_LIMIT);
AT(config, clock_step, CONFIG_CLOCK_STEP);
AT(config, copies, CONFIG_COPIES);
AT(config, own_frames, CONFIG_OWN_FRAMES);
AT(config, own_frames_size, CONFIG_OWN_FRAMES_SIZE);
AT(config, directories, CONFIG_DIRECTORIES);
AT(config, counters, CONFIG_COUNTERS);
AT(config, counter_stride, CONFIG_COUNTER_STRIDE);
AT(config, frame_mask, CONFIG_FRAME_MASK);
AT(config, frames, CONFIG_FRAMES);
AT(config, frame_shift, CONFIG_FRAME_SHIFT);
AT(config, pkru, CONFIG_PKRU);
AT(config, own, CONFIG_OWN);
AT(config, actions, CONFIG_ACTIONS);
AT(config, unwinding, CONFIG_UNWINDING);
AT(config, windows, CONFIG_WINDOWS);
HAS_SIZE(config, CONFIG_SIZE);

extern const struct config capriole_config __attribute__((visibility("hidden")));

/* Rounds a time as if the counter advanced in steps, for tests; detours do the same. */
static inline u64 in_steps(u64 time)
{
	u32 step = capriole_config.clock_step;
	if (step < 2)
		return time;
	u32 shift = 30 + 32 - (u32)__builtin_clz(step - 1);
	u64 factor = ((1ul << shift) + step - 1) / step;
	u32 low = (u32)((u32)time * factor >> shift) * step;
	return time >> 32 << 32 | low;
}

/* As rdtscp does, reads the counter only after all earlier loads have completed: callers do
 * enough work that this cost does not matter. */
static inline u64 read_tsc(void)
{
	u32 low, high;
	__asm__ volatile("lfence; rdtsc" : "=a"(low), "=d"(high) :: "memory");
	return in_steps((u64)high << 32 | low);
}

/* Bit in the number of a system call of the x32 ABI (asm/unistd_x32.h). */
#define X32_SYSCALL_BIT 0x40000000

/* Words private to each process: a forked child has its own copy. */
struct own {
	u32 no_calls; /* not 0: a system call filter may be installed: make no calls any more */
	u32 calling;  /* threads that are in a system call of the resident, or about to be */
	u32 left;     /* no byte leads to a detour any more */
	u32 leave;    /* a thread waits for `left` */
	u32 followed; /* a bit for each of `config.actions`: ours is put before each action that is set */
	u32 followed_process; /* the process whose actions these are */
	u32 slow_memory; /* not 0: a page that is not in memory may be long in coming, or never come */
	u32 newest[OWN_SIGNALS]; /* number of the action that ours is before; 0: that of the config */
	u32 numbered[OWN_SIGNALS]; /* the last number given out */
	u32 abandoned; /* nobody has taken the probes out when a thread waited for `left` */
	u64 kept[OWN_SIGNALS][OWN_KEPT_ACTIONS][4]; /* at the place number % OWN_KEPT_ACTIONS */
	u32 pad2[686];
	u32 known;    /* threads' own ids are right; 0 in a forked child, until verified */
	u32 process;  /* the id of a forked child, once getpid has returned it */
	u32 number;   /* of the process in this session, from 1; 0: it has none yet */
};

AT(own, no_calls, OWN_NO_CALLS);
AT(own, calling, OWN_CALLING);
AT(own, left, OWN_LEFT);
AT(own, leave, OWN_LEAVE);
AT(own, followed, OWN_FOLLOWED);
AT(own, followed_process, OWN_FOLLOWED_PROCESS);
AT(own, slow_memory, OWN_SLOW_MEMORY);
AT(own, newest, OWN_NEWEST);
AT(own, numbered, OWN_NUMBERED);
AT(own, kept, OWN_KEPT);
AT(own, known, OWN_KNOWN);
AT(own, number, OWN_NUMBER);
#define OWN ((struct own *)capriole_config.own)

/* A step of a program; capriole_run executes the steps for an event, in order. Never changed once
 * it is in use. The opcodes are described in numbers.rs. */
struct step {
	u8 op;      /* STEP_... */
	u8 a;       /* register, bytes, or how to compare (TEST_...) */
	u16 count;  /* elements, bytes of a text, steps to skip, or bits: offset << 8 | width */
	u16 limit;  /* of a string, bytes */
	u8 field;   /* number of the field */
	u8 bit;     /* of `truth`, that a comparison sets or a step tests */
	u64 value;  /* immediate, offset of a pointer, what is compared with, or place of a text */
};

struct program {
	u32 steps;
	u32 flags;  /* PROGRAM_... */
	u64 size;   /* bytes of the record, at most */
	struct step step[];
};

AT(step, op, STEP_AT_OP);
AT(step, a, STEP_AT_A);
AT(step, count, STEP_AT_COUNT);
AT(step, limit, STEP_AT_LIMIT);
AT(step, field, STEP_AT_FIELD);
AT(step, bit, STEP_AT_BIT);
AT(step, value, STEP_AT_VALUE);
HAS_SIZE(step, STEP_AT_SIZE);
AT(program, steps, PROGRAM_STEPS);
AT(program, flags, PROGRAM_FLAGS);
AT(program, size, PROGRAM_SIZE);
AT(program, step, PROGRAM_HEADER);

/* A table of a session, see crates/ring/src/tables.rs. */
struct table {
	u64 directory;  /* behind the first directory, bytes */
	u32 rows;       /* with keys a power of two */
	u32 key_size;   /* bytes; 0: no keys, a row for each event */
	u32 first_cell; /* number of the counter that is the first cell of the first row */
	u32 cells;      /* of a row */
	u32 first_event;
	u32 shift;      /* from the hash to the number of a set */
	u32 summaries;  /* number of the counter at which the first summary begins */
	u32 summary_lanes; /* lanes that have one */
	u32 summary_sets; /* of a summary */
	u32 summary_bits; /* two's logarithm of the sets for each event */
	u64 maxima[];   /* a bit for each cell of a row: it is a maximum */
};

struct row {
	u32 tag;
	u32 length; /* of the key, perhaps with DIRECTORY_DOUBTFUL */
	u64 key[];
};

/* A set of a summary, see crates/ring/src/summary.rs. */
struct set {
	u64 state;
	u64 cell;
	u64 sum;
	u64 pad;
	u64 words[];
};

/* The head of a row of a set. */
struct kept {
	u32 used;
	u32 length;
	u64 entered;
	u64 count;
	u64 error;
	u64 key[];
};

/* The slots of open intervals, see crates/ring/src/intervals.rs. */
struct intervals {
	u64 states; /* behind the first directory, bytes */
	u32 mask;   /* slots, less one */
	u32 shift;  /* from the hash to the number of the first slot */
	u32 keys;   /* words of the key */
	u32 words;  /* all words */
	u32 first_counter;
	u32 pad;
};

/* An open call, see crates/ring/src/layout.rs. */
struct frame {
	u64 owner;
	u64 begin;
	u64 kept[][2];
};

AT(table, directory, TABLE_DIRECTORY);
AT(table, rows, TABLE_ROWS);
AT(table, key_size, TABLE_KEY_SIZE);
AT(table, first_cell, TABLE_FIRST_CELL);
AT(table, cells, TABLE_CELLS);
AT(table, first_event, TABLE_FIRST_EVENT);
AT(table, shift, TABLE_SHIFT);
AT(table, summaries, TABLE_SUMMARIES);
AT(table, summary_lanes, TABLE_SUMMARY_LANES);
AT(table, summary_sets, TABLE_SUMMARY_SETS);
AT(table, summary_bits, TABLE_SUMMARY_BITS);
AT(table, maxima, TABLE_SIZE);
AT(intervals, states, INTERVAL_STATES);
AT(intervals, mask, INTERVAL_MASK);
AT(intervals, shift, INTERVAL_SHIFT);
AT(intervals, keys, INTERVAL_KEYS);
AT(intervals, words, INTERVAL_WORDS);
AT(intervals, first_counter, INTERVAL_FIRST_COUNTER);
HAS_SIZE(intervals, INTERVAL_SIZE);
AT(set, state, SUMMARY_STATE);
AT(set, cell, SUMMARY_CELL);
AT(set, sum, SUMMARY_SUM);
AT(set, words, SUMMARY_HEAD);
AT(kept, used, SUMMARY_USED);
AT(kept, length, SUMMARY_LENGTH);
AT(kept, entered, SUMMARY_ENTERED);
AT(kept, count, SUMMARY_COUNT);
AT(kept, error, SUMMARY_ERROR);
AT(kept, key, SUMMARY_KEY);
AT(row, tag, DIRECTORY_TAG);
AT(row, length, DIRECTORY_LENGTH);
AT(row, key, DIRECTORY_KEY);
AT(frame, owner, FRAME_OWNER);
AT(frame, begin, FRAME_BEGIN);
AT(frame, kept, FRAME_KEPT);
HAS_SIZE(frame, FRAME_SIZE);
_Static_assert(sizeof(((struct frame *)0)->kept[0]) == FRAME_WORD, "frame.kept");

/* Returns the cells of a key's row in the summary of this lane, which the caller holds, after
 * counting a hit there; 0 if the lane has no summary. In summary.c. */
u64 *capriole_summarise(const struct table *table, u32 event, const u64 *key, u32 length, u32 hash,
			u32 cpu, u32 lane) __attribute__((visibility("hidden")));

/* Returns the hash of a key of `length` bytes, a multiple of 8, of an event with this tag. */
u32 capriole_hash(u32 tag, const u64 *key, u32 length) __attribute__((visibility("hidden")));

/* Adds one to a counter. */
void capriole_count(u64 counter) __attribute__((visibility("hidden")));

/* Words of an interval: first those of its key, then those that its start keeps. */
struct words {
	u64 word[INTERVAL_MOST_WORDS];
	u32 unread; /* a bit for each word that could not be read */
};

/* Starts an interval with these words. In interval.c. */
void capriole_start(const struct intervals *intervals, const struct words *words)
	__attribute__((visibility("hidden")));

/* Ends the interval with this key at `time`; puts its words that were kept behind the key, and its
 * ticks at `ticks`. Returns 0 if there is none. In interval.c. */
u32 capriole_end(const struct intervals *intervals, struct words *words, u64 time, u64 *ticks)
	__attribute__((visibility("hidden")));

/* A part of the table by which callers are found, see `unwinding` in numbers.rs. */
struct module {
	u64 start;
	u64 end;
	u32 rows;   /* units of 8 bytes from the base; with UNWINDING_WHOLE blocks, the rule */
	u32 blocks;
};

struct unwinding {
	u64 base; /* of the distances */
	u64 modules;
	struct module module[];
};

AT(unwinding, base, UNWINDING_BASE);
AT(unwinding, modules, UNWINDING_MODULES);
AT(unwinding, module, UNWINDING_HEAD);
AT(module, start, UNWINDING_START);
AT(module, end, UNWINDING_END);
AT(module, rows, UNWINDING_ROWS);
AT(module, blocks, UNWINDING_BLOCKS);
HAS_SIZE(module, UNWINDING_MODULE);

/* Reads memory of the program through the kernel: a bad address only makes it read less. Returns
 * the number of bytes read. */
u64 capriole_read_memory(u64 to, u64 from, u64 size) __attribute__((visibility("hidden")));

/* Writes the chain of callers of the site, at most `most` addresses, to `content`; `window` is private
 * memory of the caller, CHAIN_WINDOW bytes. Returns the number of addresses. In chain.c. */
u32 capriole_chain(u64 *content, const struct step *step, u64 stack, u64 rbp, u64 window)
	__attribute__((visibility("hidden")));

struct trap {
	u64 site;
	u64 detour;
};

/* Distance from an instruction, in bytes, within which a handler that moves on counts as stepping
 * over it: over a jump and the instructions that it covers. */
#define MAX_STEP 32

/* Sorted by site. Only where a breakpoint leads is changed once the handler can see it. */
struct traps {
	u64 count;
	u64 older;	/* address of the table for those that are not in this one, or 0 */
	struct trap trap[];
};

/* Returns the last row of a table of copies that starts at or before `at`; 0 if there is none. */
static inline const struct trap *last_row(const struct traps *table, u64 at)
{
	u64 low = 0, high = table->count;
	while (low < high) {
		u64 middle = low + (high - low) / 2;
		if (table->trap[middle].site <= at)
			low = middle + 1;
		else
			high = middle;
	}
	return low ? &table->trap[low - 1] : 0;
}

#endif
