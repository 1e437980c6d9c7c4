//! Fast conversion from TSC ticks to `CLOCK_MONOTONIC`, for millions of values a second.

use super::model::{ClockError, ClockModel, NANOSECONDS, SyncPoint};

/// A segment of the piecewise line, between two adjacent sync points.
#[derive(Debug, Clone, Copy)]
struct Piece {
    tsc: u64,
    ns: u64,
    /// The slope as a fraction, ns per ticks.
    rise: u64,
    run: u64,
    /// The slope as a multiple of 2^-64, rounded up, so that the piece ends exactly at the next
    /// point. Rounding adds less than one tick in 2^64.
    slope: u128,
}

impl Piece {
    fn new(from: SyncPoint, rise: u64, run: u64) -> Piece {
        Piece {
            tsc: from.tsc,
            ns: from.monotonic_ns,
            rise,
            run,
            slope: (u128::from(rise) << 64).div_ceil(u128::from(run)),
        }
    }

    /// Returns the ns that pass in `ticks`, rounded down.
    fn span(&self, ticks: u64) -> u64 {
        let ns = match u128::from(ticks).checked_mul(self.slope) {
            Some(product) => product >> 64,
            None => u128::from(ticks) * u128::from(self.rise) / u128::from(self.run),
        };
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// Converts TSC values to `CLOCK_MONOTONIC`, piecewise between sync points, in integers.
///
/// Monotonic: a later tick never gets an earlier time. Remembers the last piece, so that
/// values in time order cost one multiplication.
#[derive(Debug, Clone)]
pub struct Converter {
    /// Used before the first point: the line through the first and the last point.
    whole: Piece,
    /// One piece starting at each point; the last one has the slope of `whole`.
    pieces: Vec<Piece>,
    /// Index of the piece used last.
    at: usize,
}

impl Converter {
    /// Creates a converter for this model.
    ///
    /// # Errors
    ///
    /// As [`ClockModel::check`].
    pub fn new(model: &ClockModel) -> Result<Converter, ClockError> {
        model.check()?;
        let points = &model.sync_points;
        let (first, last) = (points[0], points[points.len() - 1]);
        let (rise, run) = match points.len() {
            1 => (NANOSECONDS, model.freq_hz),
            _ => (last.monotonic_ns - first.monotonic_ns, last.tsc - first.tsc),
        };
        let mut pieces: Vec<Piece> = points
            .windows(2)
            .map(|pair| {
                let rise = pair[1].monotonic_ns - pair[0].monotonic_ns;
                Piece::new(pair[0], rise, pair[1].tsc - pair[0].tsc)
            })
            .collect();
        pieces.push(Piece::new(last, rise, run));
        Ok(Converter {
            whole: Piece::new(first, rise, run),
            pieces,
            at: 0,
        })
    }

    /// Converts a TSC value to `CLOCK_MONOTONIC` in ns. Times before boot are 0.
    pub fn monotonic_ns(&mut self, tsc: u64) -> u64 {
        if tsc < self.whole.tsc {
            return self
                .whole
                .ns
                .saturating_sub(self.whole.span(self.whole.tsc - tsc));
        }
        let piece = self.pieces[self.at];
        let next = self.pieces.get(self.at + 1);
        if tsc < piece.tsc || next.is_some_and(|next| tsc >= next.tsc) {
            self.at = self.pieces.partition_point(|piece| piece.tsc <= tsc) - 1;
        }
        let piece = &self.pieces[self.at];
        piece.ns.saturating_add(piece.span(tsc - piece.tsc))
    }
}
