//! Measurement for `capriole bench marker`: loops around static markers, off and on, and the bytes
//! that a marker adds to a program.
//! The loops are in C (`bench/marker/loops.c`), in a program that is compiled with
//! `capriole/marker.h` for the run. It is started once; each [`MarkerRow`] runs one of its loops,
//! with a [`Probe`] or without, round after round. `floor.record` is measured in turn with them, in
//! the bench target, as `capriole bench hit` does.
//!
//! | module | about |
//! | --- | --- |
//! | `result` | results as JSON and as a table |
//! | [`sizes`] | bytes that a marker adds, from object files |
//! | `real` | a real program with markers, and without |
//! | `subject` | the programs |

mod real;
mod result;
pub mod sizes;
mod subject;

use std::process::Command;

use crate::function::Function;
use crate::interrupt::Interrupts;
use crate::peers::{Peer, lttng_in_a_loop};
use crate::process::{BenchError, Run, Target};
use crate::report::{Measured, RowResult};
use crate::runner::{HitOptions, Probe, Progress, calibrate, last_allowed_cpu};
use crate::single::{clock, now};

pub use result::{MarkerResult, MarkerResults};
pub use subject::Subject;
use subject::Subjects;

/// C source of the loops.
pub(crate) const LOOPS: &str = include_str!("../../marker/loops.c");
/// Compiler options of the loops: each loop begins at a cache line, so that loops differ only in
/// their instructions.
pub(crate) const LOOP_OPTIONS: [&str; 2] = ["-O2", "-falign-loops=64"];
/// Header that the loops include.
const HEADER: &str = include_str!("../../../include/capriole/marker.h");

/// Calls that a row makes.
enum Calls {
    /// A copy of the empty function, in the bench target.
    Of(Function),
    /// A loop of a program.
    Loop(Subject, &'static str),
    /// A tool's own program.
    Elsewhere(Box<Peer>),
}

/// A row: a loop, the probe on it (if any), and the row that it is compared with.
pub struct MarkerRow {
    name: String,
    over: &'static str,
    calls: Calls,
    probe: Option<Box<dyn Probe>>,
}

impl MarkerRow {
    fn new(name: &str, over: &'static str, calls: Calls) -> MarkerRow {
        MarkerRow {
            name: name.to_owned(),
            over,
            calls,
            probe: None,
        }
    }

    /// Creates a row for a loop without a probe; `over` is its baseline row, for example without
    /// the marker.
    pub fn plain(name: &str, over: &'static str, of: Subject, run: &'static str) -> MarkerRow {
        MarkerRow::new(name, over, Calls::Loop(of, run))
    }

    /// Adds a probe to the row.
    #[must_use]
    pub fn with(mut self, probe: Box<dyn Probe>) -> MarkerRow {
        self.probe = Some(probe);
        self
    }

    /// The row's name, as in the results.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of the row that it is compared with.
    pub fn over(&self) -> &'static str {
        self.over
    }

    fn run(
        &mut self,
        target: &mut Target,
        subjects: &mut Subjects,
        calls: u64,
    ) -> Result<Run, String> {
        match &mut self.calls {
            Calls::Of(function) => target
                .run(*function, calls, 1)
                .map_err(|error| error.to_string()),
            Calls::Loop(subject, name) => subjects.run(*subject, name, calls),
            Calls::Elsewhere(peer) => peer.run(calls),
        }
    }
}

/// Returns the rows that need only Capriole's header: loops with markers that are off, the floor,
/// and LTTng.
pub fn marker_rows() -> Vec<MarkerRow> {
    let plain = |name: &str, over, run| MarkerRow::plain(name, over, Subject::Loops, run);
    let lttng = |name: &str, on| {
        let calls = Calls::Elsewhere(Box::new(lttng_in_a_loop(on)));
        MarkerRow::new(name, "marker.empty", calls)
    };
    vec![
        MarkerRow::new("bare", "bare", Calls::Of(Function::Bare)),
        MarkerRow::new("floor.record", "bare", Calls::Of(Function::FloorRecord)),
        plain("marker.empty", "marker.empty", "empty"),
        plain("marker.empty.off", "marker.empty", "empty_off"),
        plain("marker.empty.guarded_off", "marker.empty", "empty_guarded"),
        plain("marker.memcpy", "marker.memcpy", "copy"),
        plain("marker.memcpy.off", "marker.memcpy", "copy_off"),
        plain("marker.memcpy.guarded_off", "marker.memcpy", "copy_guarded"),
        lttng("lttng_ust.off", false),
        lttng("lttng_ust.on", true),
        MarkerRow::plain("minigzip", "minigzip", Subject::Minigzip, "blocks"),
        MarkerRow::plain(
            "minigzip.off",
            "minigzip",
            Subject::MarkedMinigzip,
            "blocks",
        ),
    ]
}

/// State of a row during the rounds.
struct State {
    row: MarkerRow,
    /// Calls in a round, once calibrated.
    calls: Option<u64>,
    per_call: Vec<f64>,
    made: u64,
    /// Hits in all rounds; `None` once a round has no count.
    hits: Option<u64>,
    outcome: Option<RowResult>,
}

impl State {
    fn new(row: MarkerRow) -> State {
        State {
            row,
            calls: None,
            per_call: Vec::new(),
            made: 0,
            hits: Some(0),
            outcome: None,
        }
    }

    /// Runs one round: arms the probe, measures, and disarms it, also after an error.
    fn round(&mut self, target: &mut Target, subjects: &mut Subjects, options: &HitOptions) {
        let ready = self.arm(target, subjects);
        // An error while arming in the first round skips the row, as does any error of a peer.
        // Other errors fail the row, for example a program that has ended since.
        let peer = matches!(self.row.calls, Calls::Elsewhere(_));
        let left_out = peer || ready.is_err() && self.per_call.is_empty();
        let measured = ready.and_then(|()| self.measure(target, subjects, options));
        let disarmed = match (&mut self.row.calls, &mut self.row.probe) {
            (Calls::Elsewhere(peer), _) => peer.end(),
            (_, Some(probe)) => probe.disarm(),
            _ => Ok(()),
        };
        match measured.and_then(|sample| disarmed.map(|()| sample)) {
            Ok((per_call, made, hits)) => {
                self.per_call.push(per_call);
                self.made += made;
                self.hits = self.hits.zip(hits).map(|(all, hits)| all + hits);
            }
            Err(why) => {
                let name = self.row.name.clone();
                self.outcome = Some(match left_out {
                    true => RowResult::Skipped { name, why },
                    false => RowResult::Failed { name, why },
                });
            }
        }
    }

    fn arm(&mut self, target: &Target, subjects: &mut Subjects) -> Result<(), String> {
        match (&mut self.row.calls, &mut self.row.probe) {
            (Calls::Elsewhere(peer), _) => peer.start(),
            (Calls::Of(Function::FloorRecord), _) => match target.floor_record_skipped() {
                Some(why) => Err(why.to_owned()),
                None => Ok(()),
            },
            (Calls::Loop(subject, _), probe) => {
                let info = subjects.info(*subject)?;
                probe.as_mut().map_or(Ok(()), |probe| probe.arm(&info))
            }
            _ => Ok(()),
        }
    }

    /// Returns nanoseconds per call, calls made, and calls seen.
    fn measure(
        &mut self,
        target: &mut Target,
        subjects: &mut Subjects,
        options: &HitOptions,
    ) -> Result<(f64, u64, Option<u64>), String> {
        let row = &mut self.row;
        let calls = match self.calls {
            Some(calls) => {
                // Warm up caches and branch predictors as in the middle of a long run.
                row.run(target, subjects, (calls / 16).max(1))?;
                calls
            }
            None => {
                let calls =
                    calibrate(options.round_time, |calls| row.run(target, subjects, calls))?;
                let most = match &row.calls {
                    Calls::Elsewhere(peer) => peer.most_calls(),
                    _ => u64::MAX,
                };
                *self.calls.insert(calls.min(most))
            }
        };
        let seen = |row: &mut MarkerRow| row.probe.as_mut().map_or(Ok(None), |probe| probe.hits());
        let before = seen(row)?;
        let run = row.run(target, subjects, calls)?;
        let counted = seen(row)?
            .zip(before)
            .map(|(after, before)| after.saturating_sub(before));
        let hits = run.hits.or(counted);
        if let Some(hits) = hits
            && hits != calls
        {
            return Err(format!("{hits} hits were counted in {calls} calls"));
        }
        // A peer's hits are compared when it ends; the sample is dropped if they differ.
        let peer = match &row.calls {
            Calls::Elsewhere(peer) => peer.sees(),
            _ => false,
        };
        let hits = hits.or(peer.then_some(calls));
        Ok((run.ns as f64 / calls as f64, calls, hits))
    }

    fn result(self) -> MarkerResult {
        let over = self.row.over;
        let result = self.outcome.unwrap_or_else(|| {
            let name = &self.row.name;
            RowResult::Measured(Measured::from_rounds(
                name,
                &self.per_call,
                self.made,
                self.hits,
            ))
        });
        MarkerResult {
            result,
            over,
            over_min_ns: 0.0,
        }
    }
}

/// Measures the rows in turn, round after round. `command` starts the bench target. Results are in
/// the order of the rows; `over_bare_ns` is relative to the row that each is compared with.
/// SIGINT, SIGTERM and SIGHUP are held while it runs: probes are removed first.
///
/// # Errors
/// Nothing can be measured, or a signal arrived ([`BenchError::Interrupted`]). An error of a single
/// row is in its result instead.
pub fn run_marker(
    command: Command,
    rows: Vec<MarkerRow>,
    options: &HitOptions,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<MarkerResults, BenchError> {
    if options.rounds == 0 {
        return Err(BenchError::Request("no round".to_owned()));
    }
    let interrupts = Interrupts::hold();
    let cpu = options.cpu.or_else(last_allowed_cpu);
    let mut target = Target::spawn(command, cpu, options.packet_bytes)?;
    let mut subjects = Subjects::new(cpu);
    let mut states: Vec<State> = rows.into_iter().map(State::new).collect();
    let (ns, ticks) = (now(), clock());
    for round in 0..options.rounds {
        // A different row begins each round, so that no row always follows the same one.
        for index in 0..states.len() {
            let index = (index + round) % states.len();
            let state = &mut states[index];
            if state.outcome.is_none() {
                progress(Progress {
                    round,
                    rounds: options.rounds,
                    row: &state.row.name,
                });
                state.round(&mut target, &mut subjects, options);
            }
            if let Some(signal) = interrupts.pending() {
                return Err(BenchError::Interrupted(signal));
            }
        }
    }
    let ticks_per_ns = (clock() - ticks) as f64 / (now() - ns).max(1) as f64;
    let rows = states.into_iter().map(State::result).collect();
    Ok(MarkerResults::new(rows, ticks_per_ns))
}
