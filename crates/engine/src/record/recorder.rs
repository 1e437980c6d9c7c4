//! Copies session memory to the trace directory while the program runs.

use super::mappings;
use super::saving::{inner_tid, meta, named_thread};
use crate::descriptors::{Descriptors, is_descriptor};
use crate::error::Result;
use crate::filtered::Filtered;
use crate::plan::Probed;
use crate::watch::{Ended, Observer, Watch, not_followed};
use capriole_host::signals;
use capriole_host::steps::step;
use capriole_ledger::remains::TraceId;
use capriole_patch::attach::Attached;
use capriole_patch::detach::Detached;
use capriole_proc::process::Process;
use capriole_ring::{Packet, Reader, writer};
use capriole_select::message;
use capriole_trace::clock::{Clock, tsc, unstable_warning};
use capriole_trace::{
    EventInfo, ExitStatus, Finish, Stop, Target, TraceInfo, TraceWriter, WriteError,
};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// Totals of a recording.
#[derive(Debug, Clone, Copy)]
pub struct Summary {
    /// Events in the trace.
    pub events: u64,
    /// Events that were lost.
    pub lost: u64,
    /// Events among `lost` that were lost because all lanes of a CPU were in use.
    pub busy: u64,
    /// Bytes of the streams.
    pub bytes: u64,
    /// Packets that could not be read.
    pub damaged: u64,
    /// Number of forked children that were seen to execute another program, at least.
    pub executed_children: u64,
    /// Time during which the probes were in, and the program could run.
    pub duration: Duration,
}

/// A trace that is being written.
pub struct Recorder {
    writer: TraceWriter,
    clock: Clock,
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
    /// Number of the event for messages that others write into the session.
    texts: u32,
    reader: Option<Reader>,
    /// Start of the recording.
    since: Instant,
    started: Instant,
    ended: Option<Instant>,
    /// Number of forked children that were seen to execute another program.
    executed_children: u64,
    /// Time of the last loss check, in ticks, and the number of events lost in locked lanes by
    /// then.
    losses: (u64, u64),
    /// Known code mappings, by start and end address; `None` unless events have call stacks or symbols.
    mapped: Option<HashSet<(u64, u64)>>,
    /// Open files of descriptors; `None` unless events have fields of that type.
    descriptors: Option<Descriptors>,
    failed_packets: bool,
    /// Warnings for the description of the trace, which is completed at the end.
    warnings: Vec<String>,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    New,
}

/// Selects the records to read from session memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Collect {
    /// Records in full packets.
    Closed,
    /// Also records committed so far in packets that are still being filled.
    Committed,
    /// All records, at the end, when nothing is written any more.
    All,
}

/// Interval between checks for anything except packets.
const TICK: Duration = Duration::from_millis(20);
/// Time after the start during which code mappings are checked every tick; later, every second.
const BEGINNING: Duration = Duration::from_secs(5);
/// Maximum wait at the end of the recording for other processes that are still writing a
/// message.
const WRITERS: Duration = Duration::from_secs(1);
/// Interval between checks for events lost in locked lanes. A large machine has many such
/// lanes.
const LOSSES: Duration = Duration::from_millis(1);
/// Maximum number of the program's threads whose children are looked at, and of these children: each
/// takes a file to read.
const MOST_PARENTS: usize = 16;
const MOST_CHILDREN: usize = 64;
/// Interval between sync points of the clock.
const SECOND: Duration = Duration::from_secs(1);

impl Recorder {
    /// Creates the trace directory under a temporary name; [`Recorder::begin`] puts it in place.
    pub fn create(
        directory: &Path,
        process: &Process,
        events: Vec<EventInfo>,
        texts: u32,
        clock: Clock,
    ) -> Result<Recorder> {
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
        let mut fields = info.events.iter().flat_map(|event| &event.fields);
        let descriptors = fields.any(|field| is_descriptor(field.field_type));
        let mapped = mappings::are_needed(&info.events).then(HashSet::new);
        // A signal that ended this process from here on would leave the directory behind.
        signals::hold();
        let mut recorder = Recorder {
            writer: TraceWriter::prepare(directory, &info)?,
            mapped,
            descriptors: descriptors.then(Descriptors::default),
            clock,
            process: process.clone(),
            threads: BTreeMap::new(),
            seen: BTreeMap::new(),
            children: BTreeMap::new(),
            last_threads: BTreeSet::new(),
            texts,
            reader: None,
            losses: (tsc::read(), 0),
            since: Instant::now(),
            started: Instant::now(),
            ended: None,
            executed_children: 0,
            failed_packets: false,
            warnings: Vec::new(),
        };
        // So that names are known from before the first event on.
        recorder.look_at_threads(Which::All);
        recorder.look_at_descriptors();
        match recorder.look_at_mappings() {
            Ok(()) => Ok(recorder),
            Err(error) => {
                recorder.abandon();
                Err(error.into())
            }
        }
    }

    /// The trace's UUID.
    pub fn trace(&self) -> TraceId {
        *self.writer.uuid()
    }

    /// Puts the trace in its place, and an older one aside: the probes are in the program. Messages
    /// are taken from now on, and before the trace is seen: whoever sees it may send one.
    ///
    /// # Errors
    /// The older trace cannot be moved.
    pub fn begin(&mut self, attached: &Attached) -> Result<()> {
        self.set_start(attached.since);
        let memory = &attached.memory.memory;
        writer::open(memory, self.texts);
        if let Err(error) = self.writer.begin() {
            writer::close(memory, WRITERS);
            return Err(error.into());
        }
        step("trace begun");
        Ok(())
    }

    /// Sets the start of the recording, which is else that of the attach: a program that was stopped
    /// meanwhile runs from this moment on.
    pub fn set_start(&mut self, since: Instant) {
        self.since = since;
        self.writer.set_start(since);
    }

    /// Removes the trace directory of a recording that did not start.
    pub fn abandon(self) {
        // It holds only the description that was just written.
        let _ = self.writer.remove();
    }

    /// Notes the names of the current threads: of all threads, since a name may change, or only of
    /// new ones.
    fn look_at_threads(&mut self, which: Which) {
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
    fn look_at_children(&mut self, attached: &Attached) {
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
        self.children = found;
    }

    /// Notes which threads exist at the end, or existed at the last check if the program has ended.
    /// Children that have already ended are not included: their threads ended earlier.
    fn look_at_last_threads(&mut self, others: impl Iterator<Item = Process>) {
        self.look_at_threads(Which::New);
        self.last_threads.extend(self.seen.values());
        for process in others {
            let threads = threads_of(&process).into_iter();
            let threads = threads.map(|tid| inner_tid(&process, tid));
            self.last_threads.extend(threads);
        }
    }

    /// Looks at the descriptors of the program and of its children, if events have some.
    fn look_at_descriptors(&mut self) {
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

    /// Notes newly mapped libraries.
    fn look_at_mappings(&mut self) -> Result<(), WriteError> {
        match &mut self.mapped {
            Some(seen) => {
                let new = mappings::new(&self.process, seen);
                self.writer.add_mappings(&new)
            }
            None => Ok(()),
        }
    }

    /// Notes whether locked lanes have lost events since the last call.
    fn look_at_losses(&mut self) {
        let Some(reader) = &self.reader else { return };
        let (since, before) = self.losses;
        self.losses = (tsc::read(), reader.lost_in_lanes());
        self.writer
            .note_losses((since, tsc::read()), self.losses.1 != before);
    }

    fn collect(&mut self, what: Collect) -> Result<usize, WriteError> {
        let Some(reader) = &mut self.reader else {
            return Ok(0);
        };
        let writer = &mut self.writer;
        let write = |packet: Packet<'_>| {
            writer
                .write_packet(&meta(&packet), packet.content)
                .map(|_| ())
        };
        match what {
            Collect::Closed => reader.collect(false, write),
            Collect::Committed => reader.collect_committed(write),
            Collect::All => reader.collect(true, write),
        }
    }

    /// Records until something ends it.
    pub fn run(
        &mut self,
        probed: &mut Probed,
        limit: Option<Duration>,
        observer: &mut dyn Observer,
    ) -> Result<Ended> {
        let memory = &probed.attached.memory;
        self.reader = Some(Reader::new(memory.memory.clone(), memory.geometry));
        self.started = Instant::now();
        let result = self.record(probed, limit, observer);
        self.ended = Some(Instant::now());
        self.failed_packets = result.is_err();
        if self.failed_packets {
            // From now on nothing reads the messages of other processes.
            writer::close(&probed.attached.memory.memory, WRITERS);
        }
        result
    }

    fn record(
        &mut self,
        probed: &mut Probed,
        limit: Option<Duration>,
        observer: &mut dyn Observer,
    ) -> Result<Ended> {
        let mut watch = Watch::new(probed.attached.process(), probed.names(), limit);
        let attached = &mut probed.attached;
        let mut second = self.started;
        let mut tick = self.started;
        let mut looked = self.started;
        self.look_at_threads(Which::All);
        loop {
            self.collect(Collect::Closed)?;
            if looked.elapsed() >= LOSSES {
                looked = Instant::now();
                self.look_at_losses();
            }
            let ended = watch.ended(attached, observer);
            self.executed_children = watch.executed_children();
            for notice in watch.notices(observer) {
                self.note(notice);
            }
            if let Some(ended) = ended {
                self.look_at_last_threads(watch.other_processes(attached));
                return Ok(ended);
            }
            if tick.elapsed() >= TICK {
                tick = Instant::now();
                self.look_at_threads(Which::New);
                self.look_at_children(attached);
                if self.descriptors.as_ref().is_some_and(Descriptors::is_due) {
                    self.look_at_descriptors();
                }
                // Most libraries are loaded soon after the start, and some programs end soon after
                // it.
                if self.started.elapsed() < BEGINNING {
                    self.look_at_mappings()?;
                }
            }
            if second.elapsed() >= SECOND {
                second = Instant::now();
                // If this process is killed, at most one second is lost.
                self.collect(Collect::Committed)?;
                self.clock.sync()?;
                self.look_at_threads(Which::All);
                self.look_at_mappings()?;
                self.note_descriptors();
                self.writer
                    .checkpoint(&self.clock.model()?, &self.threads)?;
            }
            if let Some(reader) = &mut self.reader {
                reader.wait(watch.pause(attached, TICK));
            }
        }
    }

    /// Adds a notice to the trace: now as an event, and at the end in its description.
    fn note(&mut self, notice: String) {
        // A full buffer cannot take the event, but the description still gets it.
        let _ = message::write_to(&self.process, &format!("capriole: {notice}"));
        self.warnings.push(notice);
    }

    /// Writes the rest of session memory and completes the trace. Nothing writes to session memory
    /// any more: the probes are out or the program is dead.
    pub fn finish(
        mut self,
        attached: &Attached,
        detached: Option<&Detached>,
        exit: Option<ExitStatus>,
    ) -> Result<Summary> {
        // If the buffer is full it cannot take the event, but the description still gets the
        // notice.
        writer::close(&attached.memory.memory, WRITERS);
        if exit.is_none() {
            self.look_at_threads(Which::All);
            self.look_at_descriptors();
            self.look_at_mappings()?;
        }
        self.note_descriptors();
        // Sync at the end of the recording, not after writing the rest of it. The existing points,
        // at least two, are enough if this one is no better.
        let _ = self.clock.sync();
        if !self.failed_packets {
            self.collect(Collect::All)?;
        }
        self.look_at_losses();
        let (lost, busy, damaged) = self
            .reader
            .as_ref()
            .map_or((0, 0, 0), |r| (r.lost(), r.busy(), r.damaged()));
        let stop = |what: &str, time: Duration| Stop {
            what: what.to_owned(),
            duration_ns: time.as_nanos() as u64,
            threads: self.threads.len() as u32,
        };
        let mut stops = vec![stop("attach", attached.standstill.all)];
        stops.extend(detached.map(|d| stop("detach", d.standstill)));
        let mut warnings = std::mem::take(&mut self.warnings);
        if attached.survey.tid_offset.is_none() {
            warnings.push("thread ids are unknown: every event has thread 0".to_owned());
        } else if !self.last_threads.is_empty() {
            self.writer
                .note_last_threads(std::mem::take(&mut self.last_threads));
        }
        warnings.extend(Filtered::of(attached).message());
        warnings.extend(not_followed(self.executed_children));
        warnings.extend(self.descriptors.as_ref().and_then(Descriptors::warning));
        if damaged > 0 {
            warnings.push(format!(
                "{damaged} places of session memory were unreadable"
            ));
        }
        // Without a removal, the probes have ended with the program.
        let out = detached.and_then(|detached| detached.out).max(self.ended);
        let duration = out.unwrap_or_else(Instant::now) - self.since;
        let finish = Finish {
            clock: self.clock.model()?,
            threads: self.threads,
            probed_ns: Some(duration.as_nanos() as u64),
            stops,
            lost_elsewhere: lost.saturating_sub(self.writer.totals().lost_events),
            exit,
            warnings,
        };
        let totals = self.writer.finish(finish)?;
        Ok(Summary {
            events: totals.events,
            lost: totals.lost_events,
            busy: busy.min(totals.lost_events),
            bytes: totals.bytes,
            damaged,
            executed_children: self.executed_children,
            duration,
        })
    }
}
