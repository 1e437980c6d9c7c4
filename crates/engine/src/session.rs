//! Sessions: from a process to events, in a few lines.
//!
//! ```text
//!  attach / launch          nothing in the process is changed yet
//!  add, add_calls           events become probes; the first call also maps session memory
//!  read, rows               records and aggregates, while the program runs
//!  disable, enable, remove  the probes of one event out and in again
//!  detach                   everything out; dropping a session does the same
//! ```

mod holder;
mod inner;
pub mod sites;
mod traced;

use self::holder::Holder;
use self::inner::Inner;
use crate::aggregate::{Group, Row};
use crate::error::{Result, err};
use crate::options::ProbeOptions;
use crate::program::Program;
use crate::record::Summary;
use crate::returns::Returns;
use crate::value::Value;
use crate::watch::Ended;
use capriole_event::Probe;
use capriole_ring::layout::MAX_COUNTERS;
use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

/// Options of a session. They hold for all of its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// How sites are probed.
    pub probes: ProbeOptions,
    /// How returns of functions are detected.
    pub returns: Returns,
    /// Memory for records that were not read yet, bytes, shared with the program.
    pub buffer: u64,
    /// Number of keys that the table of an aggregated event has room for.
    pub keys: u32,
    /// Room for all tables: number of counters for each CPU, at most 2^28 - 8. Memory is used only
    /// for those that are counted in.
    pub counters: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            probes: ProbeOptions::default(),
            returns: Returns::Exits,
            buffer: 64 << 20,
            keys: 1024,
            counters: 1 << 20,
        }
    }
}

impl Options {
    /// Returns an error if a session cannot have these options.
    fn check(&self) -> Result<()> {
        match self.counters {
            ..=MAX_COUNTERS => Ok(()),
            more => Err(err!(
                Limit,
                "a session has room for at most {MAX_COUNTERS} counters, not {more}"
            )),
        }
    }
}

/// Identifies an event of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId {
    /// Number of its session in this process.
    session: u64,
    /// Number of its addition.
    at: usize,
}

/// An event that was added.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Added {
    /// Identifies it.
    pub id: EventId,
    /// Number of sites that have a probe.
    pub sites: usize,
    /// Sites that have none, each with its name and the reason.
    pub refused: Vec<(String, String)>,
}

impl From<Added> for EventId {
    fn from(added: Added) -> EventId {
        added.id
    }
}

impl From<&Added> for EventId {
    fn from(added: &Added) -> EventId {
        added.id
    }
}

/// Kind of a record: how control passed its site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Happened {
    /// The site was reached.
    Hit,
    /// A function was entered.
    Entry,
    /// A function returned.
    Return,
    /// A function was left by a jump to another one.
    TailCall,
}

/// A recorded event.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Record {
    /// The event.
    pub event: EventId,
    /// Name of the site: the event's own, or the function's; of exits that `add_calls` records, with
    /// `__return` behind it.
    pub name: Arc<str>,
    /// Kind of the record.
    pub happened: Happened,
    /// Time by `CLOCK_MONOTONIC`, ns.
    pub time_ns: u64,
    /// The thread's id; 0 if unknown.
    pub tid: u32,
    /// The CPU that the thread ran on.
    pub cpu: u32,
    /// The fields, with their names.
    pub fields: Vec<(Arc<str>, Value)>,
}

impl Record {
    /// Returns the value of a field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Value> {
        let mut fields = self.fields.iter();
        let field = fields.find(|(own, _)| &**own == name);
        field.map(|(_, value)| value)
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, ns) = (self.time_ns / 1_000_000_000, self.time_ns % 1_000_000_000);
        write!(f, "{seconds}.{ns:09} {} [{:03}] ", self.tid, self.cpu)?;
        write!(f, "{}", capriole_text::printable(&self.name))?;
        for (name, value) in &self.fields {
            write!(f, " {name}={value}")?;
        }
        Ok(())
    }
}

/// How a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// It records, or waits for its first event.
    Running,
    /// It has ended; nothing more will be recorded.
    Ended(Ended),
}

/// Probes in one process.
///
/// Only one session, of whatever program, can be in a process at a time. A session that is
/// dropped takes its probes out. A program that it has launched goes on without them; one that has
/// not been let [run](Session::run) yet is killed.
///
/// A session may be moved to other threads.
pub struct Session {
    pid: u32,
    /// `None` only while the program is let run, and if the thread that holds it has panicked.
    place: Option<Place>,
}

/// Where the work of a session is done.
enum Place {
    /// By the calling thread: it becomes the tracer for each change, and ceases to be after it.
    Here(Box<Inner>),
    /// By the thread that holds the program until it runs.
    Held(Holder),
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events = self.look(|inner| inner.events());
        write!(f, "Session({}, {events} events)", self.pid)
    }
}

impl Session {
    /// Opens a session for a running process. Nothing in it is changed before the first event, so
    /// only then a session of another program is found
    /// ([`Code::AlreadyRecorded`](crate::Code::AlreadyRecorded)). Probes that a killed session has
    /// left there are taken out by the first event.
    ///
    /// # Errors
    /// There is no such process, it may not be probed, or the clock cannot be used.
    pub fn attach(pid: u32) -> Result<Session> {
        Session::attach_with(pid, Options::default())
    }

    /// Opens a session for a running process, with these options.
    ///
    /// # Errors
    /// As [`Session::attach`].
    pub fn attach_with(pid: u32, options: Options) -> Result<Session> {
        options.check()?;
        if pid == std::process::id() {
            return Err(err!(
                UnsupportedProcess,
                "process {pid} is this one, which cannot stop its own threads"
            ));
        }
        let (process, child, _) = Program::find(Some(pid), &[])?.parts();
        let inner = Inner::of(process, child, options)?;
        Ok(Session {
            pid,
            place: Some(Place::Here(Box::new(inner))),
        })
    }

    /// Starts a program, and stops it before its first own instruction, constructors included.
    /// `words` are the program and its arguments. [`Session::run`] lets it go; a session that is
    /// dropped before that kills it.
    ///
    /// ```no_run
    /// # fn main() -> capriole::Result<()> {
    /// let mut session = capriole::Session::launch(["ls", "-l"])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The program cannot be started, or the clock cannot be used.
    pub fn launch(words: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Session> {
        Session::launch_with(words, Options::default())
    }

    /// Starts a program, with these options.
    ///
    /// # Errors
    /// As [`Session::launch`].
    pub fn launch_with(
        words: impl IntoIterator<Item = impl Into<OsString>>,
        options: Options,
    ) -> Result<Session> {
        options.check()?;
        let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        if words.is_empty() {
            return Err(err!(Launch, "no program is given"));
        }
        let holder = Holder::launch(words, options)?;
        Ok(Session {
            pid: holder.ask(|inner| inner.pid()).expect(GONE),
            place: Some(Place::Held(holder)),
        })
    }

    /// Does some work on the session, where it has to be done.
    fn work<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Inner) -> T + Send + 'static,
    ) -> T {
        match self.place.as_mut().expect(GONE) {
            Place::Here(inner) => work(inner),
            Place::Held(holder) => holder.ask(work).expect(GONE),
        }
    }

    /// As [`Session::work`], without a change.
    fn look<T: Send + 'static>(&self, look: impl FnOnce(&Inner) -> T + Send + 'static) -> T {
        match self.place.as_ref().expect(GONE) {
            Place::Here(inner) => look(inner),
            Place::Held(holder) => holder.ask(move |inner| look(inner)).expect(GONE),
        }
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets a program run that was launched. Any thread may call this. Nothing happens if the
    /// program runs already.
    pub fn run(&mut self) {
        self.place = match self.place.take() {
            Some(Place::Held(holder)) => holder.release().map(|inner| Place::Here(Box::new(inner))),
            place => place,
        };
    }

    /// Adds an event, in the language of `docs/events.md`. Its hits are recorded; with aggregates
    /// or keys, and with `latency(...)`, they are counted in a table of the program's.
    ///
    /// `latency(EVENT)`, maybe followed by `by` and keys, counts how long the calls of a function
    /// take: `latency(libc:read)`, `latency(libc:write fd=$arg1 if fd > 2) by comm`. Fields and a
    /// filter belong inside the parentheses, and are those of the entry; keys are those of the
    /// exit. Its one measure is a histogram of ns.
    ///
    /// # Errors
    /// The event cannot be parsed, is not found, or cannot be probed; the session stays as it was.
    /// The first event may also find that the process cannot be attached to.
    pub fn add(&mut self, event: &str) -> Result<Added> {
        let event = event.to_owned();
        self.work(move |inner| inner.add(&event))
    }

    /// Adds the calls of functions: a record at each entry and each exit, with the return value;
    /// with `least`, one record at the exit of each call that took at least so long.
    ///
    /// Besides the event's own fields, which are values at the entry, the records have fields
    /// with these names:
    ///
    /// | field | in | value |
    /// | --- | --- | --- |
    /// | `_sp` | all | the stack pointer at the entry and the exit, equal for both ends of a call |
    /// | `_g` | entries and exits of Go functions | the goroutine |
    /// | `_since` | exits, if the event has a filter | ticks since the entry |
    /// | `_duration` | calls of at least `least` | ticks from entry to exit |
    /// | `ret` | exits | the return value |
    ///
    /// Ticks are those of the time stamp counter. The filter of the event is evaluated at the
    /// entry; exits are recorded for the calls that it has let through.
    ///
    /// # Errors
    /// As [`Session::add`], or the event is not at a function.
    pub fn add_calls(&mut self, event: &str, least: Option<Duration>) -> Result<Added> {
        let event = event.to_owned();
        self.work(move |inner| inner.add_calls(&event, least))
    }

    /// Adds a probe that was built without text. What it does with its hits are its
    /// [actions](crate::probe::Action): several are possible. A probe at a return that needs values
    /// of the entry gets a second probe there.
    ///
    /// # Errors
    /// The probe is not [well-formed](Probe::check), or as [`Session::add`].
    pub fn add_probe(&mut self, probe: impl Into<Probe>) -> Result<Added> {
        self.add_probes(&[probe.into()])
    }

    /// Adds several probes at once: all of them, or none. They are one event to
    /// [`Session::disable`] and the like; their records have their names.
    ///
    /// # Errors
    /// As [`Session::add_probe`], or there is no probe. Probes that share a map differ in its keys
    /// or aggregates.
    pub fn add_probes(&mut self, probes: &[Probe]) -> Result<Added> {
        let probes = probes.to_vec();
        self.work(move |inner| inner.add_probes(&probes))
    }

    /// Takes the probes of an event out of the program; what it has counted stays. Probes of other
    /// events at the same places stay. A call that has entered a probe before is still recorded.
    /// An event that is disabled already is left as it is.
    ///
    /// # Errors
    /// The event is not in this session, the session has ended, or the program cannot be stopped;
    /// nothing has changed then.
    pub fn disable(&mut self, event: impl Into<EventId>) -> Result<()> {
        let event = event.into();
        self.work(move |inner| inner.disable(event))
    }

    /// Puts the probes of an event in again. Returns the sites where that is not possible now, with
    /// the reasons.
    ///
    /// # Errors
    /// As [`Session::disable`].
    pub fn enable(&mut self, event: impl Into<EventId>) -> Result<Vec<(String, String)>> {
        let event = event.into();
        self.work(move |inner| inner.enable(event))
    }

    /// Takes an event out for good. What it has counted can be read until the next event is added,
    /// which may use its room.
    ///
    /// # Errors
    /// As [`Session::disable`].
    pub fn remove(&mut self, event: impl Into<EventId>) -> Result<()> {
        let event = event.into();
        self.work(move |inner| inner.remove(event))
    }

    /// Returns the records that were committed since the last call, by time, and does what is due:
    /// occupied sites are tried again, other tools at the probes are looked for. Call it at least
    /// every second, also if all events are counted: [`Session::status`] is found here.
    ///
    /// # Errors
    /// The clock cannot be read.
    pub fn read(&mut self) -> Result<Vec<Record>> {
        self.work(Inner::read)
    }

    /// Writes the records into a trace directory from now on, in place of returning them from
    /// [`Session::read`], which still has to be called, at least ten times a second if there are many.
    /// The trace has the events that are in the session, and those that are added meanwhile; it can be
    /// read at any time. An older trace at this path is moved aside, to `DIR.old`.
    ///
    /// The trace is completed by [`Session::end_trace`], at the end of the program or of the session,
    /// and at the first error of writing, after which `read` returns the records again.
    ///
    /// # Errors
    /// The directory cannot be written or is something else, the session has ended, or is recorded
    /// already.
    pub fn record_to(&mut self, directory: impl AsRef<Path>) -> Result<()> {
        let directory = directory.as_ref().to_path_buf();
        self.work(move |inner| inner.record_to(&directory))
    }

    /// Completes the trace that [`Session::record_to`] has begun, and returns its totals; also if the
    /// program has ended meanwhile.
    ///
    /// # Errors
    /// There is none, or it could not be written: the error is the first one.
    pub fn end_trace(&mut self) -> Result<Summary> {
        self.work(Inner::end_trace)
    }

    /// Adds a warning to the description of the trace that is being written; nothing if there is none.
    pub fn warn_trace(&mut self, warning: impl Into<String>) {
        let warning = warning.into();
        self.work(move |inner| inner.warn_trace(warning));
    }

    /// True while records are written into a trace.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.look(|inner| inner.trace.is_some())
    }

    /// Waits until there is something to read, at most so long. It may return earlier.
    pub fn wait(&mut self, limit: Duration) {
        self.work(move |inner| inner.wait(limit));
    }

    /// Returns the tables of an aggregated event: one for each [own map](crate::probe::Map::Own) of
    /// its probes. Empty for an event whose hits are recorded.
    #[must_use]
    pub fn rows(&self, event: impl Into<EventId>) -> Vec<Group> {
        let event = event.into();
        self.look(move |inner| inner.rows(event))
    }

    /// Returns the shared map of this name, with one row for each set of key values, whichever probe
    /// has updated it. `None` if no probe has named it yet. The map is empty again once all probes
    /// that update it were removed, and another event was added.
    #[must_use]
    pub fn map(&self, name: &str) -> Option<Group> {
        let name = name.to_owned();
        self.look(move |inner| inner.map(&name))
    }

    /// Returns the name of the site that a row of this session counts: that of the event, or of the
    /// function if the event is a pattern. `None` for a row of another session, or of an event that
    /// was removed.
    #[must_use]
    pub fn name(&self, row: &Row) -> Option<Arc<str>> {
        let site = row.event;
        self.look(move |inner| inner.name(site))
    }

    /// Number of events that were lost because the buffer was full or all lanes were in use.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.look(Inner::lost)
    }

    /// Returns how the session stands, as [`Session::read`] found it.
    #[must_use]
    pub fn status(&self) -> Status {
        let ended = self.look(Inner::ended);
        ended.map_or(Status::Running, Status::Ended)
    }

    /// Returns how a program that this session has launched ended; `None` while it runs, and for
    /// any other process.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.work(Inner::exit_status)
    }

    /// Takes all probes out of the program, and everything else that the session has put there.
    /// Returns the records that were not read yet. A launched program runs from now on, if it did
    /// not before.
    ///
    /// # Errors
    /// The probes are still in the program; the error says why.
    pub fn detach(mut self) -> Result<Vec<Record>> {
        let records = self.work(Inner::detach)?;
        self.run();
        Ok(records)
    }
}

/// A bug, which was reported when it happened.
const GONE: &str = "the thread that held the program has panicked";

impl Drop for Session {
    fn drop(&mut self) {
        let Some(Place::Held(holder)) = self.place.take() else {
            return;
        };
        // Nobody could let it run any more, and none of its own code has run.
        holder.ask(Inner::kill);
        if let Some(mut inner) = holder.release() {
            inner.bury();
        }
    }
}
