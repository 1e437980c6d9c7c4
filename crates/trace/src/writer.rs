//! Writing a trace while it is recorded.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use capriole_event::FieldType;

use crate::clock::ClockModel;
use crate::directory::{Directory, DirectoryError, METADATA, json_path};
use crate::document::{
    Document, EventInfo, FORMAT_VERSION, FieldInfo, Finish, MappingInfo, TimeSpan, TraceInfo,
    Tracer,
};
use crate::output::OutputStream;
use crate::packet::{MAX_CONTENT_BYTES, file_name};
use crate::record::{EventTable, MAX_FIELDS};
use crate::tsdl::{metadata, uuid_text};

/// Why a trace could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The directory could not be made.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A file could not be written; what was in it before still is, and is whole.
    #[error("cannot write {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Two sites have the same number.
    #[error("the event id {0} is used twice")]
    DuplicateEvent(u32),
    /// An event records more than a reader expects.
    #[error("the event {name} has {count} fields, and no more than {MAX_FIELDS} can be recorded")]
    TooManyFields {
        /// The event's name.
        name: String,
        /// How many it has.
        count: usize,
    },
    /// A field's type is not one that can be spelled, so that nobody could read it back.
    #[error(
        "the field {field} of the event {name} has the type `{field_type}`, which does not exist"
    )]
    FieldType {
        /// The event's name.
        name: String,
        /// The field's name.
        field: String,
        /// Its type.
        field_type: FieldType,
    },
    /// A packet is larger than a reader keeps in memory.
    #[error("a packet of {0} bytes is too large; the most is {MAX_CONTENT_BYTES}")]
    PacketTooLarge(usize),
}

/// What the writer has to know of a packet beside its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacketMeta {
    /// The CPU it was written on.
    pub cpu: u32,
    /// The lane: 0 for records by restartable sequences, others for other ways of writing.
    pub lane: u32,
    /// Counts the packets of the stream that the ring filled; a gap is reported as packets lost.
    pub seq: u64,
    /// When the packet was opened, in ticks, not later than its first record and not earlier
    /// than the last record of the packet before. Without it, the first record's time counts.
    pub ts_begin: Option<u64>,
    /// A time, in ticks, that no record of the packet can be later than; such as when it was
    /// taken from the ring. Later records are broken, and are moved to this time.
    pub ts_end: Option<u64>,
    /// Events lost in this stream from its beginning up to this packet's first record; in lanes
    /// from 1 on also later. See `TraceWriter::note_losses`. Never decreases.
    pub discarded: u64,
}

/// What became of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Records that are now in the file.
    pub events: u64,
    /// Records whose time was moved so that time runs forward in the stream.
    pub adjusted: u64,
    /// Bytes at the end that were not records and were left out.
    pub damaged_bytes: u64,
}

/// What has been written so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Records.
    pub events: u64,
    /// Packets.
    pub packets: u64,
    /// Bytes of all streams.
    pub bytes: u64,
    /// Events lost, as the packets say.
    pub lost_events: u64,
    /// Records whose time was moved.
    pub adjusted: u64,
    /// Bytes left out because they were not records.
    pub damaged_bytes: u64,
}

/// A trace directory that is being written.
///
/// What is on disk can be read at any time, also after the writer was killed or the disk became
/// full: packets are whole or are taken back, and the other files are replaced as a whole.
#[derive(Debug)]
pub struct TraceWriter {
    pub(crate) directory: Directory,
    pub(crate) uuid: [u8; 16],
    pub(crate) document: Document,
    pub(crate) table: EventTable,
    pub(crate) streams: BTreeMap<(u32, u32), OutputStream>,
    pub(crate) totals: Totals,
}

impl TraceWriter {
    /// Makes the trace directory with everything but streams in it. An older trace at this place
    /// becomes `DIR.old`, in place of an older one.
    ///
    /// # Errors
    ///
    /// If the place is taken by something else or is being recorded to, if the files cannot be
    /// written, or if `info.events` has the same id twice or fields that cannot be recorded.
    pub fn create(directory: &Path, info: &TraceInfo) -> Result<TraceWriter, WriteError> {
        let mut table = EventTable::default();
        add_events_to(&mut table, &info.events)?;
        let uuid = random_uuid();
        let points = &info.clock.sync_points;
        let document = Document {
            format_version: FORMAT_VERSION,
            tracer: Tracer {
                name: "capriole".to_string(),
                version: env!("CARGO_PKG_VERSION").to_string(),
            },
            uuid: uuid_text(&uuid),
            target: info.target.clone(),
            time: TimeSpan {
                start_realtime_ns: points.first().map_or(0, |point| point.realtime_ns),
                start_monotonic_ns: points.first().map_or(0, |point| point.monotonic_ns),
                end_monotonic_ns: points.last().map_or(0, |point| point.monotonic_ns),
            },
            events: info.events.clone(),
            threads: BTreeMap::new(),
            mappings: Vec::new(),
            clock: info.clock.clone(),
            warnings: info.warnings.clone(),
            stops: Vec::new(),
            lost_events: 0,
            losses: None,
            last_threads: None,
            adjusted_times: 0,
            damaged_bytes: 0,
            exit: None,
            complete: false,
        };
        let writer = TraceWriter {
            directory: Directory::create(directory)?,
            uuid,
            document,
            table,
            streams: BTreeMap::new(),
            totals: Totals::default(),
        };
        match writer.describe() {
            Ok(()) => Ok(writer),
            Err(error) => {
                // What there is of it is no trace.
                let _ = writer.remove();
                Err(error)
            }
        }
    }

    /// The directory, as it was given.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The trace's UUID.
    pub fn uuid(&self) -> &[u8; 16] {
        &self.uuid
    }

    /// The description, as it will be written the next time.
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// The number of the last packet of a stream, counted from 1; 0 if it has none.
    pub fn last_number(&self, cpu: u32, lane: u32) -> u64 {
        self.streams
            .get(&(cpu, lane))
            .map_or(0, OutputStream::last_number)
    }

    /// Removes the trace again.
    ///
    /// # Errors
    /// Something in it is not part of a trace, or it cannot be removed.
    pub fn remove(self) -> Result<(), DirectoryError> {
        drop(self.streams);
        self.directory.remove()
    }

    /// What has been written so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Declares more events, before the first packet that has records of them.
    ///
    /// # Errors
    ///
    /// If an id is used already or a field cannot be recorded (then none is added), or if the files cannot be written.
    pub fn add_events(&mut self, events: &[EventInfo]) -> Result<(), WriteError> {
        let mut table = self.table.clone();
        add_events_to(&mut table, events)?;
        self.table = table;
        self.document.events.extend_from_slice(events);
        self.describe()
    }

    /// Says where the program has code, for call stacks. What is known already, or overlaps with
    /// it, stays as it is: libraries come and go, but a place is seldom used twice.
    ///
    /// # Errors
    ///
    /// If the files cannot be written.
    pub fn add_mappings(&mut self, mappings: &[MappingInfo]) -> Result<(), WriteError> {
        let known = &mut self.document.mappings;
        let before = known.len();
        for mapping in mappings {
            let overlaps = |m: &MappingInfo| m.start < mapping.end && mapping.start < m.end;
            if !known.iter().any(overlaps) {
                known.push(mapping.clone());
            }
        }
        if known.len() == before {
            return Ok(());
        }
        known.sort_by_key(|mapping| mapping.start);
        self.describe()
    }

    /// Says whether events of lanes from 1 on were lost between two times, in ticks, the first of
    /// which is not before the end of the last such time. It is on disk with the next
    /// `checkpoint`. Unless this is called, readers take it that events of any lane may have been
    /// lost at any time from the packet in front of the one that counts them to the one behind.
    pub fn note_losses(&mut self, between: (u64, u64), lost: bool) {
        let losses = self.document.losses.get_or_insert_default();
        losses.add(between, lost);
    }

    /// Says which threads were there when the recording ended.
    pub fn note_last_threads(&mut self, threads: BTreeSet<u32>) {
        self.document.last_threads = Some(threads);
    }

    /// Brings the clock and the threads' names on disk up to date, so that less is missing if
    /// the recorder is killed.
    ///
    /// # Errors
    ///
    /// If the files cannot be written; the older ones stay.
    pub fn checkpoint(
        &mut self,
        clock: &ClockModel,
        threads: &BTreeMap<u32, String>,
    ) -> Result<(), WriteError> {
        self.document.threads.clone_from(threads);
        self.bring_up_to_date(clock.clone());
        self.describe()
    }

    /// Appends a packet to its stream.
    ///
    /// The records are walked through first: what is not a record is left out from there on,
    /// and where time runs backwards it is put right (by sorting within the packet, and then by
    /// moving what is older than the packet before), because CTF readers refuse the whole trace
    /// otherwise. A packet without records carries only its count of lost events; write one to
    /// report what was lost after a stream's last packet.
    ///
    /// `content` is memory that nobody else writes to; copy out of the ring what the target may
    /// still change. Give `meta.ts_end` whenever the records come from a target that may be
    /// broken: a single time in the far future would otherwise move all later ones there.
    ///
    /// # Errors
    ///
    /// If the file cannot be written. It is then as it was before; the packet's events are lost,
    /// which the caller should count, and the next packet may be tried.
    pub fn write_packet(
        &mut self,
        meta: &PacketMeta,
        content: &[u8],
    ) -> Result<Written, WriteError> {
        if content.len() > MAX_CONTENT_BYTES {
            return Err(WriteError::PacketTooLarge(content.len()));
        }
        let name = file_name(meta.cpu, meta.lane);
        let stream = match self.streams.entry((meta.cpu, meta.lane)) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => self
                .directory
                .create_stream(&name)
                .map(|file| entry.insert(OutputStream::new(file, self.uuid))),
        };
        stream
            .and_then(|stream| stream.write_packet(meta, content, &self.table, &mut self.totals))
            .map_err(|source| WriteError::File {
                path: self.directory.path().join(name),
                source,
            })
    }

    /// Writes the final description and closes the trace.
    ///
    /// # Errors
    ///
    /// If the files cannot be written. The trace can still be read then, by the description
    /// that was written last.
    pub fn finish(mut self, finish: Finish) -> Result<Totals, WriteError> {
        self.end(finish)?;
        Ok(self.totals)
    }

    /// Writes the final description, and keeps the trace open for what may come after all.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    pub fn end(&mut self, finish: Finish) -> Result<(), WriteError> {
        self.totals.lost_events += finish.lost_elsewhere;
        self.bring_up_to_date(finish.clock);
        let document = &mut self.document;
        document.threads = finish.threads;
        document.stops = finish.stops;
        document.exit = finish.exit;
        for warning in finish.warnings {
            if !document.warnings.contains(&warning) {
                document.warnings.push(warning);
            }
        }
        document.complete = true;
        self.describe()
    }

    /// Enters the latest clock and the totals into the description.
    fn bring_up_to_date(&mut self, clock: ClockModel) {
        if let Some(last) = clock.sync_points.last() {
            self.document.time.end_monotonic_ns = last.monotonic_ns;
        }
        self.document.clock = clock;
        self.document.lost_events = self.totals.lost_events;
        self.document.adjusted_times = self.totals.adjusted;
        self.document.damaged_bytes = self.totals.damaged_bytes;
    }

    /// Writes both descriptions.
    fn describe(&self) -> Result<(), WriteError> {
        let root = self.directory.path();
        self.directory
            .replace_metadata(&metadata(&self.document, &self.uuid))
            .map_err(|source| WriteError::File {
                path: root.join(METADATA),
                source,
            })?;
        serde_json::to_vec_pretty(&self.document)
            .map_err(io::Error::from)
            .and_then(|json| self.directory.replace_json(&json))
            .map_err(|source| WriteError::File {
                path: json_path(root),
                source,
            })
    }
}

/// Enters new events into the table, or none if one cannot be entered.
pub(crate) fn add_events_to(
    table: &mut EventTable,
    events: &[EventInfo],
) -> Result<(), WriteError> {
    for event in events {
        let count = event.fields.len();
        if count > MAX_FIELDS {
            return Err(WriteError::TooManyFields {
                name: event.name.clone(),
                count,
            });
        }
        let misspelled =
            |field: &&FieldInfo| field.field_type.to_string().parse() != Ok(field.field_type);
        if let Some(field) = event.fields.iter().find(misspelled) {
            return Err(WriteError::FieldType {
                name: event.name.clone(),
                field: field.name.clone(),
                field_type: field.field_type,
            });
        }
        if !table.add(event) {
            return Err(WriteError::DuplicateEvent(event.id));
        }
    }
    Ok(())
}

/// A random UUID (RFC 9562, version 4), from the keys that the standard library gets from the
/// system for its hash tables.
fn random_uuid() -> [u8; 16] {
    let mut uuid = [0; 16];
    let unique = (std::process::id(), crate::clock::tsc::read());
    for half in uuid.chunks_exact_mut(8) {
        half.copy_from_slice(&RandomState::new().hash_one(unique).to_le_bytes());
    }
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}
