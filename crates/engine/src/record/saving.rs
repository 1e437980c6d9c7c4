//! Saves the records that a killed recorder has not written, from session memory into its
//! trace.

use crate::advice::{Advice, Message, Words};
use crate::error::{Code, Error, Result};
use crate::names::Namer;
use capriole_host::error::TargetError;
use capriole_host::ptrace;
use capriole_host::steps::step;
use capriole_host::survey::own_tid;
use capriole_ledger::Kind;
use capriole_ledger::remains::{Remains, TraceId};
use capriole_patch::detach::Detached;
use capriole_patch::recover::{FoundSession, detach_all_and_save, find_of};
use capriole_proc::process::Process;
use capriole_ring::{Packet, Reader};
use capriole_text::units;
use capriole_trace::clock::{Clock, tsc};
use capriole_trace::{
    self as trace, EventInfo, Finish, PacketMeta, ReopenError, Stop, Trace, TraceWriter,
    WriteError, put_aside_as,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Returns the metadata of a packet for the trace.
pub fn meta(packet: &Packet<'_>) -> PacketMeta {
    let now = tsc::read();
    PacketMeta {
        cpu: packet.cpu,
        lane: packet.lane,
        seq: packet.seq,
        // Losses with no record after them.
        ts_begin: packet.content.is_empty().then_some(now),
        // No time in it is in the future, whatever the program wrote.
        ts_end: Some(now),
        discarded: packet.discarded,
    }
}

/// Returns a thread's id as in the records: the inner one, if it is in a PID namespace.
pub fn inner_tid(process: &Process, tid: u32) -> u32 {
    own_tid(process.pid() as i32, tid as i32).unwrap_or(tid)
}

/// Returns the [`inner_tid`] of a thread, and its name.
pub fn named_thread(process: &Process, tid: u32) -> Option<(u32, String)> {
    let name = process.thread_name(tid).ok()?;
    Some((inner_tid(process, tid), name))
}

/// Saves the data that a dead recorder left in a process into the recorder's trace.
struct Saver {
    process: Process,
    path: PathBuf,
    trace: TraceId,
    /// The writer of the trace, or why nothing can be saved there.
    writer: Result<TraceWriter, ReopenError>,
    /// Number of processes whose session memory was read.
    read: usize,
    /// Number of events lost since the session began (`lost`), and of places in session memory that
    /// were unreadable (`damaged`).
    lost: u64,
    damaged: u64,
    /// Bytes of records that cannot be saved.
    unsaved: u64,
    /// The first error.
    problem: Option<Message>,
    /// True if records stay in session memory, as they cannot be written now.
    waits: bool,
}

/// Result of saving.
#[derive(Debug, Default)]
pub struct Saved {
    trace: PathBuf,
    /// Number of events that were added; `None` if there was no trace to add them to.
    events: Option<u64>,
    /// Number of events that are not in the trace.
    lost: u64,
    /// Bytes of records that were not saved, if known.
    unsaved: u64,
    /// Reason why records were not saved or the trace is incomplete.
    problem: Option<Message>,
    /// True if they stay in session memory, where a later detach finds them.
    waits: bool,
}

impl Saver {
    /// Creates a saver for the sessions of dead recorders in a process, if there are any. The trace is in the
    /// directory `path`, or else where its recorder made it, or by the usual name where we are.
    ///
    /// The program can change what its session says of that. But nothing is added to a directory that is not a
    /// trace of ours with the session's UUID, in which nobody else may write, as for one that the user names.
    fn of(process: &Process, path: Option<&Path>) -> Option<Saver> {
        // Errors are reported when the probes are taken out.
        let sessions = find_of(&*ptrace::host(process), Kind::Recorder).unwrap_or_default();
        let dead = sessions.iter().filter(|session| session.owner.is_none());
        let places = |session: &FoundSession| -> Vec<PathBuf> {
            match (path, &session.directory) {
                (Some(path), _) => vec![path.to_path_buf()],
                (None, Some(known)) => vec![known.clone(), put_aside_as(known), USUAL.into()],
                (None, None) => vec![USUAL.into()],
            }
        };
        let all = dead.filter_map(|session| Some((session.trace?, places(session))));
        let all = all.flat_map(|(trace, places)| places.into_iter().map(move |path| (trace, path)));
        let mut opened = all.map(|(trace, path)| {
            let writer = TraceWriter::reopen(&path, &trace);
            (trace, path, writer)
        });
        let first = opened.next()?;
        let (trace, path, writer) = match first {
            (_, _, Err(_)) => opened
                .find(|(_, _, writer)| writer.is_ok())
                .unwrap_or(first),
            first => first,
        };
        Some(Saver {
            process: process.clone(),
            path,
            trace,
            writer,
            read: 0,
            lost: 0,
            damaged: 0,
            unsaved: 0,
            problem: None,
            waits: false,
        })
    }

    /// Saves the session memory of one process. The process that was recorded comes last, unless it
    /// has forked meanwhile: its trace is completed while the session still exists, so a kill after
    /// that leaves nothing to do.
    fn save(&mut self, trace: &TraceId, remains: Result<Remains<'_>, TargetError>) -> bool {
        let saved = remains.map_err(Error::from).and_then(|remains| {
            let is_last = remains.pid() == self.process.pid() as i32;
            self.read(trace, remains)?;
            match is_last && self.problem.is_none() {
                true => self.end(None, None),
                false => Ok(()),
            }
        });
        if let Err(error) = saved {
            self.problem.get_or_insert(error.whole());
            // What cannot be written now is written by a later detach.
            self.waits |= error.code() == Code::Trace;
        }
        !self.waits
    }

    fn read(&mut self, trace: &TraceId, remains: Remains<'_>) -> Result<(), WriteError> {
        let geometry = remains.geometry();
        let writer = match &mut self.writer {
            Ok(writer) if self.trace == *trace => writer,
            _ => {
                let mut reader = Reader::resume(remains, geometry, |_, _| u64::MAX);
                self.unsaved = self.unsaved.max(reader.pending());
                return Ok(());
            }
        };
        let mut reader =
            Reader::resume(remains, geometry, |cpu, lane| writer.last_number(cpu, lane));
        self.read += 1;
        let result = reader.collect(true, |packet| {
            step("packet noted");
            let written = writer.write_packet(&meta(&packet), packet.content);
            step("packet saved");
            written.map(drop)
        });
        self.lost = self.lost.max(reader.lost());
        self.damaged += reader.damaged();
        if result.is_err() {
            self.unsaved += reader.pending();
        }
        result.map(drop)
    }

    /// Completes the trace as its recorder would have, if there is one and some of its session was
    /// read.
    fn end(&mut self, warning: Option<String>, stop: Option<Duration>) -> Result<()> {
        let Some(writer) = self.writer.as_mut().ok().filter(|_| self.read > 0) else {
            return Ok(());
        };
        if writer.document().events.iter().any(EventInfo::has_code) {
            add_names(writer, &self.path, &self.process)?;
        }
        let document = writer.document();
        let mut clock = Clock::resume(&document.clock);
        // If this sync point is no better than the existing ones, it is not needed.
        let _ = clock.sync();
        let mut threads = document.threads.clone();
        let tids = self.process.threads().unwrap_or_default();
        let named = tids
            .into_iter()
            .filter_map(|tid| named_thread(&self.process, tid));
        threads.extend(named);
        let mut stops = document.stops.clone();
        stops.extend(stop.map(|time| Stop {
            what: "detach".to_owned(),
            duration_ns: time.as_nanos() as u64,
            threads: threads.len() as u32,
        }));
        let mut warnings = vec![KILLED.to_owned()];
        warnings.extend(warning);
        if self.damaged > 0 {
            let damaged = self.damaged;
            warnings.push(format!(
                "{damaged} places of session memory were unreadable"
            ));
        }
        let lost_elsewhere = self.lost.saturating_sub(writer.totals().lost_events);
        writer.end(Finish {
            clock: clock.model()?,
            threads,
            probed_ns: None,
            stops,
            lost_elsewhere,
            exit: None,
            complete: true,
            warnings,
        })?;
        step("trace ended");
        Ok(())
    }

    /// Completes the trace if needed, and returns the result.
    fn finish(mut self, detached: Option<&Detached>) -> Saved {
        if self.writer.is_ok() && self.problem.is_none() {
            self.problem = match self.read {
                0 => Some(Message::from(STAYS).advise(Advice::DetachSavesLater)),
                _ => {
                    let all = detached.is_some_and(|d| !d.lingering && d.damaged == 0);
                    let warning = (!all).then(|| CHILDREN.to_owned());
                    let ended = self.end(warning, detached.map(|d| d.standstill));
                    ended.err().map(|error| error.whole())
                }
            };
        }
        let lost = self.writer.as_ref().map_or(0, |w| w.totals().lost_events);
        let events = self.writer.as_ref().map(|w| w.totals().events);
        Saved {
            trace: self.path,
            events: events.ok(),
            lost: self.lost.max(lost),
            unsaved: self.unsaved,
            waits: self.waits,
            problem: self
                .problem
                .or(self.writer.err().map(|error| error.to_string().into())),
        }
    }
}

/// Adds the names of all code in a trace that has none: the recorder may have been killed before it wrote them.
fn add_names(writer: &mut TraceWriter, path: &Path, process: &Process) -> Result<(), WriteError> {
    let mut namer = Namer::of_past_events(process);
    // What cannot be read is told by every report.
    if let Ok(trace) = Trace::open(path)
        && let Ok(mut events) = trace.events()
    {
        let there = trace.names();
        while let Ok(Some(event)) = events.next() {
            event.visit_code(|code| match code {
                trace::Code::Stack(stack) => namer.chain(stack.addresses()),
                trace::Code::Symbol(address) => namer.symbol(address),
            });
        }
        let mut named = namer.take();
        named
            .names
            .retain(|name| there.get(name.at).is_none() && !there.was_replaced(name.at));
        writer.add_mappings(&named.mappings)?;
        writer.add_names(&named.names, &named.remarks)?;
    }
    Ok(())
}

/// The directory of a trace whose recorder was given no other.
const USUAL: &str = "capriole.trace";
/// Warning in the trace of a killed recorder.
const KILLED: &str = "the recorder was killed: its last events were saved afterwards, but not its \
                      notes (how long the program was paused at first, other tools)";
/// Warning if some processes could not be detached.
const CHILDREN: &str = "some children of the program still have probes: their later events are \
                        missing";
/// Reason why the trace is not completed.
const STAYS: &str = "the session stays, as memory cannot be unmapped now";

impl Saved {
    /// True if records could not be written, and stay in the program's memory for a later detach.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Returns a message on what was saved and what was not; `None` if there was nothing to save.
    pub fn message(&self) -> Option<Message> {
        let trace = self.trace.display();
        let events = |events| units::counted(events, "event", "events");
        let saved = self.events.map(|saved| {
            let lost = match self.lost {
                0 => String::new(),
                lost => format!("; {} LOST because the buffer was full", events(lost)),
            };
            format!(
                "saved {} that the killed recorder had not written -> {trace}{lost}",
                events(saved)
            )
        });
        match (&self.problem, saved) {
            (None, saved) => saved.map(Message::from),
            (Some(problem), Some(saved)) => {
                let message = Message::from(format!("{saved}; the trace stays incomplete: "));
                let message = message.then(problem.clone());
                Some(match self.waits {
                    true => message.advise(Advice::DetachAgainSaves),
                    false => message,
                })
            }
            (Some(_), None) if self.unsaved == 0 => None,
            (Some(problem), None) => {
                let message = Message::from(format!(
                    "not saved: {} of records that the killed recorder had not written: ",
                    units::bytes(self.unsaved)
                ));
                let message = message.then(problem.clone());
                Some(message.advise(Advice::DetachIntoTrace))
            }
        }
    }

    /// Formats the result as JSON; advice is put into `words`.
    pub fn json(&self, words: Words) -> Value {
        json!({
            "trace": self.trace.to_string_lossy(),
            "events": self.events,
            "lost": self.lost,
            "unsaved_bytes": self.unsaved,
            "problem": self.problem.as_ref().map(|problem| problem.with(words)),
        })
    }
}

/// Outcome of a detach, and of saving if there was anything to save.
pub type Outcome = (Result<Detached, TargetError>, Option<Saved>);

/// Removes every probe from a process. Also saves the records that dead recorders have not
/// written, to their trace in the directory `path`, or without one where they made it, and returns
/// the result of saving.
///
/// # Errors
/// There are such records, and the directory is not their trace, or nothing can be added to it; nothing has
/// changed. The inner errors are those of [`detach_all_and_save`].
pub fn detach(process: &Process, path: Option<&Path>) -> Result<Outcome> {
    let saver = Saver::of(process, path);
    match saver.as_ref().map(|saver| &saver.writer) {
        // Their recorder, or another `detach`, has saved them.
        None | Some(Ok(_) | Err(ReopenError::Complete(_))) => {}
        Some(Err(error)) => {
            let message = Message::from(format!(
                "the last events of a killed recorder of process {} cannot be saved: {error}; nothing \
                 was changed",
                process.pid()
            ));
            return Err(Error::new(
                Code::Trace,
                message.advise(Advice::DetachWithoutTrace),
            ));
        }
    }
    Ok(detach_of(&Kind::ALL, process, saver))
}

/// Removes every probe from a process. The records that dead recorders have not written are lost.
///
/// # Errors
/// The errors of [`detach_all_and_save`].
pub fn discard(process: &Process) -> Result<Detached, TargetError> {
    detach_all_and_save(&*ptrace::host(process), &Kind::ALL, None)
}

/// Detaches sessions of these kinds, and saves what they have left.
fn detach_of(kinds: &[Kind], process: &Process, saver: Option<Saver>) -> Outcome {
    let host = ptrace::host(process);
    match saver {
        Some(mut saver) => {
            let mut save = |trace: &TraceId, remains: Result<Remains<'_>, TargetError>| {
                saver.save(trace, remains)
            };
            let detached = detach_all_and_save(&*host, kinds, Some(&mut save));
            let saved = match &detached {
                // Either all of it is in the trace by then, or nothing was read.
                Err(_) if process.is_over() => saver.finish(Some(&Detached::default())),
                detached => saver.finish(detached.as_ref().ok()),
            };
            (detached, Some(saved))
        }
        None => (detach_all_and_save(&*host, kinds, None), None),
    }
}

/// Runs [`detach`] before another recording begins, if all recorders in the process are dead.
/// Returns a message for the user, if any.
///
/// # Errors
/// The errors of [`detach`].
pub fn take_over(process: &Process) -> Result<Option<Message>> {
    // Errors are reported by the attach that follows.
    let sessions = find_of(&*ptrace::host(process), Kind::Recorder).unwrap_or_default();
    let is_left = sessions.iter().any(|session| session.trace.is_some());
    if !is_left || sessions.iter().any(|session| session.owner.is_some()) {
        return Ok(None);
    }
    let saver = Saver::of(process, None);
    let (detached, saved) = detach_of(&[Kind::Recorder], process, saver);
    match detached {
        Ok(_) | Err(TargetError::NothingAttached { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let waits = saved.as_ref().is_some_and(Saved::waits);
    let message = saved.and_then(|saved| saved.message());
    match message {
        Some(message) if waits => Err(Error::new(Code::Trace, message)),
        message => Ok(message),
    }
}
