//! A trace that is being written: its streams, and the names that its readers need.

use super::recorder::Summary;
use super::saving::{inner_tid, meta, named_thread};
use crate::descriptors::{Descriptors, is_descriptor};
use crate::error::Result;
use crate::filtered::Filtered;
use crate::names::{Named, Naming};
use crate::watch::not_followed;
use capriole_ledger::remains::TracePlace;
use capriole_patch::attach::Attached;
use capriole_proc::process::Process;
use capriole_ring::{Packet, Reader};
use capriole_trace::clock::{Clock, ClockModel, tsc, unstable_warning};
use capriole_trace::{
    Code, EventInfo, ExitStatus, Finish, Stop, Target, TraceInfo, TraceWriter, WriteError,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum number of the program's threads whose children are looked at, and of these children: each
/// takes a file to read.
const MOST_PARENTS: usize = 16;
const MOST_CHILDREN: usize = 64;

/// A trace that is being written.
#[derive(Debug)]
pub(crate) struct Recording {
    writer: TraceWriter,
    /// The trace's directory, an absolute path.
    directory: PathBuf,
    process: Process,
    /// Thread names by thread id as in the records.
    threads: BTreeMap<u32, String>,
    /// The program's threads at the last check: from thread ids in /proc to thread ids in the
    /// records.
    seen: BTreeMap<u32, u32>,
    /// The processes that the program had forked at the last check, and those that they had.
    children: BTreeMap<u32, Process>,
    /// Threads of all processes that existed when the recording ended.
    last_threads: BTreeSet<u32>,
    /// Losses of session memory before the recording began.
    before: Losses,
    /// Time of the last loss check, in ticks, and the number of events lost in locked lanes by
    /// then.
    losses: (u64, u64),
    /// Names code; `None` unless events have call stacks or symbols.
    naming: Option<Naming>,
    /// Open files of descriptors; `None` unless events have fields of that type.
    descriptors: Option<Descriptors>,
    /// Warnings for the description of the trace, which is completed at the end.
    warnings: Vec<String>,
}

/// Losses of session memory.
#[derive(Debug, Default)]
struct Losses {
    /// Number of events that each stream has lost, by CPU and lane.
    streams: BTreeMap<(u32, u32), u64>,
    /// Number of events lost in all, and of those that were lost because all lanes were in use.
    lost: u64,
    busy: u64,
    /// Number of places that could not be read.
    damaged: u64,
}

impl Losses {
    fn of(reader: &Reader) -> Losses {
        Losses {
            streams: reader.losses_by_stream(),
            lost: reader.lost(),
            busy: reader.busy(),
            damaged: reader.damaged(),
        }
    }
}

/// The end of a recording.
pub(crate) struct End<'a> {
    /// The session, and the reader of its memory; `None` if there were no probes.
    pub session: Option<(&'a Attached, &'a Reader)>,
    pub clock: ClockModel,
    /// Times in which the program was stopped, with the reason for each.
    pub stops: Vec<(&'static str, Duration)>,
    /// Time during which the probes were in, and the program could run.
    pub duration: Duration,
    /// Number of forked children that were seen to execute another program, at least.
    pub executed_children: u64,
    pub exit: Option<ExitStatus>,
    /// False if something could not be written.
    pub complete: bool,
}

/// Selects the threads to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    New,
}

/// Returns the threads of a process as listed in /proc, without a main thread that has ended before
/// the others; empty if the process has ended.
fn threads_of(process: &Process) -> Vec<u32> {
    let mut threads = process.threads().unwrap_or_default();
    let main = process.thread_status(process.pid());
    if main.is_ok_and(|status| status.state.has_ended()) {
        threads.retain(|tid| *tid != process.pid());
    }
    threads
}

impl Recording {
    /// Creates the trace directory under a temporary name; [`Recording::begin`] puts it in place.
    pub fn prepare(
        directory: &Path,
        process: &Process,
        events: Vec<EventInfo>,
        clock: &Clock,
    ) -> Result<Recording> {
        let command_line = process.command_line();
        let info = TraceInfo {
            target: Target {
                pid: process.pid(),
                executable: process.exe()?.to_string_lossy().into_owned(),
                command_line: command_line
                    .split(|b| *b == 0)
                    .filter(|word| !word.is_empty())
                    .map(|word| String::from_utf8_lossy(word).into_owned())
                    .collect(),
            },
            events,
            clock: clock.model()?,
            warnings: unstable_warning().into_iter().collect(),
        };
        let absolute = std::path::absolute(directory);
        let mut recording = Recording {
            writer: TraceWriter::prepare(directory, &info)?,
            directory: absolute.unwrap_or_else(|_| directory.to_path_buf()),
            naming: None,
            descriptors: None,
            process: process.clone(),
            threads: BTreeMap::new(),
            seen: BTreeMap::new(),
            children: BTreeMap::new(),
            last_threads: BTreeSet::new(),
            before: Losses::default(),
            losses: (tsc::read(), 0),
            warnings: Vec::new(),
        };
        // So that names are known from before the first event on.
        recording.look_at_threads(Which::All);
        match recording.look_for_events() {
            Ok(()) => Ok(recording),
            Err(error) => {
                recording.abandon();
                Err(error)
            }
        }
    }

    /// Looks at what the fields of the events need.
    fn look_for_events(&mut self) -> Result<()> {
        let events = &self.writer.document().events;
        let mut fields = events.iter().flat_map(|event| &event.fields);
        if fields.any(|field| is_descriptor(field.field_type)) {
            self.descriptors.get_or_insert_default();
        }
        if events.iter().any(EventInfo::has_code) && self.naming.is_none() {
            self.naming = Some(Naming::of(&self.process)?);
        }
        self.look_at_descriptors();
        Ok(self.write_names()?)
    }

    /// Adds events, of which there are no records yet.
    ///
    /// # Errors
    /// An event cannot be in a trace, or the files cannot be written.
    pub fn add_events(&mut self, events: Vec<EventInfo>) -> Result<()> {
        self.writer.add_events(events)?;
        self.look_for_events()
    }

    /// Leaves out what session memory has lost before: the recording begins now, all earlier records
    /// were read.
    pub fn begin_at(&mut self, reader: &Reader) {
        self.before = Losses::of(reader);
        self.losses = (tsc::read(), reader.lost_in_lanes());
    }

    /// The trace's UUID and directory.
    pub fn trace(&self) -> TracePlace {
        TracePlace {
            id: *self.writer.uuid(),
            directory: self.directory.clone(),
        }
    }

    /// Puts the trace in its place, and an older one aside: the probes are in the program.
    ///
    /// # Errors
    /// The older trace cannot be moved.
    pub fn begin(&mut self, attached: Option<&Attached>) -> Result<()> {
        if let (Some(naming), Some(attached)) = (&mut self.naming, attached) {
            naming.know_signal_returns(attached.signal_returns());
        }
        Ok(self.writer.begin()?)
    }

    /// Sets the start of the recording, which is else that of the clock.
    pub fn set_start(&mut self, since: Instant) {
        self.writer.set_start(since);
    }

    /// Removes the trace directory of a recording that did not start.
    pub fn abandon(self) {
        // It holds only the description that was just written.
        let _ = self.writer.remove();
    }

    /// Adds a warning to the description that is written at the end.
    pub fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Notes the names of the current threads: of all threads, since a name may change, or only of
    /// new ones.
    pub fn look_at_threads(&mut self, which: Which) {
        let tids = threads_of(&self.process);
        if tids.is_empty() {
            return; // it has ended
        }
        self.seen.retain(|tid, _| tids.contains(tid));
        for tid in tids {
            if which == Which::New && self.seen.contains_key(&tid) {
                continue;
            }
            if let Some((inner, name)) = named_thread(&self.process, tid) {
                self.threads.insert(inner, name);
                self.seen.insert(tid, inner);
            }
        }
    }

    /// Notes the names of processes that the program has forked and that are recorded, which may end
    /// soon. One that has executed another program is not recorded.
    pub fn look_at_children(&mut self, attached: &Attached) {
        let threads: Vec<u32> = self.seen.keys().copied().take(MOST_PARENTS).collect();
        let mut parents = vec![(self.process.clone(), threads)];
        let mut found = BTreeMap::new();
        while let Some((parent, tids)) = parents.pop() {
            let children = tids.iter().flat_map(|tid| parent.children_of(*tid));
            for pid in children.collect::<Vec<u32>>() {
                if found.len() >= MOST_CHILDREN || found.contains_key(&pid) {
                    continue;
                }
                let child = match self.children.remove(&pid) {
                    Some(known) => known,
                    None => {
                        let Ok(child) = Process::open(pid) else {
                            continue;
                        };
                        if attached.is_shared_with(&child)
                            && let Some((inner, name)) = named_thread(&child, pid)
                        {
                            self.threads.entry(inner).or_insert(name);
                        }
                        child
                    }
                };
                found.insert(pid, child.clone());
                parents.push((child, vec![pid]));
            }
        }
        let is_new = !self.children.keys().eq(found.keys());
        self.children = found;
        if let Some(naming) = self.naming.as_mut().filter(|_| is_new) {
            naming.set_children(self.children.values().cloned());
        }
    }

    /// Notes which threads exist at the end, or existed at the last check if the program has ended.
    /// Children that have already ended are not included: their threads ended earlier.
    pub fn look_at_last_threads(&mut self, others: impl Iterator<Item = Process>) {
        self.look_at_threads(Which::New);
        self.last_threads.extend(self.seen.values());
        for process in others {
            let threads = threads_of(&process).into_iter();
            let threads = threads.map(|tid| inner_tid(&process, tid));
            self.last_threads.extend(threads);
        }
    }

    /// Looks at the descriptors of the program and of its children, if events have some.
    pub fn look_at_descriptors(&mut self) {
        let Some(descriptors) = &mut self.descriptors else {
            return;
        };
        let own = (&self.process, self.seen.values().copied().collect());
        let children = self.children.values().map(|child| {
            let threads = threads_of(child).into_iter();
            (child, threads.map(|tid| inner_tid(child, tid)).collect())
        });
        descriptors.look(std::iter::once(own).chain(children));
    }

    /// Puts the names of descriptors into the trace's description.
    fn note_descriptors(&mut self) {
        if let Some(descriptors) = &self.descriptors {
            self.writer.set_descriptors(descriptors.names());
        }
    }

    /// Writes the names of code that were found since the last call.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn write_names(&mut self) -> Result<(), WriteError> {
        let found = self.naming.as_ref().map(Naming::found);
        self.add_names(found.unwrap_or_default())
    }

    fn add_names(&mut self, found: Vec<Named>) -> Result<(), WriteError> {
        for named in found {
            self.writer.add_mappings(&named.mappings)?;
            self.writer.add_names(&named.names, &named.remarks)?;
        }
        Ok(())
    }

    /// Notes whether locked lanes have lost events since the last call.
    pub fn look_at_losses(&mut self, reader: &Reader) {
        let (since, before) = self.losses;
        self.losses = (tsc::read(), reader.lost_in_lanes());
        self.writer
            .note_losses((since, tsc::read()), self.losses.1 != before);
    }

    /// Looks at the descriptors again if that is due.
    pub fn mind_descriptors(&mut self) {
        if self.descriptors.as_ref().is_some_and(Descriptors::is_due) {
            self.look_at_descriptors();
        }
    }

    /// Writes a packet to its stream.
    ///
    /// # Errors
    /// The stream cannot be written; the records of the packet are lost.
    pub fn write(&mut self, packet: &Packet<'_>) -> Result<(), WriteError> {
        let mut meta = meta(packet);
        let before = self.before.streams.get(&(packet.cpu, packet.lane));
        meta.discarded = meta.discarded.saturating_sub(before.copied().unwrap_or(0));
        if let Some(naming) = &mut self.naming {
            let see = |code: Code<'_>| naming.see(code);
            self.writer.visit_code(packet.content, see);
        }
        self.writer.write_packet(&meta, packet.content).map(drop)
    }

    /// Brings the description on disk up to date, so that less is missing if this process is killed.
    ///
    /// # Errors
    /// The files cannot be written; the older ones stay.
    pub fn checkpoint(&mut self, clock: &ClockModel) -> Result<(), WriteError> {
        self.look_at_threads(Which::All);
        self.write_names()?;
        self.note_descriptors();
        self.writer.checkpoint(clock, &self.threads)
    }

    /// Notes the names of a program that still runs, for the last time.
    ///
    /// # Errors
    /// The description cannot be written.
    pub fn look_at_all(&mut self) -> Result<(), WriteError> {
        self.look_at_threads(Which::All);
        self.look_at_descriptors();
        self.write_names()
    }

    /// Completes the trace: everything is read.
    ///
    /// # Errors
    /// The description cannot be written.
    pub fn finish(mut self, end: End<'_>) -> Result<Summary> {
        self.note_descriptors();
        let found = self.naming.take().map(Naming::finish);
        self.add_names(found.unwrap_or_default())?;
        let mut losses = Losses::default();
        let mut warnings = std::mem::take(&mut self.warnings);
        if let Some((attached, reader)) = end.session {
            self.look_at_losses(reader);
            losses = Losses::of(reader);
            if attached.survey.tid_offset.is_none() {
                warnings.push("thread ids are unknown: every event has thread 0".to_owned());
            } else if !self.last_threads.is_empty() {
                self.writer
                    .note_last_threads(std::mem::take(&mut self.last_threads));
            }
            warnings.extend(Filtered::of(attached).message());
        }
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let lost = since(losses.lost, self.before.lost);
        let busy = since(losses.busy, self.before.busy);
        let damaged = since(losses.damaged, self.before.damaged);
        warnings.extend(not_followed(end.executed_children));
        warnings.extend(self.descriptors.as_ref().and_then(Descriptors::warning));
        if damaged > 0 {
            warnings.push(format!(
                "{damaged} places of session memory were unreadable"
            ));
        }
        let threads = self.threads.len() as u32;
        let stop = |(what, time): (&str, Duration)| Stop {
            what: what.to_owned(),
            duration_ns: time.as_nanos() as u64,
            threads,
        };
        let finish = Finish {
            clock: end.clock,
            threads: self.threads,
            probed_ns: Some(end.duration.as_nanos() as u64),
            stops: end.stops.into_iter().map(stop).collect(),
            lost_elsewhere: lost.saturating_sub(self.writer.totals().lost_events),
            exit: end.exit,
            complete: end.complete,
            warnings,
        };
        let totals = self.writer.finish(finish)?;
        Ok(Summary {
            events: totals.events,
            lost: totals.lost_events,
            busy: busy.min(totals.lost_events),
            bytes: totals.bytes,
            damaged,
            executed_children: end.executed_children,
            duration: end.duration,
        })
    }
}
