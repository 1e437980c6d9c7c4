//! Numbers that Rust and the code in the target (C and assembler) share: byte offsets, opcodes,
//! flags and limits. They are written here once. The build script of the resident compiles this
//! file too, and writes `numbers.h` from it: each constant with the prefix of its module, such as
//! `STREAM_SIZE` for [`stream::SIZE`]. C checks the offsets of its structures against them when it
//! is compiled.
//!
//! The file therefore contains constants only, and uses nothing but the core library.

/// Defines constants, and `C`: their names in C, with the given prefix, and their values.
macro_rules! numbers {
    ($prefix:literal $($(#[$doc:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: $type = $value;)*
        /// Names in C, and values.
        pub const C: &[(&str, u64)] = &[$((concat!($prefix, stringify!($name)), $name as u64)),*];
    };
}

/// Defines opcodes of programs like `numbers!`, each with its `Effect`.
macro_rules! opcodes {
    ($prefix:literal $($(#[$doc:meta])* $name:ident = $value:literal, $effect:ident;)*) => {
        $($(#[$doc])* pub const $name: u8 = $value;)*
        /// Names in C, and values.
        pub const C: &[(&str, u64)] = &[$((concat!($prefix, stringify!($name)), $name as u64)),*];

        /// Returns the effect of an opcode; `None` if there is no such opcode.
        #[must_use]
        pub const fn effect(op: u8) -> Option<Effect> {
            match op {
                $($name => Some(Effect::$effect),)*
                _ => None,
            }
        }
    };
}

/// All numbers: names in C, and values.
pub const ALL: &[&[(&str, u64)]] = &[
    session::C,
    header::C,
    leave::C,
    own::C,
    stream::C,
    lock::C,
    control::C,
    record::C,
    frame::C,
    returns::C,
    directory::C,
    table::C,
    summary::C,
    interval::C,
    config::C,
    flag::C,
    filter::C,
    trap::C,
    copy::C,
    place::C,
    program::C,
    step::C,
    op::C,
    unwinding::C,
    row::C,
    chain::C,
    test::C,
    tally::C,
];

/// Numbers that belong to no structure.
pub mod session {
    numbers! { ""
        /// Lanes of a CPU: lane 0 for restartable sequences, the rest for the locked path. That
        /// many threads can be preempted in the middle of a record at the same time. Writers take
        /// the first free lane, so no more lanes are used than needed.
        LANES: usize = 1 + 128;
        /// Unit of the positions in heads, bytes.
        UNIT: usize = 8;
        /// Size of the CTF header at the start of a packet, bytes. The reader writes it.
        PACKET_HEADER: usize = 80;
        /// `control.prev` of a stream's first packet.
        NO_PACKET: u32 = u32::MAX;
        /// Signature in front of the abort address of every restartable sequence, as glibc
        /// registers it on x86-64 (`RSEQ_SIG`).
        RSEQ_SIGNATURE: u32 = 0x5305_3053;
        /// First word of the resident: `CAPR` in ASCII.
        RESIDENT_MAGIC: u32 = u32::from_le_bytes(*b"CAPR");
        /// Flag in the address of a program that a detour passes to the resident: the detour has
        /// moved the stack pointer past the red zone.
        RUN_RED_ZONE: u64 = 1;
        /// Number of bits below a number's highest bit that select its bucket in a histogram.
        BUCKET_BITS: u32 = 3;
        /// Number of buckets for 0 to 2^64 - 1: one for each number below 2^3, then eight for each
        /// power of two. Negative numbers have as many again, by absolute value.
        BUCKETS: u32 = (64 - BUCKET_BITS + 1) << BUCKET_BITS;
    }
}

/// Byte offsets in the header page.
pub mod header {
    numbers! { "HEADER_"
        /// u64: [`MAGIC`](crate::layout::MAGIC).
        MAGIC: usize = 0;
        /// u32: [`VERSION`](crate::layout::VERSION).
        VERSION: usize = 8;
        /// u32: one of [`State`](crate::layout::State); only a hint, which a process's own ledger
        /// overrules.
        STATE: usize = 12;
        /// u64: address of session memory in the target.
        BASE: usize = 40;
        /// u64: bytes of session memory.
        SIZE: usize = 48;
        /// u32: CPUs that have streams.
        CPUS: usize = 56;
        /// u32: number of lanes of each CPU.
        LANES: usize = 60;
        /// u32: bytes of a packet, a power of two.
        PACKET_SIZE: usize = 64;
        /// u32: number of packets.
        PACKETS: usize = 68;
        /// u64: calls that were not followed because no slot was free. The u64 after it is
        /// [`RETURNS_ABANDONED`].
        RETURNS_MISSED: usize = 160;
        /// u64: calls that were followed and left without a return.
        RETURNS_ABANDONED: usize = 168;
        /// u32: id + 1 of the event that records messages from outside; 0: none are accepted;
        /// [`CLOSING`]: none are accepted any more, but one may still be being written.
        MESSAGES: usize = 176;
        /// See [`MESSAGES`].
        CLOSING: u32 = u32::MAX;
        /// u64: byte offset of the first packet.
        PACKETS_OFFSET: usize = 184;
        /// u32: 1 when the resident makes no more system calls in some process of the session;
        /// [`own::NO_CALLS`](super::own::NO_CALLS) is the same flag for each process.
        NO_CALLS: usize = 192;
        /// u64: number of reads skipped because no system call was allowed.
        NOT_CALLED: usize = 200;
        /// u32: number of processes that have an [`own::NUMBER`](super::own::NUMBER).
        PROCESSES: usize = 208;
        /// u32: 1 when some process of the session may have [`own::LEAVE`](super::own::LEAVE) set.
        LEAVE: usize = 216;
        /// 64 × u64: one bit for each packet, 1 = free.
        FREE: usize = 256;
    }
}

/// Words private to each process (a forked child has its own copy). Byte offsets from
/// [`Geometry::own_offset`](crate::layout::Geometry::own_offset).
pub mod own {
    numbers! { "OWN_"
        /// u32: nonzero when the process may have installed a system call filter, or was about to.
        /// The resident makes no system calls from then on.
        NO_CALLS: usize = 0;
        /// u32: number of threads inside a system call of the resident.
        CALLING: usize = 4;
        /// u32: 1 when no patched byte of the process leads to a detour any more.
        LEFT: usize = 8;
        /// u32: when a thread waits for [`LEFT`], the reason, one of [`leave`](super::leave).
        LEAVE: usize = 12;
        /// u32, written only by the tracer: a bit for each signal of [`config::ACTIONS`](super::config::ACTIONS).
        /// While it is set, the resident puts its handler before each one that the program sets.
        FOLLOWED: usize = 16;
        /// u32: the process whose actions these are, by its id in its own namespace.
        FOLLOWED_PROCESS: usize = 20;
        /// u32: nonzero when a page of the process may be long in coming once somebody touches it, or
        /// never come. The resident reads then only pages that are in memory.
        SLOW_MEMORY: usize = 24;
        /// A u32 for each of these signals: number of the action before which the resident last put
        /// its handler; 0: none that the program has set since the session began. The action is in
        /// place number modulo [`KEPT_ACTIONS`].
        NEWEST: usize = 28;
        /// A u32 for each of these signals: the last such number that was given out.
        NUMBERED: usize = 48;
        /// For each of these signals, [`KEPT_ACTIONS`] actions, each four u64 as rt_sigaction(2) has
        /// them.
        KEPT: usize = 72;
        /// Number of actions kept for each signal: a thread that writes one shares its place with no
        /// thread that reads or writes another one at the same time.
        KEPT_ACTIONS: usize = 8;
        /// Number of signals.
        SIGNALS: usize = 5;
        /// u32: 1 when the ids that threads hold for themselves are known to be correct. On its own
        /// page, which the kernel clears in a forked child: there the C library may still have the
        /// parent's id.
        KNOWN: usize = 4096;
        /// u32, on the same page: number of the process in this session, from 1; 0: it has none yet.
        NUMBER: usize = 4104;
        /// Size of this area in bytes: two pages.
        SIZE: usize = 2 * 4096;
    }
}

/// Reasons for which a program must not have probes any more.
pub mod leave {
    numbers! { "LEAVE_"
        /// It is about to disable reading of the time stamp counter (`PR_SET_TSC`).
        CLOCK: u32 = 1;
        /// It is about to set a thread pointer, behind which detours find data of the C library.
        THREAD_POINTER: u32 = 2;
    }
}

/// Byte offsets in a stream.
pub mod stream {
    numbers! { "STREAM_"
        /// u64, the head: the lower u32 is the position of the next record, and storing it is the
        /// commit; the upper u32 is the end of the packet. In [units](super::session::UNIT) from
        /// the stream's own address.
        HEAD: usize = 0;
        /// u64: events lost so far.
        LOST: usize = 8;
        /// u64: holder of a locked lane, see [`lanes`](crate::lanes); 0: free.
        LOCK: usize = 16;
        /// u64: events lost because all lanes were taken; included in [`LOST`].
        BUSY: usize = 24;
        /// u32: number of times the lane has been taken.
        TURNS: usize = 32;
        /// u64: number, from 1, of the last delivery that the reader handed over; written only by
        /// the reader, as is the next word.
        NUMBER: usize = 40;
        /// u64: packet and byte range of that delivery, see `taken`.
        TAKEN: usize = 48;
        /// Size of a stream in bytes: a cache line, so that CPUs do not share one.
        SIZE: usize = 64;
    }
}

/// Lock of a lane: the holder's thread id, or 0, above an address on its stack.
pub mod lock {
    numbers! { "LOCK_"
        /// Number of bits of a lock below the thread id.
        TID_SHIFT: u32 = 42;
        /// Number of bits by which the address is shifted right.
        FRAME_SHIFT: u32 = 5;
    }
}

/// Byte offsets in a packet's control.
pub mod control {
    numbers! { "CONTROL_"
        /// u64: number of the packet in its stream, from 0.
        SEQ: usize = 0;
        /// u64: time stamp counter when the packet was opened.
        BEGIN: usize = 8;
        /// u64: events that the stream had lost when the packet was opened.
        LOST: usize = 16;
        /// u32: index of the previous packet of the stream, or
        /// [`NO_PACKET`](super::session::NO_PACKET).
        PREV: usize = 24;
        /// u32: bytes in use in the previous packet, including its header.
        PREV_LEN: usize = 28;
        /// u32: CPU of the stream.
        CPU: usize = 32;
        /// u32: lane of the stream.
        LANE: usize = 36;
        /// Size of a control in bytes: a cache line.
        SIZE: usize = 64;
    }
}

/// A record: u64 time stamp counter, u32 event id, u32 thread id, then the fields.
pub mod record {
    numbers! { "RECORD_"
        /// u64: time stamp counter.
        TIME: usize = 0;
        /// u32: event id.
        ID: usize = 8;
        /// u32: thread id in the target's own namespace; 0 = unknown.
        TID: usize = 12;
        /// The fields, eight bytes each.
        FIELDS: usize = 16;
    }
}

/// Open calls: one slot each, found by the stack pointer at the function's entry, which is the
/// same at its exit.
///
/// ```text
/// slot = ((sp >> GRAIN_SHIFT) + (sp >> TAG_SHIFT) * SPREAD) mod slots
/// ```
///
/// Any two calls that are open on one stack have different slots: a call needs at least eight bytes of
/// it, for its return address. (Not sixteen: a function that calls only functions which need no aligned
/// stack leaves it unaligned.) Stacks whose distance would map them to the same slots are spread. A
/// call whose slot was taken by another one is not timed. If two threads take a slot at the same
/// moment, one may write the owner and the other the time; this is detected, because the stack pointers of one slot differ in the bits above their lowest 23.
///
/// After owner and time follow words that the call keeps from its entry to its exit
/// ([`KEPT`](frame::KEPT)). If a function's entry serves several purposes, each purpose has its
/// own area of slots.
pub mod frame {
    numbers! { "FRAME_"
        /// u64: the stack pointer, with the function's number in the upper [`CALL_BITS`] bits.
        OWNER: usize = 0;
        /// Added to the owner by a call that a filter has rejected at its entry. A stack pointer of a
        /// program has fewer bits.
        REJECTED: u64 = 1 << 47;
        /// u64: the time stamp counter at the entry, plus, from bit [`TIME_SHIFT`] on, as many of
        /// the stack pointer's bits from [`TAG_SHIFT`] on as fit.
        BEGIN: usize = 8;
        /// Start of the kept words. Each is two u64, one for the lower and one for the upper half
        /// of the word. Each u64 has the half in its low 32 bits and the bits of the stack pointer
        /// from [`TAG_SHIFT`] on above them: one store writes a half, and each half identifies its
        /// owner.
        KEPT: usize = 16;
        /// Size of a kept word in bytes.
        WORD: usize = 16;
        /// Maximum number of words that a call keeps.
        MOST_WORDS: u32 = 7;
        /// Maximum number of areas of slots.
        MOST_AREAS: u32 = 8;
        /// From this bit on, the bits of the stack pointer are about the same for all slots of a
        /// stack, and distinguish stacks that map to the same slots.
        TAG_SHIFT: u32 = 23;
        /// Size in bytes of a slot without kept words; with kept words it is the next power of two
        /// that has room for them.
        SIZE: usize = 16;
        /// Number of bits of a function's number.
        CALL_BITS: u32 = 16;
        /// Number of bits of a call's duration. The bits of its stack pointer begin above them.
        TIME_SHIFT: u32 = 48;
        /// Low bits of a stack pointer that do not distinguish slots.
        GRAIN_SHIFT: u32 = 3;
        /// Multiplier for the upper bits of a stack pointer.
        SPREAD: u32 = 0x9e37_79b1;
        /// Slots of a session that times calls: enough for a stack of 8 MiB. (Not fewer: stack
        /// pointers whose upper bits are the same must not use the same slot.)
        SLOTS: u32 = 1 << 20;
    }
}

/// Calls with a replaced return address: one slot each, in a region of the program's own
/// memory, found by the stack address of the return address.
///
/// ```text
/// slot = ((address >> 4) + (address >> 21) * SPREAD) mod SLOTS, or one of the next WINDOW
/// ```
///
/// The return address on the stack is replaced by the address of the slot's stub. Functions
/// that tail-call one another, and so return at the same moment, share a slot.
pub mod returns {
    numbers! { "RETURNS_"
        /// First word of the region's code.
        MAGIC: u64 = u64::from_le_bytes(*b"CPRUTRN1");
        /// Number of slots: the maximum number of calls open at once.
        SLOTS: u64 = 1 << 17;
        /// Size of a slot in bytes.
        SLOT_SIZE: u64 = 64;
        /// Size of a slot's stub in bytes.
        STUB_SIZE: u64 = 16;
        /// u64: stack address of the return address; 0: the slot is free.
        ADDRESS: usize = 0;
        /// u64: the original return address.
        ORIGINAL: usize = 8;
        /// u64: number of functions that return through this slot; 0: no work is left to run for
        /// them.
        CALLS: usize = 16;
        /// [`MOST_CALLS`] × u64: work to run when they return, the outermost first.
        WORKS: usize = 24;
        /// Maximum number of functions that share a slot.
        MOST_CALLS: u64 = 5;
        /// Number of slots searched, starting at an address's home slot.
        WINDOW: u64 = 64;
        /// Multiplier for the upper bits of an address. Small enough that the slots of a stack of
        /// more than 2 MiB continue next to one another; odd, so that calls a power of two apart do
        /// not collide; and prime.
        SPREAD: u64 = 1021;
    }
}

/// A table's directory: a head, then the rows, one for each key that there is room for.
pub mod directory {
    numbers! { "DIRECTORY_"
        /// u64, in the head: hits that were not counted because there was no room for their key.
        DROPPED: usize = 0;
        /// Size of the head in bytes. A directory's offset is a multiple of it.
        HEAD: usize = 64;
        /// u32, in a row: one of [`FREE`], [`CLAIMED`], or the event's id + [`FIRST_TAG`],
        /// which is written last and never changes again.
        TAG: usize = 0;
        /// u32: length of the key in bytes, perhaps with [`DOUBTFUL`].
        LENGTH: usize = 4;
        /// Flag in the length: another thread looked for a key here while this one was being
        /// written, so hits of this key may be in a [summary](super::summary) as well.
        DOUBTFUL: u32 = 1 << 31;
        /// The key, padded to a multiple of eight bytes.
        KEY: usize = 8;
        /// Tag of a free row.
        FREE: u32 = 0;
        /// Tag of a row whose key is being written.
        CLAIMED: u32 = 1;
        /// Tag of event 0.
        FIRST_TAG: u32 = 2;
        /// Rows in a set. A key's home is one such set.
        WAYS: u32 = 4;
        /// Number of sets searched for a key, starting at its home set.
        PROBED_SETS: u32 = 16;
        /// Multiplier for a key's words (2^32 divided by the golden ratio, odd: Knuth, The Art of
        /// Computer Programming 3, 6.4, multiplicative hashing).
        HASH_FACTOR: u32 = 0x9e37_79b1;
        /// Number of bits by which the hash is rotated between two words, and by which the upper
        /// half of a word is rotated before it is combined with the lower one.
        HASH_ROTATE: u32 = 13;
    }
}

/// Byte offsets in the description of a table, which is a part of a program.
pub mod table {
    numbers! { "TABLE_"
        /// u64: the directory, counted from the first directory, bytes.
        DIRECTORY: usize = 0;
        /// u32: number of rows; with keys a power of two.
        ROWS: usize = 8;
        /// u32: size of a key in bytes; 0: no keys, a row for each event.
        KEY_SIZE: usize = 12;
        /// u32: number of the counter that is the first cell of the first row.
        FIRST_CELL: usize = 16;
        /// u32: cells of a row.
        CELLS: usize = 20;
        /// u32: id of the first event.
        FIRST_EVENT: usize = 24;
        /// u32: shift from the hash of a key to the number of a set.
        SHIFT: usize = 28;
        /// u32: number of the counter at which the first summary begins.
        SUMMARIES: usize = 32;
        /// u32: number of lanes that have a summary; 0: the table has none.
        SUMMARY_LANES: usize = 36;
        /// u32: sets of a summary, for all events.
        SUMMARY_SETS: usize = 40;
        /// u32: the two's logarithm of the number of sets for each event.
        SUMMARY_BITS: usize = 44;
        /// Size of the description in bytes. Words with a bit for each cell of a row follow: 1 if
        /// the cell holds a maximum.
        SIZE: usize = 48;
    }
}

/// Byte offsets in a set of a [summary](crate::summary), and in the head of one of its rows.
pub mod summary {
    numbers! { "SUMMARY_"
        /// Rows in a set.
        WAYS: u32 = 16;
        /// u64, in a set: the low half is odd while a row, whose number is in the upper half, is
        /// being emptied; it grows by two for each row that was.
        STATE: usize = 0;
        /// u64: while a row is being emptied, 2 * (1 + the cell that was moved last), and 1 more
        /// while that lasts; 0 before the first.
        CELL: usize = 8;
        /// u64: value of that cell of the others once it was moved.
        SUM: usize = 16;
        /// Size of a set's head in bytes. The heads of the rows follow, then the cells of each row,
        /// then those of the others.
        HEAD: usize = 32;
        /// u32, in a row's head: 1 if the row has a key, written last; 0: it has none.
        USED: usize = 0;
        /// u32: length of the key in bytes.
        LENGTH: usize = 4;
        /// u64: the set's state when the row got its key, which tells apart two lives of a row.
        ENTERED: usize = 8;
        /// u64: hits since then.
        COUNT: usize = 16;
        /// u64: hits of the key before, at most.
        ERROR: usize = 24;
        /// The key, padded to a multiple of eight bytes.
        KEY: usize = 32;
    }
}

/// Open [intervals](crate::intervals): byte offsets in the description of their slots, which is a part
/// of a program; the state of a slot; and the counters.
pub mod interval {
    numbers! { "INTERVAL_"
        /// u64: the states of the slots, counted from the first directory, bytes. The slots follow.
        STATES: usize = 0;
        /// u32: number of slots, a power of two, less one.
        MASK: usize = 8;
        /// u32: shift from the hash of a key to the number of its first slot.
        SHIFT: usize = 12;
        /// u32: number of words of the key.
        KEYS: usize = 16;
        /// u32: number of all words, at most [`MOST_WORDS`].
        WORDS: usize = 20;
        /// u32: number of the first of [`COUNTERS`] counters.
        FIRST_COUNTER: usize = 24;
        /// Size of the description in bytes.
        SIZE: usize = 32;

        /// The bits of a state with its status. Above them is the hash of the key, up to bit 31, and
        /// then the slot's generation.
        STATUS: u32 = 3;
        /// Status: no interval.
        FREE: u32 = 0;
        /// Status: an interval is being written.
        CLAIMED: u32 = 1;
        /// Status: an open interval.
        OPEN: u32 = 2;
        /// First bit of the generation, in a state and in both halves of a word.
        GENERATION_SHIFT: u32 = 32;
        /// Number of slots in which an interval can be, from its first one on.
        WINDOW: u32 = 32;
        /// Number of times that the window is searched for an interval that another thread changes.
        ATTEMPTS: u32 = 16;

        /// Size of a word in a slot: two u64, each with a half of it below the generation. If the word
        /// could not be read, the complement of the generation.
        WORD_SIZE: usize = 16;
        /// Word of a slot: the time stamp counter at the start.
        TIME: usize = 0;
        /// Word of a slot: the [number](super::own::NUMBER) of the process.
        PROCESS: usize = 1;
        /// First word of the key. The words that the start has kept follow.
        KEY: usize = 2;
        /// Maximum number of words of a key, together with those that are kept.
        MOST_WORDS: u32 = 7;

        /// Counter: starts whose key could be read.
        STARTED: u32 = 0;
        /// Counter: intervals that ended because another one with the same key started.
        RESTARTED: u32 = 1;
        /// Counter: ends without an open interval of that key.
        UNMATCHED: u32 = 2;
        /// Counter: starts for which no slot was free.
        NO_ROOM: u32 = 3;
        /// Counter: starts and ends whose key could not be read.
        UNREADABLE: u32 = 4;
        /// Number of counters.
        COUNTERS: u32 = 5;
    }
}

/// Byte offsets in the configuration of the resident, which the tracer writes when it places it.
pub mod config {
    numbers! { "CONFIG_"
        /// u64: address of session memory.
        SESSION: usize = 0;
        /// u64: address of the streams.
        STREAMS: usize = 8;
        /// u64: address of the controls.
        CONTROLS: usize = 16;
        /// u64: address of packet 0.
        PACKETS: usize = 24;
        /// u32: CPUs that have streams.
        CPUS: usize = 32;
        /// u32: number of packets.
        PACKET_COUNT: usize = 36;
        /// u32: log2 of the size of a packet.
        PACKET_SHIFT: usize = 40;
        /// u32: flags, see [`flag`](super::flag).
        FLAGS: usize = 44;
        /// i32: offset of `struct rseq` from the thread pointer.
        RSEQ_OFFSET: usize = 48;
        /// i32: offset of the thread id from the thread pointer.
        TID_OFFSET: usize = 52;
        /// u64: address of the table of breakpoints; the tracer may replace it by another one.
        TRAPS: usize = 56;
        /// u64: the program's own SIGTRAP handler, 0 default, 1 ignored.
        OLD_HANDLER: usize = 72;
        /// u64: flags of that handler.
        OLD_FLAGS: usize = 80;
        /// u32: no record of any stream ends behind this position.
        LIMIT: usize = 88;
        /// u32: for tests, the step of the time stamp counter; 0: unchanged.
        CLOCK_STEP: usize = 92;
        /// u64: address of the table of copies.
        COPIES: usize = 96;
        /// u64: address of the resident's own call frame information; 0: there is none.
        OWN_FRAMES: usize = 104;
        /// u64: bytes of that.
        OWN_FRAMES_SIZE: usize = 112;
        /// u64: address of the tables' directories.
        DIRECTORIES: usize = 136;
        /// u64: address of the counters of CPU 0.
        COUNTERS: usize = 144;
        /// u32: bytes from one CPU's counters to the next one's; the shared ones follow the last.
        COUNTER_STRIDE: usize = 152;
        /// u32: number of slots for open calls, less one.
        FRAME_MASK: usize = 156;
        /// u64: address of the first slot for open calls; 0: there are none.
        FRAMES: usize = 160;
        /// u32: log2 of the size of such a slot.
        FRAME_SHIFT: usize = 168;
        /// u32: offset of PKRU in an XSAVE area; 0: the processor has none.
        PKRU: usize = 172;
        /// u64: address of this process's own words.
        OWN: usize = 176;
        /// 5 × 4 × u64: the program's own actions (`struct kernel_sigaction`) of SIGILL, SIGBUS,
        /// SIGFPE, SIGSEGV and SIGTRAP, where they were replaced.
        ACTIONS: usize = 184;
        /// u64: address of the table by which [`CHAIN`](super::op::CHAIN) finds callers; 0: there is
        /// none.
        UNWINDING: usize = 344;
        /// u64: address of the memory for its copies of the stack, [`WINDOW`](super::chain::WINDOW) bytes
        /// for each (lane, CPU), as streams are numbered.
        WINDOWS: usize = 352;
        /// Size of the configuration in bytes.
        SIZE: usize = 360;
    }
}

/// The return from the handler of SIGTRAP, in a signal frame of the kernel.
pub mod trap {
    numbers! { "TRAP_"
        /// Offset of the registers in the context, in the order of `struct sigcontext_64`.
        REGISTERS: usize = 40;
        /// Bytes between the words by which a thread returns and its stack pointer: the red zone, and
        /// the most that the kernel leaves free below it to align the XSAVE area.
        ABOVE: usize = 128 + 64;
    }
}

/// Flags of the [configuration](config::FLAGS).
pub mod flag {
    numbers! { "FLAG_"
        /// [`RSEQ_OFFSET`](super::config::RSEQ_OFFSET) is valid: threads register restartable
        /// sequences.
        RSEQ: u32 = 1;
        /// [`TID_OFFSET`](super::config::TID_OFFSET) is valid.
        TID: u32 = 2;
        /// Two readings of the time stamp counter may be equal.
        COARSE: u32 = 4;
        /// Detours call routines of the program, which use its thread-local storage.
        ROUTINES: u32 = 8;
    }
}

/// Argument of `capriole_filtering`: the lower half is the number of the call, unless the number is
/// in a register, or in memory at that offset from the address in a register. The first two
/// arguments are in other registers, or not known.
pub mod filter {
    numbers! { "FILTER_"
        /// Flag: the number is in a register.
        NUMBER_REGISTER: u64 = 0x1_0000_0000;
        /// Flag: the number is in memory.
        NUMBER_MEMORY: u64 = 0x2_0000_0000;
        /// Flag: the register of the first argument is known.
        OPTION_REGISTER: u64 = 0x4_0000_0000;
        /// Flag: the register of the second argument is known.
        MODE_REGISTER: u64 = 0x8_0000_0000;
        /// First of the four bits with the register of the number.
        NUMBER_SHIFT: u32 = 36;
        /// First of the four bits with the register of the first argument.
        OPTION_SHIFT: u32 = 40;
        /// First of the four bits with the register of the second argument.
        MODE_SHIFT: u32 = 44;
    }
}

/// Flags of the original's address in the table of copies, whose rows also tell code that is no copy.
pub mod copy {
    numbers! { "COPY_"
        /// The copy may be longer than the original, and all of it maps to the original's start.
        /// Without the flag, a row of copies is as long as the originals.
        EXACT: u64 = 1 << 63;
        /// A probe's jump or breakpoint begins at the (first) original.
        CHANGED: u64 = 1 << 62;
        /// No copy: other code of a detour. The rest is the address of its [places](super::place), and 0 if
        /// there are none.
        CODE: u64 = 1 << 61;
        /// Instead of that address: the resident, which has call frame information.
        RESIDENT: u64 = 1;
    }
}

/// Where the program's stack pointer and registers are while a thread is in code of a detour: a u64 for
/// each run of instructions at which they are in the same places, by ascending offsets.
pub mod place {
    numbers! { "PLACE_"
        /// Bits of the offset of the first of these instructions in the code.
        OFFSET_BITS: u32 = 16;
        /// The offset in the row behind the last.
        END: u64 = 0xffff;
        /// First of eight bits: how far the stack pointer is below that of the site, in words.
        BELOW_SHIFT: u32 = 16;
        /// There: not known.
        UNKNOWN: u64 = 0xff;
        /// First of eight bits, in code that detours share: where an address in the detour is.
        DETOUR_SHIFT: u32 = 24;
        /// There: in no place, which is so in the code of a detour itself.
        NOWHERE: u64 = 0;
        /// From here on in a general register, by its number in machine code.
        REGISTER: u64 = 1;
        /// From here on on the stack, so many words below the stack pointer of the site.
        STACK: u64 = 17;
        /// First of six times four bits: in which word below the [`RED_ZONE`] of the site's stack pointer the
        /// registers that a function preserves are saved, rbx, rbp, r12 to r15; 0: they hold what they held
        /// at the site.
        SAVED_SHIFT: u32 = 32;
        /// Bits of each.
        SAVED_BITS: u32 = 4;
        /// Bit: the words below the red zone are meant.
        RED_ZONE: u32 = 56;
        /// Number of rows, at most, with the one behind the last.
        MOST: usize = 64;
    }
}

/// A program: a header, the steps, constant strings and the description of a table.
pub mod program {
    numbers! { "PROGRAM_"
        /// Byte offset of the number of steps, u32.
        STEPS: usize = 0;
        /// Byte offset of the flags, u32.
        FLAGS: usize = 4;
        /// Byte offset of the maximum size of the record in bytes, u64.
        SIZE: usize = 8;
        /// Size of the header in bytes; the steps follow.
        HEADER: usize = 16;
        /// Flag: the record begins with the mask of fields that could not be read.
        FAULTS: u32 = 1;
        /// Flag: nothing is recorded; the fetched values are added to a table, or kept.
        TALLY: u32 = 2;
        /// Flag: an [interval](super::interval) starts or ends.
        INTERVAL: u32 = 4;
    }
}

/// Byte offsets in a step of a program.
pub mod step {
    numbers! { "STEP_AT_"
        /// u8: the [opcode](super::op).
        OP: usize = 0;
        /// u8: register, size in bytes, or how to compare ([`test`](super::test)).
        A: usize = 1;
        /// u16: elements, bytes of a string, steps to skip, or bits (offset << 8 | width).
        COUNT: usize = 2;
        /// u16: maximum length of a string in bytes, or number of a cell.
        LIMIT: usize = 4;
        /// u8: number of the field.
        FIELD: usize = 6;
        /// u8: bit that a comparison sets or a step tests.
        BIT: usize = 7;
        /// u64: number, offset of a pointer, value to compare with, or place of a string.
        VALUE: usize = 8;
        /// Size of a step in bytes.
        SIZE: usize = 16;
    }
}

/// Opcodes of the steps of a program.
pub mod op {
    /// Effect of a step that matters outside of the program.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Effect {
        /// The step reads the general register with the number [`A`](super::step::A).
        Register,
        /// The step may make a system call.
        Call,
        /// Neither.
        Neither,
    }

    opcodes! { "STEP_"
        /// Start of a field: register `a` (4: the stack pointer).
        REGISTER = 0, Register;
        /// Start of a field: the number `value`.
        IMMEDIATE = 1, Neither;
        /// Next: loads the pointer at value + offset.
        POINTER = 2, Call;
        /// End of a field: the value itself.
        KEEP = 3, Neither;
        /// End of a field: `count` times `a` bytes at the value's offset.
        READ = 4, Call;
        /// End of a field: the string there.
        STRING = 5, Call;
        /// End of a field: the strings to which `count` pointers there point.
        STRINGS = 6, Call;
        /// Whole field: the name of the thread.
        COMM = 7, Call;
        /// Whole field: a string in the program.
        TEXT = 8, Neither;
        /// Compares the field that was fetched last with a number.
        TEST = 9, Neither;
        /// Compares the id of the thread.
        TEST_THREAD = 10, Neither;
        /// Compares the number of the CPU.
        TEST_CPU = 11, Neither;
        /// Matches the string that was fetched last with a pattern.
        TEST_TEXT = 12, Neither;
        /// Skips `count` steps unless a comparison holds.
        UNLESS = 13, Neither;
        /// Skips `count` steps when a comparison holds.
        WHEN = 14, Neither;
        /// Removes the last field from the record.
        DROP_CONTENT = 15, Neither;
        /// Rejects the event.
        REJECT = 16, Neither;
        /// Start of a field: the id of the thread.
        THREAD = 17, Call;
        /// Start of a field: the number of the CPU.
        CPU = 18, Neither;
        /// Everything fetched so far is the key. Numbers follow, eight bytes each.
        KEY = 19, Neither;
        /// Finds the row of the key, in the [table](super::table) at `value`. If there is no room:
        /// takes the key's row in the [summary](super::summary) if `a` is 1; else, or if there is
        /// none, the program ends here. With `a` that is counted.
        ROW = 20, Neither;
        /// Adds to cell `limit` of the row, if field `field` could be read: one, or number `bit`
        /// after the key, narrowed as by [`TEST`] (`a`, `count`). See [`tally`](super::tally).
        TALLY = 21, Neither;
        /// Adds one to cell `limit` if a field in the mask `value` could not be read.
        UNREADABLE = 22, Neither;
        /// Narrows the last field as [`TEST`] does.
        NARROW = 23, Neither;
        /// Start of a field: time from the beginning of the call `value` to the record, in ticks of
        /// the time stamp counter.
        LATENCY = 24, Neither;
        /// Start of a field: the low half of the vector register with the number `a`.
        VECTOR = 25, Neither;
        /// End of a field: the chain of callers, see [`chain`](super::chain), of at most `count`
        /// addresses. The value is rbp, `value` is the address of the site. If `a` is 1, the return
        /// address is on top of the stack there, whatever the table says.
        CHAIN = 26, Call;
        /// Start of a field: word `count` that the call `value` has kept since its entry. Like
        /// [`LATENCY`], rejects the end of a call that was [`REJECTED`].
        KEPT = 27, Neither;
        /// Notes that the call `value` is rejected, unless [`ENTER`] follows.
        REJECTED = 28, Neither;
        /// Begins a call `value` that keeps the fetched values: `count` numbers, eight bytes each.
        ENTER = 29, Neither;
        /// Adds to the value register `a` (4: the stack pointer), times two to the power of `bit`.
        INDEX = 30, Register;
        /// Reverses the low `a` bytes of the last field, a number. [`ENTER`] keeps it as it was.
        SWAP = 31, Neither;
        /// Next, for the length of a text: loads `a` bytes, at most 8, at value + offset.
        LOAD = 32, Call;
        /// The value, less `value`, is the length of the text that is fetched next. It is narrowed
        /// before, as [`TEST`] does (`a`, `count`); in network byte order if `bit` is 1. It is not
        /// recorded. If `a` is 0 the text has none, and cannot be read.
        LENGTH = 33, Neither;
        /// End of a field: as many bytes there as [`LENGTH`] has told and `limit` allows, or those
        /// before the first that cannot be read.
        BYTES = 34, Call;
        /// Skips `count` steps unless the row is in a [summary](super::summary).
        SUMMARY = 35, Neither;
        /// The value is word `limit` of an [interval](super::interval), narrowed as [`TEST`] does (`a`,
        /// `count`), without a sign.
        WORD = 36, Neither;
        /// Starts an interval in the slots at `value`.
        START = 37, Neither;
        /// Ends an interval in the slots at `value`. If there is none, the program ends here.
        END = 38, Neither;
        /// Start of a field: ticks of the time stamp counter from the start of the interval to its end.
        INTERVAL = 39, Neither;
        /// Start of a field: word `count` that the start of the interval has kept.
        STARTED = 40, Neither;
        /// Skips `limit` steps unless the value, narrowed as [`TEST`] does (`a`, `count`), is `value`.
        CASE = 41, Neither;
        /// Skips `limit` steps.
        SKIP = 42, Neither;
    }
}

/// The table of rules by which callers are found: a head, then the modules by ascending addresses. What
/// they refer to is elsewhere: a table that is made when more code was mapped refers to the same. A part is found by its distance from the head's base, in units of 8
/// bytes. Byte offsets.
///
/// ```text
/// module      addresses from START to END, in which a place is a u32, counted from START
/// rows        u64 each, ascending: the place where a rule begins above the rule; the first at place 0
/// blocks      u32 for each block of 2^BLOCK_SHIFT places that begins up to the end, and one more: the
///             number of the row that holds at the block's start
/// ```
///
/// A module with one rule for all its places has neither: BLOCKS is WHOLE, and ROWS is the rule.
pub mod unwinding {
    numbers! { "UNWINDING_"
        /// u64: address from which the distances count.
        BASE: usize = 0;
        /// u64: number of modules.
        MODULES: usize = 8;
        /// Size of the head in bytes.
        HEAD: usize = 16;
        /// u64, in a module: its first address.
        START: usize = 0;
        /// u64, in a module: the address after its last.
        END: usize = 8;
        /// u32, in a module: where its rows are.
        ROWS: usize = 16;
        /// u32, in a module: where its blocks are.
        BLOCKS: usize = 20;
        /// Size of a module in bytes.
        MODULE: usize = 24;
        /// Two's logarithm of the number of places in a block.
        BLOCK_SHIFT: u32 = 8;
        /// `BLOCKS` of a module with one rule.
        WHOLE: u32 = u32::MAX;
    }
}

/// A rule of the [table](unwinding): the kind in the lowest [`KIND_BITS`](row::KIND_BITS) bits, then a distance in
/// units of 8 bytes in [`DISTANCE_BITS`](row::DISTANCE_BITS) bits, then where rbp is, in the same units below the CFA.
pub mod row {
    numbers! { "ROW_"
        /// Number of bits of the kind.
        KIND_BITS: u32 = 3;
        /// Number of bits of the distance.
        DISTANCE_BITS: u32 = 18;
        /// First bit with the place of rbp.
        RBP_SHIFT: u32 = KIND_BITS + DISTANCE_BITS;
        /// Kind: no rule.
        UNKNOWN: u32 = 0;
        /// Kind: there is no caller.
        OUTERMOST: u32 = 1;
        /// Kind: a signal frame of the kernel is at the stack pointer.
        SIGNAL: u32 = 2;
        /// Kind: the CFA is at that distance above the stack pointer.
        RSP: u32 = 3;
        /// Kind: the CFA is at that distance above rbp.
        RBP: u32 = 4;
        /// Kind: the CFA is in memory, at that distance below rbp.
        SAVED: u32 = 5;
        /// Kind: the CFA is 16 bytes above the stack pointer in the last five bytes of each 16, else
        /// 8.
        PLT: u32 = 6;
        /// Kind: as [`RBP`], but only where a call returns to.
        CALLED: u32 = 7;
        /// Place of rbp: unchanged.
        RBP_UNCHANGED: u32 = 0;
        /// Place of rbp: in memory, where rbp points to.
        RBP_THERE: u32 = 2046;
        /// Place of rbp: not known.
        RBP_UNKNOWN: u32 = 2047;
    }
}

/// A chain of callers: a u32 count of addresses, a u32 with the reason why there are no more, and
/// the addresses. The first is the site, the others are return addresses; but one that is behind
/// the place to which a signal handler returns is where the handler's signal came.
pub mod chain {
    numbers! { "CHAIN_"
        /// Maximum number of addresses.
        MOST: u32 = 128;
        /// Maximum number of system calls that read the stack for a chain.
        MOST_READS: u32 = 16;
        /// Size in bytes of the first of these reads: most chains need no other.
        FIRST_READ: u64 = 2 * 4096;
        /// Size in bytes of the others, and of the private memory for them.
        WINDOW: u64 = 4 * 4096;
        /// Size in bytes of what is before the addresses.
        HEAD: usize = 8;
        /// Reason: the last address has no caller.
        OUTERMOST: u32 = 0;
        /// Reason: as many addresses as there may be.
        FULL: u32 = 1;
        /// Reason: the stack could not be read any further.
        UNREADABLE: u32 = 2;
        /// Reason: there is no rule for the last address, or it does not lead up the stack.
        UNKNOWN: u32 = 3;
        /// Offset of rbp in a signal frame of the kernel, from the stack pointer behind its return
        /// address: `ucontext.uc_mcontext.gregs[REG_RBP]`.
        SIGNAL_RBP: u64 = 120;
        /// Offset of the stack pointer there.
        SIGNAL_RSP: u64 = 160;
        /// Offset of the program counter there.
        SIGNAL_RIP: u64 = 168;
    }
}

/// How a step compares or narrows a number: its size in bytes, flags and the comparison.
pub mod test {
    numbers! { "TEST_"
        /// The bits with the size of the number.
        BYTES: u8 = 15;
        /// Flag: the number is signed.
        SIGNED: u8 = 16;
        /// The bits with the comparison.
        MASK: u8 = 0xe0;
        /// Equal.
        EQUAL: u8 = 0;
        /// Less than.
        LESS: u8 = 32;
        /// Less than or equal.
        LESS_OR_EQUAL: u8 = 64;
        /// A common bit is set.
        BITS: u8 = 96;
    }
}

/// Change to a cell of a table, in a step with the opcode [`TALLY`](op::TALLY).
pub mod tally {
    numbers! { "TALLY_"
        /// The bits with the change.
        MASK: u8 = 0xe0;
        /// Adds one.
        ONE: u8 = 0;
        /// Adds the number.
        SUM: u8 = 32;
        /// Keeps the maximum of number ^ `value`.
        MAXIMUM: u8 = 64;
        /// Adds one to the bucket of the number: that cell, counted from the first bucket's.
        BUCKET: u8 = 96;
    }
}
