/* Layout of session memory and of the resident's own tables, for the resident.
 * The Rust side is crates/ring/src/layout.rs and crates/resident/src/lib.rs;
 * a test reads the numbers below and compares them. */
#ifndef CAPRIOLE_RESIDENT_H
#define CAPRIOLE_RESIDENT_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long u64;
typedef long s64;

#define HEADER_NO_CALLS 192
#define HEADER_NOT_CALLED 200
#define HEADER_LEAVE 216
#define HEADER_FREE 256
#define LANES 129
#define PACKET_HEADER 80
#define NO_PACKET 0xffffffffu
#define STREAM_SIZE 64
#define UNIT 8
#define CONTROL_SIZE 64
#define RECORD_FIELDS 16
#define RSEQ_SIGNATURE 0x53053053

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

/* Lock of a lane: the holder's thread id, or 0, above the address of its struct place. */
#define LOCK_TID_SHIFT 42
#define LOCK_FRAME_SHIFT 5

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

_Static_assert(sizeof(struct stream) == STREAM_SIZE, "stream");
_Static_assert(sizeof(struct control) == CONTROL_SIZE, "control");
_Static_assert(sizeof(struct record) == RECORD_FIELDS, "record");

/* Configuration that the tracer writes when it places the resident; read-only in the target. */
struct config {
	u64 session;     /* 0: address of session memory */
	u64 streams;     /* 8: address of the stream table */
	u64 controls;    /* 16: address of the controls */
	u64 packets;     /* 24: address of packet 0 */
	u32 cpus;        /* 32 */
	u32 packet_count; /* 36 */
	u32 packet_shift; /* 40: log2 of the packet size */
	u32 flags;       /* 44: FLAG_... */
	s32 rseq_offset; /* 48: of struct rseq from the thread pointer */
	s32 tid_offset;  /* 52: of the thread id from the thread pointer */
	u64 traps;       /* 56: address of a struct traps; the tracer may replace it by another one */
	u64 pad;         /* 64 */
	u64 old_handler; /* 72: the program's own SIGTRAP handler, 0 default, 1 ignored */
	u64 old_flags;   /* 80 */
	u32 limit;       /* 88: no record of any stream ends behind this position */
	u32 clock_step;  /* 92: for tests: step of the time stamp counter; 0: unchanged */
	u64 copies;      /* 96: address of a struct traps: (start of a copy, the original) */
	u64 old_faults[4]; /* 104: the program's own handlers of SIGILL, SIGBUS, SIGFPE, SIGSEGV */
	u64 directories; /* 136: address of the tables' directories */
	u64 counters;    /* 144: address of the counters of CPU 0 */
	u32 counter_stride; /* 152: bytes to those of the next CPU; the shared ones follow the last */
	u32 frame_mask;  /* 156: slots for open calls, less one */
	u64 frames;      /* 160: address of the first slot; 0: there are none */
	u32 frame_shift; /* 168: log2 of the bytes of a slot */
	u32 pad2;        /* 172 */
	u64 own;         /* 176: address of this process's own words, a struct own */
	u64 actions[5][4]; /* 184: the program's own actions of SIGILL, SIGBUS, SIGFPE, SIGSEGV,
	                      SIGTRAP (struct kernel_sigaction), where they were replaced */
};

#define FLAG_RSEQ 1    /* rseq_offset is valid: threads register restartable sequences */
#define FLAG_TID 2     /* tid_offset is valid */
#define FLAG_COARSE 4  /* two readings of the time stamp counter may be equal */

/* Argument of capriole_filtering: the lower half is the number of the call, unless the number is in
 * a register, or in memory at that offset from the address in a register. The first two arguments
 * are in other registers, or not known. */
#define FILTER_NUMBER_REGISTER 0x100000000
#define FILTER_NUMBER_MEMORY 0x200000000
#define FILTER_OPTION_REGISTER 0x400000000
#define FILTER_MODE_REGISTER 0x800000000
#define FILTER_NUMBER_SHIFT 36
#define FILTER_OPTION_SHIFT 40
#define FILTER_MODE_SHIFT 44
#define X32_SYSCALL_BIT 0x40000000

/* Words private to each process: a forked child has its own copy. */
struct own {
	u32 no_calls; /* not 0: a system call filter may be installed: make no calls any more */
	u32 calling;  /* threads that are in a system call of the resident, or about to be */
	u32 left;     /* no byte leads to a detour any more */
	u32 leave;    /* a thread waits for `left` */
	u32 pad[1020];
	u32 known;    /* threads' own ids are right; 0 in a forked child, until verified */
	u32 process;  /* the id of a forked child, once getpid has returned it */
};

/* A step of a program; capriole_run executes the steps for an event, in order. Never changed once
 * it is in use. The other side is crates/codegen/src/program.rs. */
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

#define STEP_SIZE 16
#define PROGRAM_FAULTS 1
/* Nothing is recorded: the fetched values are added to a table. */
#define PROGRAM_TALLY 2

/* Start of a field: register `a` (4: the stack pointer), or a number. */
#define STEP_REGISTER 0
#define STEP_IMMEDIATE 1
/* Next: load the pointer at value + offset. */
#define STEP_POINTER 2
/* End of a field: the value itself; `count` times `a` bytes at its offset; the string there; the
 * strings that `count` pointers there point to. */
#define STEP_KEEP 3
#define STEP_READ 4
#define STEP_STRING 5
#define STEP_STRINGS 6
/* Whole fields: the name of the thread, a text in the program (struct program). */
#define STEP_COMM 7
#define STEP_TEXT 8
/* Comparisons with the field that was fetched last, and others. */
#define STEP_TEST 9
#define STEP_TEST_THREAD 10
#define STEP_TEST_CPU 11
#define STEP_TEST_TEXT 12
/* Skips `count` steps unless, or when, a comparison holds. */
#define STEP_UNLESS 13
#define STEP_WHEN 14
/* Removes the last field from the record; rejects the event. */
#define STEP_DROP_CONTENT 15
#define STEP_REJECT 16
/* Fields that are not in memory: the id of the thread, the number of the CPU. */
#define STEP_THREAD 17
#define STEP_CPU 18
/* Everything fetched so far is the key. Numbers follow, eight bytes each. */
#define STEP_KEY 19
/* Finds the row of the key, in the table (struct table) at `value`. If there is no room, the
 * program ends here, and the hit is counted if `a` is 1. */
#define STEP_ROW 20
/* Adds to cell `limit` of the row, if field `field` could be read: one, or number `bit` after the
 * key, narrowed as by STEP_TEST (a, count). */
#define STEP_TALLY 21
/* Adds one to cell `limit` if a field in the mask `value` could not be read. */
#define STEP_UNREADABLE 22
/* Narrows the last field as STEP_TEST does. */
#define STEP_NARROW 23
/* Time from the beginning of the call `value` to the record, in time stamps. */
#define STEP_LATENCY 24
/* The low half of the vector register with the number `a`. */
#define STEP_VECTOR 25
/* The stack pointer, rbp, a u32 count of the bytes of the stack that follow, and those: as many of
 * `limit` as can be read. A field like KEEP. */
#define STEP_STACK 26
#define STACK_HEAD 20
/* Word `count` that the call `value` has kept since its entry. */
#define STEP_KEPT 27
/* Discards what is known of a call `value` at this place: it belongs to an earlier one. */
#define STEP_FORGET 28
/* Begins a call `value` that keeps the fetched values: `count` numbers, eight bytes each. */
#define STEP_ENTER 29
/* Adds to the value register `a` (4: the stack pointer), times two to the power of `bit`. */
#define STEP_INDEX 30

#define TEST_BYTES 15
#define TEST_SIGNED 16
#define TEST_MASK 0xe0
#define TEST_EQUAL 0
#define TEST_LESS 32
#define TEST_LESS_OR_EQUAL 64
#define TEST_BITS 96

#define TALLY_MASK 0xe0
#define TALLY_ONE 0
#define TALLY_SUM 32
/* The maximum of number ^ `value`. */
#define TALLY_MAXIMUM 64
/* Adds one to the bucket of the number: that cell, counted from the first bucket's. */
#define TALLY_BUCKET 96

/* Buckets of a histogram: below 2^BUCKET_BITS one for each number, then 2^BUCKET_BITS for each
 * power of two. Those of negative numbers follow. */
#define BUCKET_BITS 3
#define BUCKETS 496
#define TABLE_SIZE 32

/* A table of a session, see crates/ring/src/tables.rs. */
struct table {
	u64 directory;  /* behind the first directory, bytes */
	u32 rows;       /* with keys a power of two */
	u32 key_size;   /* bytes; 0: no keys, a row for each event */
	u32 first_cell; /* number of the counter that is the first cell of the first row */
	u32 cells;      /* of a row */
	u32 first_event;
	u32 shift;      /* from the hash to the number of a set */
};

struct row {
	u32 tag;
	u32 length;
	u64 key[];
};

/* An open call, see crates/ring/src/layout.rs. */
struct frame {
	u64 owner;
	u64 begin;
	u64 kept[][2];
};

#define FRAME_SIZE 16
#define FRAME_CALL_BITS 16
#define FRAME_TIME_SHIFT 48
#define FRAME_SPREAD 0x9e3779b1u
#define FRAME_TAG_SHIFT 24

#define DIRECTORY_DROPPED 0
#define DIRECTORY_HEAD 64
#define DIRECTORY_FREE 0
#define DIRECTORY_CLAIMED 1
#define DIRECTORY_FIRST_TAG 2
#define DIRECTORY_WAYS 4
#define DIRECTORY_PROBED_SETS 16
#define DIRECTORY_HASH_FACTOR 0x9e3779b1u
#define DIRECTORY_HASH_ROTATE 13
#define DIRECTORY_KEY 8

_Static_assert(sizeof(struct step) == STEP_SIZE, "step");
_Static_assert(sizeof(struct table) == TABLE_SIZE, "table");
_Static_assert(sizeof(struct frame) == FRAME_SIZE, "frame");
_Static_assert(sizeof(struct row) == DIRECTORY_KEY, "row");

struct trap {
	u64 site;
	u64 detour;
};

/* In a table of copies: all of the copy maps to the start of the original. Without it a row of
 * copies is as long as the originals. */
#define COPY_EXACT 0x8000000000000000
/* The (first) original begins with the jump of a probe, or a breakpoint. */
#define COPY_CHANGED 0x4000000000000000
/* Distance from an instruction, in bytes, within which a handler that moves on counts as stepping
 * over it: over a jump and the instructions that it covers. */
#define MAX_STEP 32

/* Sorted by site. Never changed once the handler can see it. */
struct traps {
	u64 count;
	u64 pad;
	struct trap trap[];
};

#endif
