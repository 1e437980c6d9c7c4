//! Layout of session memory.
//!
//! Session memory is one memfd, created in the target and mapped shared by the target (and its
//! forked children) and by the tracer. Any of these processes can write anything there, so it
//! does not record which code of the program was patched or how to restore it: that is in each
//! process's own ledger (module `ledger` of the crate `patch`).
//!
//! ```text
//! 0          HEADER     one page: geometry, free packets
//! controls   64 bytes for each packet, plus one more: the null control
//! directories  which row of a table belongs to which key, see [`tables`](crate::tables)
//! counters   8 bytes for each counter, for each CPU, plus one shared copy
//! streams    64 bytes for each (lane, cpu): head, lost events, lock; preceded by eight null
//!            streams, of which only an empty head is used
//! packets    the packets, each `packet_size` bytes, aligned to that size
//! slack      as many bytes as the streams have
//! frames     a slot for each call that can be open at once: entry time and kept words;
//!            private to each process, a forked child has a copy
//! windows    memory for copies of the stack, for each (lane, cpu); private as well
//! ```
//!
//! Numbers are little endian. Offsets and sizes that the code in the target uses as well are in
//! [`numbers`](crate::numbers).
//!
//! # Session memory is not trusted
//!
//! A forked child shares this memory, even after it has dropped its privileges. So code in the
//! target takes no address from it: a write position is an index from an address that is a
//! constant in the code; it is read once, into a register, and compared with a bound that is a
//! constant as well ([`Geometry::limit`]) before it is used. Whatever session memory contains,
//! it cannot cause a read or write outside session memory; but records may be lost or garbled,
//! and the reader, which checks every number too, reports it.
//!
//! # One stream, one writer at a time
//!
//! A *stream* is a sequence of packets in time order. Lane 0 of a CPU is written under a
//! restartable sequence: a thread interrupted before the commit starts again, so the CPU itself
//! is the lock. Lanes 1.. are written under a try-lock by threads that have no restartable
//! sequences; the last one is for other processes ([`writer`](crate::writer)), which lock the
//! file.
//!
//! A stream's *head* is one word: the position of the next record, and the end of the packet
//! being filled, both in units of 8 bytes from the head itself. One store to its lower half
//! publishes a record; one store to the whole word closes a packet and opens the next. A closed
//! packet is never written again, and a new control names its predecessor and where that ended
//! (`prev`, `prev_len`, `seq`), so that the reader finds all closed packets in order by walking
//! back from the head: no writer has to mark a packet as closed, so none can be interrupted
//! before it does.
//!
//! ```text
//! head       u32 pos, u32 end                end = 0: no packet yet
//! address of the next record = address of the head + 8 * pos
//! ```
//!
//! A 32-bit `pos` that wraps around in an addition leads to an address somewhere below the
//! head. That is session memory too: more than [`MAX_STRAIGHT`] bytes of it.
//!
//! # Counters
//!
//! Every CPU has its own copy of all counters and updates it under a restartable sequence; a
//! thread that cannot do that adds atomically to the shared copy. A counter's value is the sum
//! of all copies. CPUs share no cache line.

use crate::numbers::chain;
pub use crate::numbers::session::{LANES, NO_PACKET, PACKET_HEADER, UNIT};
pub use crate::numbers::{control, directory, frame, header, leave, own, record, returns, stream};

/// First word of session memory: `CAPRIOLE` in ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"CAPRIOLE");
/// Version of this layout. A session of another version can be restored, from its ledger, but
/// not read.
pub const VERSION: u32 = 6;

/// Bytes of the header.
pub const HEADER_SIZE: usize = 4096;
/// Maximum number of packets of a session.
pub const MAX_PACKETS: usize = 64 * 64;
/// The lane for other processes, after the program's lanes.
pub const OUTSIDE: u32 = LANES as u32;
/// Total number of lanes of a CPU.
pub const ALL_LANES: usize = LANES + 1;
/// Number of null streams before the first stream, whose heads have no packet: a thread that
/// has not registered restartable sequences reads CPU -1 or -2.
pub const NULL_STREAMS: usize = 8;
/// Size of the largest record that straight-line code writes, bytes.
pub const MAX_STRAIGHT: usize = 4096;
/// Maximum number of counters of a session: a CPU's copy stays below 2 GiB.
pub const MAX_COUNTERS: u32 = (1 << 28) - 8;
/// Size of a counter in bytes: u64.
pub const COUNTER_SIZE: usize = 8;
/// Size of a cache line in bytes. Counters of two CPUs never share one.
const LINE: usize = 64;
/// Size of the memory for a copy of the stack, bytes: whole pages.
const WINDOW: usize = chain::WINDOW as usize;
/// Smallest packet, bytes.
pub const MIN_PACKET_SIZE: usize = 4096;
/// Bytes of a packet used as a scratch buffer for fields: more than an event can need.
pub const SCRATCH: usize = 64 << 10;
/// Largest packet, bytes.
pub const MAX_PACKET_SIZE: usize = 4 << 20;

/// State of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Memory is mapped; no byte of the program has changed yet.
    Building = 0,
    /// Bytes may have changed; the journal lists them.
    Armed = 1,
    /// All bytes are restored; the mappings still exist.
    Restored = 2,
}

impl State {
    /// Decodes the state word of a header.
    pub fn from_word(word: u32) -> Option<State> {
        match word {
            0 => Some(State::Building),
            1 => Some(State::Armed),
            2 => Some(State::Restored),
            _ => None,
        }
    }
}

/// Number and size of everything in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Number of CPUs that have streams (the possible ones, not only those online).
    pub cpus: u32,
    /// Size of a packet in bytes: a power of two in [`MIN_PACKET_SIZE`]..=[`MAX_PACKET_SIZE`].
    pub packet_size: u32,
    /// Number of packets, at most [`MAX_PACKETS`].
    pub packets: u32,
    /// Number of journal entries that the ledger has room for; they take no room here.
    pub journal: u32,
    /// Number of counters, at most [`MAX_COUNTERS`].
    pub counters: u32,
    /// Bytes of the tables' directories, a multiple of 64.
    pub directories: u64,
    /// Number of slots for open calls in an area, a power of two; 0: no calls are timed.
    pub frames: u32,
    /// Number of such areas.
    pub areas: u32,
    /// Number of words that a slot keeps, at most [`frame::MOST_WORDS`].
    pub kept: u32,
    /// True if there is memory for copies of the stack.
    pub windows: bool,
}

/// Returns the number of the slot for calls whose return address is at `stack`, modulo the number of
/// slots.
#[must_use]
pub fn frame_index(stack: u64) -> u32 {
    let upper = ((stack >> frame::TAG_SHIFT) as u32).wrapping_mul(frame::SPREAD);
    ((stack >> frame::GRAIN_SHIFT) as u32).wrapping_add(upper)
}

impl Geometry {
    /// Returns a geometry with about `bytes` of packets for `cpus` CPUs and room for
    /// `journal` sites.
    ///
    /// Packets are small enough that every CPU has at least eight of them, and at most 256 KiB,
    /// unless there would be more than [`MAX_PACKETS`]: large packets cost fewer switches, small
    /// ones waste less room when many CPUs hold one each.
    pub fn for_buffer(bytes: u64, cpus: u32, journal: u32) -> Geometry {
        let cpus = cpus.max(1);
        let per_cpu = bytes / u64::from(cpus);
        let mut packet_size = 256 * 1024u64;
        while packet_size > MIN_PACKET_SIZE as u64 && per_cpu / packet_size < 8 {
            packet_size /= 2;
        }
        while bytes / packet_size > MAX_PACKETS as u64 && packet_size < MAX_PACKET_SIZE as u64 {
            packet_size *= 2;
        }
        let packets = (bytes / packet_size).clamp(
            (u64::from(cpus) * 4).min(MAX_PACKETS as u64),
            MAX_PACKETS as u64,
        );
        Geometry {
            cpus,
            packet_size: packet_size as u32,
            packets: packets as u32,
            journal,
            counters: 0,
            directories: 0,
            frames: 0,
            areas: 0,
            kept: 0,
            windows: false,
        }
    }

    /// Returns a geometry for `journal` sites that keeps no records: it has a packet of [`SCRATCH`]
    /// bytes for every locked lane of `cpus` CPUs, at most [`MAX_PACKETS`], as a scratch buffer for
    /// fields. Unused packets take no memory.
    pub fn for_scratch(cpus: u32, journal: u32) -> Geometry {
        let lanes = u64::from(cpus.max(1)) * LANES as u64;
        Geometry {
            packet_size: SCRATCH as u32,
            packets: lanes.min(MAX_PACKETS as u64) as u32,
            ..Geometry::for_buffer(0, cpus, journal)
        }
    }

    /// Adds `areas` areas of slots for open calls, whose slots keep `words` words each; both
    /// numbers are limited to their maximum.
    #[must_use]
    pub fn with_frames(self, areas: u32, words: u32) -> Geometry {
        Geometry {
            frames: frame::SLOTS,
            areas: areas.min(frame::MOST_AREAS),
            kept: words.min(frame::MOST_WORDS),
            ..self
        }
    }

    /// Adds memory for copies of the stack, for chains of callers. It counts only where it is used.
    #[must_use]
    pub fn with_windows(self) -> Geometry {
        Geometry {
            windows: true,
            ..self
        }
    }

    /// Size in bytes of a slot for an open call: a power of two.
    pub fn frame_size(&self) -> usize {
        (frame::SIZE + self.kept as usize * frame::WORD).next_power_of_two()
    }

    /// Byte offset of the packets' controls; the null control follows them.
    pub fn controls(&self) -> usize {
        HEADER_SIZE
    }
    /// Byte offset of the control of packet `index`; `index == packets` is the
    /// null control, the predecessor of a stream's first packet.
    pub fn control(&self, index: u32) -> usize {
        self.controls() + index as usize * control::SIZE
    }
    /// Byte offset of the tables' directories, a multiple of 64.
    pub fn directories_offset(&self) -> usize {
        let end = self.control(self.packets + 1);
        end.next_multiple_of(directory::HEAD)
    }
    /// Byte offset of the counters of CPU 0.
    pub fn counters_offset(&self) -> usize {
        let end = self.directories_offset() + self.directories as usize;
        end.next_multiple_of(LINE)
    }
    /// Bytes from one CPU's counters to the next one's; a multiple of 64.
    pub fn counter_stride(&self) -> usize {
        (self.counters as usize * COUNTER_SIZE).next_multiple_of(LINE)
    }
    /// Byte offset of a counter on `cpu`; `cpu == cpus` is the shared copy.
    pub fn counter(&self, cpu: u32, counter: u32) -> usize {
        self.counters_offset()
            + cpu as usize * self.counter_stride()
            + counter as usize * COUNTER_SIZE
    }
    /// Bytes of the streams.
    pub fn streams_size(&self) -> usize {
        ALL_LANES * self.cpus as usize * stream::SIZE
    }
    /// Byte offset of the streams, right before the packets.
    pub fn streams(&self) -> usize {
        self.packets_offset() - self.streams_size()
    }
    /// Number of the stream of `lane` on `cpu`.
    pub fn stream_index(&self, lane: u32, cpu: u32) -> usize {
        lane as usize * self.cpus as usize + cpu as usize
    }
    /// Byte offset of the stream of `lane` on `cpu`.
    pub fn stream(&self, lane: u32, cpu: u32) -> usize {
        self.streams() + self.stream_index(lane, cpu) * stream::SIZE
    }
    /// Byte offset of the first packet, a multiple of the packet size.
    pub fn packets_offset(&self) -> usize {
        let end = self.counter(self.cpus + 1, 0);
        let streams = NULL_STREAMS * stream::SIZE + self.streams_size();
        (end + streams).next_multiple_of(self.packet_size as usize)
    }
    /// Byte offset of packet `index`.
    pub fn packet(&self, index: u32) -> usize {
        self.packets_offset() + index as usize * self.packet_size as usize
    }
    /// The largest position, in [units](UNIT) from a stream, that code in the target accepts from a
    /// head: the end of the last packet, counted from the first stream. Counted from another
    /// stream, this position is beyond the packets by the distance between the two streams: that is
    /// where the slack is.
    pub fn limit(&self) -> u32 {
        ((self.packet(self.packets) - self.streams()) / UNIT) as u32
    }
    /// Returns the head of the stream with number `stream` while it fills packet `index` from its
    /// byte `at` on.
    pub fn head(&self, stream: usize, index: u32, at: usize) -> u64 {
        let from = self.streams() + stream * stream::SIZE;
        let packet = self.packet(index) - from;
        let end = packet + self.packet_size as usize;
        (((end / UNIT) as u64) << 32) | ((packet + at) / UNIT) as u64
    }
    /// Decodes the head of the stream with number `stream`: the packet being filled, and how many
    /// of its bytes are in use; `None` if the head is invalid.
    pub fn filled(&self, stream: usize, head: u64) -> Option<(u32, usize)> {
        let from = self.streams() + stream * stream::SIZE;
        let [pos, end] = [head as u32, (head >> 32) as u32];
        let [pos, end] = [pos, end].map(|units| from + units as usize * UNIT);
        let size = self.packet_size as usize;
        let start = end.checked_sub(self.packets_offset() + size)?;
        let index = start / size;
        let used = pos.checked_sub(self.packets_offset() + start)?;
        let is_one = start.is_multiple_of(size) && index < self.packets as usize;
        (is_one && (PACKET_HEADER..=size).contains(&used)).then_some((index as u32, used))
    }
    /// Bytes that the processes of a session share: all but their own words and the slots for
    /// open calls. Whole pages.
    pub fn shared_size(&self) -> usize {
        self.packet(self.packets) + self.streams_size().next_multiple_of(MIN_PACKET_SIZE)
    }
    /// Byte offset of the words private to each process, the start of a page.
    pub fn own_offset(&self) -> usize {
        self.shared_size()
    }
    /// Byte offset of the slots for open calls, the start of a page.
    pub fn frames_offset(&self) -> usize {
        self.own_offset() + own::SIZE
    }
    /// Byte offset of the memory for copies of the stack: window `stream_index(lane, cpu)` is for the
    /// holder of that lane.
    pub fn windows_offset(&self) -> usize {
        let slots = self.areas as usize * self.frames as usize;
        let end = self.frames_offset() + slots * self.frame_size();
        end.next_multiple_of(MIN_PACKET_SIZE)
    }
    /// Bytes of the whole session memory in a process. Whole pages.
    pub fn size(&self) -> usize {
        let windows = match self.windows {
            true => LANES * self.cpus as usize,
            false => 0,
        };
        self.windows_offset() + windows * WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_do_not_overlap_for_any_machine() {
        for cpus in [1, 2, 7, 64, 1024] {
            for megabytes in [1u64, 16, 64, 1024, 16384] {
                let g = Geometry {
                    counters: 4001,
                    directories: 64 * 5,
                    frames: 128,
                    areas: 2,
                    kept: 2,
                    windows: true,
                    ..Geometry::for_buffer(megabytes << 20, cpus, 5000)
                };
                assert!(g.packets as usize <= MAX_PACKETS, "{g:?}");
                assert!(g.packets >= 4.min(cpus * 4), "{g:?}");
                assert!(g.packet_size.is_power_of_two());
                let order = [
                    HEADER_SIZE,
                    g.controls(),
                    g.control(g.packets) + control::SIZE,
                    g.directories_offset(),
                    g.directories_offset() + 64 * 5,
                    g.counter(0, 0),
                    g.counter(0, 4000) + COUNTER_SIZE,
                    g.counter(1, 0),
                    g.counter(cpus, 0),
                    g.counter(cpus, 4000) + COUNTER_SIZE,
                    g.streams() - NULL_STREAMS * stream::SIZE,
                    g.stream(OUTSIDE, cpus - 1) + stream::SIZE,
                    g.packets_offset(),
                    g.packet(g.packets),
                    g.shared_size(),
                    g.own_offset() + own::SIZE,
                    g.frames_offset(),
                    g.frames_offset() + 2 * 128 * 64,
                    g.windows_offset(),
                    g.windows_offset() + (g.stream_index(LANES as u32 - 1, cpus - 1) + 1) * WINDOW,
                    g.size(),
                ];
                assert!(order.is_sorted(), "{g:?} {order:?}");
                assert_eq!(g.counter(0, 0) % LINE, 0);
                assert_eq!(g.counter_stride() % LINE, 0);
                assert_eq!(g.packets_offset() % g.packet_size as usize, 0);
                assert!(g.streams() - NULL_STREAMS * stream::SIZE >= MAX_STRAIGHT);
                let limit = g.limit() as usize * UNIT;
                let last = g.stream_index(OUTSIDE, cpus - 1);
                assert!(g.stream(OUTSIDE, cpus - 1) + limit <= g.shared_size());
                for index in [0, g.packets - 1] {
                    for stream in [0, last] {
                        let head = g.head(stream, index, g.packet_size as usize);
                        assert_eq!(head as u32, (head >> 32) as u32);
                        assert!(head as u32 <= g.limit());
                    }
                }
            }
        }
    }

    #[test]
    fn a_head_says_what_is_filled_or_nothing() {
        let g = Geometry::for_buffer(1 << 20, 3, 10);
        for stream in [0, 1, g.stream_index(OUTSIDE, 2)] {
            assert_eq!(g.filled(stream, 0), None);
            for index in [0, 1, g.packets - 1] {
                for at in [PACKET_HEADER, 4000, g.packet_size as usize] {
                    assert_eq!(
                        g.filled(stream, g.head(stream, index, at)),
                        Some((index, at))
                    );
                }
                let head = g.head(stream, index, PACKET_HEADER);
                for wrong in [
                    head - 1,
                    head + (1 << 32),
                    head - (1 << 32),
                    head | 0xffff_0000,
                ] {
                    assert_eq!(g.filled(stream, wrong), None);
                }
            }
            assert_eq!(
                g.filled(stream, g.head(stream, g.packets, PACKET_HEADER)),
                None
            );
            assert_eq!(g.filled(stream, u64::MAX), None);
        }
    }

    #[test]
    fn without_counters_they_take_no_room() {
        let geometry = Geometry::for_buffer(1 << 16, 2, 1);
        assert_eq!(geometry.counter(2, 0), geometry.counter(0, 0));
    }

    #[test]
    fn header_fields_stay_inside_the_header() {
        const { assert!(header::FREE + MAX_PACKETS / 8 <= HEADER_SIZE) };
    }
}
