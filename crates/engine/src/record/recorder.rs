//! Copies session memory to the trace directory while the program runs.

use super::recording::{End, Recording, Which};
use crate::error::Result;
use crate::plan::Probed;
use crate::watch::{Ended, Observer, Watch};
use capriole_host::signals;
use capriole_host::steps::step;
use capriole_ledger::remains::TracePlace;
use capriole_patch::attach::Attached;
use capriole_patch::detach::Detached;
use capriole_proc::process::Process;
use capriole_ring::{Packet, Reader, writer};
use capriole_select::message;
use capriole_trace::clock::Clock;
use capriole_trace::{EventInfo, ExitStatus, WriteError};
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

/// A trace that is being written, from the probes of a program.
pub struct Recorder {
    recording: Recording,
    clock: Clock,
    process: Process,
    /// Number of the event for messages that others write into the session.
    texts: u32,
    reader: Option<Reader>,
    /// Start of the recording.
    since: Instant,
    started: Instant,
    ended: Option<Instant>,
    /// Number of forked children that were seen to execute another program.
    executed_children: u64,
    failed_packets: bool,
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
/// Maximum wait at the end of the recording for other processes that are still writing a
/// message.
const WRITERS: Duration = Duration::from_secs(1);
/// Interval between checks for events lost in locked lanes. A large machine has many such
/// lanes.
const LOSSES: Duration = Duration::from_millis(1);
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
        // A signal that ended this process from here on would leave the directory behind.
        signals::hold();
        Ok(Recorder {
            recording: Recording::prepare(directory, process, events, &clock)?,
            clock,
            process: process.clone(),
            texts,
            reader: None,
            since: Instant::now(),
            started: Instant::now(),
            ended: None,
            executed_children: 0,
            failed_packets: false,
        })
    }

    /// The trace's UUID and directory.
    pub fn trace(&self) -> TracePlace {
        self.recording.trace()
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
        if let Err(error) = self.recording.begin(Some(attached)) {
            writer::close(memory, WRITERS);
            return Err(error);
        }
        step("trace begun");
        Ok(())
    }

    /// Sets the start of the recording, which is else that of the attach: a program that was stopped
    /// meanwhile runs from this moment on.
    pub fn set_start(&mut self, since: Instant) {
        self.since = since;
        self.recording.set_start(since);
    }

    /// Removes the trace directory of a recording that did not start.
    pub fn abandon(self) {
        self.recording.abandon();
    }

    fn collect(&mut self, what: Collect) -> Result<usize, WriteError> {
        let Some(reader) = &mut self.reader else {
            return Ok(0);
        };
        let recording = &mut self.recording;
        let write = |packet: Packet<'_>| recording.write(&packet);
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
        let mut watch = Watch::new(probed, limit);
        let attached = &mut probed.attached;
        let mut second = self.started;
        let mut tick = self.started;
        let mut looked = self.started;
        self.recording.look_at_threads(Which::All);
        loop {
            self.collect(Collect::Closed)?;
            if looked.elapsed() >= LOSSES {
                looked = Instant::now();
                if let Some(reader) = &self.reader {
                    self.recording.look_at_losses(reader);
                }
            }
            let ended = watch.ended(attached, observer);
            self.executed_children = watch.executed_children();
            for notice in watch.notices(observer) {
                self.note(notice);
            }
            if let Some(ended) = ended {
                let others = watch.other_processes(attached);
                self.recording.look_at_last_threads(others);
                return Ok(ended);
            }
            if tick.elapsed() >= TICK {
                tick = Instant::now();
                self.recording.look_at_threads(Which::New);
                self.recording.look_at_children(attached);
                self.recording.mind_descriptors();
                self.recording.write_names()?;
            }
            if second.elapsed() >= SECOND {
                second = Instant::now();
                // If this process is killed, at most one second is lost.
                self.collect(Collect::Committed)?;
                self.clock.sync()?;
                self.recording.checkpoint(&self.clock.model()?)?;
            }
            if let Some(reader) = &mut self.reader {
                reader.wait(watch.pause(attached, TICK));
            }
        }
    }

    /// Adds a warning to the trace's description.
    pub fn warn(&mut self, warning: String) {
        self.recording.warn(warning);
    }

    /// Adds a notice to the trace: now as an event, and at the end in its description.
    fn note(&mut self, notice: String) {
        // A full buffer cannot take the event, but the description still gets it.
        let _ = message::write_to(&self.process, &format!("capriole: {notice}"));
        self.recording.warn(notice);
    }

    /// Writes what session memory has to the trace. Errors come again when the trace is completed.
    pub(crate) fn flush(&mut self) {
        if self.failed_packets || self.collect(Collect::Committed).is_err() {
            return;
        }
        let _ = self.clock.sync();
        let _ = self
            .clock
            .model()
            .map(|model| self.recording.checkpoint(&model));
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
            self.recording.look_at_all()?;
        }
        // Sync at the end of the recording, not after writing the rest of it. The existing points,
        // at least two, are enough if this one is no better.
        let _ = self.clock.sync();
        if !self.failed_packets {
            self.collect(Collect::All)?;
        }
        let mut stops = vec![("attach", attached.standstill.all)];
        stops.extend(detached.map(|detached| ("detach", detached.standstill)));
        // Without a removal, the probes have ended with the program.
        let out = detached.and_then(|detached| detached.out).max(self.ended);
        self.recording.finish(End {
            session: self.reader.as_ref().map(|reader| (attached, reader)),
            clock: self.clock.model()?,
            stops,
            duration: out.unwrap_or_else(Instant::now) - self.since,
            executed_children: self.executed_children,
            exit,
            complete: true,
        })
    }
}
