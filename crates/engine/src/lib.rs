//! Dynamic probes for running native programs on Linux x86-64, as a library.
//!
//! From a process id to events in ten lines:
//!
//! ```no_run
//! fn main() -> capriole::Result<()> {
//!     let mut session = capriole::Session::attach(812)?;
//!     session.add("libc:malloc size=$arg1 if size > 4096")?;
//!     while session.status() == capriole::Status::Running {
//!         session.wait(std::time::Duration::from_millis(100));
//!         for record in session.read()? {
//!             println!("{record}");
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! A [`Session`] puts probes into one process. Events are written in the language of
//! `docs/events.md`. They are added, disabled, enabled and removed at any time, each by itself,
//! while the program runs; a session that is dropped takes everything out. The program is stopped
//! for well below a millisecond each time, and is not traced in between.
//!
//! # Counting
//!
//! Aggregates are kept in tables in the program and read as rows; `stat` of the command shows the
//! same. Nothing is recorded, so nothing is lost:
//!
//! ```no_run
//! # fn main() -> capriole::Result<()> {
//! let mut session = capriole::Session::attach(812)?;
//! let sizes = session.add("libc:malloc size=$arg1 hist(size) by comm")?;
//! std::thread::sleep(std::time::Duration::from_secs(1));
//! for table in session.rows(&sizes) {
//!     for row in &table.rows {
//!         println!("{:?}: {} calls, {:?}", row.keys, row.calls, row.measures);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Calls
//!
//! Entries and exits, with the return value; or only calls that take long:
//!
//! ```no_run
//! # use std::time::Duration;
//! # fn main() -> capriole::Result<()> {
//! let mut session = capriole::Session::launch(["sqlite3", "shop.db"])?;
//! session.add_calls("libsqlite3:sqlite3_step", Some(Duration::from_millis(1)))?;
//! session.run();
//! # Ok(())
//! # }
//! ```
//!
//! # Traces
//!
//! A recording into a trace directory is [`record::Recorder`]; traces are read by the crates
//! `capriole-trace` and `capriole-report`, which need neither ptrace nor a C compiler:
//!
//! ```no_run
//! # use std::path::Path;
//! # fn main() -> Result<(), capriole_trace::TraceError> {
//! let trace = capriole_trace::Trace::open(Path::new("capriole.trace"))?;
//! let mut events = trace.events()?;
//! while let Some(event) = events.next()? {
//!     println!("{} {}", event.time_ns, event.info().name);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! An [`Error`] has a stable [`Code`], a message, maybe [`Advice`](advice::Advice), and the error that caused it. Whatever fails, the
//! program is as it was: planning happens before it is touched, and what was put into it is taken
//! out again.
//!
//! # Threads
//!
//! A [`Session`] may be moved to other threads, also before a launched program
//! [runs](Session::run). Each call that changes probes makes the tracer for that time a thread of
//! its own, and waits for it.
//!
//! # Layers
//!
//! | layer | module | from, to |
//! | --- | --- | --- |
//! | parse | [`definitions`], [`calls`], [`entry`] | text, [`event`]s |
//! | select | [`select`], [`fields`], [`marker`] | events, sites with plans and fields |
//! | insert | [`plan`] | plans, probes in a process |
//! | read | [`session`], [`record`], [`aggregate`] | session memory, records, rows |
//!
//! The command `capriole` is written in the layers; other programs use [`Session`].
#![forbid(unsafe_code)]

pub mod advice;
pub mod aggregate;
pub mod calls;
pub mod content;
pub mod definitions;
pub mod entry;
pub mod error;
pub mod event;
pub mod fields;
pub mod filtered;
pub mod machine;
pub mod marker;
pub mod message;
pub mod names;
pub mod options;
pub mod plan;
pub mod probe;
pub mod program;
pub mod record;
pub mod returns;
pub mod select;
pub mod session;
pub mod slots;
pub mod value;
pub mod watch;

pub use aggregate::{Bucket, Group, Histogram, Measure, Row};
pub use error::{Code, Error, Result};
pub use options::ProbeOptions;
pub use probe::Probe;
pub use returns::Returns;
pub use session::{Added, EventId, Happened, Options, Record, Session, Status};
pub use value::Value;
pub use watch::Ended;
