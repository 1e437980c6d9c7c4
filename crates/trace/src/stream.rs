//! Reads one stream, a packet at a time, trusting nothing in it.

use capriole_proc::files;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::damage::{Damage, DamageKind, Health, TraceError};
use crate::packet::{HEADER_BYTES, Header, HeaderFault, MAGIC, PREFIX_BYTES, long, word};
use crate::record::{EventTable, RECORD_BYTES, RecordFault};

/// The current record of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub time: u64,
    /// Index of the event in the list of events.
    pub index: usize,
    pub tid: u32,
    /// Events lost in this stream since the previous record.
    pub lost_before: u64,
    /// Position of its fields in the packet.
    start: usize,
    end: usize,
}

/// The packet being read.
#[derive(Debug, Clone, Copy)]
struct Packet {
    header: Header,
    /// Offset of its records in the file.
    start: u64,
    /// Number of bytes of the packet that were read; fewer than in the header if the file ends
    /// earlier.
    length: usize,
    /// Position of the next record.
    at: usize,
}

/// A stream's file and the reading position in it.
#[derive(Debug)]
pub(crate) struct StreamReader {
    path: PathBuf,
    pub(crate) cpu: u32,
    pub(crate) lane: u32,
    uuid: [u8; 16],
    file: File,
    /// Length of the file when it was opened; data appended later is not read.
    length: u64,
    /// Offset of the next packet's header.
    next: u64,
    packet: Option<Packet>,
    /// The packet's records.
    buffer: Vec<u8>,
    last_time: u64,
    last_seq: Option<u64>,
    lost: u64,
    lost_before: u64,
    /// True if losses are between packets only.
    is_exact: bool,
    /// False if the last packet may not be there as a whole yet.
    is_complete: bool,
    /// Used only if `is_exact` is false: true if the packet being read counts losses. The events
    /// may be missing in it, or after its last record.
    is_lossy: bool,
    /// True if a packet that reports losses has been opened since the previous record.
    has_losses: bool,
    gap: Gap,
}

/// Range in which records of a stream may be missing: from the previous record up to a time in
/// ticks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gap {
    /// End of the range in which records are missing at unknown times.
    pub until: Option<u64>,
    /// End of the range in which records are missing at times that the trace lists as losses.
    pub lost_until: Option<u64>,
}

impl StreamReader {
    /// Opens a stream. With `is_exact`, streams of CPUs (lane 0) lose events between packets only. One that is
    /// not `is_complete` may be written at this moment, and end inside a packet.
    pub(crate) fn open(
        path: PathBuf,
        (cpu, lane): (u32, u32),
        uuid: [u8; 16],
        (is_exact, is_complete): (bool, bool),
    ) -> Result<StreamReader, TraceError> {
        let file = files::open(&path).map_err(TraceError::file(&path))?;
        let metadata = file.metadata().map_err(TraceError::file(&path))?;
        Ok(StreamReader {
            path,
            cpu,
            lane,
            uuid,
            file,
            length: metadata.len(),
            next: 0,
            packet: None,
            buffer: Vec::new(),
            last_time: 0,
            last_seq: None,
            lost: 0,
            lost_before: 0,
            is_exact: is_exact && lane == 0,
            is_complete,
            is_lossy: false,
            has_losses: false,
            gap: Gap::default(),
        })
    }

    /// Returns the gap between the last two records returned by `advance`, or after the last
    /// record.
    pub(crate) fn gap(&self) -> Gap {
        self.gap
    }

    /// Returns the fields of the last record that `advance` returned.
    pub(crate) fn payload(&self, record: &Record) -> &[u8] {
        &self.buffer[record.start..record.end]
    }

    /// Advances to the next readable record; `None` at the end.
    pub(crate) fn advance(
        &mut self,
        events: &EventTable,
        health: &mut Health,
    ) -> Result<Option<Record>, TraceError> {
        let before = health.damages.wrapping_add(health.lost_packets);
        self.gap = Gap::default();
        self.has_losses = false;
        let record = self.next_record(events, health)?;
        let next = record.map_or(u64::MAX, |record| record.time);
        if self.has_losses && self.is_exact {
            self.gap.until = Some(next);
        } else if self.has_losses || record.is_none() && self.is_lossy {
            let packet = self.packet.filter(|_| self.is_lossy);
            let end = packet.map_or(next, |packet| packet.header.ts_end.max(next));
            self.gap.lost_until = Some(end);
        }
        if before != health.damages.wrapping_add(health.lost_packets) {
            self.gap.until = Some(next);
        }
        Ok(record)
    }

    fn next_record(
        &mut self,
        events: &EventTable,
        health: &mut Health,
    ) -> Result<Option<Record>, TraceError> {
        loop {
            let Some(packet) = self.packet else {
                if !self.open_packet(health)? {
                    return Ok(None);
                }
                continue;
            };
            let rest = &self.buffer[packet.at..packet.length];
            if rest.is_empty() && packet.length as u64 == packet.header.content_bytes {
                self.next = packet.start + packet.length as u64;
                self.packet = None;
                continue;
            }
            let (index, size) = match events.record(rest) {
                Ok(record) => record,
                Err(fault) => {
                    self.abandon_packet(packet, fault, health)?;
                    continue;
                }
            };
            let (start, end) = (packet.at, packet.at + size);
            self.packet = Some(Packet { at: end, ..packet });
            let time = long(&self.buffer, start);
            if time < packet.header.ts_begin || time > packet.header.ts_end {
                let kind = DamageKind::TimeOutside;
                self.damage(packet.start + start as u64, kind, size as u64, health);
                continue;
            }
            if time < self.last_time {
                let kind = DamageKind::TimeBackwards;
                self.damage(packet.start + start as u64, kind, 0, health);
            }
            self.last_time = time;
            return Ok(Some(Record {
                time,
                index,
                tid: word(&self.buffer, start + 12),
                lost_before: std::mem::take(&mut self.lost_before),
                start: start + RECORD_BYTES,
                end,
            }));
        }
    }

    /// Reads the next packet; returns false at the end of the file.
    fn open_packet(&mut self, health: &mut Health) -> Result<bool, TraceError> {
        let left = self.length - self.next;
        if left < HEADER_BYTES as u64 {
            if left > 0 && (self.is_complete || !self.begins_packet(left as usize)?) {
                self.damage(self.next, DamageKind::HeaderCutOff, left, health);
            }
            self.next = self.length;
            return Ok(false);
        }
        let mut bytes = [0; HEADER_BYTES];
        self.read(&mut bytes, self.next)?;
        let header = match Header::decode(&bytes, &self.uuid) {
            Ok(header) if (header.cpu, header.lane) != (self.cpu, self.lane) => {
                Err(HeaderFault::Stream)
            }
            decoded => decoded,
        };
        let header = match header {
            Ok(header) => header,
            Err(fault) => {
                self.search(self.next, self.next + 1, DamageKind::Header(fault), health)?;
                return Ok(true);
            }
        };
        self.count_losses(&header, health);
        let start = self.next + HEADER_BYTES as u64;
        // At most MAX_CONTENT_BYTES, which the header check ensures.
        let length = header.content_bytes.min(self.length - start) as usize;
        let mut buffer = std::mem::take(&mut self.buffer);
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        self.read(&mut buffer[..length], start)?;
        self.buffer = buffer;
        self.packet = Some(Packet {
            header,
            start,
            length,
            at: 0,
        });
        Ok(true)
    }

    /// Compares the counters with those of the previous packet.
    fn count_losses(&mut self, header: &Header, health: &mut Health) {
        if let Some(last) = self.last_seq {
            let missing = header.seq.wrapping_sub(last).wrapping_sub(1);
            health.lost_packets = health.lost_packets.saturating_add(missing);
        }
        self.last_seq = Some(header.seq);
        let is_lossy = header.discarded > self.lost;
        self.has_losses |= is_lossy || self.is_lossy;
        self.is_lossy = is_lossy && !self.is_exact;
        match header.discarded.checked_sub(self.lost) {
            Some(lost) => {
                self.lost_before = self.lost_before.saturating_add(lost);
                health.lost_events = health.lost_events.saturating_add(lost);
                self.lost = header.discarded;
            }
            None => self.damage(self.next, DamageKind::LossesBackwards, 0, health),
        }
    }

    /// Skips the rest of a packet from a record that cannot be read on.
    fn abandon_packet(
        &mut self,
        packet: Packet,
        fault: RecordFault,
        health: &mut Health,
    ) -> Result<(), TraceError> {
        let at = packet.start + packet.at as u64;
        self.packet = None;
        if fault == RecordFault::CutOff && (packet.length as u64) < packet.header.content_bytes {
            if self.is_complete {
                self.damage(at, DamageKind::PacketCutOff, self.length - at, health);
            }
            self.next = self.length;
            return Ok(());
        }
        // The packet's size field may itself be damaged: do not use it to find the next packet.
        self.search(at, at, DamageKind::Record(fault), health)
    }

    /// Returns the bytes with which each packet of the stream begins.
    fn prefix(&self) -> [u8; PREFIX_BYTES] {
        let mut prefix = [0; PREFIX_BYTES];
        prefix[..4].copy_from_slice(&MAGIC.to_le_bytes());
        prefix[4..].copy_from_slice(&self.uuid);
        prefix
    }

    /// True if the next `count` bytes can be the beginning of a packet.
    fn begins_packet(&self, count: usize) -> Result<bool, TraceError> {
        let prefix = self.prefix();
        let mut bytes = [0; PREFIX_BYTES];
        let count = count.min(PREFIX_BYTES);
        self.read(&mut bytes[..count], self.next)?;
        Ok(bytes[..count] == prefix[..count])
    }

    /// Searches for the next packet from `from` on, and reports the bytes before it as damage.
    fn search(
        &mut self,
        damaged: u64,
        from: u64,
        kind: DamageKind,
        health: &mut Health,
    ) -> Result<(), TraceError> {
        let prefix = self.prefix();
        let mut chunk = vec![0; 1 << 16];
        let mut at = from;
        self.next = self.length;
        while self.length - at >= PREFIX_BYTES as u64 {
            // A packet does not begin in a hole; holes in a file may be of any size, so skip them.
            match seek(&self.file, SeekFrom::Data(at)) {
                Ok(data) => at = data.clamp(at, self.length),
                Err(Errno::NXIO) => break,
                Err(_) => {} // not all file systems know
            }
            if self.length - at < PREFIX_BYTES as u64 {
                break;
            }
            let length = (self.length - at).min(chunk.len() as u64) as usize;
            self.read(&mut chunk[..length], at)?;
            let found = chunk[..length]
                .windows(PREFIX_BYTES)
                .position(|bytes| bytes == prefix);
            if let Some(found) = found {
                self.next = at + found as u64;
                break;
            }
            at += (length - PREFIX_BYTES + 1) as u64;
        }
        self.damage(damaged, kind, self.next - damaged, health);
        Ok(())
    }

    fn read(&self, bytes: &mut [u8], at: u64) -> Result<(), TraceError> {
        self.file.read_exact_at(bytes, at).map_err(|source| {
            let source = match source.kind() {
                io::ErrorKind::UnexpectedEof => {
                    io::Error::new(source.kind(), "the file became shorter while it was read")
                }
                _ => source,
            };
            TraceError::file(&self.path)(source)
        })
    }

    fn damage(&self, offset: u64, kind: DamageKind, skipped: u64, health: &mut Health) {
        health.add(Damage {
            file: self.path.clone(),
            offset,
            kind,
            skipped,
        });
    }
}
