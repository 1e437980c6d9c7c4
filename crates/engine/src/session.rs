//! Sessions: from a process to events, in a few lines.
//!
//! ```text
//!  attach / launch          nothing in the process is changed yet
//!  add, add_calls           events become probes; the first call also maps session memory
//!  read, rows               records and aggregates, while the program runs
//!  disable, enable, remove  the probes of one event out and in again
//!  detach                   everything out; dropping a session does the same
//! ```

use crate::aggregate::counting::{counted, tables, works};
use crate::aggregate::{AggregateTable, Group};
use crate::calls;
use crate::entry::with_entry;
use crate::error::{Result, err};
use crate::event::Event;
use crate::fields::Purpose;
use crate::machine::possible_cpus;
use crate::options::{self, ProbeOptions};
use crate::plan::{Planned, Request};
use crate::program::Program;
use crate::returns::Returns;
use crate::select::{self, Mode, Selected};
use crate::value::Value;
use crate::watch::{Ended, Silent, Watch};
use capriole_event::EventSpec;
use capriole_patch::attach::Attached;
use capriole_patch::detach::Detached;
use capriole_proc::process::Process;
use capriole_ring::layout::{Geometry, frame};
use capriole_ring::tables::{TableReader, Tables};
use capriole_ring::{Packet, Reader};
use capriole_trace::Role;
use capriole_trace::clock::{Clock, Converter};
use capriole_trace::live::{LiveDecoder, LiveRecord};
use std::collections::HashMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

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

/// Room for the keys of all tables, bytes.
const DIRECTORIES: u64 = 16 << 20;
/// Areas of slots for open calls: so many events may follow calls of the same function.
const AREAS: u32 = 4;
/// Number of sessions that this process has opened. A plain count: it publishes no other data.
static SESSIONS: AtomicU64 = AtomicU64::new(0);
/// Interval at which the clock is synchronised.
const SYNC: Duration = Duration::from_secs(1);

/// Identifies an event of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId {
    /// Number of its session in this process.
    session: u64,
    /// Index in `Session::additions`.
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
    /// Name of the site: the event's own, or the function's.
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

/// An event's sites and probes.
#[derive(Debug)]
struct Addition {
    selected: Vec<Selected>,
    /// Number of its first site.
    first: u32,
    /// Numbers of its probes in `Attached`.
    probes: Vec<usize>,
    /// Tables of its definitions, each with the events that have a probe.
    kept: Vec<(AggregateTable, Vec<usize>)>,
    /// True once it was removed.
    removed: bool,
}

/// How records of one site are shown.
#[derive(Debug)]
struct Shown {
    event: EventId,
    name: Arc<str>,
    happened: Happened,
    fields: Vec<Arc<str>>,
}

/// Parts of a session that exist once its first probes are in.
#[derive(Debug)]
struct Active {
    attached: Attached,
    reader: Reader,
    tables: TableReader,
    watch: Watch,
    /// True once the last records were read: nothing is written any more.
    drained: bool,
}

/// Probes in one process.
///
/// Only one session, of whatever program, can be in a process at a time. A session that is
/// dropped takes its probes out.
pub struct Session {
    /// Number of this session in this process.
    number: u64,
    program: Program,
    options: Options,
    clock: Clock,
    synced: Instant,
    active: Option<Active>,
    additions: Vec<Addition>,
    decoder: LiveDecoder,
    shown: HashMap<u32, Shown>,
    /// Room that is taken by the tables of all additions.
    tables: Tables,
    /// Number of the next site, and the next free area of calls.
    next: (u32, u32),
    ended: Option<Ended>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.program.process().pid();
        write!(f, "Session({pid}, {} events)", self.additions.len())
    }
}

impl Session {
    /// Opens a session for a running process. Nothing in it is changed before the first event.
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
        Session::of(Program::find(Some(pid), &[])?, options)
    }

    /// Starts a program, and stops it before its first own instruction, constructors included.
    /// [`Session::run`] lets it go; until then it has to be used by this thread, which traces it.
    ///
    /// # Errors
    /// The program cannot be started, or the clock cannot be used.
    pub fn launch(words: &[OsString]) -> Result<Session> {
        Session::launch_with(words, Options::default())
    }

    /// Starts a program, with these options.
    ///
    /// # Errors
    /// As [`Session::launch`].
    pub fn launch_with(words: &[OsString], options: Options) -> Result<Session> {
        if words.is_empty() {
            return Err(err!(Launch, "no program is given"));
        }
        Session::of(Program::find(None, words)?, options)
    }

    fn of(program: Program, options: Options) -> Result<Session> {
        Ok(Session {
            number: SESSIONS.fetch_add(1, Ordering::Relaxed),
            program,
            options,
            clock: options::clock()?,
            synced: Instant::now(),
            active: None,
            additions: Vec::new(),
            decoder: LiveDecoder::new(),
            shown: HashMap::new(),
            tables: Tables::default(),
            next: (0, 0),
            ended: None,
        })
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.program.process().pid()
    }

    /// Lets a program run that was launched.
    pub fn run(&mut self) {
        let process = self.program.process().clone();
        let program = std::mem::replace(&mut self.program, Program::Running(process));
        self.program = program.released();
    }

    /// Adds an event, in the language of `docs/events.md`. Its hits are recorded; with aggregates
    /// or keys, and with `latency(...)`, they are counted in a table of the program's.
    ///
    /// # Errors
    /// The event cannot be parsed, is not found, or cannot be probed; the session stays as it was.
    pub fn add(&mut self, event: &str) -> Result<Added> {
        if let Some(timed) = calls::latency(event)? {
            return self.count(timed.into());
        }
        let spec = EventSpec::parse(event)?;
        match spec.aggregation.at() {
            Some(_) => self.count(with_entry(spec)),
            None => self.record(with_entry(spec)),
        }
    }

    /// Adds the calls of functions: a record at each entry and each exit, with the return value;
    /// with `least`, one record at the exit of each call that took at least so long, with its
    /// duration in ticks of the time stamp counter.
    ///
    /// # Errors
    /// As [`Session::add`], or the event is not at a function.
    pub fn add_calls(&mut self, event: &str, least: Option<Duration>) -> Result<Added> {
        let least = least.map(|time| options::ticks(&self.clock, time));
        let calls = calls::graph(event, least.transpose()?)?;
        self.record(calls.into())
    }

    fn record(&mut self, event: Event) -> Result<Added> {
        self.plan_and_insert(Purpose::Record, &[event], |selected| {
            let works = Selected::record_all(selected).into_iter().map(Ok).collect();
            Ok((works, Vec::new()))
        })
    }

    fn count(&mut self, event: Event) -> Result<Added> {
        let clock = event.is_timed().then(|| self.clock.clone());
        let events = [event];
        let mut all = self.tables.clone();
        let (keys, room) = (self.options.keys, self.options.counters);
        let added = self.plan_and_insert(Purpose::Count, &events, |selected| {
            let kept = tables(&events, selected, keys, clock.as_ref(), &mut all)?;
            if all.counters() > room || all.directories() > DIRECTORIES {
                return Err(err!(
                    Limit,
                    "the tables of this session are full: it has room for {room} counters and \
                     {DIRECTORIES} bytes of keys"
                ));
            }
            Ok((works(selected, &kept), kept))
        })?;
        self.tables = all;
        Ok(added)
    }

    /// Plans events, and inserts their probes: by an attach if they are the first.
    fn plan_and_insert(
        &mut self,
        purpose: Purpose,
        events: &[Event],
        works: impl FnOnce(&[Selected]) -> Result<Works>,
    ) -> Result<Added> {
        if let Some(ended) = self.ended {
            return Err(err!(Vanished, "the session has ended: {}", ended.as_str()));
        }
        let (first, first_area) = self.next;
        let mut kept = Vec::new();
        let request = Request {
            events,
            options: &self.options.probes,
            mode: Mode {
                purpose,
                returns: self.options.returns,
                first_id: first,
                first_area,
            },
            messages: false,
        };
        let process = self.program.process().clone();
        let planned = Planned::new(&process, &request, |selected| {
            let (works, tables) = works(selected)?;
            kept = tables;
            Ok(works)
        })?;
        let areas = select::frames(&planned.selected).map_or(first_area, |(areas, _)| areas);
        if areas > AREAS {
            return Err(err!(
                Limit,
                "more than {AREAS} events of this session would follow calls to their end"
            ));
        }
        let next = (first + planned.selected.len() as u32, areas);
        let id = EventId {
            session: self.number,
            at: self.additions.len(),
        };
        let (selected, dropped, probes) = match &mut self.active {
            None => {
                let (room, buffer) = (self.options.counters, self.options.buffer);
                let probed = planned.attach(&process, None, |journal| Geometry {
                    counters: room,
                    directories: DIRECTORIES,
                    ..Geometry::for_buffer(buffer, possible_cpus(), journal)
                        .with_frames(AREAS, frame::MOST_WORDS)
                })?;
                let names = probed.names();
                let memory = &probed.attached.memory;
                let probes = probed.probes();
                self.active = Some(Active {
                    reader: Reader::new(memory.memory.clone(), memory.geometry),
                    tables: TableReader::new(memory.memory.clone(), memory.geometry),
                    watch: Watch::new(&process, names, None)?,
                    drained: false,
                    attached: probed.attached,
                });
                (probed.selected, probed.dropped, probes)
            }
            Some(active) => {
                let more = planned.add_to(&mut active.attached)?;
                active.watch.add_names(more.names);
                (more.selected, more.dropped, more.probes)
            }
        };
        self.next = next;
        let both = || selected.iter().zip(&dropped);
        let with_probe = || both().filter(|(_, d)| d.is_none()).map(|(event, _)| event);
        for info in select::infos(with_probe()) {
            let happened = match info.role {
                Role::Point => Happened::Hit,
                Role::Entry => Happened::Entry,
                Role::Return => Happened::Return,
                Role::TailCall => Happened::TailCall,
            };
            let fields = info.fields.iter().map(|field| Arc::from(&*field.name));
            let shown = Shown {
                event: id,
                name: Arc::from(&*info.name),
                happened,
                fields: fields.collect(),
            };
            self.shown.insert(info.id, shown);
            self.decoder.add(info);
        }
        let counted = counted(events.len(), &selected, &dropped);
        let kept = kept.into_iter().zip(counted);
        let kept = kept.filter_map(|(kept, events)| Some((kept?, events)));
        let kept = kept.collect();
        let added = Added {
            id,
            sites: with_probe().count(),
            refused: both()
                .filter_map(|(event, reason)| Some((event.name(), reason.as_ref()?.to_string())))
                .collect(),
        };
        self.additions.push(Addition {
            selected,
            first,
            probes,
            kept,
            removed: false,
        });
        Ok(added)
    }

    /// Returns the index of an event that is still in the session.
    fn at(&self, event: EventId) -> Result<usize> {
        if let Some(ended) = self.ended {
            return Err(err!(Vanished, "the session has ended: {}", ended.as_str()));
        }
        let own = event.session == self.number;
        match self
            .additions
            .get(event.at)
            .filter(|addition| own && !addition.removed)
        {
            Some(_) => Ok(event.at),
            None => Err(err!(
                NotFound,
                "the event is not in this session: it was removed, or belongs to another session"
            )),
        }
    }

    /// Takes the probes of an event out of the program; what it has counted stays. Probes of other
    /// events at the same places stay. A call that has entered a probe before is still recorded.
    /// An event that is disabled already is left as it is.
    ///
    /// # Errors
    /// The event is not in this session, the session has ended, or the program cannot be stopped;
    /// nothing has changed then.
    pub fn disable(&mut self, event: impl Into<EventId>) -> Result<()> {
        let at = self.at(event.into())?;
        if let Some(active) = &mut self.active {
            active.attached.disarm(&self.additions[at].probes)?;
        }
        Ok(())
    }

    /// Puts the probes of an event in again. Returns the sites where that is not possible now, with
    /// the reasons.
    ///
    /// # Errors
    /// As [`Session::disable`].
    pub fn enable(&mut self, event: impl Into<EventId>) -> Result<Vec<(String, String)>> {
        let at = self.at(event.into())?;
        let Some(active) = &mut self.active else {
            return Ok(Vec::new());
        };
        let refused = active.attached.arm(&self.additions[at].probes)?;
        let name = |probe: usize| active.watch.name(probe).to_owned();
        let refused = refused.into_iter();
        Ok(refused
            .map(|(probe, reason)| (name(probe), reason.to_string()))
            .collect())
    }

    /// Takes an event out for good; what it has counted can still be read. Its room in the tables,
    /// and its area of open calls, are not used again.
    ///
    /// # Errors
    /// As [`Session::disable`].
    pub fn remove(&mut self, event: impl Into<EventId>) -> Result<()> {
        let event = event.into();
        self.disable(event)?;
        self.additions[event.at].removed = true;
        Ok(())
    }

    /// Returns the records that were committed since the last call, by time, and does what is due:
    /// occupied sites are tried again, other tools at the probes are looked for.
    ///
    /// # Errors
    /// The clock cannot be read.
    pub fn read(&mut self) -> Result<Vec<Record>> {
        let Some(active) = &mut self.active else {
            return Ok(Vec::new());
        };
        if self.ended.is_none() {
            self.ended = active.watch.ended(&mut active.attached, &mut Silent);
            active.watch.notices(&mut Silent);
        }
        if self.synced.elapsed() >= SYNC {
            self.clock.sync()?;
            self.synced = Instant::now();
        }
        let mut clock = Converter::new(&self.clock.model()?)?;
        let mut records = Vec::new();
        let (shown, decoder) = (&self.shown, &mut self.decoder);
        let mut packet = |packet: Packet<'_>| {
            let cpu = packet.cpu;
            decoder.packet(packet.content, |record: LiveRecord<'_>| {
                let Some(known) = shown.get(&record.info.id) else {
                    return;
                };
                let values = record.fields().map(Value::from);
                records.push(Record {
                    event: known.event,
                    name: Arc::clone(&known.name),
                    happened: known.happened,
                    time_ns: clock.monotonic_ns(record.tsc),
                    tid: record.tid,
                    cpu,
                    fields: known.fields.iter().cloned().zip(values).collect(),
                });
            });
            Ok::<(), Infallible>(())
        };
        let Ok(_) = match self.ended {
            None => active.reader.collect_committed(&mut packet),
            // Packets that were not full are delivered whole each time they are collected so.
            Some(_) if active.drained => Ok(0),
            Some(_) => active.reader.collect(true, &mut packet),
        };
        active.drained = self.ended.is_some();
        records.sort_by_key(|record| record.time_ns);
        Ok(records)
    }

    /// Waits until there is something to read, at most so long.
    pub fn wait(&mut self, limit: Duration) {
        match &mut self.active {
            Some(active) => {
                let pause = active.watch.pause(&active.attached, limit);
                active.reader.wait(pause);
            }
            None => std::thread::sleep(limit),
        }
    }

    /// Returns the tables of an aggregated event: one for each of its definitions. Empty for an
    /// event whose hits are recorded.
    #[must_use]
    pub fn rows(&self, event: impl Into<EventId>) -> Vec<Group> {
        let event = event.into();
        let addition = self.additions.get(event.at);
        let addition = addition.filter(|_| event.session == self.number);
        let (Some(active), Some(addition)) = (&self.active, addition) else {
            return Vec::new();
        };
        let sites = (&*addition.selected, addition.first);
        let kept = addition.kept.iter();
        kept.map(|(kept, events)| kept.read(&active.tables, sites, events))
            .collect()
    }

    /// Number of events that were lost because the buffer was full or all lanes were in use.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let active = self.active.as_ref();
        active.map_or(0, |active| active.reader.lost())
    }

    /// Returns how the session stands, as [`Session::read`] found it.
    #[must_use]
    pub fn status(&self) -> Status {
        self.ended.map_or(Status::Running, Status::Ended)
    }

    /// Takes all probes out of the program, and everything else that the session has put there.
    /// Returns the records that were not read yet.
    ///
    /// # Errors
    /// The probes are still in the program; the error says why.
    pub fn detach(mut self) -> Result<Vec<Record>> {
        if let Some(active) = &self.active {
            detach(&active.attached)?;
        }
        self.ended.get_or_insert(Ended::Requested);
        let records = self.read();
        self.active = None;
        records
    }
}

/// The work of each site, and the tables that it needs.
type Works = (
    Vec<Result<Vec<capriole_codegen::work::Work>>>,
    Vec<Option<AggregateTable>>,
);

fn detach(attached: &Attached) -> Result<Detached> {
    crate::plan::detach(attached).map_err(Into::into)
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(active) = &self.active {
            let process: &Process = active.attached.process();
            if process.is_alive() {
                // Nobody is left who could be told.
                let _ = detach(&active.attached);
            }
        }
    }
}
