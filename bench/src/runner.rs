//! Rounds: for every row in turn, arms its probe, measures, and removes the probe.

use std::process::Command;
use std::time::Duration;

use crate::floor;
use crate::function::Function;
use crate::interrupt::Interrupts;
use crate::kernel::{Moment, TraceMarker, Uprobe, UprobeBpf, UprobeKind};
use crate::peers::Peer;
use crate::process::{BenchError, Run, Target, TargetInfo};
use crate::report::RowResult;
use crate::single::Singles;
use crate::target::allowed_cpus;

mod state;

pub(crate) use state::calibrate;
use state::{State, results};

/// A way of tracing calls of one copy of the function.
/// A probe that is dropped while it is armed removes itself.
pub trait Probe {
    /// Places the probe on its function in the target. An error in the first round skips the row,
    /// with that reason; an error in a later round fails it.
    ///
    /// # Errors
    /// One line: why it cannot be armed.
    fn arm(&mut self, target: &TargetInfo) -> Result<(), String>;

    /// Checks, after the first calls, that the probe is in the expected state by then. An error in
    /// the first round skips the row, with that reason; an error in a later round fails it.
    ///
    /// # Errors
    /// One line: its state instead.
    fn check(&mut self, _target: &TargetInfo) -> Result<(), String> {
        Ok(())
    }

    /// Returns the number of calls seen since it was armed, if the probe counts them.
    ///
    /// # Errors
    /// One line: why the count cannot be read, although the probe counts.
    fn hits(&mut self) -> Result<Option<u64>, String> {
        Ok(None)
    }

    /// Removes the probe.
    ///
    /// # Errors
    ///
    /// One line: what was left behind.
    fn disarm(&mut self) -> Result<(), String>;
}

/// A program of a row's own, which places its probe and makes the calls itself.
pub trait Caller {
    /// Places the probe.
    ///
    /// # Errors
    /// Why it cannot be placed.
    fn arm(&mut self) -> Result<(), Trouble>;

    /// Makes `calls` calls in the loop.
    ///
    /// # Errors
    /// One line: what went wrong.
    fn run(&mut self, calls: u64) -> Result<Run, String>;

    /// Makes `calls` calls, each timed alone.
    ///
    /// # Errors
    /// One line: what went wrong.
    fn single(&mut self, calls: u64) -> Result<Singles, String>;

    /// Returns the number of calls seen since it was armed, if they are counted.
    ///
    /// # Errors
    /// One line: why the count cannot be read.
    fn hits(&mut self) -> Result<Option<u64>, String>;

    /// Most calls of the loop in a round.
    fn most_calls(&self) -> u64 {
        u64::MAX
    }

    /// Removes the probe.
    ///
    /// # Errors
    /// One line: what was left behind.
    fn disarm(&mut self) -> Result<(), String>;
}

/// Reason why a [`Caller`] cannot place its probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// Something is not installed: the row is skipped.
    Missing(String),
    /// It does not work: the row has failed.
    Wrong(String),
}

/// Calls that a row makes.
enum Calls {
    /// Calls of this copy, in the loop.
    Of(Function),
    /// Calls of [`Function::Marker`], each with a message written to the marker file.
    Marking(TraceMarker),
    /// Calls of the function in a tool's own program.
    Elsewhere(Box<Peer>),
    /// Calls that a program makes which places its probe itself.
    By(Box<dyn Caller>),
}

/// A row of the table: a name, the copy that is called, and a probe.
pub struct Row {
    name: String,
    threads: usize,
    calls: Calls,
    probe: Option<Box<dyn Probe>>,
}

impl Row {
    fn new(name: &str, calls: Calls, probe: Option<Box<dyn Probe>>) -> Row {
        Row {
            name: name.to_owned(),
            threads: 1,
            calls,
            probe,
        }
    }

    /// Creates a row for the call of a function without any probe.
    pub fn plain(name: &str, function: Function) -> Row {
        Row::new(name, Calls::Of(function), None)
    }

    /// Creates a row for the call of a function with a probe on it. Rows with probes that are armed
    /// at the same place take different copies.
    pub fn probed(name: &str, function: Function, probe: Box<dyn Probe>) -> Row {
        Row::new(name, Calls::Of(function), Some(probe))
    }

    /// Creates `kernel.trace_marker`: each call writes a message to ftrace's marker file.
    pub fn trace_marker() -> Row {
        let calls = Calls::Marking(TraceMarker::default());
        Row::new("kernel.trace_marker", calls, None)
    }

    /// Creates a row for a peer, whose tool has a program of its own. A peer that fails, in any
    /// round, is skipped with its error message.
    pub fn peer(name: &str, peer: Peer) -> Row {
        Row::new(name, Calls::Elsewhere(Box::new(peer)), None)
    }

    /// Creates a row for a program that places its probe and makes its calls itself.
    pub fn by(name: &str, caller: Box<dyn Caller>) -> Row {
        Row::new(name, Calls::By(caller), None)
    }

    /// Makes the row's calls in `threads` threads at the same time, and renames it to
    /// `NAME@THREADS`. Only for rows whose calls the bench target makes in its loop.
    #[must_use]
    pub fn on_threads(mut self, threads: usize) -> Row {
        self.threads = threads;
        self.name = format!("{}@{threads}", self.name);
        self
    }

    /// The row's name, as in the results.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Returns the rows that do not depend on Capriole: `bare`, the floors and the kernel's.
pub fn default_rows() -> Vec<Row> {
    vec![
        Row::plain("bare", Function::Bare),
        Row::plain("floor.count", Function::FloorCount),
        Row::plain("floor.rdtsc", Function::FloorRdtsc),
        Row::plain("floor.record", Function::FloorRecord),
        uprobe("kernel.uprobe", UprobeKind::Entry),
        uprobe("kernel.uprobe_4args", UprobeKind::Entry4Args),
        uprobe("kernel.uretprobe", UprobeKind::Return),
        uprobe("kernel.uprobe_nop5", UprobeKind::Nop5),
        uprobe_bpf("kernel.uprobe_bpf", Moment::Entry),
        uprobe_bpf("kernel.uretprobe_bpf", Moment::Return),
        Row::trace_marker(),
    ]
}

fn uprobe(name: &str, kind: UprobeKind) -> Row {
    Row::probed(name, kind.function(), Box::new(Uprobe::new(kind)))
}

fn uprobe_bpf(name: &str, moment: Moment) -> Row {
    let probe = UprobeBpf::new(moment);
    Row::probed(name, probe.function(), Box::new(probe))
}

/// Options of a measurement.
#[derive(Debug, Clone)]
pub struct HitOptions {
    /// Rounds; at least 7 for numbers worth showing.
    pub rounds: usize,
    /// Intended minimum duration of a row's calls in a round.
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

/// Current step, for a progress line.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// The round, from 0.
    pub round: usize,
    /// Number of rounds.
    pub rounds: usize,
    /// The row about to be measured.
    pub row: &'a str,
}

/// Measures the rows in turn, round after round, in one bench target that `command` starts. Results
/// are in the order of the rows; `over_bare_ns` is relative to the row named `bare` with as many
/// threads.
/// SIGINT, SIGTERM and SIGHUP are held while it runs: probes are removed first.
///
/// # Errors
/// Nothing can be measured, or a signal arrived ([`BenchError::Interrupted`]). An error of a single
/// row is in its result instead.
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
        // A different row begins each round, so that no row always follows the same one.
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

/// The last CPU that this process may run on.
#[must_use]
pub fn last_allowed_cpu() -> Option<usize> {
    allowed_cpus().last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

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
