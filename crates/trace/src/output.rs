//! A stream's file: complete packets only, in time order.

use std::fs::File;
use std::io::{self, IoSlice, Seek, SeekFrom, Write};

use crate::packet::Header;
use crate::record::EventTable;
use crate::repair::{Walk, walk};
use crate::totals::{End, PacketMeta, Totals, Written};

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
    pub(crate) fn resume(file: File, uuid: [u8; 16], end: &End) -> io::Result<OutputStream> {
        Ok(OutputStream {
            file: StreamFile::resume(file, end.length)?,
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
pub(crate) struct StreamFile {
    file: File,
    /// Length of all complete packets in bytes: the offset of the next packet.
    length: u64,
}

impl StreamFile {
    /// Continues a file that is open for writing after its first `length` bytes, and cuts off the rest.
    pub(crate) fn resume(mut file: File, length: u64) -> io::Result<StreamFile> {
        file.set_len(length)?;
        file.seek(SeekFrom::Start(length))?;
        Ok(StreamFile { file, length })
    }

    /// Appends a packet, with one `writev` unless the system writes only a part. After an error the
    /// file is truncated to the previous packets.
    pub(crate) fn append(&mut self, header: &[u8], content: &[u8]) -> io::Result<()> {
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
