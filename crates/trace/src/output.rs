//! A stream's file: complete packets only, in time order.

use std::fs::File;
use std::io::{self, IoSlice, Seek, SeekFrom, Write};

use crate::packet::Header;
use crate::record::EventTable;
use crate::repair::{Walk, walk};

/// Properties of a packet, apart from its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacketMeta {
    /// The CPU it was written on.
    pub cpu: u32,
    /// The lane: 0 for records written in restartable sequences, higher lanes for writers that use
    /// a lock.
    pub lane: u32,
    /// Sequence number of the packet in the ring's stream; a gap is reported as lost packets.
    pub seq: u64,
    /// Time when the packet was opened, in ticks, no later than its first record and no earlier
    /// than the last record of the previous packet. If `None`, the first record's time is used.
    pub ts_begin: Option<u64>,
    /// Upper limit for the times of the packet's records, in ticks, such as the time when it was
    /// taken from the ring. A record with a later time is broken; its time is set to this limit.
    pub ts_end: Option<u64>,
    /// Events lost in this stream from its start up to this packet's first record; in lanes from 1
    /// on, possibly later ones too. See [`TraceWriter::note_losses`](crate::TraceWriter::note_losses). Never decreases.
    pub discarded: u64,
}

/// Result of writing one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Number of records written to the file.
    pub events: u64,
    /// Number of records whose time was changed so that time runs forward in the stream.
    pub adjusted: u64,
    /// Number of bytes at the end that were left out because they were not valid records.
    pub damaged_bytes: u64,
}

/// Totals of a trace, as far as it has been written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Number of records.
    pub events: u64,
    /// Number of packets.
    pub packets: u64,
    /// Size of all streams in bytes.
    pub bytes: u64,
    /// Number of events lost, according to the packets.
    pub lost_events: u64,
    /// Number of records whose time was changed.
    pub adjusted: u64,
    /// Number of bytes left out because they were not valid records.
    pub damaged_bytes: u64,
}

/// The intact part of a stream's file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct End {
    /// Bytes of complete packets.
    pub length: u64,
    /// End time of the last complete packet, as in [`Header`].
    pub ts_end: u64,
    pub seq: u64,
    pub discarded: u64,
    /// Number of complete packets.
    pub packets: u64,
}

/// An open stream for writing.
#[derive(Debug)]
pub(crate) struct OutputStream {
    file: StreamFile,
    uuid: [u8; 16],
    /// The time of the latest record, or of the latest empty packet.
    last_time: u64,
    /// Events lost so far.
    discarded: u64,
    /// The number of the latest packet; 0 if there is none.
    number: u64,
}

impl OutputStream {
    /// Creates a stream without packets, for an empty file open for writing.
    pub(crate) fn new(file: File, uuid: [u8; 16]) -> OutputStream {
        OutputStream {
            file: StreamFile { file, length: 0 },
            uuid,
            last_time: 0,
            discarded: 0,
            number: 0,
        }
    }

    /// Continues a stream after the complete packets of a file, and cuts off the rest of the file.
    pub(crate) fn resume(mut file: File, uuid: [u8; 16], end: &End) -> io::Result<OutputStream> {
        file.set_len(end.length)?;
        file.seek(SeekFrom::Start(end.length))?;
        Ok(OutputStream {
            file: StreamFile {
                file,
                length: end.length,
            },
            uuid,
            last_time: end.ts_end,
            discarded: end.discarded,
            number: end.seq,
        })
    }

    /// Returns the number of the latest packet, counted from 1; 0 if there is none.
    pub(crate) fn last_number(&self) -> u64 {
        self.number
    }

    /// Appends a packet; see `TraceWriter::write_packet`.
    pub(crate) fn write_packet(
        &mut self,
        meta: &PacketMeta,
        content: &[u8],
        table: &EventTable,
        totals: &mut Totals,
    ) -> io::Result<Written> {
        let (walk, content) = walk(content, table, self.last_time, meta.ts_end);
        let begin = self.begin(meta, &walk);
        let discarded = meta.discarded.max(self.discarded);
        let header = Header {
            ts_begin: begin,
            ts_end: walk.last.unwrap_or(begin),
            content_bytes: content.len() as u64,
            padding_bits: walk.padding_bits,
            // Counted from 1, which leaves 0 for the empty packet below.
            seq: meta.seq.wrapping_add(1),
            discarded,
            cpu: meta.cpu,
            lane: meta.lane,
        };
        if self.file.length == 0 && discarded > 0 {
            // Readers compute losses as the difference from the previous packet, so losses before
            // the first packet would go unnoticed: first write an empty packet that counts no
            // losses.
            let (seq, ts_end) = (meta.seq, begin);
            self.append(
                &Header {
                    ts_end,
                    content_bytes: 0,
                    padding_bits: 0,
                    seq,
                    discarded: 0,
                    ..header
                },
                &[],
                totals,
            )?;
        }
        self.append(&header, &content, totals)?;
        totals.lost_events += discarded - self.discarded;
        totals.events += walk.events;
        totals.adjusted += walk.adjusted;
        totals.damaged_bytes += walk.damaged_bytes;
        self.discarded = discarded;
        Ok(Written {
            events: walk.events,
            adjusted: walk.adjusted,
            damaged_bytes: walk.damaged_bytes,
        })
    }

    fn append(&mut self, header: &Header, content: &[u8], totals: &mut Totals) -> io::Result<()> {
        self.file.append(&header.encode(&self.uuid), content)?;
        self.last_time = header.ts_end;
        self.number = header.seq;
        totals.packets += 1;
        totals.bytes += header.packet_bytes();
        Ok(())
    }

    /// Returns a packet's begin time: no earlier than the stream's latest record, no later than its
    /// own first.
    fn begin(&self, meta: &PacketMeta, walk: &Walk) -> u64 {
        let first = walk.first.unwrap_or(u64::MAX);
        let begin = meta.ts_begin.or(walk.first).unwrap_or(self.last_time);
        begin.min(first).max(self.last_time)
    }
}

/// A file to which packets are appended, each completely or not at all.
#[derive(Debug)]
struct StreamFile {
    file: File,
    /// Length of all complete packets in bytes: the offset of the next packet.
    length: u64,
}

impl StreamFile {
    /// Appends a packet, with one `writev` unless the system writes only a part. After an error the
    /// file is truncated to the previous packets.
    fn append(&mut self, header: &[u8], content: &[u8]) -> io::Result<()> {
        match self.write(header, content) {
            Ok(()) => {
                self.length += (header.len() + content.len()) as u64;
                Ok(())
            }
            Err(error) => {
                let cut = self.file.set_len(self.length);
                let back = self.file.seek(SeekFrom::Start(self.length));
                match cut.and(back.map(drop)) {
                    Ok(()) => Err(error),
                    Err(second) => Err(io::Error::new(
                        error.kind(),
                        format!("{error}; and cutting off half a packet failed: {second}"),
                    )),
                }
            }
        }
    }

    fn write(&mut self, header: &[u8], content: &[u8]) -> io::Result<()> {
        let mut slices = [IoSlice::new(header), IoSlice::new(content)];
        let mut left = &mut slices[..];
        // Otherwise a final empty slice would never be removed.
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            match self.file.write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut left, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
