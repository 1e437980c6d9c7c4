//! Records from outside the program: messages of `capriole mark`.
//!
//! A writer is another process that has mapped session memory as well. It writes a record into
//! a lane that the program does not use. So the lane needs no extra polling, and the record is
//! in time order with the others. A lock on the file (flock(2)) admits one writer at a time;
//! the kernel releases the lock of a killed process. Nothing takes effect before the commit,
//! which is one store, so a writer killed midway leaves no partial record.
//!
//! Session memory belongs to the program: like the [reader](crate::reader), the writer checks
//! every number that it finds there before it uses it.
//!
//! **End of a recording.** The header names the event for messages. The recorder removes it,
//! then takes the lock; a writer takes the lock, checks the event, and checks it once more
//! after its commit. So whatever a writer reports as written is in the trace.

use crate::layout;
use crate::layout::{Geometry, NO_PACKET, OUTSIDE, PACKET_HEADER, control, header, stream};
use crate::memory::Memory;
use crate::reader::record_size;
use std::time::Duration;

/// Reason why a record was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteError {
    /// The session does not accept records from outside, or no longer does.
    Closed,
    /// All packets are full.
    Full,
    /// Another writer held the lock for longer than a write takes.
    Busy,
    /// The record was written after the recording had ended: it may or may not be in the trace.
    Late,
    /// The record does not fit into a packet.
    TooLong,
    /// Session memory is inconsistent.
    Damaged,
}

/// Time limit for taking the lock. A writer holds it for less than a microsecond, unless it is
/// stopped meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);

/// Writes to a session from another process.
#[derive(Debug)]
pub struct Writer {
    memory: Memory,
    /// The geometry, of which only the part up to the directories is known.
    geometry: Geometry,
    /// Byte offset of the first packet.
    packets: usize,
}

impl Writer {
    /// Creates the writer of a session whose memory is mapped here.
    ///
    /// # Errors
    /// [`WriteError::Damaged`] if the header is inconsistent.
    pub fn new(memory: Memory) -> Result<Writer, WriteError> {
        if memory.len() < layout::HEADER_SIZE {
            return Err(WriteError::Damaged);
        }
        let found = Geometry::of(&memory, memory.len() as u64);
        let (geometry, packets) = found.ok_or(WriteError::Damaged)?;
        Ok(Writer {
            memory,
            geometry,
            packets,
        })
    }

    /// Id of the event that records messages, if the session accepts any.
    pub fn event(&self) -> Option<u32> {
        match self.memory.load_u32(header::MESSAGES) {
            header::CLOSING => None,
            word => word.checked_sub(1),
        }
    }

    /// Writes a record of the message event: `text` as its only field, a string. The writer runs on
    /// `cpu`; `tid` is its thread id as the program sees it, or 0. `now` reads the time stamp
    /// counter.
    ///
    /// When this has returned without an error, the record is in the trace, unless the recorder
    /// is killed, or cannot write it.
    ///
    /// # Errors
    /// Nothing was written, except with [`Late`](WriteError::Late). A message refused with
    /// [`Full`](WriteError::Full) is counted as lost.
    pub fn write_text(
        &self,
        cpu: u32,
        tid: u32,
        text: &[u8],
        now: impl Fn() -> u64,
    ) -> Result<(), WriteError> {
        // The length in bytes first, then the text, then zeros up to a multiple of eight.
        let mut field = (text.len() as u32).to_le_bytes().to_vec();
        field.extend_from_slice(text);
        field.resize(field.len().next_multiple_of(8), 0);
        let size = record_size(field.len() / 8);
        if size > self.geometry.packet_size as usize - PACKET_HEADER {
            return Err(WriteError::TooLong);
        }
        // A CPU for which this session has no stream uses the stream of CPU 0.
        let cpu = if cpu < self.geometry.cpus { cpu } else { 0 };
        if !self.memory.lock(PATIENCE) {
            return Err(WriteError::Busy);
        }
        let written = self.write(cpu, tid, &field, size, now);
        self.memory.unlock();
        if written == Err(WriteError::Full) {
            self.memory.add(self.stream(cpu) + stream::LOST, 1);
        }
        written
    }

    /// Writes a record with the file locked.
    fn write(
        &self,
        cpu: u32,
        tid: u32,
        field: &[u8],
        size: usize,
        now: impl Fn() -> u64,
    ) -> Result<(), WriteError> {
        // Checked only now: closing the session waits for writers that already hold the lock.
        let event = self.event().ok_or(WriteError::Closed)?;
        let g = &self.geometry;
        let head = self.stream(cpu) + stream::HEAD;
        let current = self.current(cpu, self.memory.load(head))?;
        let (index, used) = match current {
            Some((index, used)) if size <= g.packet_size as usize - used => (index, used),
            _ => (self.open(cpu, current, &now)?, PACKET_HEADER),
        };
        let mut record = now().to_le_bytes().to_vec();
        record.extend_from_slice(&event.to_le_bytes());
        record.extend_from_slice(&tid.to_le_bytes());
        record.extend_from_slice(field);
        let packet = self.packets + index as usize * g.packet_size as usize;
        self.memory.write(packet + used, &record);
        let head_of = |at| self.head(cpu, index, at);
        // The commit. If the head has changed, it was overwritten.
        if !self
            .memory
            .replace(head, head_of(used), head_of(used + size))
        {
            return Err(WriteError::Damaged);
        }
        // Closing the session waits for this writer, but not forever.
        match self.memory.load_u32(header::MESSAGES) {
            0 => Err(WriteError::Late),
            _ => Ok(()),
        }
    }

    /// Byte offset of the message stream of a CPU. The streams are right before the packets.
    fn stream(&self, cpu: u32) -> usize {
        let index = self.geometry.stream_index(OUTSIDE, cpu);
        self.packets - self.geometry.streams_size() + index * stream::SIZE
    }

    /// The head of that stream while packet `index` is being filled from its byte `at` on.
    fn head(&self, cpu: u32, index: u32, at: usize) -> u64 {
        self.geometry
            .head(self.geometry.stream_index(OUTSIDE, cpu), index, at)
    }

    /// The packet that the stream of a CPU is filling and how much of it is in use; `None` if the
    /// stream has none yet.
    fn current(&self, cpu: u32, head: u64) -> Result<Option<(u32, usize)>, WriteError> {
        if head == 0 {
            return Ok(None);
        }
        let stream = self.geometry.stream_index(OUTSIDE, cpu);
        let filled = self.geometry.filled(stream, head);
        filled.map(Some).ok_or(WriteError::Damaged)
    }

    /// Takes a packet and makes it the successor of the packet that the stream was filling.
    fn open(
        &self,
        cpu: u32,
        before: Option<(u32, usize)>,
        now: impl Fn() -> u64,
    ) -> Result<u32, WriteError> {
        let (g, memory) = (&self.geometry, &self.memory);
        let Some(index) = memory.take_packet(g.packets) else {
            return Err(WriteError::Full);
        };
        let seq = before.map_or(u64::MAX, |(old, _)| {
            memory.load(g.control(old) + control::SEQ)
        });
        let new = g.control(index);
        for (at, value) in [
            (control::SEQ, seq.wrapping_add(1)),
            (control::BEGIN, now()),
            (control::LOST, memory.load(self.stream(cpu) + stream::LOST)),
        ] {
            memory.store(new + at, value);
        }
        let (previous, used) = before.unwrap_or((NO_PACKET, 0));
        for (at, value) in [
            (control::PREV, previous),
            (control::PREV_LEN, used as u32),
            (control::CPU, cpu),
            (control::LANE, OUTSIDE),
        ] {
            memory.store_u32(new + at, value);
        }
        let head = self.head(cpu, index, PACKET_HEADER);
        memory.store(self.stream(cpu) + stream::HEAD, head);
        Ok(index)
    }
}

/// Lets other processes write messages into a session, as records of `event`.
pub fn open(memory: &Memory, event: u32) {
    memory.store_u32(header::MESSAGES, event + 1);
}

/// Stops a session from accepting messages from outside, and waits, for at most `limit`, for
/// one that is being written. Packets collected afterwards contain all messages that were
/// accepted; a writer that takes longer gets [`WriteError::Late`].
pub fn close(memory: &Memory, limit: Duration) {
    if memory.load_u32(header::MESSAGES) == 0 {
        return;
    }
    memory.store_u32(header::MESSAGES, header::CLOSING);
    // Writers lock, then read that word. (Locking the file afterwards orders loads and stores on
    // both sides.)
    let locked = memory.lock(limit);
    memory.store_u32(header::MESSAGES, 0);
    if locked {
        memory.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::record;
    use crate::reader::Reader;
    use rustix::fd::{AsRawFd, OwnedFd};
    use rustix::fs::{MemfdFlags, Mode, OFlags};
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

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
            windows: false,
        }
    }

    /// Creates session memory that accepts messages, and its file.
    fn session(g: &Geometry) -> (OwnedFd, Arc<Memory>) {
        let fd = rustix::fs::memfd_create("writer-test", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&fd, g.shared_size() as u64).expect("ftruncate");
        let memory = Memory::map(&fd, g.shared_size()).expect("map");
        memory.format(BASE, g);
        memory.store_u32(header::MESSAGES, EVENT + 1);
        (fd, Arc::new(memory))
    }

    /// Opens the file as another process would.
    fn opened(fd: &OwnedFd, g: &Geometry) -> Memory {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).expect("it is opened again");
        Memory::map(&file, g.shared_size()).expect("map")
    }

    fn writer(fd: &OwnedFd, g: &Geometry) -> Writer {
        Writer::new(opened(fd, g)).expect("a sound header")
    }

    /// Collects time, event, thread and text of all records written, by stream.
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
    fn texts_stand_in_a_stream_of_their_cpu() {
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
        let mut reader = Reader::new(memory, g);
        let text = |time, text: &str| (time, text.to_owned());
        let expected = BTreeMap::from([
            ((0, OUTSIDE), vec![text(1, ""), text(4, "none")]),
            ((1, OUTSIDE), vec![text(2, "seven b"), text(3, "four")]),
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
        let mut reader = Reader::new(memory, g);
        let mut seen = 0;
        let some = |reader: &mut Reader, all| {
            let found = collected(reader, all);
            found.values().map(Vec::len).sum::<usize>()
        };
        // Twice as many as fit, read from time to time.
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
        // A writer is stopped in the middle.
        let stopped = opened(&fd, &g);
        assert!(stopped.lock(Duration::ZERO));
        assert_eq!(writer.write_text(0, 7, b"", || 1), Err(WriteError::Busy));
        close(&memory, Duration::from_millis(1));
        assert_eq!(writer.event(), None);
        // A killed process loses the lock.
        drop(stopped);
        assert_eq!(writer.write_text(1, 7, b"", || 1), Err(WriteError::Closed));
        assert!(memory.lock(Duration::ZERO));
    }

    /// A writer stopped between its first check and its commit, which continues after the session
    /// is closed.
    #[test]
    fn who_is_late_is_told() {
        let g = geometry();
        let (fd, memory) = session(&g);
        let writer = writer(&fd, &g);
        assert_eq!(writer.write_text(0, 7, b"one", || 1), Ok(()));
        let closing = || {
            close(&memory, Duration::from_millis(1));
            1
        };
        assert_eq!(
            writer.write_text(0, 7, b"two", closing),
            Err(WriteError::Late)
        );
        assert_eq!(
            writer.write_text(0, 7, b"three", || 1),
            Err(WriteError::Closed)
        );
    }

    /// Several writers, and a close at a random moment: accepted messages are in the packets.
    #[test]
    fn what_was_accepted_is_in_the_packets() {
        for round in 0..40u64 {
            let g = Geometry {
                packets: 64,
                ..geometry()
            };
            let (fd, memory) = session(&g);
            let clock = AtomicU64::new(0);
            let mut reader = Reader::new(memory.clone(), g);
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
                close(&memory, Duration::from_secs(10));
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
            // In time order, each writer's messages are in sequence.
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
        let mut random = crate::noise();
        let (mut refused, mut damaged) = (0, 0);
        for round in 0..2000 {
            let (fd, memory) = session(&g);
            let early = writer(&fd, &g);
            for _ in 0..1 + round % 30 {
                let tables = g.packets_offset() / 8;
                let at = random() as usize % tables * 8;
                let at = if round % 3 == 0 { at % 256 } else { at };
                let at = if round % 5 == 0 {
                    g.stream(OUTSIDE, 0)
                } else {
                    at
                };
                let interesting = [
                    random(),
                    g.head(
                        random() as usize % 20,
                        (random() % 9) as u32,
                        random() as usize % 4097,
                    ),
                    u64::MAX,
                    u64::MAX - random() % 0x2_0000,
                    random() % 16,
                ];
                memory.store(at, interesting[random() as usize % interesting.len()]);
            }
            let late = Writer::new(opened(&fd, &g));
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
