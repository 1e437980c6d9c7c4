//! Rounds: every row in turn, each its probe in, measured, and its probe out.

use std::process::Command;
use std::time::Duration;

use crate::floor;
use crate::function::Function;
use crate::interrupt::Interrupts;
use crate::kernel::{TraceMarker, Uprobe};
use crate::process::{BenchError, Run, Target, TargetInfo};
use crate::report::{Measured, RowResult};

/// A way of seeing calls of one copy of the function.
///
/// A probe that is dropped while it is armed takes itself out.
pub trait Probe {
    /// Puts the probe on its function in the target. An error in the first round says
    /// why the row is skipped here; one in a later round fails the row.
    ///
    /// # Errors
    ///
    /// One line: what hinders it.
    fn arm(&mut self, target: &TargetInfo) -> Result<(), String>;

    /// Calls seen since it was armed, if the probe counts them.
    ///
    /// # Errors
    ///
    /// One line: why the count, which should be there, cannot be read.
    fn hits(&mut self) -> Result<Option<u64>, String> {
        Ok(None)
    }

    /// Takes the probe out.
    ///
    /// # Errors
    ///
    /// One line: what was left behind.
    fn disarm(&mut self) -> Result<(), String>;
}

/// How a row has its calls made.
enum Calls {
    /// Of this copy, in the loop.
    Of(Function),
    /// Of [`Function::Marker`], each with a message written to the marker file.
    Marking(TraceMarker),
}

/// A row of the table: a name, the copy that is called, and a probe.
pub struct Row {
    name: String,
    calls: Calls,
    probe: Option<Box<dyn Probe>>,
}

impl Row {
    /// The call of a function without any probe.
    pub fn plain(name: &str, function: Function) -> Row {
        Row {
            name: name.to_owned(),
            calls: Calls::Of(function),
            probe: None,
        }
    }

    /// The call of a function with a probe on it. Rows with probes that are armed at
    /// the same place take different copies.
    pub fn probed(name: &str, function: Function, probe: Box<dyn Probe>) -> Row {
        Row {
            name: name.to_owned(),
            calls: Calls::Of(function),
            probe: Some(probe),
        }
    }

    /// `kernel.trace_marker`: each call writes a message to ftrace's marker file.
    pub fn trace_marker() -> Row {
        let calls = Calls::Marking(TraceMarker::default());
        Row {
            name: "kernel.trace_marker".to_owned(),
            calls,
            probe: None,
        }
    }

    /// The row's name, as in the results.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The rows that need nothing of Capriole: `bare`, the floors and the kernel's.
pub fn default_rows() -> Vec<Row> {
    vec![
        Row::plain("bare", Function::Bare),
        Row::plain("floor.count", Function::FloorCount),
        Row::plain("floor.rdtsc", Function::FloorRdtsc),
        Row::plain("floor.record", Function::FloorRecord),
        Row::probed(
            "kernel.uprobe",
            Function::Uprobe,
            Box::new(Uprobe::default()),
        ),
        Row::trace_marker(),
    ]
}

/// How to measure.
#[derive(Debug, Clone)]
pub struct HitOptions {
    /// Rounds; at least 7 for numbers worth showing.
    pub rounds: usize,
    /// How long a row's calls in a round should last at least.
    pub round_time: Duration,
    /// The CPU that the target stays on; `None` for the last one this process may use.
    pub cpu: Option<usize>,
    /// Size of the hand-written floor's packets, in bytes.
    pub packet_bytes: u64,
}

impl Default for HitOptions {
    fn default() -> Self {
        HitOptions {
            rounds: 9,
            round_time: Duration::from_millis(25),
            cpu: None,
            packet_bytes: floor::DEFAULT_PACKET_BYTES,
        }
    }
}

/// What is being done, for a progress line.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// The round, from 0.
    pub round: usize,
    /// How many rounds there are.
    pub rounds: usize,
    /// The row about to be measured.
    pub row: &'a str,
}

/// Measures the rows in turn, round after round, in one bench target that `command`
/// starts. Results are in the order of the rows; `over_bare_ns` is over the row named
/// `bare`.
///
/// SIGINT, SIGTERM and SIGHUP are held while it runs: probes are taken out first.
///
/// # Errors
///
/// Nothing can be measured, or a signal came ([`BenchError::Interrupted`]). What
/// hinders one row is in its result instead.
pub fn run_hit(
    command: Command,
    rows: Vec<Row>,
    options: &HitOptions,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Vec<RowResult>, BenchError> {
    let mut states: Vec<State> = rows.into_iter().map(State::new).collect();
    for (i, state) in states.iter().enumerate() {
        if states[..i]
            .iter()
            .any(|other| other.row.name == state.row.name)
        {
            return Err(BenchError::Request(format!(
                "two rows are named {}",
                state.row.name
            )));
        }
    }
    if options.rounds == 0 {
        return Err(BenchError::Request("no round".to_owned()));
    }
    let interrupts = Interrupts::hold();
    let cpu = options.cpu.or_else(last_allowed_cpu);
    let mut target = Target::spawn(command, cpu, options.packet_bytes)?;
    for round in 0..options.rounds {
        // Another row begins each round, so that none always follows the same one.
        for index in 0..states.len() {
            let index = (index + round) % states.len();
            let state = &mut states[index];
            if state.outcome.is_some() {
                continue;
            }
            progress(Progress {
                round,
                rounds: options.rounds,
                row: &state.row.name,
            });
            state.round(&mut target, options)?;
            if let Some(signal) = interrupts.pending() {
                return Err(BenchError::Interrupted(signal));
            }
        }
    }
    Ok(results(states))
}

/// A row on its way through the rounds.
struct State {
    row: Row,
    /// Calls in a round, once calibrated.
    calls: Option<u64>,
    /// Nanoseconds per call of each round.
    per_call: Vec<f64>,
    total_calls: u64,
    /// Hits of all rounds; `None` once a round had no count.
    total_hits: Option<u64>,
    /// Set when the row is out.
    outcome: Option<RowResult>,
}

/// Why a row's round ended early: it says nothing of the other rows.
enum RowEnd {
    Skip(String),
    Fail(String),
    /// The target is lost, for all rows.
    Bench(BenchError),
}

impl From<BenchError> for RowEnd {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Refused(why) => RowEnd::Fail(why),
            error => RowEnd::Bench(error),
        }
    }
}

impl State {
    fn new(row: Row) -> State {
        State {
            row,
            calls: None,
            per_call: Vec::new(),
            total_calls: 0,
            total_hits: Some(0),
            outcome: None,
        }
    }

    /// One round: in, measured, out; out also after an error.
    fn round(&mut self, target: &mut Target, options: &HitOptions) -> Result<(), BenchError> {
        let measured = self
            .arm(target)
            .and_then(|()| self.measure(target, options));
        let disarmed = self.disarm(target);
        let name = self.row.name.clone();
        match measured.and(disarmed) {
            Ok(()) => {}
            Err(RowEnd::Bench(error)) => return Err(error),
            Err(RowEnd::Skip(why)) => self.outcome = Some(RowResult::Skipped { name, why }),
            Err(RowEnd::Fail(why)) => self.outcome = Some(RowResult::Failed { name, why }),
        }
        Ok(())
    }

    fn arm(&mut self, target: &mut Target) -> Result<(), RowEnd> {
        if let Calls::Of(Function::FloorRecord) = self.row.calls
            && let Some(why) = target.floor_record_skipped()
        {
            return Err(RowEnd::Skip(why.to_owned()));
        }
        let armed = match (&mut self.row.calls, &mut self.row.probe) {
            (Calls::Marking(marker), _) => match marker.arm(target.info()) {
                Ok(path) => return Ok(target.open_marker(&path)?),
                Err(why) => Err(why),
            },
            (_, Some(probe)) => probe.arm(target.info()),
            _ => Ok(()),
        };
        let end = if self.per_call.is_empty() {
            RowEnd::Skip
        } else {
            RowEnd::Fail
        };
        armed.map_err(end)
    }

    fn disarm(&mut self, target: &mut Target) -> Result<(), RowEnd> {
        match (&mut self.row.calls, &mut self.row.probe) {
            (Calls::Marking(marker), _) => {
                target.close_marker()?;
                marker.disarm()
            }
            (_, Some(probe)) => probe.disarm(),
            _ => Ok(()),
        }
        .map_err(RowEnd::Fail)
    }

    fn measure(&mut self, target: &mut Target, options: &HitOptions) -> Result<(), RowEnd> {
        let calls = match self.calls {
            Some(calls) => {
                // Caches and branch predictors as in the middle of a long run.
                self.run(target, (calls / 16).max(1))?;
                calls
            }
            None => *self.calls.insert(calibrate(options.round_time, |calls| {
                self.row.run(target, calls)
            })?),
        };
        let before = self.probe_hits()?;
        let run = self.run(target, calls)?;
        let after = self.probe_hits()?;
        let counted = before
            .zip(after)
            .map(|(before, after)| after.saturating_sub(before));
        let hits = run.hits.or(counted);
        if let Some(hits) = hits
            && hits != calls
        {
            return Err(RowEnd::Fail(format!(
                "{hits} hits were counted in {calls} calls"
            )));
        }
        self.per_call.push(run.ns as f64 / calls as f64);
        self.total_calls += calls;
        self.total_hits = self.total_hits.zip(hits).map(|(total, hits)| total + hits);
        Ok(())
    }

    fn run(&mut self, target: &mut Target, calls: u64) -> Result<Run, RowEnd> {
        Ok(self.row.run(target, calls)?)
    }

    fn probe_hits(&mut self) -> Result<Option<u64>, RowEnd> {
        match (&mut self.row.calls, &mut self.row.probe) {
            (Calls::Marking(marker), _) => marker.hits().map(Some),
            (_, Some(probe)) => probe.hits(),
            _ => Ok(None),
        }
        .map_err(RowEnd::Fail)
    }
}

impl Row {
    fn run(&self, target: &mut Target, calls: u64) -> Result<Run, BenchError> {
        match &self.calls {
            Calls::Of(function) => target.run(*function, calls),
            Calls::Marking(_) => target.mark(calls),
        }
    }
}

/// How many calls last for `time`: more and more of them until they last for an
/// eighth of it, then in proportion.
fn calibrate(
    time: Duration,
    mut run: impl FnMut(u64) -> Result<Run, BenchError>,
) -> Result<u64, BenchError> {
    let time = time.as_nanos().max(1) as f64;
    let mut calls = 4;
    loop {
        let ns = run(calls)?.ns as f64;
        if ns * 8.0 >= time || calls >= 1 << 40 {
            return Ok((calls as f64 * time / ns.max(1.0)).ceil().max(1.0) as u64);
        }
        calls *= 4;
    }
}

fn results(states: Vec<State>) -> Vec<RowResult> {
    let mut results: Vec<RowResult> = states
        .into_iter()
        .map(|state| {
            state.outcome.unwrap_or_else(|| {
                let (calls, hits) = (state.total_calls, state.total_hits);
                RowResult::Measured(Measured::from_rounds(
                    &state.row.name,
                    &state.per_call,
                    calls,
                    hits,
                ))
            })
        })
        .collect();
    let bare = results
        .iter()
        .find(|row| row.name() == "bare")
        .and_then(RowResult::measured);
    if let Some(bare) = bare.map(|row| row.ns) {
        for result in &mut results {
            if let RowResult::Measured(row) = result {
                row.over_bare_ns = row.ns - bare;
            }
        }
    }
    results
}

/// The last CPU that this process may run on.
fn last_allowed_cpu() -> Option<usize> {
    let set = rustix::thread::sched_getaffinity(None).ok()?;
    (0..rustix::thread::CpuSet::MAX_CPU)
        .rev()
        .find(|&cpu| set.is_set(cpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_lasts_as_long_as_asked() {
        for per_call in [0.25, 1.5, 5_000.0, 3_000_000.0, 900_000_000.0] {
            let run = |calls: u64| {
                Ok(Run {
                    ns: (calls as f64 * per_call) as u64,
                    hits: None,
                })
            };
            let calls = calibrate(Duration::from_millis(20), run).expect("never fails");
            let lasts = calls as f64 * per_call;
            assert!(
                lasts >= 19.9e6 || calls == 1,
                "{per_call} ns: {calls} calls"
            );
            assert!(lasts <= 20.2e6 + per_call, "{per_call} ns: {calls} calls");
        }
    }

    #[test]
    fn two_rows_of_one_name_are_refused() {
        let rows = vec![
            Row::plain("a", Function::Bare),
            Row::plain("a", Function::Spare),
        ];
        let result = run_hit(
            Command::new("/bin/false"),
            rows,
            &HitOptions::default(),
            |_| {},
        );
        assert!(matches!(result, Err(BenchError::Request(_))));
    }
}
