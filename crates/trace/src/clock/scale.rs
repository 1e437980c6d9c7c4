//! Conversion of durations, as opposed to points in time.

use super::model::{ClockModel, NANOSECONDS};

/// Converts elapsed ticks to ns, at one rate for the whole trace, so that the parts of a duration
/// add up to the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    hz: u64,
}

impl Scale {
    /// Creates the scale of a clock, from its average frequency.
    pub fn of(model: &ClockModel) -> Scale {
        Scale {
            hz: model.freq_hz.max(1),
        }
    }

    /// Converts ticks to ns, rounded down; `u64::MAX` on overflow.
    pub fn ns(&self, ticks: u128) -> u64 {
        let hz = u128::from(self.hz);
        let (seconds, rest) = (ticks / hz, ticks % hz);
        let ns = seconds
            .saturating_mul(u128::from(NANOSECONDS))
            .saturating_add(rest * u128::from(NANOSECONDS) / hz);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_scaled_without_overflow() {
        let scale = Scale { hz: 2_249_999_871 };
        assert_eq!(scale.ns(0), 0);
        assert_eq!(scale.ns(2_249_999_871), 1_000_000_000);
        assert_eq!(scale.ns(225), 100);
        assert_eq!(scale.ns(u128::MAX), u64::MAX);
        assert_eq!(Scale { hz: 1 }.ns(18), 18_000_000_000);
    }
}
