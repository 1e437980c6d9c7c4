//! Recording of a session into a trace directory.

use super::inner::{Active, Inner};
use crate::error::{Error, Result, err};
use crate::record::Summary;
use crate::record::recording::{End, Recording, Which};
use capriole_proc::process::Process;
use capriole_text::units;
use capriole_trace::clock::Clock;
use capriole_trace::{EventInfo, TraceWriter, WriteError};
use std::path::Path;
use std::time::{Duration, Instant};

/// Interval between checks for anything except packets.
const TICK: Duration = Duration::from_millis(20);
/// Interval between updates of the description on disk.
const SECOND: Duration = Duration::from_secs(1);

/// A trace of a session.
#[derive(Debug)]
pub(super) struct Traced {
    pub(super) recording: Recording,
    since: Instant,
    /// Time of the last check of threads and the like.
    looked: Instant,
    /// Time of the last update of the description on disk.
    updated: Instant,
    /// The first error of writing. Nothing is written after it.
    failed: Option<Error>,
}

impl Traced {
    /// Checks that a trace can have these events.
    pub(super) fn check(&self, events: &[EventInfo]) -> Result<()> {
        Ok(TraceWriter::check_events(events)?)
    }

    /// Adds events that were [checked](Self::check), before their first records are read.
    pub(super) fn add(&mut self, events: &[EventInfo]) {
        if let Err(error) = self.recording.add_events(events.to_vec()) {
            self.failed.get_or_insert(error);
        }
    }

    /// Adds warnings to the description of the trace.
    pub(super) fn warn(&mut self, notices: Vec<String>) {
        for notice in notices {
            self.recording.warn(notice);
        }
    }

    fn note(&mut self, result: std::result::Result<(), WriteError>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error.into());
        }
    }

    /// Does what is due beside the records, which were `written`.
    pub(super) fn mind(
        &mut self,
        written: std::result::Result<(), WriteError>,
        active: &Active,
        clock: &Clock,
    ) {
        self.note(written);
        let recording = &mut self.recording;
        recording.look_at_losses(&active.reader);
        if self.looked.elapsed() >= TICK {
            self.looked = Instant::now();
            recording.look_at_threads(Which::New);
            recording.look_at_children(&active.attached);
            recording.mind_descriptors();
            let named = recording.write_names();
            self.note(named);
        }
        if self.updated.elapsed() >= SECOND {
            self.updated = Instant::now();
            if let Ok(clock) = clock.model() {
                let updated = self.recording.checkpoint(&clock);
                self.note(updated);
            }
        }
    }
}

impl Inner {
    /// Begins to write the records into a trace.
    pub(super) fn record_to(&mut self, directory: &Path) -> Result<()> {
        self.check_running()?;
        if self.trace.is_some() {
            return Err(err!(AlreadyRecorded, "a trace is being written already"));
        }
        let since = Instant::now();
        let events = self.decoder.events();
        let mut recording = Recording::prepare(directory, &self.process, events, &self.clock)?;
        recording.set_start(since);
        // What was recorded before is not in the trace.
        let read = self.read();
        match read {
            Ok(records) => self.unread = records,
            Err(error) => {
                recording.abandon();
                return Err(error);
            }
        }
        if let Some(active) = &self.active {
            recording.begin_at(&active.reader);
        }
        if let Err(error) = recording.begin(self.active.as_ref().map(|active| &active.attached)) {
            recording.abandon();
            return Err(error);
        }
        self.traced = None;
        self.trace = Some(Traced {
            recording,
            since,
            looked: since,
            updated: since,
            failed: None,
        });
        Ok(())
    }

    /// Completes the trace, and returns its totals. Records are kept again from now on.
    pub(super) fn end_trace(&mut self) -> Result<Summary> {
        if self.trace.is_some() {
            self.unread = self.read()?;
        }
        self.complete_trace();
        self.traced
            .take()
            .unwrap_or_else(|| Err(err!(NotFound, "no trace is being written")))
    }

    /// Adds a warning to the trace that is being written, if there is one.
    pub(super) fn warn_trace(&mut self, warning: String) {
        if let Some(trace) = &mut self.trace {
            trace.recording.warn(warning);
        }
    }

    /// Completes the trace if nothing can be added to it any more.
    pub(super) fn end_trace_if_over(&mut self) {
        let failed = |trace: &Traced| trace.failed.is_some();
        if self.ended().is_some() || self.trace.as_ref().is_some_and(failed) {
            self.complete_trace();
        }
    }

    fn complete_trace(&mut self) {
        if let Some(trace) = self.trace.take() {
            self.traced = Some(self.completed(trace));
        }
    }

    fn completed(&mut self, trace: Traced) -> Result<Summary> {
        let Traced {
            mut recording,
            since,
            failed,
            ..
        } = trace;
        let mut executed_children = 0;
        if let Some(active) = &mut self.active {
            executed_children = active.watch.executed_children();
            let others: Vec<Process> = active.watch.other_processes(&active.attached).collect();
            if self.process.is_over() && !others.is_empty() {
                recording.warn(format!(
                    "{} that the program has forked went on: what they recorded after its end is missing",
                    units::counted(others.len() as u64, "process", "processes")
                ));
            }
            recording.look_at_last_threads(others.into_iter());
        }
        let looked = match self.process.is_over() {
            true => Ok(()),
            false => recording.look_at_all(),
        };
        // The points that there are, at least two, are enough if this one is no better.
        let _ = self.clock.sync();
        if let Some(error) = &failed {
            recording.warn(format!("the recording has ended early: {error}"));
        }
        let active = self.active.as_ref();
        let finished = recording.finish(End {
            session: active.map(|active| (&active.attached, &active.reader)),
            clock: self.clock.model()?,
            stops: Vec::new(),
            duration: since.elapsed(),
            executed_children,
            exit: None,
            complete: failed.is_none(),
        });
        match failed {
            Some(error) => Err(error),
            None => looked.map_err(Error::from).and(finished),
        }
    }
}
