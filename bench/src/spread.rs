//! Summary of one quantity over several rounds.

use serde::Serialize;

/// Median and extremes of the rounds; the name of the field that holds it gives the unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Median: the middle value, or the mean of the two in the middle if their number is even.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Summarises the rounds; all fields are 0 if there is none.
    pub fn of(rounds: &[f64]) -> Spread {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        match (sorted.first(), sorted.last()) {
            (Some(&min), Some(&max)) => Spread {
                median: quantile(&sorted, 0.5),
                min,
                max,
            },
            _ => Spread {
                median: 0.0,
                min: 0.0,
                max: 0.0,
            },
        }
    }
}

/// Quantile of sorted values, linear between the two nearest (R's type 7).
pub(crate) fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * (sorted.len() - 1) as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (at - below as f64) * (sorted[above] - sorted[below])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_both_ends() {
        let spread = |rounds: &[f64]| {
            let s = Spread::of(rounds);
            (s.median, s.min, s.max)
        };
        assert_eq!(spread(&[3.0, 1.0, 7.0]), (3.0, 1.0, 7.0));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 9.0]), (3.0, 1.0, 9.0));
        assert_eq!(spread(&[]), (0.0, 0.0, 0.0));
    }
}
