//! Calls timed one by one: the distribution of a hit's time, which a mean does not show.
//!
//! ```text
//!  lfence; rdtsc; lfence; call f; lfence; rdtsc; lfence
//! ```
//! No instruction of the call runs before the first reading of the clock or after the second one,
//! so the call does not overlap with the code around it, as it does in a loop. The median of as
//! many readings around nothing is subtracted from each quantile. At the second reading, stores may
//! not have reached the cache yet.

use core::arch::x86_64::{_mm_lfence, _rdtsc};

use rustix::time::{ClockId, clock_gettime};

/// Quantiles of single calls, in nanoseconds, without the cost of reading the clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Singles {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Calls that the target itself counted; `None` for functions that it does not count.
    pub hits: Option<u64>,
}

/// Times of single calls, in ticks of the time stamp counter.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    calls: Vec<u64>,
    nothing: Vec<u64>,
    /// Total duration of all calls in ticks; `ns` is the same in nanoseconds.
    ticks: u64,
    ns: u64,
}

impl Samples {
    /// Makes the calls and times each; `call` gets the call's number, from 0.
    pub(crate) fn take(
        calls: u64,
        mut call: impl FnMut(u64) -> Result<(), String>,
    ) -> Result<Samples, String> {
        let count = usize::try_from(calls).map_err(|_| "too many calls".to_owned())?;
        let mut samples = Samples {
            calls: vec![0; count],
            nothing: vec![0; count],
            ..Samples::default()
        };
        for ticks in &mut samples.nothing {
            let start = clock();
            *ticks = clock() - start;
        }
        let (ns, start) = (now(), clock());
        for (number, ticks) in (0..).zip(&mut samples.calls) {
            let start = clock();
            call(number)?;
            *ticks = clock().saturating_sub(start);
        }
        samples.ticks = clock() - start;
        samples.ns = now() - ns;
        Ok(samples)
    }

    /// Adds the samples of another thread.
    pub(crate) fn add(&mut self, other: Samples) {
        self.calls.extend(other.calls);
        self.nothing.extend(other.nothing);
        self.ticks += other.ticks;
        self.ns += other.ns;
    }

    /// Returns median and 99th percentile in nanoseconds; `None` without calls.
    pub(crate) fn quantiles(mut self) -> Option<(f64, f64)> {
        let nothing = rank(&mut self.nothing, 50)?;
        let scale = self.ns as f64 / self.ticks.max(1) as f64;
        let mut of = |percent| {
            let ticks = rank(&mut self.calls, percent)?.saturating_sub(nothing);
            Some(ticks as f64 * scale)
        };
        Some((of(50)?, of(99)?))
    }
}

/// Returns the percentile by nearest rank: the smallest value that at least `percent` % of the
/// values do not exceed.
fn rank(values: &mut [u64], percent: usize) -> Option<u64> {
    let at = (values.len() * percent).div_ceil(100).checked_sub(1)?;
    Some(*values.select_nth_unstable(at).1)
}

/// Reads the time stamp counter; earlier instructions are done, later ones have not begun.
pub(crate) fn clock() -> u64 {
    // SAFETY: `lfence` is in every x86-64 processor (SSE2) and touches no memory.
    unsafe { _mm_lfence() };
    // SAFETY: `rdtsc` is in every x86-64 processor, and Linux lets programs use it.
    let ticks = unsafe { _rdtsc() };
    // SAFETY: as above.
    unsafe { _mm_lfence() };
    ticks
}

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_values_that_occurred() {
        let mut values: Vec<u64> = (1..=200).rev().collect();
        assert_eq!(rank(&mut values, 50), Some(100));
        assert_eq!(rank(&mut values, 99), Some(198));
        assert_eq!(rank(&mut [7], 99), Some(7));
        assert_eq!(rank(&mut [], 50), None);
    }

    #[test]
    fn the_clocks_own_time_is_taken_off_and_ticks_become_nanoseconds() {
        let samples = Samples {
            calls: vec![30, 50, 40],
            nothing: vec![20, 10, 10],
            ticks: 400,
            ns: 200,
        };
        assert_eq!(samples.quantiles(), Some((15.0, 20.0)));
        let faster_than_the_clock = Samples {
            calls: vec![5],
            nothing: vec![9],
            ticks: 1,
            ns: 1,
        };
        assert_eq!(faster_than_the_clock.quantiles(), Some((0.0, 0.0)));
        assert_eq!(Samples::default().quantiles(), None);
    }

    #[test]
    fn every_call_is_made_once_and_in_order() {
        let mut seen = Vec::new();
        let note = |number| {
            seen.push(number);
            Ok(())
        };
        let mut samples = Samples::take(5, note).expect("nothing refuses");
        assert_eq!(seen, [0, 1, 2, 3, 4]);
        assert_eq!((samples.calls.len(), samples.nothing.len()), (5, 5));
        samples.add(Samples::take(3, |_| Ok(())).expect("nothing refuses"));
        assert_eq!(samples.calls.len(), 8);
        let refused = Samples::take(5, |number| match number {
            3 => Err("no more".to_owned()),
            _ => Ok(()),
        });
        assert_eq!(refused.err().as_deref(), Some("no more"));
    }
}
