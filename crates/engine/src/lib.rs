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
//! # Probes without text
//!
//! A [`Probe`] can be built in code, as the text of an event is parsed to one: its place, values, guard
//! and actions are plain data ([`probe`]). A probe may do several things at a hit, and several probes
//! may update one map:
//!
//! ```
//! use capriole::probe::{Aggregate, Guard, KeyKind, Map, Value};
//! use capriole::{Probe, Session};
//!
//! /// Adds the sizes of requests up, by thread.
//! fn requests(function: &str) -> Probe {
//!     Probe::at_function("libc", function)
//!         .value("size", Value::argument(1))
//!         .update(Map::shared("sizes"), [KeyKind::Thread], [Aggregate::sum("size")])
//! }
//!
//! fn run(pid: u32) -> capriole::Result<()> {
//!     let mut session = Session::attach(pid)?;
//!     session.add_probes(&[requests("malloc"), requests("valloc")])?;
//!     std::thread::sleep(std::time::Duration::from_secs(1));
//!     for row in session.map("sizes").into_iter().flat_map(|map| map.rows) {
//!         println!("{:?}: {} calls, {:?}", row.keys, row.calls, row.measures);
//!     }
//!     Ok(())
//! }
//!
//! let large = requests("malloc").when(Guard::greater("size", 4096)).record();
//! assert_eq!(large.check(), Ok(()));
//! assert_eq!(large.label, "libc:malloc");
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
//! [`Session::record_to`] writes what a session records into a trace directory; the command `record` uses
//! [`record::Recorder`]. Traces are read by the crates
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
//! | select | crate `capriole-select` | text or [`probe`]s, sites with plans and fields |
//! | insert | [`plan`], [`aggregate::maps`] | plans and tables, probes in a process |
//! | read | [`session`], [`record`], [`aggregate`] | session memory, records, rows |
//!
//! The command `capriole` is written in the layers; other programs use [`Session`].
#![forbid(unsafe_code)]

pub mod aggregate;
mod compiled;
pub mod copied_code;
pub mod descriptors;
mod executed;
pub mod filtered;
pub mod machine;
pub mod names;
pub mod open_calls;
pub mod options;
mod pace;
pub mod plan;
pub mod probe;
pub mod program;
pub mod record;
pub mod session;
pub mod uncovered;
mod unwinding;
pub mod value;
pub mod watch;

pub use aggregate::{Bucket, Exact, Group, Histogram, Measure, Row};
pub use capriole_select::{advice, error, returns};
pub use error::{Code, Error, Result};
pub use options::ProbeOptions;
pub use probe::Probe;
pub use returns::Returns;
pub use session::{Added, EventId, Happened, Options, Record, Session, Status};
pub use value::Value;
pub use watch::Ended;
