//! Measurement of the TSC against the system's clocks.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, Timespec, clock_gettime};

use super::model::{ClockError, ClockModel, NANOSECONDS, SyncPoint};
use super::tsc;

/// Number of times that a pair of clocks is read for one sync point. The narrowest pair is
/// used, so an interrupt or a preemption during a reading does no harm; all readings take some
/// ten microseconds.
const ATTEMPTS: usize = 100;

/// Duration of the first estimate of the frequency. A pair is narrower than 0.1 us, so the estimate
/// is better than 10 parts per million.
const FIRST_WATCH: Duration = Duration::from_millis(10);

/// Maximum number of sync points: four hours at one per second; beyond it, every second point
/// is dropped.
const MOST_POINTS: usize = 16_384;

/// The clock of a recording: collects sync points.
#[derive(Debug, Clone)]
pub struct Clock {
    step: u64,
    points: Vec<SyncPoint>,
}

impl Clock {
    /// Starts the clock, measuring the TSC's frequency for 10 ms.
    ///
    /// # Errors
    ///
    /// If the TSC stands still or goes backwards.
    pub fn start() -> Result<Clock, ClockError> {
        let first = measure();
        std::thread::sleep(FIRST_WATCH);
        let clock = Clock {
            step: tsc::step(),
            points: vec![first, measure()],
        };
        clock.model()?;
        Ok(clock)
    }

    /// Recreates the clock of an interrupted recording from its model.
    pub fn resume(model: &ClockModel) -> Clock {
        Clock {
            step: model.step,
            points: model.sync_points.clone(),
        }
    }

    /// Returns the clock for a recorder whose readings of the counter have steps of at least `step`
    /// ticks.
    #[must_use]
    pub fn with_step(self, step: u64) -> Clock {
        Clock {
            step: self.step.max(step),
            ..self
        }
    }

    /// Takes another sync point; call it about every second, and once when the recording ends.
    ///
    /// # Errors
    ///
    /// If the TSC went backwards; the clock is then unchanged.
    pub fn sync(&mut self) -> Result<SyncPoint, ClockError> {
        let point = measure();
        let last = self.points[self.points.len() - 1];
        if point.tsc <= last.tsc || point.monotonic_ns <= last.monotonic_ns {
            return Err(ClockError::NotIncreasing(self.points.len()));
        }
        self.add(point);
        Ok(point)
    }

    /// Adds a point that is later than the last one.
    fn add(&mut self, point: SyncPoint) {
        // The point of the first estimate is too close to the first one to make a good piece of the
        // line, and useless once there is a later one.
        if let [first, second] = self.points[..]
            && second.monotonic_ns - first.monotonic_ns < 10 * FIRST_WATCH.as_nanos() as u64
        {
            self.points.pop();
        }
        self.points.push(point);
        if self.points.len() > MOST_POINTS {
            // The first and the last determine the overall slope: keep both.
            let mut index = 0;
            let last = self.points.len() - 1;
            self.points.retain(|_| {
                index += 1;
                (index - 1) % 2 == 0 || index - 1 == last
            });
        }
    }

    /// Returns the conversion based on all points so far.
    ///
    /// # Errors
    ///
    /// If the frequency is not plausible for a TSC.
    pub fn model(&self) -> Result<ClockModel, ClockError> {
        let model = ClockModel::from_points(self.points.clone(), 0)?;
        Ok(ClockModel {
            step: self.step,
            ..model
        })
    }
}

/// Reads the three clocks at one moment, each within the width of the narrowest of many tries.
fn measure() -> SyncPoint {
    let (tsc, monotonic_ns) = narrowest(tsc::read, || now(ClockId::Monotonic));
    let (monotonic, realtime) = narrowest(|| now(ClockId::Monotonic), || now(ClockId::Realtime));
    // Both refer to CLOCK_MONOTONIC: move the second to the time of the first.
    let since = i128::from(monotonic_ns) - i128::from(monotonic);
    let realtime_ns = (i128::from(realtime) + since).max(0) as u64;
    SyncPoint {
        tsc,
        monotonic_ns,
        realtime_ns,
    }
}

/// Returns a moment in the past on the system's clocks: `CLOCK_MONOTONIC` and `CLOCK_REALTIME`, ns.
pub(crate) fn past(moment: Instant) -> (u64, u64) {
    let ago = moment.elapsed().as_nanos() as u64;
    let before = |clock| now(clock).saturating_sub(ago);
    (before(ClockId::Monotonic), before(ClockId::Realtime))
}

/// Reads `inner` between two reads of `outer`, and returns the middle of the narrowest pair.
fn narrowest(outer: impl Fn() -> u64, inner: impl Fn() -> u64) -> (u64, u64) {
    let mut best = (0, 0);
    let mut width = u64::MAX;
    for _ in 0..ATTEMPTS {
        let before = outer();
        let middle = inner();
        let after = outer();
        if after.wrapping_sub(before) < width {
            width = after.wrapping_sub(before);
            best = (before + width / 2, middle);
        }
    }
    best
}

/// Reads a system clock, in ns.
fn now(clock: ClockId) -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    (tv_sec.max(0) as u64) * NANOSECONDS + tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_clock_gives_the_system_clock_back() {
        let mut clock = Clock::start().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let between = measure();
        std::thread::sleep(Duration::from_millis(200));
        clock.sync().unwrap();
        let mut converter = super::super::Converter::new(&clock.model().unwrap()).unwrap();
        let error = converter
            .monotonic_ns(between.tsc)
            .abs_diff(between.monotonic_ns);
        // Three pairs of some 50 ns each; the bound leaves room for a busy virtual machine. A
        // wrong slope or a wrong point is off by milliseconds.
        assert!(error < 50_000, "{error} ns off");
    }

    #[test]
    fn points_are_thinned_and_the_ends_kept() {
        let point = |n: u64| SyncPoint {
            tsc: n * 2 * NANOSECONDS,
            monotonic_ns: n * NANOSECONDS,
            realtime_ns: n * NANOSECONDS,
        };
        let mut clock = Clock {
            step: 1,
            points: vec![point(1), point(2)],
        };
        for n in 3..100_000 {
            clock.add(point(n));
            assert!(clock.points.len() >= MOST_POINTS.min(n as usize) / 2, "{n}");
            assert!(clock.points.len() <= MOST_POINTS);
            assert_eq!(clock.points[0], point(1));
            assert_eq!(clock.points[clock.points.len() - 1], point(n));
        }
        assert!(
            clock
                .points
                .windows(2)
                .all(|pair| pair[0].tsc < pair[1].tsc)
        );
    }
}
