//! Reading closed packets in order.
//!
//! **Losses have times.** To judge a call, a report must know if one of its events may be
//! missing, and the events of a thread are in as many streams as it used CPUs and lanes. A
//! packet's control records how many events its stream had lost before it was opened; losses
//! after the last record appear at the end as an empty packet. So losses of straight code lie
//! between two packets. Losses in locked lanes may happen at any time, as other lanes are used
//! meanwhile; the recorder checks once a millisecond, and the trace lists the spans in which
//! there were any. A call open in any such span, of any stream, is doubtful.
//!
//! **Times in order.** Times of one thread ascend across streams, even if the counter advances
//! in steps of many ticks: a writer to a locked lane waits for the next step before and after
//! its record (`FLAG_COARSE` in `resident.c`).

use crate::layout;
use crate::layout::{Geometry, control, record, stream};
use crate::memory::{MOST, Memory};
use crate::source::Source;
use crate::taken::Taken;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The records of a packet that no writer will touch again, or the records so far of a packet
/// that is still being filled, without the records that were delivered before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet<'a> {
    /// CPU of the stream.
    pub cpu: u32,
    /// Lane of the stream.
    pub lane: u32,
    /// Number of this delivery in its stream, from 0.
    pub seq: u64,
    /// Total number of events that the stream had lost before the packet was opened; for the empty
    /// packet delivered at the end, the number lost until now.
    pub discarded: u64,
    /// The records, one after another.
    pub content: &'a [u8],
}

/// A packet found by walking a stream.
#[derive(Debug, Clone, Copy)]
struct Found {
    index: u32,
    seq: u64,
    /// True if the packet is still being filled.
    open: bool,
    /// Number of bytes of records.
    len: usize,
    /// Number of events the stream had lost when the packet was opened.
    discarded: u64,
}

/// The reader's side of a session.
#[derive(Debug)]
pub struct Reader<M = Arc<Memory>> {
    memory: M,
    geometry: Geometry,
    /// Byte offset of the first stream.
    first: usize,
    /// For each stream, the `seq` of the next packet to deliver.
    next: Vec<u64>,
    /// For each stream, the number of packets, or parts of packets, delivered.
    delivered: Vec<u64>,
    /// For each stream, the `seq` of a packet and the number of bytes of its records delivered
    /// while it was being filled.
    partly: Vec<(u64, usize)>,
    /// For each stream, the number of lost events already reported.
    told: Vec<u64>,
    /// For each stream, the packet at which damage was last counted, identified by its end.
    broken: Vec<Option<u32>>,
    buffer: Vec<u8>,
    found: Vec<Found>,
    /// Number of places where a stream was inconsistent.
    damaged: u64,
    /// Sleep before the next poll.
    nap: Duration,
    /// True if every poll scans every stream.
    thorough: bool,
}

/// Poll interval of a busy reader. In this time one CPU fills about 0.5 MB at 15 ns an event.
pub(crate) const NAP: Duration = Duration::from_micros(250);
/// Poll interval of an idle reader: minimum and maximum.
const IDLE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];
/// Number of lanes without a packet after which the scan of a CPU ends.
const UNUSED: usize = 8;
/// Upper bound of a CPU's write rate, bytes per nanosecond.
const RATE: u64 = 2;

impl Reader {
    /// Creates the first reader of session memory.
    pub fn new(memory: Arc<Memory>, geometry: Geometry) -> Reader {
        Reader::of(memory, geometry)
    }
}

impl<M: Source> Reader<M> {
    fn of(memory: M, geometry: Geometry) -> Reader<M> {
        let streams = layout::ALL_LANES * geometry.cpus as usize;
        Reader {
            memory,
            geometry,
            first: geometry.streams(),
            next: vec![0; streams],
            delivered: vec![0; streams],
            partly: vec![(0, 0); streams],
            told: vec![0; streams],
            broken: vec![None; streams],
            buffer: vec![0; geometry.packet_size as usize],
            found: Vec::new(),
            damaged: 0,
            nap: NAP,
            thorough: false,
        }
    }

    /// Creates a reader that continues where a killed reader stopped. `written(cpu, lane)` returns
    /// how many of the packets handed over for that stream have arrived, that is, the number of the
    /// last one.
    pub fn resume(memory: M, geometry: Geometry, written: impl Fn(u32, u32) -> u64) -> Reader<M> {
        let mut reader = Reader::of(memory, geometry);
        reader.thorough = true;
        for (lane, cpu) in reader.streams() {
            let (slot, at) = (geometry.stream_index(lane, cpu), reader.stream(lane, cpu));
            let memory = &reader.memory;
            let filled = geometry.filled(slot, memory.load(at + stream::HEAD));
            let latest = filled.map_or(0, |(index, _)| {
                memory.load(geometry.control(index) + control::SEQ)
            });
            let taken = Taken::of(memory.load(at + stream::TAKEN), latest);
            let (number, written) = (memory.load(at + stream::NUMBER), written(cpu, lane));
            let (delivered, bytes) = match written >= number {
                true => (written, taken.after),
                // The noted hand-over has not arrived.
                false => (number - 1, taken.before),
            };
            reader.delivered[slot] = delivered;
            reader.next[slot] = taken.seq;
            reader.partly[slot] = (taken.seq, bytes);
        }
        reader
    }

    /// Byte offset of a stream. A large machine has thousands of streams, and all are scanned.
    fn stream(&self, lane: u32, cpu: u32) -> usize {
        self.first + self.geometry.stream_index(lane, cpu) * stream::SIZE
    }

    /// Events that the stream at byte `offset` has lost so far. An impossibly high count is
    /// returned as 0: that word was overwritten.
    fn losses(&self, offset: usize) -> u64 {
        match self.memory.load(offset + stream::LOST) {
            lost if lost < MOST => lost,
            _ => 0,
        }
    }

    /// Events lost so far, because no packet was free or all lanes were taken.
    pub fn lost(&self) -> u64 {
        self.streams()
            .map(|(lane, cpu)| self.losses(self.stream(lane, cpu)))
            .sum()
    }

    /// Events that each stream has lost so far, by CPU and lane; only streams that have lost some.
    pub fn losses_by_stream(&self) -> BTreeMap<(u32, u32), u64> {
        let losses = |(lane, cpu)| ((cpu, lane), self.losses(self.stream(lane, cpu)));
        let all = self.streams().map(losses);
        all.filter(|(_, lost)| *lost > 0).collect()
    }

    /// Events lost by locked lanes.
    pub fn lost_in_lanes(&self) -> u64 {
        let lanes = self.streams().filter(|(lane, _)| *lane > 0);
        lanes
            .map(|(lane, cpu)| self.losses(self.stream(lane, cpu)))
            .sum()
    }

    /// Events lost because all lanes of a CPU were taken.
    pub fn busy(&self) -> u64 {
        let busy = |(lane, cpu)| {
            let at = self.stream(lane, cpu);
            self.memory.load(at + stream::BUSY).min(self.losses(at))
        };
        self.streams().map(busy).sum()
    }

    /// Number of places where a stream, or its count of lost events, was inconsistent: session
    /// memory was overwritten.
    pub fn damaged(&self) -> u64 {
        let streams = self.streams().map(|(lane, cpu)| self.stream(lane, cpu));
        let words = streams.flat_map(|at| [at + stream::LOST, at + stream::BUSY]);
        let wild = words.filter(|word| self.memory.load(*word) >= MOST);
        self.damaged.saturating_add(wild.count() as u64)
    }

    fn streams(&self) -> impl Iterator<Item = (u32, u32)> + use<M> {
        let cpus = self.geometry.cpus;
        (0..layout::ALL_LANES as u32).flat_map(move |lane| (0..cpus).map(move |cpu| (lane, cpu)))
    }

    /// Returns the streams that can have new records: of the locked lanes of a CPU, those with a
    /// packet before [`UNUSED`] lanes without one, because a lane is used only when those before it
    /// are in use. (A thread in one of these may be about to take its first packet.)
    fn used(&self) -> Vec<(u32, u32)> {
        if self.thorough {
            return self.streams().collect();
        }
        let has_packet = |lane, cpu| {
            let at = self.stream(lane, cpu);
            self.memory.load(at + stream::HEAD) != 0
        };
        let mut used = Vec::new();
        for cpu in 0..self.geometry.cpus {
            used.extend([(0, cpu), (layout::OUTSIDE, cpu)]);
            let mut unused = 0;
            for lane in 1..layout::LANES as u32 {
                match has_packet(lane, cpu) {
                    true => used.push((lane, cpu)),
                    false => unused += 1,
                }
                if unused == UNUSED {
                    break;
                }
            }
        }
        used
    }

    /// Counts damage of the stream `slot` at its head or in the packets reached from it; at most
    /// once for each packet.
    fn damage(&mut self, slot: usize, head: u64) {
        let packet = Some((head >> 32) as u32);
        if self.broken[slot] != packet {
            self.broken[slot] = packet;
            self.damaged = self.damaged.saturating_add(1);
        }
    }

    /// Walks one stream back from its current packet and collects in `found` the packets not
    /// delivered yet, newest first. If the chain is broken, all older packets are skipped.
    fn walk(&mut self, lane: u32, cpu: u32, open_too: bool) {
        self.found.clear();
        let g = self.geometry;
        let (slot, at) = (g.stream_index(lane, cpu), self.stream(lane, cpu));
        let head = self.memory.load(at + stream::HEAD);
        if head == 0 {
            return; // no packet yet
        }
        let Some((mut index, mut used)) = g.filled(slot, head) else {
            return self.damage(slot, head);
        };
        let mut discarded = self.losses(at);
        let mut newer: Option<u64> = None;
        // Visits each packet at most once, so a cycle made by a broken program ends.
        for _ in 0..g.packets {
            let c = g.control(index);
            let seq = self.memory.load(c + control::SEQ);
            let owner = (
                self.memory.load_u32(c + control::LANE),
                self.memory.load_u32(c + control::CPU),
            );
            let follows = match newer {
                Some(newer) => seq.checked_add(1) == Some(newer),
                None => seq >= self.next[slot],
            };
            if seq == u64::MAX || owner != (lane, cpu) {
                self.next[slot] = newer.unwrap_or(self.next[slot]);
                return self.damage(slot, head);
            }
            if !follows {
                self.next[slot] = newer.unwrap_or(seq);
                return self.damage(slot, head);
            }
            discarded = self.memory.load(c + control::LOST).min(discarded);
            if open_too || newer.is_some() {
                let len = used - layout::PACKET_HEADER;
                self.found.push(Found {
                    index,
                    seq,
                    open: newer.is_none(),
                    len,
                    discarded,
                });
            }
            if seq == self.next[slot] {
                return;
            }
            newer = Some(seq);
            let previous = self.memory.load_u32(c + control::PREV);
            let len = self.memory.load_u32(c + control::PREV_LEN) as usize;
            let sound = previous < g.packets
                && (layout::PACKET_HEADER..=g.packet_size as usize).contains(&len)
                && len.is_multiple_of(layout::UNIT);
            if !sound {
                self.next[slot] = seq;
                return self.damage(slot, head);
            }
            (index, used) = (previous, len);
        }
    }

    /// Hands every closed packet that has not been delivered yet to `sink`, in
    /// order within a stream, and gives it back to the writers. Returns the number of packets.
    ///
    /// With `all`, the packets still being filled are delivered too. This is for the end, when
    /// nothing writes any more: the program is dead, or every probe is removed and no thread is in
    /// a detour. These packets are not given back. Events that a stream lost after its last record
    /// are reported by an empty packet.
    ///
    /// # Errors
    /// The first error of `sink`; that packet stays undelivered.
    pub fn collect<E>(
        &mut self,
        all: bool,
        sink: impl FnMut(Packet<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        self.deliver(all, all, sink)
    }

    /// As [`Reader::collect`], but also delivers the records committed so far in packets that are
    /// still being filled; records committed later are delivered later. (A writer commits a record
    /// by moving the stream's head past it, so nothing before the head changes any more.)
    ///
    /// # Errors
    /// As [`Reader::collect`].
    pub fn collect_committed<E>(
        &mut self,
        sink: impl FnMut(Packet<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        self.deliver(true, false, sink)
    }

    fn deliver<E>(
        &mut self,
        open_too: bool,
        last: bool,
        mut sink: impl FnMut(Packet<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut delivered = 0;
        let streams = match last {
            true => self.streams().collect(),
            false => self.used(),
        };
        for (lane, cpu) in streams {
            self.walk(lane, cpu, open_too);
            let slot = self.geometry.stream_index(lane, cpu);
            let stream = self.stream(lane, cpu);
            for found in self.found.iter().rev() {
                let before = match self.partly[slot] {
                    (seq, before) if seq == found.seq => before.min(found.len),
                    _ => 0,
                };
                // Nothing new: the packet was already delivered in parts, or nothing is committed
                // yet.
                let is_partial = found.open && !last;
                let nothing = before == found.len && (is_partial || before > 0);
                if !nothing {
                    let content = &mut self.buffer[before..found.len];
                    let at = self.geometry.packet(found.index) + layout::PACKET_HEADER;
                    let seq = self.delivered[slot];
                    let is_there = self.memory.read(at + before, content)
                        && note(&self.memory, stream, seq, found, before);
                    if !is_there {
                        self.damaged = self.damaged.saturating_add(1);
                        return Ok(delivered);
                    }
                    let discarded = found.discarded;
                    sink(Packet {
                        cpu,
                        lane,
                        seq,
                        discarded,
                        content,
                    })?;
                    self.delivered[slot] = seq.wrapping_add(1);
                    self.told[slot] = discarded;
                    delivered += 1;
                }
                if is_partial {
                    self.partly[slot] = (found.seq, found.len.max(before));
                    continue;
                }
                self.next[slot] = found.seq.saturating_add(1);
                if !last {
                    // Noted before the packet is reused.
                    let taken = Taken {
                        seq: self.next[slot],
                        before: 0,
                        after: 0,
                    };
                    let at = stream + stream::TAKEN;
                    self.memory.store(at, taken.word());
                    self.memory.free_packet(found.index);
                }
            }
            let discarded = self.losses(stream);
            if last && discarded > self.told[slot] {
                // No record follows these losses.
                sink(Packet {
                    cpu,
                    lane,
                    seq: self.delivered[slot],
                    discarded,
                    content: &[],
                })?;
                self.delivered[slot] = self.delivered[slot].wrapping_add(1);
                self.told[slot] = discarded;
                delivered += 1;
            }
        }
        if delivered > 0 {
            self.nap = NAP;
        }
        Ok(delivered)
    }

    /// Number of bytes of records that are committed and not delivered yet, including those in
    /// packets that are still being filled.
    pub fn pending(&mut self) -> u64 {
        self.used()
            .into_iter()
            .map(|(lane, cpu)| {
                self.walk(lane, cpu, true);
                let slot = self.geometry.stream_index(lane, cpu);
                let (seq, before) = self.partly[slot];
                let left = |found: &Found| match found.seq == seq {
                    true => found.len.saturating_sub(before) as u64,
                    false => found.len as u64,
                };
                self.found.iter().map(left).sum::<u64>()
            })
            .sum()
    }

    /// Sleeps until the next poll, for at most `limit`.
    ///
    /// The program does not wake the reader: that would need a system call in the program's own
    /// threads, which a system call filter may forbid. While packets keep coming, the reader polls
    /// every 250 us; when idle it doubles the interval each time, up to `longest_nap`.
    pub fn wait(&mut self, limit: Duration) {
        std::thread::sleep(limit.min(self.nap));
        self.nap = (self.nap * 2).min(self.longest_nap());
    }

    /// Maximum sleep of an idle reader: the time in which all CPUs at full speed fill a quarter of
    /// the buffer, unless it is very small.
    fn longest_nap(&self) -> Duration {
        let g = &self.geometry;
        let bytes = u64::from(g.packets) * u64::from(g.packet_size);
        let quarter = Duration::from_nanos(bytes / 4 / (u64::from(g.cpus) * RATE));
        quarter.clamp(IDLE[0], IDLE[1])
    }
}

/// Notes, before the hand-over, that the records of a packet from byte `before` on are handed
/// over as number `seq`. The stores follow the order in [`taken`](crate::taken).
fn note(memory: &impl Source, stream: usize, seq: u64, found: &Found, before: usize) -> bool {
    let put = |after| {
        let seq = found.seq;
        let taken = Taken { seq, before, after };
        memory.store(stream + stream::TAKEN, taken.word())
    };
    put(before) && memory.store(stream + stream::NUMBER, seq.wrapping_add(1)) && put(found.len)
}

/// Size in bytes of a record with `fields` fields of eight bytes.
pub const fn record_size(fields: usize) -> usize {
    record::FIELDS + 8 * fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::NO_PACKET;
    use crate::numbers::header;
    use rustix::fs::MemfdFlags;

    const BASE: u64 = 0x7000_0000_0000;

    fn memory(g: &Geometry) -> Arc<Memory> {
        let fd = rustix::fs::memfd_create("ring-test", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&fd, g.size() as u64).expect("ftruncate");
        let memory = Memory::map(&fd, g.size()).expect("map");
        memory.format(BASE, g);
        Arc::new(memory)
    }

    /// Acts as the writer: opens packet `index` as number `seq` of a stream.
    fn open(m: &Memory, g: &Geometry, lane: u32, cpu: u32, index: u32, seq: u64, prev: u32) {
        let c = g.control(index);
        let (slot, at) = (g.stream_index(lane, cpu), g.stream(lane, cpu));
        if let Some((_, used)) = g.filled(slot, m.load(at)) {
            m.store_u32(c + control::PREV_LEN, used as u32);
        }
        m.store(c + control::SEQ, seq);
        m.store_u32(c + control::PREV, prev);
        m.store_u32(c + control::CPU, cpu);
        m.store_u32(c + control::LANE, lane);
        m.store(at, g.head(slot, index, layout::PACKET_HEADER));
    }

    /// Writes a record.
    fn put(m: &Memory, g: &Geometry, lane: u32, cpu: u32, time: u64) {
        let at = g.stream(lane, cpu);
        let pos = m.load_u32(at + stream::HEAD);
        m.store(at + pos as usize * layout::UNIT, time);
        m.store_u32(at + stream::HEAD, pos + 2);
    }

    fn geometry() -> Geometry {
        Geometry {
            cpus: 2,
            packet_size: 4096,
            packets: 8,
            journal: 4,
            counters: 0,
            directories: 0,
            frames: 0,
            areas: 0,
            kept: 0,
            windows: false,
        }
    }

    fn times(reader: &mut Reader, all: bool) -> Vec<(u32, u64, Vec<u64>)> {
        let mut out = Vec::new();
        reader
            .collect::<()>(all, |p| {
                let first = |r: &[u8]| u64::from_le_bytes(r[..8].try_into().expect("8 bytes"));
                out.push((p.cpu, p.seq, p.content.chunks(16).map(first).collect()));
                Ok(())
            })
            .expect("sink never fails");
        out
    }

    #[test]
    fn nothing_is_there_at_first_and_every_packet_is_free() {
        let g = geometry();
        let m = memory(&g);
        assert_eq!(m.load(header::FREE), 0b1111_1111);
        let mut reader = Reader::new(m, g);
        assert!(times(&mut reader, true).is_empty());
    }

    #[test]
    fn closed_packets_come_in_order_and_the_open_one_only_at_the_end() {
        let g = geometry();
        let m = memory(&g);
        open(&m, &g, 0, 1, 3, 0, NO_PACKET);
        put(&m, &g, 0, 1, 100);
        open(&m, &g, 0, 1, 0, 1, 3);
        put(&m, &g, 0, 1, 200);
        put(&m, &g, 0, 1, 201);
        open(&m, &g, 0, 1, 5, 2, 0);
        put(&m, &g, 0, 1, 300);
        let mut reader = Reader::new(m.clone(), g);
        assert_eq!(
            times(&mut reader, false),
            [(1, 0, vec![100]), (1, 1, vec![200, 201])]
        );
        assert!(times(&mut reader, false).is_empty());
        // The writer reuses what was given back.
        open(&m, &g, 0, 1, 3, 3, 5);
        assert_eq!(times(&mut reader, false), [(1, 2, vec![300])]);
        put(&m, &g, 0, 1, 400);
        assert_eq!(times(&mut reader, true), [(1, 3, vec![400])]);
        assert_eq!(reader.damaged(), 0);
    }

    fn committed(reader: &mut Reader) -> Vec<(u64, Vec<u64>)> {
        let mut out = Vec::new();
        let taken = reader.collect_committed::<()>(|p| {
            let first = |r: &[u8]| u64::from_le_bytes(r[..8].try_into().expect("8 bytes"));
            out.push((p.seq, p.content.chunks(16).map(first).collect()));
            Ok(())
        });
        assert_eq!(taken, Ok(out.len()));
        out
    }

    #[test]
    fn what_is_committed_is_delivered_once() {
        let g = geometry();
        let m = memory(&g);
        let mut reader = Reader::new(m.clone(), g);
        open(&m, &g, 0, 1, 3, 0, NO_PACKET);
        assert!(committed(&mut reader).is_empty());
        put(&m, &g, 0, 1, 100);
        assert_eq!(reader.pending(), 16);
        assert_eq!(committed(&mut reader), [(0, vec![100])]);
        assert_eq!(reader.pending(), 0);
        assert!(committed(&mut reader).is_empty());
        assert!(times(&mut reader, false).is_empty());
        put(&m, &g, 0, 1, 101);
        put(&m, &g, 0, 1, 102);
        assert_eq!(committed(&mut reader), [(1, vec![101, 102])]);
        put(&m, &g, 0, 1, 103);
        assert_eq!(reader.pending(), 16);
        // Once it is closed, the rest of it; a packet without a rest delivers nothing, but is
        // freed.
        open(&m, &g, 0, 1, 0, 1, 3);
        put(&m, &g, 0, 1, 200);
        assert_eq!(committed(&mut reader), [(2, vec![103]), (3, vec![200])]);
        open(&m, &g, 0, 1, 5, 2, 0);
        assert!(times(&mut reader, false).is_empty());
        put(&m, &g, 0, 1, 300);
        assert_eq!(committed(&mut reader), [(4, vec![300])]);
        put(&m, &g, 0, 1, 301);
        assert_eq!(times(&mut reader, true), [(1, 5, vec![301])]);
        assert_eq!((reader.damaged(), reader.lost()), (0, 0));
    }

    #[test]
    fn an_error_of_the_sink_loses_nothing() {
        let g = geometry();
        let m = memory(&g);
        open(&m, &g, 0, 0, 0, 0, NO_PACKET);
        put(&m, &g, 0, 0, 7);
        open(&m, &g, 0, 0, 1, 1, 0);
        let mut reader = Reader::new(m, g);
        assert_eq!(reader.collect(false, |_| Err("full")), Err("full"));
        assert_eq!(times(&mut reader, false), [(0, 0, vec![7])]);
    }

    #[test]
    fn losses_are_told_with_the_packet_behind_them() {
        let g = geometry();
        let m = memory(&g);
        open(&m, &g, 2, 1, 0, 0, NO_PACKET);
        put(&m, &g, 2, 1, 1);
        m.store(g.stream(2, 1) + stream::LOST, 9);
        open(&m, &g, 2, 1, 1, 1, 0);
        m.store(g.control(1) + control::LOST, 9);
        m.store(g.stream(2, 1) + stream::LOST, 12);
        let mut reader = Reader::new(m, g);
        let mut seen = Vec::new();
        reader
            .collect::<()>(true, |p| {
                seen.push((p.lane, p.seq, p.discarded));
                Ok(())
            })
            .expect("sink never fails");
        assert_eq!(seen, [(2, 0, 0), (2, 1, 9), (2, 2, 12)]);
        assert_eq!(reader.lost(), 12);
    }

    /// Kills a reader at each of its own stores, and between the file and its notes: its successor
    /// delivers each record exactly once.
    /// Memory that a broken program has written to.
    #[test]
    fn an_older_packet_has_no_more_losses_than_a_later_one() {
        let g = geometry();
        let m = memory(&g);
        open(&m, &g, 2, 1, 0, 0, NO_PACKET);
        m.store(g.control(0) + control::LOST, 50);
        put(&m, &g, 2, 1, 1);
        open(&m, &g, 2, 1, 1, 1, 0);
        m.store(g.control(1) + control::LOST, 9);
        put(&m, &g, 2, 1, 2);
        m.store(g.stream(2, 1) + stream::LOST, 9);
        let mut reader = Reader::new(m, g);
        let mut seen = Vec::new();
        reader
            .collect::<()>(true, |p| {
                seen.push((p.seq, p.discarded));
                Ok(())
            })
            .expect("sink never fails");
        assert_eq!(seen, [(0, 9), (1, 9)]);
    }

    #[test]
    fn a_reader_that_goes_on_takes_each_record_once() {
        use std::cell::{Cell, RefCell};
        use std::rc::Rc;

        /// Session memory of a reader that is killed after a given number of stores.
        #[derive(Clone)]
        struct Mortal {
            memory: Arc<Memory>,
            life: Rc<Cell<usize>>,
        }

        impl Source for Mortal {
            fn load(&self, offset: usize) -> u64 {
                self.memory.load(offset)
            }
            fn load_u32(&self, offset: usize) -> u32 {
                self.memory.load_u32(offset)
            }
            fn read(&self, offset: usize, into: &mut [u8]) -> bool {
                self.memory.read(offset, into);
                self.life.get() > 0
            }
            fn store(&self, offset: usize, value: u64) -> bool {
                if self.life.get() > 0 {
                    self.life.set(self.life.get() - 1);
                    self.memory.store(offset, value);
                }
                self.life.get() > 0
            }
            fn free_packet(&self, index: u32) {
                if self.life.get() > 0 {
                    self.life.set(self.life.get() - 1);
                    self.memory.free_packet(index);
                }
            }
        }

        for life in 1..60 {
            let g = geometry();
            let m = memory(&g);
            let file = RefCell::new(Vec::new());
            let last = Cell::new(0);
            let (mut time, mut index, mut seq) = (0, NO_PACKET, 0);
            let mut fill = |packets: usize| {
                // One more record into the packet that is being filled.
                if seq > 0 {
                    put(&m, &g, 0, 1, time);
                    time += 1;
                }
                for _ in 0..packets {
                    let Some(next) = m.take_packet(g.packets) else {
                        return;
                    };
                    open(&m, &g, 0, 1, next, seq, index);
                    (index, seq) = (next, seq + 1);
                    for _ in 0..2 {
                        put(&m, &g, 0, 1, time);
                        time += 1;
                    }
                }
            };
            let take = |life: usize, committed: bool| {
                let mortal = Mortal {
                    memory: m.clone(),
                    life: Rc::new(Cell::new(life)),
                };
                let mut reader = Reader::resume(mortal.clone(), g, |_, _| last.get());
                let sink = |p: Packet<'_>| {
                    // The reader can also be killed at the write to the file.
                    if mortal.life.get() == 0 {
                        return Err(());
                    }
                    mortal.life.set(mortal.life.get() - 1);
                    let first = |r: &[u8]| u64::from_le_bytes(r[..8].try_into().expect("8 bytes"));
                    file.borrow_mut().extend(p.content.chunks(16).map(first));
                    assert_eq!(p.seq, last.get());
                    last.set(p.seq + 1);
                    Ok(())
                };
                let _ = match committed {
                    true => reader.collect_committed(sink),
                    false => reader.collect(false, sink),
                };
                let lives = mortal.life.get() > 0;
                assert!(!lives || reader.damaged() == 0, "killed after {life}");
                lives
            };
            fill(3);
            take(life, true);
            fill(2);
            take(life / 2, false);
            fill(1);
            for more in 0..8 {
                take(life, more % 3 > 0);
                fill(more % 2);
                if more % 4 > 1 {
                    assert!(take(1000, true));
                    fill(0);
                }
            }
            assert!(take(1000, true));
            let expected: Vec<u64> = (0..time).collect();
            assert_eq!(file.into_inner(), expected, "killed after {life}");
        }
    }

    /// A hostile program may write anything anywhere: every byte of the tables is
    /// overwritten with noise, many times over.
    #[test]
    fn noise_in_session_memory_neither_crashes_nor_hangs_the_reader() {
        let g = geometry();
        let mut random = crate::noise();
        for round in 0..2000 {
            let m = memory(&g);
            for (i, index) in [3u32, 4, 5, 6].into_iter().enumerate() {
                open(
                    &m,
                    &g,
                    0,
                    1,
                    index,
                    i as u64,
                    if i == 0 { NO_PACKET } else { index - 1 },
                );
                put(&m, &g, 0, 1, 1);
            }
            for _ in 0..1 + round % 40 {
                let tables = g.packets_offset() / 8;
                let at = random() as usize % tables * 8;
                let interesting = [
                    random(),
                    g.head(
                        random() as usize % 20,
                        (random() % 9) as u32,
                        random() as usize % 4097,
                    ),
                    u64::MAX,
                    random() % 16,
                ];
                m.store(at, interesting[random() as usize % interesting.len()]);
            }
            let mut after = Reader::resume(m.clone(), g, |_, _| round as u64 % 9);
            let mut handed_over = 0;
            let taken = after.collect_committed::<()>(|_| {
                handed_over += 1;
                Ok(())
            });
            assert_eq!(taken, Ok(handed_over));
            assert!(handed_over <= g.packets as usize);
            let mut reader = Reader::new(m, g);
            let _ = times(&mut reader, false);
            let _ = times(&mut reader, true);
            let _ = reader.lost();
        }
    }
}
