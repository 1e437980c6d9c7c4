//! Records that do not come from the program: texts of `capriole mark`.
//!
//! A writer is another process, which has mapped session memory as well. It takes a locked lane
//! of its CPU, as a thread without restartable sequences does, and writes a record there. So
//! nobody has to poll for it, the record stands among the others in the order of time, and it is
//! there whatever becomes of the writer.
//!
//! Session memory belongs to the program: like the [reader](crate::reader), the writer checks
//! every number that it finds there before it uses it.

use crate::layout::{self, Geometry, LANES, NO_PACKET, PACKET_HEADER, control, header, stream};
use crate::memory::Memory;
use crate::reader::record_size;
use std::time::{Duration, Instant};

/// Why a record was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteError {
    /// The session takes no records from outside, or not any more.
    Closed,
    /// All packets are full.
    Full,
    /// All lanes were taken, for longer than anybody needs one.
    Busy,
    /// The record does not fit into a packet.
    TooLong,
    /// Something in session memory makes no sense.
    Damaged,
}

/// How long it is tried to get a lane. They are held for less than a microsecond, but for a
/// thread that is interrupted meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);

/// Another process's way to write to a session.
#[derive(Debug)]
pub struct Writer {
    memory: Memory,
    /// What is where; only up to the journal.
    geometry: Geometry,
    /// Address of session memory in the program.
    base: u64,
    /// Byte offset of the first packet.
    packets: u64,
}

impl Writer {
    /// The writer of a session whose memory is mapped here.
    ///
    /// # Errors
    /// [`WriteError::Damaged`] if its header makes no sense.
    pub fn new(memory: Memory) -> Result<Writer, WriteError> {
        let half = |at| memory.load_u32(at);
        let sound = memory.len() >= layout::HEADER_SIZE
            && memory.load(header::MAGIC) == layout::MAGIC
            && half(header::VERSION) == layout::VERSION
            && half(header::LANES) == LANES as u32;
        if !sound {
            return Err(WriteError::Damaged);
        }
        let geometry = Geometry {
            cpus: half(header::CPUS),
            packet_size: half(header::PACKET_SIZE),
            packets: half(header::PACKETS),
            journal: 0,
            counters: 0,
            directories: 0,
            frames: 0,
            areas: 0,
            kept: 0,
        };
        let packets = memory.load(header::PACKETS_OFFSET);
        let len = memory.len() as u64;
        let bytes = u64::from(geometry.packets) * u64::from(geometry.packet_size);
        // Each CPU takes more than a byte, so a number of them that fits is small enough to
        // calculate with.
        let sizes = layout::MIN_PACKET_SIZE..=layout::MAX_PACKET_SIZE;
        let fits = sizes.contains(&(geometry.packet_size as usize))
            && geometry.packet_size.is_power_of_two()
            && (1..=layout::MAX_PACKETS as u32).contains(&geometry.packets)
            && (1..len).contains(&u64::from(geometry.cpus))
            && geometry.journal_offset() as u64 <= packets
            && packets.is_multiple_of(layout::MIN_PACKET_SIZE as u64)
            && packets.checked_add(bytes).is_some_and(|end| end <= len);
        if !fits {
            return Err(WriteError::Damaged);
        }
        Ok(Writer {
            base: memory.load(header::BASE),
            memory,
            geometry,
            packets,
        })
    }

    /// The event as which texts are recorded, if the session takes any.
    pub fn event(&self) -> Option<u32> {
        self.memory.load_u32(header::MESSAGES).checked_sub(1)
    }

    /// Writes a record of the event for texts: `text` as its only field, a string. The writer
    /// runs on `cpu`, and is thread `tid` for the program, or 0. `now` reads the time stamp
    /// counter.
    ///
    /// When this has returned without an error, the record is in the trace, unless the recorder
    /// is killed.
    ///
    /// # Errors
    /// Nothing was written. What was [`Full`](WriteError::Full) is counted as lost.
    pub fn write_text(
        &self,
        cpu: u32,
        tid: u32,
        text: &[u8],
        now: impl Fn() -> u64,
    ) -> Result<(), WriteError> {
        // A number of bytes in front, zeros behind up to a multiple of eight.
        let mut field = (text.len() as u32).to_le_bytes().to_vec();
        field.extend_from_slice(text);
        field.resize(field.len().next_multiple_of(8), 0);
        let size = record_size(field.len() / 8);
        if size > self.geometry.packet_size as usize - PACKET_HEADER {
            return Err(WriteError::TooLong);
        }
        // Whoever has a number that this session has no stream for goes to the first.
        let cpu = if cpu < self.geometry.cpus { cpu } else { 0 };
        let began = Instant::now();
        let (lane, lock) = loop {
            let free = (1..LANES as u32).find_map(|lane| {
                let lock = self.geometry.stream(lane, cpu) + stream::LOCK;
                let free = self.memory.load_u32(lock) == 0 && self.memory.swap_u32(lock, 1) == 0;
                free.then_some((lane, lock))
            });
            match free {
                Some(free) => break free,
                None if began.elapsed() > PATIENCE => return Err(WriteError::Busy),
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        };
        let written = self.write(cpu, lane, tid, &field, size, now);
        self.memory.store_u32(lock, 0);
        if written == Err(WriteError::Full) {
            self.memory
                .add(self.geometry.stream(lane, cpu) + stream::LOST, 1);
        }
        written
    }

    /// In a lane that is held.
    fn write(
        &self,
        cpu: u32,
        lane: u32,
        tid: u32,
        field: &[u8],
        size: usize,
        now: impl Fn() -> u64,
    ) -> Result<(), WriteError> {
        // Only now: whoever closes the session waits for those who have a lane by then.
        let event = self.event().ok_or(WriteError::Closed)?;
        let current = self.current(lane, cpu)?;
        let index = match current {
            Some((index, room)) if size <= room => index,
            _ => self.open(lane, cpu, current.map(|(index, _)| index), &now)?,
        };
        let pos = self.geometry.control(index) + control::POS;
        let at = self.memory.load(pos);
        let offset = at.wrapping_sub(self.base) as usize;
        let mut record = now().to_le_bytes().to_vec();
        record.extend_from_slice(&event.to_le_bytes());
        record.extend_from_slice(&tid.to_le_bytes());
        record.extend_from_slice(field);
        // `current` and `open` have seen that it fits, but the program may write as well.
        if self.room(index, at).is_none_or(|room| room < size) {
            return Err(WriteError::Damaged);
        }
        self.memory.write(offset, &record);
        self.memory.store(pos, at + size as u64); // the commit
        Ok(())
    }

    /// The packet that a stream is filling and what room there is in it; nothing if the stream
    /// has none yet.
    fn current(&self, lane: u32, cpu: u32) -> Result<Option<(u32, usize)>, WriteError> {
        let g = &self.geometry;
        let head = self.memory.load(g.head(lane, cpu)).wrapping_sub(self.base);
        if head == g.control(g.packets) as u64 {
            return Ok(None);
        }
        let index = g.index_of(head).ok_or(WriteError::Damaged)?;
        let at = self.memory.load(g.control(index) + control::POS);
        let room = self.room(index, at).ok_or(WriteError::Damaged)?;
        Ok(Some((index, room)))
    }

    /// Bytes from the address `at` to the end of a packet, if the address is one in it.
    fn room(&self, index: u32, at: u64) -> Option<usize> {
        let size = u64::from(self.geometry.packet_size);
        let start = self.packets + u64::from(index) * size;
        let offset = at.checked_sub(self.base)?.checked_sub(start)?;
        (offset >= PACKET_HEADER as u64 && offset <= size && offset % 8 == 0)
            .then_some((size - offset) as usize)
    }

    /// Takes a packet and makes it the successor of what the stream was filling.
    fn open(
        &self,
        lane: u32,
        cpu: u32,
        before: Option<u32>,
        now: impl Fn() -> u64,
    ) -> Result<u32, WriteError> {
        let (g, memory) = (&self.geometry, &self.memory);
        let Some(index) = memory.take_packet(g.packets) else {
            memory.wake_reader();
            return Err(WriteError::Full);
        };
        let seq = before.map_or(u64::MAX, |old| memory.load(g.control(old) + control::SEQ));
        let size = u64::from(g.packet_size);
        let packet = self.base + self.packets + u64::from(index) * size;
        let new = g.control(index);
        for (at, value) in [
            (control::POS, packet + PACKET_HEADER as u64),
            (control::END, packet + size),
            (control::SEQ, seq.wrapping_add(1)),
            (control::BEGIN, now()),
            (
                control::LOST,
                memory.load(g.stream(lane, cpu) + stream::LOST),
            ),
        ] {
            memory.store(new + at, value);
        }
        for (at, value) in [
            (control::PREV, before.unwrap_or(NO_PACKET)),
            (control::CPU, cpu),
            (control::LANE, lane),
            (control::INDEX, index),
        ] {
            memory.store_u32(new + at, value);
        }
        memory.store(g.head(lane, cpu), self.base + new as u64);
        memory.wake_reader();
        Ok(index)
    }
}

/// Lets others write texts into a session, as records of `event`.
pub fn open(memory: &Memory, event: u32) {
    memory.store_u32(header::MESSAGES, event + 1);
}

/// Ends that a session takes texts from outside, and waits, for `limit` at most, for those who
/// are writing one. What is accepted afterwards is nothing, so that whoever collects what is in
/// the packets then has all.
pub fn close(memory: &Memory, geometry: &Geometry, limit: Duration) {
    // A writer takes its lane by an exchange, then looks at this word; we exchange this word,
    // then look at the lanes. So it sees that there is nothing more to write, or we see it.
    if memory.swap_u32(header::MESSAGES, 0) == 0 {
        return;
    }
    let began = Instant::now();
    for lane in 1..LANES as u32 {
        for cpu in 0..geometry.cpus {
            let lock = geometry.stream(lane, cpu) + stream::LOCK;
            while memory.load_u32(lock) != 0 && began.elapsed() < limit {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::record;
    use crate::memory::Identity;
    use crate::reader::Reader;
    use rustix::fd::OwnedFd;
    use rustix::fs::MemfdFlags;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    const BASE: u64 = 0x7000_0000_0000;
    const EVENT: u32 = 41;

    fn geometry() -> Geometry {
        Geometry {
            cpus: 2,
            packet_size: 4096,
            packets: 8,
            journal: 4,
            counters: 3,
            directories: 64,
            frames: 0,
            areas: 0,
            kept: 0,
        }
    }

    /// Session memory that takes texts, and its file.
    fn session(g: &Geometry) -> (OwnedFd, Arc<Memory>) {
        let fd = rustix::fs::memfd_create("writer-test", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&fd, g.shared_size() as u64).expect("ftruncate");
        let memory = Memory::map(&fd, g.shared_size()).expect("map");
        let who = Identity {
            target: (1, 2),
            owner: (3, 4),
        };
        memory.format(BASE, g, &who);
        memory.store_u32(header::MESSAGES, EVENT + 1);
        (fd, Arc::new(memory))
    }

    fn writer(fd: &OwnedFd, g: &Geometry) -> Writer {
        Writer::new(Memory::map(fd, g.shared_size()).expect("map")).expect("a sound header")
    }

    /// Time, event, thread and text of what has been written, by stream.
    fn collected(reader: &mut Reader, all: bool) -> BTreeMap<(u32, u32), Vec<(u64, String)>> {
        let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let result: Result<usize, ()> = reader.collect(all, |packet| {
            let mut rest = packet.content;
            while let Some((head, fields)) = rest.split_at_checked(record::FIELDS) {
                let half = |at: usize| {
                    u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"))
                };
                assert_eq!((half(record::ID), half(record::TID)), (EVENT, 7));
                let time = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
                let len = u32::from_le_bytes(fields[..4].try_into().expect("four bytes")) as usize;
                let text = std::str::from_utf8(&fields[4..4 + len]).expect("text");
                let end = (4 + len).next_multiple_of(8);
                assert!(fields[4 + len..end].iter().all(|byte| *byte == 0));
                found
                    .entry((packet.cpu, packet.lane))
                    .or_default()
                    .push((time, text.to_owned()));
                rest = &fields[end..];
            }
            assert!(rest.is_empty());
            Ok(())
        });
        result.expect("sink never fails");
        found
    }

    #[test]
    fn texts_stand_in_a_lane_of_their_cpu() {
        let g = geometry();
        let (fd, memory) = session(&g);
        let writer = writer(&fd, &g);
        assert_eq!(writer.event(), Some(EVENT));
        for (time, cpu, text) in [
            (1, 0, ""),
            (2, 1, "seven b"),
            (3, 1, "four"),
            (4, 9, "none"),
        ] {
            assert_eq!(writer.write_text(cpu, 7, text.as_bytes(), || time), Ok(()));
        }
        let mut reader = Reader::new(memory, g, BASE);
        let text = |time, text: &str| (time, text.to_owned());
        let expected = BTreeMap::from([
            ((0, 1), vec![text(1, ""), text(4, "none")]),
            ((1, 1), vec![text(2, "seven b"), text(3, "four")]),
        ]);
        assert_eq!(collected(&mut reader, true), expected);
        assert_eq!((reader.lost(), reader.damaged()), (0, 0));
    }

    #[test]
    fn packets_follow_one_another_until_there_is_none() {
        let g = geometry();
        let (fd, memory) = session(&g);
        let writer = writer(&fd, &g);
        let text = "x".repeat(1000);
        let mut written = 0;
        let mut reader = Reader::new(memory, g, BASE);
        let mut seen = 0;
        let some = |reader: &mut Reader, all| {
            let found = collected(reader, all);
            found.values().map(Vec::len).sum::<usize>()
        };
        // Twice as many as there is room for, read now and then.
        for round in 0..8 {
            for _ in 0..6 {
                assert_eq!(writer.write_text(0, 7, text.as_bytes(), || 1), Ok(()));
                written += 1;
            }
            if round % 2 == 1 {
                seen += some(&mut reader, false);
            }
        }
        assert_eq!(seen, written - 3, "three stand in the packet being filled");
        while writer.write_text(0, 7, text.as_bytes(), || 1) == Ok(()) {
            written += 1;
        }
        assert_eq!(
            writer.write_text(0, 7, text.as_bytes(), || 1),
            Err(WriteError::Full)
        );
        assert_eq!(reader.lost(), 2);
        seen += some(&mut reader, false);
        assert_eq!(writer.write_text(0, 7, b"again", || 1), Ok(()));
        seen += some(&mut reader, true);
        assert_eq!((seen, reader.damaged()), (written + 1, 0));
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let g = geometry();
        let (fd, memory) = session(&g);
        let writer = writer(&fd, &g);
        let long = vec![b'x'; 4096 - PACKET_HEADER - 16 - 4 + 1];
        assert_eq!(
            writer.write_text(0, 7, &long, || 1),
            Err(WriteError::TooLong)
        );
        assert_eq!(writer.write_text(0, 7, &long[1..], || 1), Ok(()));
        for lane in 1..LANES as u32 {
            memory.store_u32(g.stream(lane, 0) + stream::LOCK, 1);
        }
        assert_eq!(writer.write_text(0, 7, b"", || 1), Err(WriteError::Busy));
        close(&memory, &g, Duration::from_millis(1));
        assert_eq!(writer.event(), None);
        assert_eq!(writer.write_text(1, 7, b"", || 1), Err(WriteError::Closed));
    }

    /// Several writers, and one that ends it all at some moment: what was accepted is there.
    #[test]
    fn what_was_accepted_is_in_the_packets() {
        for round in 0..40u64 {
            let g = Geometry {
                packets: 64,
                ..geometry()
            };
            let (fd, memory) = session(&g);
            let clock = AtomicU64::new(0);
            let mut reader = Reader::new(memory.clone(), g, BASE);
            let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
            let accepted = std::thread::scope(|scope| {
                let write = |name: u64| {
                    let (writer, clock) = (writer(&fd, &g), &clock);
                    move || {
                        let mut number = 0;
                        let now = || clock.fetch_add(1, Ordering::SeqCst);
                        loop {
                            let text = format!("{name}:{number}");
                            match writer.write_text(name as u32 % 2, 7, text.as_bytes(), now) {
                                Ok(()) => number += 1,
                                Err(WriteError::Full) => std::thread::yield_now(),
                                Err(error) => {
                                    assert_eq!(error, WriteError::Closed);
                                    return number;
                                }
                            }
                        }
                    }
                };
                let threads: Vec<_> = (0..6).map(|name| scope.spawn(write(name))).collect();
                let began = Instant::now();
                while began.elapsed() < Duration::from_micros(300 * round) {
                    for (stream, texts) in collected(&mut reader, false) {
                        found.entry(stream).or_default().extend(texts);
                    }
                }
                close(&memory, &g, Duration::from_secs(10));
                for (stream, texts) in collected(&mut reader, true) {
                    found.entry(stream).or_default().extend(texts);
                }
                let ended = |(name, thread): (usize, std::thread::ScopedJoinHandle<'_, u64>)| {
                    (name as u64, thread.join().expect("a writer"))
                };
                let accepted: BTreeMap<u64, u64> =
                    threads.into_iter().enumerate().map(ended).collect();
                accepted
            });
            assert_eq!(reader.damaged(), 0);
            let mut times = BTreeMap::new();
            for texts in found.values() {
                assert!(texts.is_sorted_by_key(|(time, _)| *time));
                times.extend(texts.iter().cloned());
            }
            // In the order of time, each writer has counted.
            let mut next: BTreeMap<u64, u64> = accepted.keys().map(|name| (*name, 0)).collect();
            for text in times.into_values() {
                let (name, number) = text.split_once(':').expect("a colon");
                let expected = next.get_mut(&name.parse().expect("a name")).expect("known");
                assert_eq!(number.parse(), Ok(*expected), "{text}");
                *expected += 1;
            }
            assert_eq!(next, accepted, "round {round}");
        }
    }

    /// The program may write anything anywhere, before and while others write.
    #[test]
    fn noise_in_session_memory_neither_crashes_nor_misleads_a_writer() {
        let g = geometry();
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let (mut refused, mut damaged) = (0, 0);
        for round in 0..2000 {
            let (fd, memory) = session(&g);
            let early = writer(&fd, &g);
            for _ in 0..1 + round % 30 {
                let tables = g.packets_offset() / 8;
                let at = random() as usize % tables * 8;
                let at = if round % 3 == 0 { at % 256 } else { at };
                let interesting = [
                    random(),
                    BASE + random() % g.size() as u64,
                    BASE + g.control((random() % 9) as u32) as u64,
                    u64::MAX,
                    random() % 16,
                ];
                memory.store(at, interesting[random() as usize % interesting.len()]);
            }
            for lane in 1..LANES as u32 {
                memory.store_u32(g.stream(lane, 0) + stream::LOCK, 0);
            }
            let late = Writer::new(Memory::map(&fd, g.shared_size()).expect("map"));
            refused += u32::from(late.is_err());
            for writer in [Some(early), late.ok()].into_iter().flatten() {
                for _ in 0..6 {
                    let written = writer.write_text(0, 7, &[b'x'; 900], || 1);
                    damaged += u32::from(written == Err(WriteError::Damaged));
                }
            }
        }
        assert!(refused > 0 && damaged > 0, "{refused} {damaged}");
    }
}
