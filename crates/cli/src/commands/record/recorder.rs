//! From session memory to the trace directory, while the program runs.

use super::mappings;
use crate::commands::mark;
use crate::filtered::Filtered;
use crate::probing::{Ended, Probed, Watch};
use crate::saving::{inner_tid, meta, named_thread};
use capriole_ring::{Packet, Reader, writer};
use capriole_target::attach::Attached;
use capriole_target::detach::Detached;
use capriole_target::process::{Process, State};
use capriole_target::remains::TraceId;
use capriole_trace::clock::{Clock, tsc, unstable_warning};
use capriole_trace::{
    EventInfo, ExitStatus, Finish, Stop, Target, TraceInfo, TraceWriter, WriteError,
};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// What was recorded.
#[derive(Debug, Clone, Copy)]
pub struct Summary {
    /// Events in the trace.
    pub events: u64,
    /// Events that are not.
    pub lost: u64,
    /// Those of them for which all lanes of a CPU were taken.
    pub busy: u64,
    /// Bytes of the streams.
    pub bytes: u64,
    /// Packets that could not be read.
    pub damaged: u64,
    /// From attach to detach.
    pub duration: Duration,
}

/// A trace that is being written.
pub struct Recorder {
    writer: TraceWriter,
    clock: Clock,
    process: Process,
    /// Names by thread id as the records have it.
    threads: BTreeMap<u32, String>,
    /// The program's threads when that was last looked at: their ids as /proc has them, and as
    /// the records have them.
    seen: BTreeMap<u32, u32>,
    /// Threads that were there when the recording ended, of all processes.
    last_threads: BTreeSet<u32>,
    /// The event of texts that others write into the session.
    texts: u32,
    reader: Option<Reader>,
    started: Instant,
    ended: Option<Instant>,
    /// A time, in ticks, and how many events had been lost in locked lanes by then.
    losses: (u64, u64),
    /// Code that the program has, by address; nothing unless events have call stacks.
    mapped: Option<HashSet<(u64, u64)>>,
    failed_packets: bool,
    /// What the description of the trace has to say at the end.
    warnings: Vec<String>,
}

/// The threads of a process as /proc has them, but for a main thread that has ended before the
/// others; none if it has ended.
fn threads_of(process: &Process) -> Vec<u32> {
    let mut threads = process.threads().unwrap_or_default();
    if process
        .status()
        .is_ok_and(|status| matches!(status.state, State::Zombie | State::Dead))
    {
        threads.retain(|tid| *tid != process.pid());
    }
    threads
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    New,
}

/// Which records are read from session memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Collect {
    /// Those in full packets.
    Closed,
    /// Also those committed so far in packets that are still being filled.
    Committed,
    /// All, at the end, when nobody writes any more.
    All,
}

/// Between two looks at whether something else than a packet has happened.
const TICK: Duration = Duration::from_millis(20);
/// For how long it is looked at every tick what code the program has; then every second.
const BEGINNING: Duration = Duration::from_secs(5);
/// For how long somebody is waited for who is writing a text when the recording ends.
const WRITERS: Duration = Duration::from_secs(1);
/// Between two looks at the losses of locked lanes, of which there are many on a large machine.
const LOSSES: Duration = Duration::from_millis(1);
/// Between two sync points of the clock.
const SECOND: Duration = Duration::from_secs(1);

impl Recorder {
    /// Makes the trace directory.
    pub fn create(
        directory: &Path,
        process: &Process,
        events: Vec<EventInfo>,
        texts: u32,
        clock: Clock,
    ) -> anyhow::Result<Recorder> {
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
        let mapped = mappings::are_needed(&info.events).then(HashSet::new);
        let mut recorder = Recorder {
            writer: TraceWriter::create(directory, &info)?,
            mapped,
            clock,
            process: process.clone(),
            threads: BTreeMap::new(),
            seen: BTreeMap::new(),
            last_threads: BTreeSet::new(),
            texts,
            reader: None,
            losses: (tsc::read(), 0),
            started: Instant::now(),
            ended: None,
            failed_packets: false,
            warnings: Vec::new(),
        };
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

    /// Removes the directory of a recording that did not come about.
    pub fn abandon(self) {
        // It holds nothing but the description that was just written.
        let _ = self.writer.remove();
    }

    /// Notes the names of the threads there are: of all, since a name may change,
    /// or of those that are new.
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

    /// Notes which threads are there at the end, or were there when it was last looked at if the
    /// program has ended. What has ended of its children has ended before.
    fn look_at_last_threads(&mut self, others: impl Iterator<Item = Process>) {
        self.look_at_threads(Which::New);
        self.last_threads.extend(self.seen.values());
        for process in others {
            let threads = threads_of(&process).into_iter();
            let threads = threads.map(|tid| inner_tid(&process, tid));
            self.last_threads.extend(threads);
        }
    }

    /// Notes what libraries have come.
    fn look_at_mappings(&mut self) -> Result<(), WriteError> {
        match &mut self.mapped {
            Some(seen) => {
                let new = mappings::new(&self.process, seen);
                self.writer.add_mappings(&new)
            }
            None => Ok(()),
        }
    }

    /// Notes whether locked lanes have lost events since this was last called.
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
    pub fn run(&mut self, probed: &mut Probed, limit: Option<Duration>) -> anyhow::Result<Ended> {
        let memory = &probed.attached.memory;
        self.reader = Some(Reader::new(memory.memory.clone(), memory.geometry));
        writer::open(&memory.memory, self.texts);
        self.started = Instant::now();
        let result = self.record(probed, limit);
        self.ended = Some(Instant::now());
        self.failed_packets = result.is_err();
        if self.failed_packets {
            // What others write would go nowhere.
            writer::close(&probed.attached.memory.memory, WRITERS);
        }
        result
    }

    fn record(&mut self, probed: &mut Probed, limit: Option<Duration>) -> anyhow::Result<Ended> {
        let mut watch = Watch::new(probed, limit)?;
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
            let ended = watch.ended(attached);
            for notice in watch.notices() {
                self.note(notice);
            }
            if let Some(ended) = ended {
                self.look_at_last_threads(watch.other_processes(attached));
                return Ok(ended);
            }
            if tick.elapsed() >= TICK {
                tick = Instant::now();
                self.look_at_threads(Which::New);
                // Programs load most of their libraries soon, and some end soon.
                if self.started.elapsed() < BEGINNING {
                    self.look_at_mappings()?;
                }
            }
            if second.elapsed() >= SECOND {
                second = Instant::now();
                // Whoever kills this process costs no more than a second.
                self.collect(Collect::Committed)?;
                self.clock.sync()?;
                self.look_at_threads(Which::All);
                self.look_at_mappings()?;
                self.writer
                    .checkpoint(&self.clock.model()?, &self.threads)?;
            }
            if let Some(reader) = &mut self.reader {
                reader.wait(watch.pause(attached, TICK));
            }
        }
    }

    /// Has the trace tell what happened, now among the events, and at the end in its
    /// description.
    fn note(&mut self, notice: String) {
        // A full buffer is no place for it, but the description is.
        let _ = mark::write_to(&self.process, &format!("capriole: {notice}"));
        self.warnings.push(notice);
    }

    /// Writes what is still in session memory, and the end of the trace. Nobody
    /// writes to session memory any more: the probes are out or the program is dead.
    pub fn finish(
        mut self,
        attached: &Attached,
        detached: Option<&Detached>,
        exit: Option<ExitStatus>,
    ) -> anyhow::Result<Summary> {
        // The program writes nothing any more; nor does anybody else from now on.
        writer::close(&attached.memory.memory, WRITERS);
        if exit.is_none() {
            self.look_at_threads(Which::All);
            self.look_at_mappings()?;
        }
        // The end of the recording, not of writing down what is left of it. Two
        // points are enough if this one is no better.
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
        if damaged > 0 {
            warnings.push(format!(
                "{damaged} places of session memory were unreadable"
            ));
        }
        let finish = Finish {
            clock: self.clock.model()?,
            threads: self.threads,
            stops,
            lost_elsewhere: lost.saturating_sub(self.writer.totals().lost_events),
            exit,
            warnings,
        };
        let totals = self.writer.finish(finish)?;
        let duration = self.ended.unwrap_or_else(Instant::now) - self.started;
        Ok(Summary {
            events: totals.events,
            lost: totals.lost_events,
            busy: busy.min(totals.lost_events),
            bytes: totals.bytes,
            damaged,
            duration,
        })
    }
}
