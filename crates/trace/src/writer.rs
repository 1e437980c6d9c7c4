//! Writes a trace during the recording.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use capriole_event::FieldType;

use crate::clock::{self, ClockModel};
use crate::descriptors::ProcessDescriptors;
use crate::directory::{Directory, DirectoryError, METADATA, json_path, names_path};
use crate::document::{
    ARCH, Document, EventInfo, FORMAT_VERSION, FieldInfo, Finish, MappingInfo, TimeSpan, TraceInfo,
    Tracer,
};
use crate::names::{self, CodeName};
use crate::output::{OutputStream, StreamFile};
use crate::packet::{MAX_CONTENT_BYTES, file_name};
use crate::record::{EventTable, MAX_FIELDS, RECORD_BYTES};
use crate::totals::{PacketMeta, Totals, Written};
use crate::tsdl::{metadata, uuid_text};
use crate::value::{CallStack, Fields, Value};

/// Reason why a trace could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The directory could not be created.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A file could not be written; its previous contents are intact.
    #[error("cannot write {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Two sites have the same id.
    #[error("the event id {0} is used twice")]
    DuplicateEvent(u32),
    /// An event records more fields than a reader accepts.
    #[error("the event {name} has {count} fields, and no more than {MAX_FIELDS} can be recorded")]
    TooManyFields {
        /// The event's name.
        name: String,
        /// Number of its fields.
        count: usize,
    },
    /// A field has a type without a name, so it could not be read back.
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

impl WriteError {
    fn file(path: PathBuf) -> impl FnOnce(io::Error) -> WriteError {
        move |source| WriteError::File { path, source }
    }
}

/// A trace directory that is being written.
///
/// The trace on disk can be read at any time, even after the writer was killed or the disk
/// became full: packets are written completely or removed again, and the other files are
/// replaced atomically.
#[derive(Debug)]
pub struct TraceWriter {
    pub(crate) directory: Directory,
    pub(crate) uuid: [u8; 16],
    pub(crate) document: Document,
    pub(crate) table: EventTable,
    pub(crate) streams: BTreeMap<(u32, u32), OutputStream>,
    /// The file of names; `None` before the first.
    pub(crate) names: Option<StreamFile>,
    pub(crate) totals: Totals,
}

/// Addresses of code in a record.
#[derive(Debug, Clone, Copy)]
pub enum Code<'a> {
    /// A call stack.
    Stack(CallStack<'a>),
    /// The value of a field of the type `symbol`.
    Symbol(u64),
}

impl TraceWriter {
    /// Creates the trace directory with everything except streams, and puts it in place:
    /// [`prepare`](Self::prepare), then [`begin`](Self::begin).
    ///
    /// # Errors
    ///
    /// Those of both; nothing is changed then.
    pub fn create(directory: &Path, info: &TraceInfo) -> Result<TraceWriter, WriteError> {
        let mut writer = TraceWriter::prepare(directory, info)?;
        match writer.begin() {
            Ok(()) => Ok(writer),
            Err(error) => {
                let _ = writer.remove();
                Err(error.into())
            }
        }
    }

    /// Creates the trace directory with everything except streams, under a temporary name beside
    /// this path. What is at the path stays as it is.
    ///
    /// # Errors
    ///
    /// If something that is not a trace exists at the path, or a trace that is being recorded to,
    /// if the files cannot be written, or if `info.events` has the same id twice or fields that
    /// cannot be recorded.
    pub fn prepare(directory: &Path, info: &TraceInfo) -> Result<TraceWriter, WriteError> {
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
            arch: ARCH.to_owned(),
            target: info.target.clone(),
            time: TimeSpan {
                start_realtime_ns: points.first().map_or(0, |point| point.realtime_ns),
                start_monotonic_ns: points.first().map_or(0, |point| point.monotonic_ns),
                end_monotonic_ns: points.last().map_or(0, |point| point.monotonic_ns),
                probed_ns: None,
            },
            events: info.events.clone(),
            threads: BTreeMap::new(),
            mappings: Vec::new(),
            descriptors: Vec::new(),
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
            directory: Directory::prepare(directory)?,
            uuid,
            document,
            table,
            streams: BTreeMap::new(),
            names: None,
            totals: Totals::default(),
        };
        match writer.describe() {
            Ok(()) => Ok(writer),
            Err(error) => {
                // The incomplete directory is not a trace.
                let _ = writer.remove();
                Err(error)
            }
        }
    }

    /// Puts the trace in its place: the recording is certain now. An older trace there becomes
    /// `DIR.old`, replacing an even older one.
    ///
    /// # Errors
    ///
    /// If that cannot be done any more; the older trace stays in its place.
    pub fn begin(&mut self) -> Result<(), DirectoryError> {
        self.directory.begin()
    }

    /// Sets the start of the recording, which is else that of the clock; the next `checkpoint`
    /// writes it to disk.
    pub fn set_start(&mut self, since: Instant) {
        let (monotonic_ns, realtime_ns) = clock::past(since);
        self.document.time.start_monotonic_ns = monotonic_ns;
        self.document.time.start_realtime_ns = realtime_ns;
    }

    /// Returns the trace's UUID.
    pub fn uuid(&self) -> &[u8; 16] {
        &self.uuid
    }

    /// Returns the description in its current state, which the next write stores.
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// Returns the number of the last packet of a stream, counted from 1; 0 if it has none.
    pub fn last_number(&self, cpu: u32, lane: u32) -> u64 {
        self.streams
            .get(&(cpu, lane))
            .map_or(0, OutputStream::last_number)
    }

    /// Removes the trace.
    ///
    /// # Errors
    /// Something in it is not part of a trace, or it cannot be removed.
    pub fn remove(self) -> Result<(), DirectoryError> {
        drop(self.streams);
        self.directory.remove()
    }

    /// Returns the totals written so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Checks that a trace can have these events.
    ///
    /// # Errors
    ///
    /// Two of them have the same id, or fields that cannot be recorded.
    pub fn check_events(events: &[EventInfo]) -> Result<(), WriteError> {
        add_events_to(&mut EventTable::default(), events)
    }

    /// Adds events, before the first packet with records of them.
    ///
    /// # Errors
    ///
    /// The trace has an event with one of these ids, an event has fields that cannot be recorded, or
    /// the files cannot be written.
    pub fn add_events(&mut self, events: Vec<EventInfo>) -> Result<(), WriteError> {
        add_events_to(&mut self.table, &events)?;
        self.document.events.extend(events);
        self.describe()
    }

    /// Adds code mappings of the program. Several may be at the same addresses, one after the other.
    ///
    /// # Errors
    ///
    /// If the files cannot be written.
    pub fn add_mappings(&mut self, mappings: &[MappingInfo]) -> Result<(), WriteError> {
        let known = &mut self.document.mappings;
        let before = known.len();
        for mapping in mappings {
            if !known.contains(mapping) {
                known.push(mapping.clone());
            }
        }
        if known.len() == before {
            return Ok(());
        }
        known.sort_by_key(|mapping| mapping.start);
        self.describe()
    }

    /// Calls `visit` for all addresses of code in the records of a packet, before it is written.
    pub fn visit_code(&self, content: &[u8], mut visit: impl FnMut(Code<'_>)) {
        let mut at = 0;
        while let Ok((index, size)) = self.table.record(&content[at..]) {
            let payload = &content[at + RECORD_BYTES..at + size];
            at += size;
            let event = &self.document.events[index];
            if event.has_code() {
                visit_code(Fields::new(event, payload), &mut visit);
            }
        }
    }

    /// Adds the names of code that occurs in packets that are not written yet, and reasons why names are
    /// missing.
    ///
    /// # Errors
    ///
    /// The file cannot be written; it is unchanged then.
    pub fn add_names(&mut self, names: &[CodeName], remarks: &[String]) -> Result<(), WriteError> {
        if names.is_empty() && remarks.is_empty() {
            return Ok(());
        }
        let path = names_path(self.directory.path());
        let mut add = || -> io::Result<StreamFile> {
            let mut file = match self.names.take() {
                Some(file) => file,
                None => {
                    let mut file = self.directory.open_names()?;
                    let complete = names::complete_length(&mut file)?;
                    StreamFile::resume(file, complete)?
                }
            };
            file.append(&[], &names::member(names, remarks)?)?;
            Ok(file)
        };
        self.names = Some(add().map_err(WriteError::file(path))?);
        Ok(())
    }

    /// Records whether events of lanes from 1 on were lost between two times, in ticks. The first
    /// time is not before the end of the previous such interval. The next `checkpoint` writes this
    /// to disk. Without it, readers assume that events of any lane may have been lost at any time
    /// from the packet before the one that counts them to the packet after it.
    pub fn note_losses(&mut self, between: (u64, u64), lost: bool) {
        let losses = self.document.losses.get_or_insert_default();
        losses.add(between, lost);
    }

    /// Records what descriptors were open for, in place of what was recorded before. The next
    /// `checkpoint` or `finish` writes it to disk.
    pub fn set_descriptors(&mut self, descriptors: Vec<ProcessDescriptors>) {
        self.document.descriptors = descriptors;
    }

    /// Records which threads existed when the recording ended.
    pub fn note_last_threads(&mut self, threads: BTreeSet<u32>) {
        self.document.last_threads = Some(threads);
    }

    /// Updates the clock and the thread names on disk, so that less is missing if the recorder is
    /// killed.
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
    /// Checks the records first. From the first invalid record on, the rest is left out. If time
    /// runs backwards it is corrected (by sorting within the packet, then by moving forward the
    /// times older than the previous packet), because CTF readers would otherwise refuse the whole
    /// trace. A packet without records carries only its count of lost events; write one to report
    /// losses after a stream's last packet.
    ///
    /// `content` must be memory that no other process writes to; copy it out of the ring if the
    /// target may still change it. Set `meta.ts_end` whenever the records come from a target that
    /// may be broken: a single time in the far future would otherwise move all later ones there.
    ///
    /// # Errors
    ///
    /// If the file cannot be written. It is then unchanged; the packet's events are lost, which the
    /// caller should count, and the next packet may be tried.
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
            .map_err(WriteError::file(self.directory.path().join(name)))
    }

    /// Writes the final description and closes the trace.
    ///
    /// # Errors
    ///
    /// If the files cannot be written. The trace can then still be read, with the last description
    /// that was written.
    pub fn finish(mut self, finish: Finish) -> Result<Totals, WriteError> {
        self.end(finish)?;
        Ok(self.totals)
    }

    /// Writes the final description, and keeps the trace open for possible later packets.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    pub fn end(&mut self, finish: Finish) -> Result<(), WriteError> {
        self.totals.lost_events += finish.lost_elsewhere;
        self.bring_up_to_date(finish.clock);
        let document = &mut self.document;
        document.threads = finish.threads;
        document.time.probed_ns = finish.probed_ns;
        document.stops = finish.stops;
        document.exit = finish.exit;
        for warning in finish.warnings {
            if !document.warnings.contains(&warning) {
                document.warnings.push(warning);
            }
        }
        document.complete = finish.complete;
        self.describe()
    }

    /// Updates the description with the latest clock and the totals.
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
            .map_err(WriteError::file(root.join(METADATA)))?;
        serde_json::to_vec_pretty(&self.document)
            .map_err(io::Error::from)
            .and_then(|json| self.directory.replace_json(&json))
            .map_err(WriteError::file(json_path(root)))
    }
}

/// Calls `visit` for the addresses of code in these fields.
pub(crate) fn visit_code(fields: Fields<'_>, visit: &mut impl FnMut(Code<'_>)) {
    for value in fields {
        match value {
            Value::CallStack(stack) => visit(Code::Stack(stack)),
            Value::Symbol(address) => visit(Code::Symbol(address)),
            Value::Array(values) => {
                for value in values {
                    let Value::Symbol(address) = value else { break };
                    visit(Code::Symbol(address));
                }
            }
            _ => {}
        }
    }
}

/// Adds new events to the table; stops with an error at the first that cannot be added.
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

/// Returns a random UUID (RFC 9562, version 4), made from the keys that the standard library gets
/// from the system for its hash tables.
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
