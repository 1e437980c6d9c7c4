//! The TSC's conversion as data: the part of the clock that is stored in the trace.

use serde::{Deserialize, Serialize};

/// Nanoseconds in a second.
pub(crate) const NANOSECONDS: u64 = 1_000_000_000;

/// Values of three clocks at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncPoint {
    /// The time stamp counter, in ticks.
    pub tsc: u64,
    /// `CLOCK_MONOTONIC`, in ns.
    pub monotonic_ns: u64,
    /// `CLOCK_REALTIME`, in ns since 1970-01-01 UTC.
    pub realtime_ns: u64,
}

/// The conversion from TSC ticks to time.
///
/// Made by [`ClockModel::from_points`]; a model read from a file must pass [`ClockModel::check`]
/// before it is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockModel {
    /// Ticks per second, rounded to a whole number as CTF requires: the slope between the first and
    /// the last sync point.
    pub freq_hz: u64,
    /// CTF's clock offset, whole seconds: the time of tick 0 in seconds since 1970-01-01 UTC.
    pub offset_s: i64,
    /// CTF's clock offset, the rest in ticks, less than `freq_hz`.
    pub offset_cycles: u64,
    /// Step of the time stamp counter, in ticks, at least 1: two readings closer together than this
    /// may be equal.
    #[serde(default = "one")]
    pub step: u64,
    /// In time order, at least one.
    pub sync_points: Vec<SyncPoint>,
}

fn one() -> u64 {
    1
}

/// Reason why sync points do not make a valid clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClockError {
    /// There are no sync points.
    #[error("the clock has no sync points")]
    NoPoints,
    /// Time went backwards or stood still between two sync points.
    #[error("the clock's sync point {0} is not later than the one before it")]
    NotIncreasing(usize),
    /// The clock ticks less than once or more than 2^40 times per second.
    #[error("the clock's frequency of {0} Hz is not that of a time stamp counter")]
    Frequency(u64),
    /// The clock never advances.
    #[error("the clock advances by no ticks at once")]
    Step,
    /// CTF's clock offset in ticks is a second or more.
    #[error("the clock's offset of {0} ticks is more than a second")]
    Offset(u64),
}

impl ClockModel {
    /// Creates the model of these points, which are in time order. The frequency is the slope
    /// between the first and the last; with a single point it is `nominal_hz`.
    ///
    /// # Errors
    ///
    /// If there is no point, if one is not later than the one before, or if the frequency is 0.
    pub fn from_points(points: Vec<SyncPoint>, nominal_hz: u64) -> Result<ClockModel, ClockError> {
        check_points(&points)?;
        let (first, last) = (points[0], points[points.len() - 1]);
        let freq_hz = match points.len() {
            1 => nominal_hz,
            _ => frequency(first, last),
        };
        check_frequency(freq_hz)?;
        // realtime(tsc) = offset + tsc / freq, which is exact at the first point.
        let ticks_since_epoch =
            i128::from(first.realtime_ns) * i128::from(freq_hz) / i128::from(NANOSECONDS);
        let offset = ticks_since_epoch - i128::from(first.tsc);
        Ok(ClockModel {
            freq_hz,
            offset_s: offset.div_euclid(i128::from(freq_hz)) as i64,
            offset_cycles: offset.rem_euclid(i128::from(freq_hz)) as u64,
            step: 1,
            sync_points: points,
        })
    }

    /// Checks that the conversions below are defined, as [`ClockModel::from_points`] ensures.
    ///
    /// # Errors
    ///
    /// The first violated rule.
    pub fn check(&self) -> Result<(), ClockError> {
        check_points(&self.sync_points)?;
        check_frequency(self.freq_hz)?;
        if self.step == 0 {
            return Err(ClockError::Step);
        }
        if self.offset_cycles >= self.freq_hz {
            return Err(ClockError::Offset(self.offset_cycles));
        }
        Ok(())
    }

    /// Returns the duration of a step in ns, rounded up.
    pub fn step_ns(&self) -> u64 {
        let ns = u128::from(self.step) * u128::from(NANOSECONDS);
        u64::try_from(ns.div_ceil(u128::from(self.freq_hz))).unwrap_or(u64::MAX)
    }
}

/// Returns the ticks per second between two points, rounded to the nearest.
pub(crate) fn frequency(from: SyncPoint, to: SyncPoint) -> u64 {
    let ticks = u128::from(to.tsc.saturating_sub(from.tsc));
    let ns = u128::from(to.monotonic_ns.saturating_sub(from.monotonic_ns)).max(1);
    let hz = (ticks * u128::from(NANOSECONDS) + ns / 2) / ns;
    u64::try_from(hz).unwrap_or(u64::MAX)
}

fn check_points(points: &[SyncPoint]) -> Result<(), ClockError> {
    if points.is_empty() {
        return Err(ClockError::NoPoints);
    }
    let later = |pair: &[SyncPoint]| {
        pair[0].tsc < pair[1].tsc && pair[0].monotonic_ns < pair[1].monotonic_ns
    };
    match points.windows(2).position(|pair| !later(pair)) {
        Some(at) => Err(ClockError::NotIncreasing(at + 1)),
        None => Ok(()),
    }
}

fn check_frequency(freq_hz: u64) -> Result<(), ClockError> {
    if freq_hz == 0 || freq_hz > 1 << 40 {
        return Err(ClockError::Frequency(freq_hz));
    }
    Ok(())
}
