//! Packets that are written, and what was written of them.

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
    /// on, possibly later ones too. See `TraceWriter::note_losses`. Never decreases.
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
