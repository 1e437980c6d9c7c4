//! Trace directories: writing them while a program is recorded, and reading them afterwards.
//!
//! A trace is a CTF 1.8 trace, which `babeltrace2` and Trace Compass read unchanged, plus one
//! JSON file for data that does not fit into CTF:
//!
//! ```text
//! capriole.trace/
//!   metadata              layout of the streams, in CTF's language
//!   cpu0 cpu1 cpu0.1 ...  the streams: packets of records, one file for each CPU and lane
//!   info/capriole.json    target, events, thread names, clock, losses (see `Document`)
//!   info/names.jsonl.gz   functions at the addresses that occur (see `Names`)
//! ```
//!
//! # Writing
//!
//! [`TraceWriter`] takes packets as they come out of the ring. The trace on disk can be read at
//! any time, even if the recorder is killed or the disk fails. Records are checked before they
//! are written, because CTF readers refuse a whole trace if one record is wrong; the target's
//! timestamps are put in order, and invalid records are left out and counted. A trace whose
//! recorder was killed can be reopened to add the remaining records ([`TraceWriter::reopen`]).
//!
//! # Reading
//!
//! [`Trace`] returns all events in time order, keeping one packet of each stream in memory. It
//! trusts nothing: damage is skipped, counted and reported by file and byte ([`Health`]).
//! Text, JSON lines, summaries, and the pairing of entries and exits are the crate `report`.
//!
//! # Time
//!
//! Records carry raw TSC ticks; [`clock`] converts them to `CLOCK_MONOTONIC`. The CTF
//! metadata maps them to UTC along one straight line. babeltrace2 computes in floating point
//! and so rounds to about 1 ns for each 50 days of machine uptime.
//!
//! # Versions of the format
//!
//! | version | since | change |
//! | --- | --- | --- |
//! | 1 | before 0.1.0 | first version; all fields are 64-bit numbers in hexadecimal |
//! | 2 | 0.1.0 | fields have types; a packet's last bits may be padding |
//! | 3 | 0.1.0 | the type `stack`, a copy of the stack, and `mappings` |
//! | 4 | 0.1.0 | the type `stack` is a chain of addresses; the file of names |
//!
//! A reader accepts every version up to its own ([`FORMAT_VERSION`]) and refuses later ones
//! with an error that names the version. Unknown fields are ignored, so adding one needs no new
//! version; changing the meaning of a field, of a file's name or of the packets' layout does.

#![deny(unsafe_code)]

pub mod clock;
mod damage;
mod descriptors;
mod directory;
mod document;
pub mod live;
mod names;
mod output;
mod packet;
mod place;
mod reader;
mod record;
mod reopen;
mod repair;
mod stream;
mod totals;
mod tsdl;
mod value;
mod writer;

pub use damage::{Damage, DamageKind, Health, TraceError};
pub use descriptors::{Certainty, Descriptor, Open, OpenDescriptor, ProcessDescriptors};
pub use directory::{DirectoryError, put_aside_as};
pub use document::{
    ARCH, Document, EventInfo, ExitStatus, FORMAT_VERSION, FieldInfo, Finish, Losses, MappingInfo,
    RefusalInfo, Role, Stop, Target, TextFormat, TimeSpan, TraceInfo, Tracer,
};
pub use names::{CodeName, FunctionName, Names};
pub use packet::{HEADER_BYTES, HeaderFault, MAX_CONTENT_BYTES};
pub use place::write_file;
pub use reader::{Event, Events, Gaps, Kept, Trace};
pub use record::{MAX_FIELDS, MAX_FRAMES, MAX_STRING_BYTES, RECORD_BYTES, RecordFault, WORD_BYTES};
pub use reopen::ReopenError;
pub use totals::{PacketMeta, Totals, Written};
pub use value::{Array, CallStack, Elements, Enumerated, Fields, StackEnd, Value};
pub use writer::{Code, TraceWriter, WriteError};
