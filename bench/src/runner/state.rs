//! State of a row during the rounds.

use std::time::Duration;

use super::{Calls, HitOptions, Row, Trouble};
use crate::function::Function;
use crate::process::{BenchError, Run, Target};
use crate::report::{Measured, RowResult};
use crate::single::Singles;
use crate::spread::Spread;

/// A row and its measurements.
pub(super) struct State {
    pub(super) row: Row,
    /// Calls in a round, once calibrated.
    calls: Option<u64>,
    rounds: Vec<Sample>,
    /// Set once the row is skipped or has failed.
    pub(super) outcome: Option<RowResult>,
}

/// Measurement of one round.
struct Sample {
    /// Nanoseconds per call of the loop.
    per_call: f64,
    singles: Singles,
    /// Calls of all threads, in the loop and one by one.
    calls: u64,
    /// Number of these calls that were seen; `None` if they are not counted.
    hits: Option<u64>,
}

/// Reason why a row's round ended early. `Skip` and `Fail` do not affect other rows.
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
    pub(super) fn new(row: Row) -> State {
        State {
            row,
            calls: None,
            rounds: Vec::new(),
            outcome: None,
        }
    }

    /// Runs one round: arms the probe, measures, and disarms it, also after an error.
    pub(super) fn round(
        &mut self,
        target: &mut Target,
        options: &HitOptions,
    ) -> Result<(), BenchError> {
        let measured = self
            .arm(target)
            .and_then(|()| self.measure(target, options));
        let disarmed = self.disarm(target);
        let name = self.row.name.clone();
        match measured.and_then(|sample| disarmed.map(|()| sample)) {
            Ok(sample) => self.rounds.push(sample),
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
            (Calls::Elsewhere(peer), _) => return peer.start().map_err(RowEnd::Skip),
            (Calls::By(caller), _) => {
                return caller.arm().map_err(|trouble| match trouble {
                    Trouble::Missing(why) => RowEnd::Skip(why),
                    Trouble::Wrong(why) => RowEnd::Fail(why),
                });
            }
            (Calls::Marking(marker), _) => match marker.arm(target.info()) {
                Ok(path) => return Ok(target.open_marker(&path)?),
                Err(why) => Err(why),
            },
            (Calls::Of(_), Some(probe)) => probe.arm(target.info()),
            (Calls::Of(_), None) => Ok(()),
        };
        armed.map_err(|why| self.hindered(why))
    }

    /// Converts a probe's error: it skips the row in the first round, and fails it later.
    fn hindered(&self, why: String) -> RowEnd {
        match self.rounds.is_empty() {
            true => RowEnd::Skip(why),
            false => RowEnd::Fail(why),
        }
    }

    fn disarm(&mut self, target: &mut Target) -> Result<(), RowEnd> {
        match (&mut self.row.calls, &mut self.row.probe) {
            (Calls::Elsewhere(peer), _) => return peer.end().map_err(RowEnd::Skip),
            (Calls::By(caller), _) => caller.disarm(),
            (Calls::Marking(marker), _) => {
                target.close_marker()?;
                marker.disarm()
            }
            (Calls::Of(_), Some(probe)) => probe.disarm(),
            (Calls::Of(_), None) => Ok(()),
        }
        .map_err(RowEnd::Fail)
    }

    fn measure(&mut self, target: &mut Target, options: &HitOptions) -> Result<Sample, RowEnd> {
        let calls = match self.calls {
            Some(calls) => {
                // Warm up caches and branch predictors as in the middle of a long run.
                self.row.run(target, (calls / 16).max(1))?;
                calls
            }
            None => {
                let run = |calls| self.row.run(target, calls);
                let calls = calibrate(options.round_time, run)?;
                *self.calls.insert(calls.min(self.row.most_calls()))
            }
        };
        if let Some(probe) = &mut self.row.probe
            && let Err(why) = probe.check(target.info())
        {
            return Err(self.hindered(why));
        }
        let alone = singles(calls);
        let before = self.probe_hits()?;
        let run = self.row.run(target, calls)?;
        let singles = self.row.single(target, alone)?;
        let after = self.probe_hits()?;
        let counted = before
            .zip(after)
            .map(|(before, after)| after.saturating_sub(before));
        let made = (calls + alone) * self.row.threads as u64;
        let hits = run
            .hits
            .zip(singles.hits)
            .map(|(run, singles)| run + singles);
        let hits = hits.or(counted);
        if let Some(hits) = hits
            && hits != made
        {
            return Err(RowEnd::Fail(format!(
                "{hits} hits were counted in {made} calls"
            )));
        }
        Ok(Sample {
            per_call: run.ns as f64 / calls as f64,
            singles,
            calls: made,
            // A peer's hits are compared when it ends; the sample is dropped if they differ.
            hits: hits.or(matches!(self.row.calls, Calls::Elsewhere(_)).then_some(made)),
        })
    }

    fn probe_hits(&mut self) -> Result<Option<u64>, RowEnd> {
        match (&mut self.row.calls, &mut self.row.probe) {
            (Calls::Marking(marker), _) => marker.hits().map(Some),
            (Calls::Of(_), Some(probe)) => probe.hits(),
            (Calls::By(caller), _) => caller.hits(),
            _ => Ok(None),
        }
        .map_err(RowEnd::Fail)
    }

    /// Returns the row's result.
    fn result(self) -> RowResult {
        if let Some(outcome) = self.outcome {
            return outcome;
        }
        let rounds =
            |value: fn(&Sample) -> f64| -> Vec<f64> { self.rounds.iter().map(value).collect() };
        let calls = self.rounds.iter().map(|round| round.calls).sum();
        let hits = self.rounds.iter().map(|round| round.hits).sum();
        let per_call = rounds(|round| round.per_call);
        let mut row = Measured::from_rounds(&self.row.name, &per_call, calls, hits);
        row.threads = self.row.threads;
        row.p50_ns = Some(Spread::of(&rounds(|round| round.singles.p50)).median);
        row.p99_ns = Some(Spread::of(&rounds(|round| round.singles.p99)).median);
        RowResult::Measured(row)
    }
}

impl Row {
    fn run(&mut self, target: &mut Target, calls: u64) -> Result<Run, RowEnd> {
        match &mut self.calls {
            Calls::Of(function) => Ok(target.run(*function, calls, self.threads)?),
            Calls::Marking(_) => Ok(target.mark(calls)?),
            Calls::Elsewhere(peer) => peer.run(calls).map_err(RowEnd::Skip),
            Calls::By(caller) => caller.run(calls).map_err(RowEnd::Fail),
        }
    }

    fn single(&mut self, target: &mut Target, calls: u64) -> Result<Singles, RowEnd> {
        match &mut self.calls {
            Calls::Of(function) => Ok(target.single(*function, calls, self.threads)?),
            Calls::Marking(_) => Ok(target.single_mark(calls)?),
            Calls::Elsewhere(peer) => peer.single(calls).map_err(RowEnd::Skip),
            Calls::By(caller) => caller.single(calls).map_err(RowEnd::Fail),
        }
    }

    fn most_calls(&self) -> u64 {
        match &self.calls {
            Calls::Elsewhere(peer) => peer.most_calls(),
            Calls::By(caller) => caller.most_calls(),
            _ => u64::MAX,
        }
    }
}

/// Returns the number of calls to time one by one: enough for a 99th percentile, and few compared
/// with the calls of the loop unless these are very slow.
fn singles(calls: u64) -> u64 {
    (calls / 4).clamp(200, 10_000)
}

/// Returns the number of calls that take `time`: increases it until they take an eighth of `time`,
/// then extrapolates.
pub(crate) fn calibrate<E>(
    time: Duration,
    mut run: impl FnMut(u64) -> Result<Run, E>,
) -> Result<u64, E> {
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

/// Returns the rows' results, each with its cost over the bare call with as many threads.
pub(super) fn results(states: Vec<State>) -> Vec<RowResult> {
    let mut results: Vec<RowResult> = states.into_iter().map(State::result).collect();
    let is_bare = |row: &&Measured| row.name == "bare" || row.name.starts_with("bare@");
    let measured = results.iter().filter_map(RowResult::measured);
    let bare: Vec<(usize, f64)> = measured
        .filter(is_bare)
        .map(|row| (row.threads, row.ns))
        .collect();
    for result in &mut results {
        if let RowResult::Measured(row) = result
            && let Some((_, ns)) = bare.iter().find(|(threads, _)| *threads == row.threads)
        {
            row.over_bare_ns = row.ns - ns;
        }
    }
    results
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
            let calls = calibrate::<()>(Duration::from_millis(20), run);
            let Ok(calls) = calls else {
                panic!("nothing fails")
            };
            let lasts = calls as f64 * per_call;
            assert!(
                lasts >= 19.9e6 || calls == 1,
                "{per_call} ns: {calls} calls"
            );
            assert!(lasts <= 20.2e6 + per_call, "{per_call} ns: {calls} calls");
        }
    }

    #[test]
    fn single_calls_suffice_for_a_percentile() {
        assert_eq!([1, 4_000, 1 << 40].map(singles), [200, 1_000, 10_000]);
    }
}
