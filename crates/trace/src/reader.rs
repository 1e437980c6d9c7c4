//! Reads a trace: the description, and all streams merged in time order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde::Deserialize;

use crate::clock::Converter;
use crate::damage::{Health, TraceError};
use crate::descriptors::Open;
use crate::directory::json_path;
use crate::document::MAX_JSON;
use crate::document::{Document, EventInfo, FORMAT_VERSION, Losses};
use crate::names::Names;
use crate::packet::{long, parse_file_name};
use crate::record::{EventTable, MAX_FIELDS, WORD_BYTES};
use crate::stream::{Gap, Record, StreamReader};
use crate::tsdl::parse_uuid;
use crate::value::Fields;
use crate::writer::{Code, visit_code};
use capriole_proc::files;

/// A trace directory, opened for reading.
#[derive(Debug)]
pub struct Trace {
    directory: PathBuf,
    document: Document,
    uuid: [u8; 16],
    table: EventTable,
    converter: Converter,
    /// CPU and lane of each stream, in order.
    streams: Vec<(u32, u32)>,
    names: OnceLock<Arc<Names>>,
}

impl Trace {
    /// Opens a trace directory: reads its description and lists its streams.
    ///
    /// # Errors
    ///
    /// If it is not a trace, has a later format version, or has a damaged description.
    pub fn open(directory: &Path) -> Result<Trace, TraceError> {
        let path = json_path(directory);
        let document = read_document(directory, &path)?;
        let uuid = parse_uuid(&document.uuid).ok_or_else(|| TraceError::Uuid {
            path: path.clone(),
            uuid: document.uuid.clone(),
        })?;
        let converter = Converter::new(&document.clock).map_err(|source| TraceError::Clock {
            path: path.clone(),
            source,
        })?;
        let mut table = EventTable::default();
        for event in &document.events {
            if event.fields.len() > MAX_FIELDS {
                return Err(TraceError::TooManyFields { path, id: event.id });
            }
            if !table.add(event) {
                return Err(TraceError::DuplicateEvent { path, id: event.id });
            }
        }
        let streams = list_streams(directory)?;
        let directory = directory.to_path_buf();
        Ok(Trace {
            directory,
            document,
            uuid,
            table,
            converter,
            streams,
            names: OnceLock::new(),
        })
    }

    /// Returns the directory, as it was given to [`Trace::open`].
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the description.
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// Returns the functions at the addresses that occur in the trace. They are read once, on first use.
    #[must_use]
    pub fn names(&self) -> Arc<Names> {
        let read = || Arc::new(Names::read(&self.directory));
        Arc::clone(self.names.get_or_init(read))
    }

    /// Returns all events of all streams from the beginning, in time order.
    ///
    /// # Errors
    ///
    /// If a stream's file cannot be opened or read.
    pub fn events(&self) -> Result<Events<'_>, TraceError> {
        let mut events = Events {
            trace: self,
            converter: self.converter.clone(),
            streams: Vec::with_capacity(self.streams.len()),
            others: BinaryHeap::with_capacity(self.streams.len()),
            current: None,
            health: Health::default(),
            gaps: Gaps::default(),
        };
        let is_exact = self.document.losses.is_some();
        let is_complete = self.document.complete;
        for &(cpu, lane) in &self.streams {
            let path = self.directory.join(crate::packet::file_name(cpu, lane));
            let mut reader =
                StreamReader::open(path, (cpu, lane), self.uuid, (is_exact, is_complete))?;
            let record = reader.advance(&self.table, &mut events.health)?;
            events.gaps.add(reader.gap());
            if let Some(record) = record {
                events
                    .others
                    .push(Reverse((record.time, events.streams.len())));
                events.streams.push(Stream { reader, record });
            }
        }
        Ok(events)
    }
}

/// A stream with its current record.
#[derive(Debug)]
struct Stream {
    reader: StreamReader,
    record: Record,
}

/// The events of a trace in time order. Keeps one packet of each stream in memory.
#[derive(Debug)]
pub struct Events<'t> {
    trace: &'t Trace,
    converter: Converter,
    streams: Vec<Stream>,
    /// The streams other than the current one, ordered by the times of their records.
    others: BinaryHeap<Reverse<(u64, usize)>>,
    /// The stream of the event returned last.
    current: Option<usize>,
    health: Health,
    gaps: Gaps,
}

/// Gaps in which events are missing, as far as the streams have been read. (A thread may
/// continue in a different stream from the one that lost its event.)
#[derive(Debug, Clone, Copy, Default)]
pub struct Gaps {
    /// Number of gaps that set `until`. Each begins at the last event returned before it was found.
    found: u64,
    /// Time up to which some events are missing, in ticks.
    until: u64,
    /// Time up to which some events are missing at times listed in `Document::losses`.
    lost_until: u64,
}

impl Gaps {
    fn add(&mut self, gap: Gap) {
        self.found += u64::from(gap.until.is_some());
        self.until = self.until.max(gap.until.unwrap_or(0));
        self.lost_until = self.lost_until.max(gap.lost_until.unwrap_or(0));
    }

    /// True if events may be missing between two successive events: the one at `before`, after
    /// which `known` was found, and the one at `now`, when `self` is found.
    pub fn are_between(
        &self,
        known: &Gaps,
        (before, now): (u64, u64),
        losses: Option<&Losses>,
    ) -> bool {
        let lost = || losses.is_none_or(|losses| losses.may_overlap(before, now));
        self.found != known.found || before < self.until || before <= self.lost_until && lost()
    }
}

/// One event as it was recorded.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// Time in ticks of the time stamp counter.
    pub tsc: u64,
    /// Time by `CLOCK_MONOTONIC`, in ns.
    pub time_ns: u64,
    /// Index of the event's description in `Document::events`.
    pub index: usize,
    /// The thread's id.
    pub tid: u32,
    /// The CPU that the thread ran on.
    pub cpu: u32,
    /// The lane of the stream.
    pub lane: u32,
    /// Events lost in the same stream since its previous event.
    pub lost_before: u64,
    /// `Events::gaps` when this event was read.
    pub gaps: Gaps,
    document: &'a Document,
    payload: &'a [u8],
}

impl<'a> Event<'a> {
    /// Returns the event's description.
    #[inline]
    pub fn info(&self) -> &'a EventInfo {
        &self.document.events[self.index]
    }

    /// Returns the fields' values, in the order of `EventInfo::fields`.
    #[inline]
    pub fn fields(&self) -> Fields<'a> {
        let fields = Fields::new(self.info(), self.payload);
        match self.document.descriptors.is_empty() {
            true => fields,
            false => fields.named(Open::at(&self.document.descriptors, self.tid, self.tsc)),
        }
    }

    /// Calls `visit` for all addresses of code in the fields.
    pub fn visit_code(&self, mut visit: impl FnMut(Code<'_>)) {
        visit_code(self.fields(), &mut visit);
    }

    /// Returns the raw record after its header, in words of eight bytes. If all fields are numbers
    /// that are always readable, the words are the fields; the unused high bytes of shorter fields
    /// are undefined.
    #[inline]
    pub fn words(&self) -> impl ExactSizeIterator<Item = u64> + 'a {
        self.payload
            .chunks_exact(WORD_BYTES)
            .map(|bytes| long(bytes, 0))
    }
}

impl Event<'_> {
    /// Returns a copy that can be kept, with another time in ticks.
    pub fn keep(&self, tsc: u64) -> Kept {
        Kept {
            tsc,
            time_ns: self.time_ns,
            index: self.index,
            tid: self.tid,
            cpu: self.cpu,
            lane: self.lane,
            payload: self.payload.into(),
        }
    }
}

/// An owned copy of an event.
#[derive(Debug)]
pub struct Kept {
    tsc: u64,
    time_ns: u64,
    index: usize,
    tid: u32,
    cpu: u32,
    lane: u32,
    payload: Box<[u8]>,
}

impl Kept {
    /// Returns the thread id.
    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// Returns the event. `document` is the description of its trace.
    pub fn event<'a>(&'a self, document: &'a Document) -> Event<'a> {
        Event {
            tsc: self.tsc,
            time_ns: self.time_ns,
            index: self.index,
            tid: self.tid,
            cpu: self.cpu,
            lane: self.lane,
            lost_before: 0,
            gaps: Gaps::default(),
            document,
            payload: &self.payload,
        }
    }
}

impl Events<'_> {
    /// Returns the next event, or `None` at the end. Not an `Iterator`, because the event borrows
    /// the buffer of its stream.
    ///
    /// # Errors
    ///
    /// If a file cannot be read. Damage in a file is not an error: see [`Events::health`].
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Event<'_>>, TraceError> {
        let Some(at) = self.step()? else {
            return Ok(None);
        };
        let stream = &self.streams[at];
        let record = &stream.record;
        Ok(Some(Event {
            tsc: record.time,
            time_ns: self.converter.monotonic_ns(record.time),
            index: record.index,
            tid: record.tid,
            cpu: stream.reader.cpu,
            lane: stream.reader.lane,
            lost_before: record.lost_before,
            gaps: self.gaps,
            document: &self.trace.document,
            payload: stream.reader.payload(record),
        }))
    }

    /// Advances the current stream, and returns the stream with the earliest record.
    fn step(&mut self) -> Result<Option<usize>, TraceError> {
        let advanced = match self.current {
            Some(at) => {
                let stream = &mut self.streams[at];
                let record = stream.reader.advance(&self.trace.table, &mut self.health)?;
                self.gaps.add(stream.reader.gap());
                match record {
                    Some(record) => {
                        stream.record = record;
                        Some((record.time, at))
                    }
                    None => None,
                }
            }
            None => None,
        };
        // Usually the same stream continues, and the heap does not change.
        self.current = match (advanced, self.others.peek_mut()) {
            (Some(own), Some(mut first)) => {
                if first.0 < own {
                    Some(std::mem::replace(&mut *first, Reverse(own)).0.1)
                } else {
                    Some(own.1)
                }
            }
            (Some(own), None) => Some(own.1),
            (None, Some(first)) => Some(PeekMut::pop(first).0.1),
            (None, None) => None,
        };
        Ok(self.current)
    }

    /// Returns the gaps up to the current records of the streams.
    #[inline]
    pub fn gaps(&self) -> Gaps {
        self.gaps
    }

    /// Returns the number of lost events, according to the packets read so far.
    pub fn lost(&self) -> u64 {
        self.health.lost_events
    }

    /// Returns the completeness of the trace, as far as it has been read; final once `next` has
    /// returned `None`. Losses counted only by the recorder are included.
    pub fn health(&self) -> Health {
        let mut health = self.health.clone();
        health.lost_events = health.lost_events.max(self.trace.document.lost_events);
        health
    }
}

/// Reads the JSON file, checking its version first.
fn read_document(directory: &Path, path: &Path) -> Result<Document, TraceError> {
    let text = files::read(path, MAX_JSON).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            match fs::symlink_metadata(directory) {
                Ok(_) => TraceError::NotATrace(directory.to_path_buf()),
                Err(_) => TraceError::NotFound(directory.to_path_buf()),
            }
        }
        _ => TraceError::file(path)(source),
    })?;
    parse_document(&text, path)
}

/// Parses the text of the JSON file, checking its version first.
pub(crate) fn parse_document(text: &[u8], path: &Path) -> Result<Document, TraceError> {
    let damaged = |source| TraceError::Json {
        path: path.to_path_buf(),
        source,
    };
    let Version { format_version } = serde_json::from_slice(text).map_err(damaged)?;
    if format_version > u64::from(FORMAT_VERSION) {
        return Err(TraceError::Version {
            path: path.to_path_buf(),
            found: format_version,
            known: FORMAT_VERSION,
        });
    }
    if format_version < u64::from(FIRST_WITH_CHAINS) && has_stack_copies(text) {
        return Err(TraceError::StackCopies {
            path: path.to_path_buf(),
            found: format_version,
        });
    }
    serde_json::from_slice(text).map_err(damaged)
}

/// The one field that all versions have.
#[derive(Deserialize)]
struct Version {
    format_version: u64,
}

/// The first version whose call stacks are chains of addresses, not copies of the stack.
const FIRST_WITH_CHAINS: u32 = 4;

/// True if an event has a field of the type `stack`.
fn has_stack_copies(text: &[u8]) -> bool {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Any {
        events: Vec<AnyEvent>,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct AnyEvent {
        fields: Vec<AnyField>,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct AnyField {
        r#type: String,
    }
    let document: Any = serde_json::from_slice(text).unwrap_or_default();
    let mut fields = document.events.iter().flat_map(|event| &event.fields);
    fields.any(|field| field.r#type.starts_with("stack("))
}

/// Returns CPU and lane of all streams in a directory, in order.
fn list_streams(directory: &Path) -> Result<Vec<(u32, u32)>, TraceError> {
    let failed = TraceError::file(directory);
    let mut streams = Vec::new();
    for entry in fs::read_dir(directory).map_err(&failed)? {
        let name = entry.map_err(&failed)?.file_name();
        streams.extend(name.to_str().and_then(parse_file_name));
    }
    streams.sort_unstable();
    Ok(streams)
}
