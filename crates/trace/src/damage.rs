//! Damage that a reader finds in a trace, and errors that prevent reading.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::clock::ClockError;
use crate::packet::HeaderFault;
use crate::record::{MAX_FIELDS, RecordFault};

/// Reason why a trace cannot be read at all, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The path does not exist.
    #[error("there is no trace at {0}")]
    NotFound(PathBuf),
    /// The path exists, but has no `info/capriole.json`.
    #[error("{0} is not a capriole trace: it has no info/capriole.json")]
    NotATrace(PathBuf),
    /// A file could not be opened or read.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The JSON file is malformed.
    #[error("{path} is damaged: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Line, column and nature of the error.
        source: serde_json::Error,
    },
    /// The trace has call stacks in the form of an older version.
    #[error(
        "{path}: the trace has version {found} of the format, with copies of stacks that only older \
         versions of capriole unwind"
    )]
    StackCopies {
        /// The JSON file.
        path: PathBuf,
        /// The trace's version.
        found: u64,
    },
    /// The trace was written by a later version.
    #[error(
        "{path} has format version {found}, and this program reads up to version {known}; read it with a newer one"
    )]
    Version {
        /// The JSON file.
        path: PathBuf,
        /// The version it has.
        found: u64,
        /// The latest version that this crate supports.
        known: u32,
    },
    /// The trace's UUID is invalid.
    #[error("{path} is damaged: `{uuid}` is not a UUID")]
    Uuid {
        /// The JSON file.
        path: PathBuf,
        /// The invalid string.
        uuid: String,
    },
    /// The clock is invalid, so times cannot be computed.
    #[error("{path} is damaged: {source}")]
    Clock {
        /// The JSON file.
        path: PathBuf,
        /// The reason why the clock is invalid.
        source: ClockError,
    },
    /// Two events have the same id.
    #[error("{path} is damaged: two events have the id {id}")]
    DuplicateEvent {
        /// The JSON file.
        path: PathBuf,
        /// The id.
        id: u32,
    },
    /// An event has more fields than a record can hold.
    #[error("{path} is damaged: event {id} has more than {MAX_FIELDS} fields")]
    TooManyFields {
        /// The JSON file.
        path: PathBuf,
        /// The event's id.
        id: u32,
    },
}

impl TraceError {
    /// Returns the error for a file that cannot be opened or read.
    pub(crate) fn file(path: &Path) -> impl Fn(io::Error) -> TraceError {
        move |source| TraceError::File {
            path: path.to_path_buf(),
            source,
        }
    }
}

/// A place in a stream's file that could not be read. Reading continued after it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// Bytes from its start.
    pub offset: u64,
    /// The kind of damage.
    pub kind: DamageKind,
    /// Bytes that were skipped; 0 if everything was still read.
    pub skipped: u64,
}

/// Kinds of damage at one place of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DamageKind {
    /// The file ends inside a packet's header.
    #[error("the file ends inside a packet's header")]
    HeaderCutOff,
    /// The file ends inside a packet's records. The complete ones were read.
    #[error("the file ends inside a packet")]
    PacketCutOff,
    /// A packet's header is invalid.
    #[error(transparent)]
    Header(HeaderFault),
    /// A record is invalid.
    #[error(transparent)]
    Record(RecordFault),
    /// A record's time is outside its packet's. The record was skipped.
    #[error("a record's time is outside its packet's")]
    TimeOutside,
    /// A record is earlier than its predecessor. The record was read.
    #[error("time goes backwards")]
    TimeBackwards,
    /// The count of lost events decreased.
    #[error("the count of lost events goes backwards")]
    LossesBackwards,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: at byte {}: {}",
            self.file.display(),
            self.offset,
            self.kind
        )?;
        if self.skipped > 0 {
            write!(f, "; {} bytes were passed over", self.skipped)?;
        }
        Ok(())
    }
}

/// Completeness of a trace, as far as it has been read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    /// Hits that are not in the trace because there was no space to record them.
    pub lost_events: u64,
    /// Packets missing between others.
    pub lost_packets: u64,
    /// Number of places that could not be read.
    pub damages: u64,
    /// The first damages, at most [`Health::MOST_SHOWN`].
    pub shown: Vec<Damage>,
    /// Further remarks for the report, one line each.
    pub remarks: Vec<String>,
}

impl Health {
    /// Maximum number of damages kept individually.
    pub const MOST_SHOWN: usize = 20;

    pub(crate) fn add(&mut self, damage: Damage) {
        self.damages += 1;
        if self.shown.len() < Self::MOST_SHOWN {
            self.shown.push(damage);
        }
    }
}
