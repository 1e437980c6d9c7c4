//! Reading closed packets in order.

use crate::layout::{self, Geometry, control, record, stream};
use crate::memory::Memory;
use std::sync::Arc;
use std::time::Duration;

/// Records of a packet: of one that no writer will touch again, or those that stand in one so far
/// and were not handed over yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet<'a> {
    /// CPU of the stream.
    pub cpu: u32,
    /// Lane of the stream.
    pub lane: u32,
    /// Number of what was handed over of its stream, from 0.
    pub seq: u64,
    /// Events the stream had lost before the packet was opened, in total; of an empty one, which
    /// comes at the end, until now.
    pub discarded: u64,
    /// The records, one after another.
    pub content: &'a [u8],
}

/// What a stream's walk found.
#[derive(Debug, Clone, Copy)]
struct Found {
    index: u32,
    seq: u64,
    /// Still being filled.
    open: bool,
    /// Bytes of records.
    len: usize,
    /// Losses of the stream when the packet was opened.
    discarded: u64,
}

/// The reader's side of a session.
#[derive(Debug)]
pub struct Reader {
    memory: Arc<Memory>,
    geometry: Geometry,
    /// For each stream, the `seq` of the next packet to deliver.
    next: Vec<u64>,
    /// For each stream, how many packets, or parts of such, were delivered.
    delivered: Vec<u64>,
    /// For each stream, a packet's `seq` and how many bytes of its records were delivered while
    /// it was being filled.
    partly: Vec<(u64, usize)>,
    /// For each stream, the losses that were told of.
    told: Vec<u64>,
    /// For each stream, the packet at which damage was last noted, by its end.
    broken: Vec<Option<u32>>,
    buffer: Vec<u8>,
    found: Vec<Found>,
    /// Places where a stream made no sense.
    damaged: u64,
    /// How long to sleep before the next look.
    nap: Duration,
}

/// Between two looks of a busy reader. In this time one CPU fills about 0.5 MB at
/// 15 ns an event.
pub const NAP: Duration = Duration::from_micros(250);
/// Between two looks of an idle reader, at least and at most.
const IDLE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];
/// How many lanes without a packet are looked at for one behind them that has one.
const UNUSED: usize = 8;
/// Bytes that a CPU writes in a nanosecond, at most.
const RATE: u64 = 2;

impl Reader {
    /// A reader of session memory.
    pub fn new(memory: Arc<Memory>, geometry: Geometry) -> Reader {
        let streams = layout::ALL_LANES * geometry.cpus as usize;
        Reader {
            memory,
            geometry,
            next: vec![0; streams],
            delivered: vec![0; streams],
            partly: vec![(0, 0); streams],
            told: vec![0; streams],
            broken: vec![None; streams],
            buffer: vec![0; geometry.packet_size as usize],
            found: Vec::new(),
            damaged: 0,
            nap: NAP,
        }
    }

    /// Events lost so far because no packet was free.
    pub fn lost(&self) -> u64 {
        self.streams()
            .map(|(lane, cpu)| self.memory.losses(self.geometry.stream(lane, cpu)))
            .sum()
    }

    /// Those of the lost events that were to be written to locked lanes.
    pub fn lost_in_lanes(&self) -> u64 {
        let lanes = self.streams().filter(|(lane, _)| *lane > 0);
        lanes
            .map(|(lane, cpu)| self.memory.losses(self.geometry.stream(lane, cpu)))
            .sum()
    }

    /// Those of the lost events for which all lanes of a CPU were taken.
    pub fn busy(&self) -> u64 {
        let busy = |(lane, cpu)| {
            let at = self.geometry.stream(lane, cpu);
            self.memory
                .load(at + stream::BUSY)
                .min(self.memory.losses(at))
        };
        self.streams().map(busy).sum()
    }

    /// Places where a stream made no sense, or what it has lost: somebody wrote over session
    /// memory.
    pub fn damaged(&self) -> u64 {
        let streams = self
            .streams()
            .map(|(lane, cpu)| self.geometry.stream(lane, cpu));
        let words = streams.flat_map(|at| [at + stream::LOST, at + stream::BUSY]);
        let wild = words.filter(|word| self.memory.is_written_over(*word));
        self.damaged.saturating_add(wild.count() as u64)
    }

    fn streams(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let cpus = self.geometry.cpus;
        (0..layout::ALL_LANES as u32).flat_map(move |lane| (0..cpus).map(move |cpu| (lane, cpu)))
    }

    /// The streams that can have something new: of the locked lanes of a CPU those up to
    /// [`UNUSED`] without a packet, as a lane is used only when those before it are. (Who is in
    /// one of these may just be going to take its first packet.)
    fn used(&self) -> Vec<(u32, u32)> {
        let has_packet = |lane, cpu| {
            let at = self.geometry.stream(lane, cpu);
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

    /// Notes that the stream `slot` is damaged at the head or behind it; once for a packet.
    fn damage(&mut self, slot: usize, head: u64) {
        let packet = Some((head >> 32) as u32);
        if self.broken[slot] != packet {
            self.broken[slot] = packet;
            self.damaged = self.damaged.saturating_add(1);
        }
    }

    /// Walks one stream back from its current packet and collects in `found`
    /// what was not delivered yet, newest first. If the way back is broken, what is before is
    /// given up.
    fn walk(&mut self, lane: u32, cpu: u32, open_too: bool) {
        self.found.clear();
        let g = self.geometry;
        let (slot, at) = (g.stream_index(lane, cpu), g.stream(lane, cpu));
        let head = self.memory.load(at + stream::HEAD);
        if head == 0 {
            return; // no packet yet
        }
        let Some((mut index, mut used)) = g.filled(slot, head) else {
            return self.damage(slot, head);
        };
        let mut discarded = self.memory.losses(at);
        let mut newer: Option<u64> = None;
        // At most every packet once: a cycle made by a broken program ends.
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
    /// order within a stream, and gives it back to the writers. Returns how many
    /// there were.
    ///
    /// With `all`, the packets still being filled are delivered too; this is for
    /// the end, when nobody writes any more: the program is dead, or every probe
    /// is out and no thread is in a detour. They are then not given back. What a stream has lost
    /// behind all of its records is told by an empty packet.
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

    /// The same of closed packets, and of those that are still being filled the records that
    /// are committed by now: what is committed later is delivered later. (A writer commits a
    /// record by moving the stream's head behind it, so nothing before that changes any more.)
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
            for found in self.found.iter().rev() {
                let before = match self.partly[slot] {
                    (seq, before) if seq == found.seq => before.min(found.len),
                    _ => 0,
                };
                // Nothing new: it was delivered in parts, or nothing was committed yet.
                let is_partial = found.open && !last;
                let nothing = before == found.len && (is_partial || before > 0);
                if !nothing {
                    let content = &mut self.buffer[before..found.len];
                    let at = self.geometry.packet(found.index) + layout::PACKET_HEADER;
                    self.memory.read(at + before, content);
                    let discarded = found.discarded;
                    let seq = self.delivered[slot];
                    sink(Packet {
                        cpu,
                        lane,
                        seq,
                        discarded,
                        content,
                    })?;
                    self.delivered[slot] += 1;
                    self.told[slot] = discarded;
                    delivered += 1;
                }
                if is_partial {
                    self.partly[slot] = (found.seq, found.len.max(before));
                    continue;
                }
                self.next[slot] = found.seq.saturating_add(1);
                if !last {
                    self.memory.free_packet(found.index);
                }
            }
            let discarded = self.memory.losses(self.geometry.stream(lane, cpu));
            if last && discarded > self.told[slot] {
                // No record came behind these.
                sink(Packet {
                    cpu,
                    lane,
                    seq: self.delivered[slot],
                    discarded,
                    content: &[],
                })?;
                self.delivered[slot] += 1;
                self.told[slot] = discarded;
                delivered += 1;
            }
        }
        if delivered > 0 {
            self.nap = NAP;
        }
        Ok(delivered)
    }

    /// Bytes of records that were committed and not delivered yet, also those in
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

    /// Whether a closed packet waits to be collected.
    pub fn has_closed_packets(&mut self) -> bool {
        self.used().into_iter().any(|(lane, cpu)| {
            self.walk(lane, cpu, false);
            !self.found.is_empty()
        })
    }

    /// Sleeps until it is time to look again, for `limit` at most.
    ///
    /// Nobody wakes the reader: that would be a system call in the program's own threads, which
    /// a filter of system calls may forbid. While packets keep coming it looks every [`NAP`];
    /// then after twice as long each time, up to `longest_nap`.
    pub fn wait(&mut self, limit: Duration) {
        std::thread::sleep(limit.min(self.nap));
        self.nap = (self.nap * 2).min(self.longest_nap());
    }

    /// How long an idle reader may sleep: all CPUs at full speed fill a quarter of the buffer
    /// meanwhile, unless it is very small.
    fn longest_nap(&self) -> Duration {
        let g = &self.geometry;
        let bytes = u64::from(g.packets) * u64::from(g.packet_size);
        let quarter = Duration::from_nanos(bytes / 4 / (u64::from(g.cpus) * RATE));
        quarter.clamp(IDLE[0], IDLE[1])
    }
}

/// Bytes of a record with `fields` fields of eight bytes.
pub const fn record_size(fields: usize) -> usize {
    record::FIELDS + 8 * fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::NO_PACKET;
    use rustix::fs::MemfdFlags;

    const BASE: u64 = 0x7000_0000_0000;

    fn memory(g: &Geometry) -> Arc<Memory> {
        let fd = rustix::fs::memfd_create("ring-test", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&fd, g.size() as u64).expect("ftruncate");
        let memory = Memory::map(&fd, g.size()).expect("map");
        memory.format(BASE, g);
        Arc::new(memory)
    }

    /// Plays the writer: opens packet `index` as number `seq` of a stream.
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
        assert_eq!(m.free_packets(), 8);
        let mut reader = Reader::new(m, g);
        assert!(times(&mut reader, true).is_empty());
        assert!(!reader.has_closed_packets());
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
        assert!(reader.has_closed_packets());
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
        // Its rest when it is closed; nothing of one that has no rest, which is free all the same.
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
            let mut reader = Reader::new(m, g);
            let _ = times(&mut reader, false);
            let _ = times(&mut reader, true);
            let _ = reader.lost();
        }
    }
}
