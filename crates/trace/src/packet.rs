//! The layout of a packet according to CTF 1.8: a header of 80 bytes, then records.
//!
//! ```text
//! byte  0  magic  0xC1FC1FC1   u32     packet.header
//!       4  uuid                16 bytes
//!      20  stream id  0        u32
//!      24  timestamp_begin     u64     packet.context; times are TSC ticks
//!      32  timestamp_end       u64
//!      40  content_size        u64     bits, including the header
//!      48  packet_size         u64     bits, including the padding of the last record
//!      56  packet_seq_num      u64
//!      64  events_discarded    u64     since the stream began
//!      72  cpu_id              u32
//!      76  lane                u32
//! ```
//!
//! All numbers are little endian. The length of a packet, like that of a record (see `record`),
//! is a multiple of 8 bytes.

/// Bytes before the first record of a packet.
pub const HEADER_BYTES: usize = 80;
/// Maximum bytes of records in one packet, 256 MiB: a reader must be able to keep this much in
/// memory for each stream.
pub const MAX_CONTENT_BYTES: usize = 256 << 20;

/// The first word of every packet (CTF 1.8, section 5.1).
pub(crate) const MAGIC: u32 = 0xC1FC_1FC1;
/// Bytes of magic and UUID together; used to find packets again after damage.
pub(crate) const PREFIX_BYTES: usize = 20;

/// The contents of a packet's header, with magic and sizes checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub ts_begin: u64,
    pub ts_end: u64,
    /// Bytes of records after the header; the next header follows the records.
    pub content_bytes: u64,
    /// Padding bits at the end of the last record, less than 64. CTF readers do not look for events
    /// there.
    pub padding_bits: u32,
    pub seq: u64,
    pub discarded: u64,
    pub cpu: u32,
    pub lane: u32,
}

/// Fault in a packet's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// It does not start with CTF's magic number.
    #[error("no packet starts here")]
    Magic,
    /// The UUID is not the trace's.
    #[error("the packet belongs to another trace")]
    Uuid,
    /// The stream class is not 0.
    #[error("the packet is of an unknown kind")]
    StreamId,
    /// The packet is too small, too large or not a whole number of bytes, or its content does not
    /// fit its size.
    #[error("the packet's size is wrong")]
    Sizes,
    /// The packet ends before it begins.
    #[error("the packet's times are wrong")]
    Times,
    /// CPU or lane differ from the file's.
    #[error("the packet belongs to another stream")]
    Stream,
}

impl Header {
    /// Returns the header's bytes.
    pub(crate) fn encode(&self, uuid: &[u8; 16]) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC.to_le_bytes());
        put(uuid);
        put(&0u32.to_le_bytes());
        put(&self.ts_begin.to_le_bytes());
        put(&self.ts_end.to_le_bytes());
        put(&(self.packet_bytes() * 8 - u64::from(self.padding_bits)).to_le_bytes());
        put(&(self.packet_bytes() * 8).to_le_bytes());
        put(&self.seq.to_le_bytes());
        put(&self.discarded.to_le_bytes());
        put(&self.cpu.to_le_bytes());
        put(&self.lane.to_le_bytes());
        debug_assert_eq!(at, HEADER_BYTES);
        bytes
    }

    /// Returns the number of bytes from this header to the next one.
    pub(crate) fn packet_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.content_bytes
    }

    /// Decodes a header and checks everything that can be checked without the rest of the file.
    pub(crate) fn decode(
        bytes: &[u8; HEADER_BYTES],
        uuid: &[u8; 16],
    ) -> Result<Header, HeaderFault> {
        if word(bytes, 0) != MAGIC {
            return Err(HeaderFault::Magic);
        }
        if bytes[4..PREFIX_BYTES] != uuid[..] {
            return Err(HeaderFault::Uuid);
        }
        if word(bytes, 20) != 0 {
            return Err(HeaderFault::StreamId);
        }
        let content_bits = long(bytes, 40);
        let packet_bits = long(bytes, 48);
        let packet_bytes = packet_bits / 8;
        // A packet without records has no padding.
        let least = content_bits.max(HEADER_BYTES as u64 * 8);
        let padding_bits = match packet_bits.checked_sub(least) {
            Some(bits @ 0..64) if packet_bits.is_multiple_of(8) && content_bits == least => bits,
            _ => return Err(HeaderFault::Sizes),
        };
        if packet_bytes > (HEADER_BYTES + MAX_CONTENT_BYTES) as u64 {
            return Err(HeaderFault::Sizes);
        }
        let header = Header {
            ts_begin: long(bytes, 24),
            ts_end: long(bytes, 32),
            content_bytes: packet_bytes - HEADER_BYTES as u64,
            padding_bits: padding_bits as u32,
            seq: long(bytes, 56),
            discarded: long(bytes, 64),
            cpu: word(bytes, 72),
            lane: word(bytes, 76),
        };
        if header.ts_begin > header.ts_end {
            return Err(HeaderFault::Times);
        }
        Ok(header)
    }
}

/// Reads the little-endian u32 at `at`, which must be in bounds.
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

/// Reads the little-endian u64 at `at`, which must be in bounds.
pub(crate) fn long(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

/// Returns the name of a stream's file: `cpu3`, `cpu3.1`.
pub(crate) fn file_name(cpu: u32, lane: u32) -> String {
    match lane {
        0 => format!("cpu{cpu}"),
        _ => format!("cpu{cpu}.{lane}"),
    }
}

/// Returns CPU and lane of a stream's file; `None` if [`file_name`] cannot produce this name.
pub(crate) fn parse_file_name(name: &str) -> Option<(u32, u32)> {
    let numbers = name.strip_prefix("cpu")?;
    let (cpu, lane) = match numbers.split_once('.') {
        Some((cpu, lane)) => (cpu.parse().ok()?, lane.parse().ok()?),
        None => (numbers.parse().ok()?, 0),
    };
    (file_name(cpu, lane) == name).then_some((cpu, lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_round_trip() {
        let header = Header {
            ts_begin: 1,
            ts_end: u64::MAX,
            content_bytes: 4096,
            padding_bits: 37,
            seq: 7,
            discarded: 9,
            cpu: 3,
            lane: 2,
        };
        let uuid = *b"0123456789abcdef";
        let mut bytes = header.encode(&uuid);
        assert_eq!(Header::decode(&bytes, &uuid), Ok(header));
        assert_eq!(Header::decode(&bytes, &[0; 16]), Err(HeaderFault::Uuid));
        for (at, value) in [(41, 0), (41, 0xff), (48, 0x81), (55, 1)] {
            let mut wrong = bytes;
            wrong[at] = value;
            let decoded = Header::decode(&wrong, &uuid);
            assert_eq!(decoded, Err(HeaderFault::Sizes), "{at}");
        }
        bytes[20] = 1;
        assert_eq!(Header::decode(&bytes, &uuid), Err(HeaderFault::StreamId));
    }

    #[test]
    fn only_our_own_file_names_are_streams() {
        for (name, stream) in [
            ("cpu0", Some((0, 0))),
            ("cpu12.3", Some((12, 3))),
            ("cpu01", None),
            ("cpu0.0", None),
            ("cpu+1", None),
            ("cpu", None),
            ("cpu1.", None),
            ("cpu4294967296", None),
            ("metadata", None),
        ] {
            assert_eq!(parse_file_name(name), stream, "{name}");
        }
    }
}
