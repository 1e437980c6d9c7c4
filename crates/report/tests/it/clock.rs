//! Conversion of time, checked by arithmetic and against the system's clock.

use crate::common::ctf_ns;
use capriole_trace::clock::{ClockError, ClockModel, Converter, SyncPoint};
use proptest::prelude::*;

fn point(tsc: u64, monotonic_ns: u64) -> SyncPoint {
    SyncPoint {
        tsc,
        monotonic_ns,
        realtime_ns: monotonic_ns + 1_700_000_000_000_000_000,
    }
}

/// Sync points of a TSC with some frequency that is adjusted by up to 500 parts per million.
fn points() -> impl Strategy<Value = Vec<SyncPoint>> {
    let steps = prop::collection::vec((900_000_000u64..1_100_000_000, 0u64..1000), 1..40);
    (
        0u64..1 << 60,
        0u64..1 << 60,
        500_000_000u64..6_000_000_000,
        steps,
    )
        .prop_map(|(mut tsc, mut ns, hz, steps)| {
            let mut points = vec![point(tsc, ns)];
            for (step, steered) in steps {
                ns += step;
                let ticks = u128::from(step) * u128::from(hz) / 1_000_000_000;
                tsc += (ticks * (999_500 + u128::from(steered)) / 1_000_000) as u64;
                points.push(point(tsc, ns));
            }
            points
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// At every sync point the time is exact; between them it is on the straight line,
    /// rounded down; and it never goes backwards, in whatever order values are converted.
    #[test]
    fn conversion_is_exact_between_sync_points(points in points(), parts in prop::collection::vec(any::<prop::sample::Index>(), 20)) {
        let model = ClockModel::from_points(points.clone(), 0).unwrap();
        let mut converter = Converter::new(&model).unwrap();
        for pair in points.windows(2) {
            let (ticks, ns) = (pair[1].tsc - pair[0].tsc, pair[1].monotonic_ns - pair[0].monotonic_ns);
            let mut asked: Vec<u64> = parts.iter().map(|part| part.index(ticks as usize) as u64).collect();
            asked.extend([0, 1, ticks - 1]);
            for since in asked {
                let exact = u128::from(pair[0].monotonic_ns) + u128::from(since) * u128::from(ns) / u128::from(ticks);
                prop_assert_eq!(u128::from(converter.monotonic_ns(pair[0].tsc + since)), exact);
            }
        }
        let last = points[points.len() - 1];
        prop_assert_eq!(converter.monotonic_ns(last.tsc), last.monotonic_ns);
        let mut asked: Vec<u64> = parts.iter().map(|part| part.index(u64::MAX as usize) as u64).collect();
        asked.extend(points.iter().flat_map(|point| [point.tsc.saturating_sub(1), point.tsc, point.tsc + 1]));
        let mut times: Vec<(u64, u64)> = asked.iter().map(|tsc| (*tsc, converter.monotonic_ns(*tsc))).collect();
        times.sort_unstable();
        prop_assert!(times.windows(2).all(|pair| pair[0].1 <= pair[1].1));
    }

    /// CTF's single line goes through the first point, to within a tick.
    #[test]
    fn the_ctf_clock_starts_at_the_first_point(points in points()) {
        let model = ClockModel::from_points(points.clone(), 0).unwrap();
        prop_assert_eq!(model.check(), Ok(()));
        let off = ctf_ns(&model, points[0].tsc) - i128::from(points[0].realtime_ns);
        prop_assert!(off.abs() <= 3, "{} ns off", off);
    }
}

/// An hour at a frequency that is not a whole number of hertz.
#[test]
fn an_hour_is_exact_in_the_conversion_and_within_a_microsecond_in_ctf() {
    // 2.25 GHz and a third of a hertz.
    let tsc = |second: u64| (1 << 50) + second * 2_250_000_000 + second / 3;
    let points: Vec<SyncPoint> = (0..=3600)
        .map(|s| point(tsc(s), 77 + s * 1_000_000_000))
        .collect();
    let model = ClockModel::from_points(points.clone(), 0).unwrap();
    assert_eq!(model.freq_hz, 2_250_000_000);
    let mut converter = Converter::new(&model).unwrap();
    for at in &points {
        assert_eq!(converter.monotonic_ns(at.tsc), at.monotonic_ns);
        let off = ctf_ns(&model, at.tsc) - i128::from(at.realtime_ns);
        assert!(off.abs() < 1000, "{off} ns off");
    }
}

#[test]
fn one_point_converts_by_the_nominal_frequency() {
    let model = ClockModel::from_points(vec![point(1000, 5_000)], 2_000_000_000).unwrap();
    let mut converter = Converter::new(&model).unwrap();
    assert_eq!(converter.monotonic_ns(3000), 6_000);
    assert_eq!(converter.monotonic_ns(0), 4_500);
    // Long after the only point, and times that overflow.
    assert_eq!(converter.monotonic_ns(u64::MAX), u64::MAX / 2 - 500 + 5_000);
    let slow = ClockModel::from_points(vec![point(0, 5_000)], 1).unwrap();
    assert_eq!(
        Converter::new(&slow).unwrap().monotonic_ns(u64::MAX),
        u64::MAX
    );
}

#[test]
fn points_that_make_no_clock_are_refused() {
    let refused =
        |points: &[SyncPoint], hz| ClockModel::from_points(points.to_vec(), hz).unwrap_err();
    assert_eq!(refused(&[], 1), ClockError::NoPoints);
    assert_eq!(refused(&[point(1, 1)], 0), ClockError::Frequency(0));
    assert_eq!(
        refused(&[point(5, 1), point(5, 2)], 0),
        ClockError::NotIncreasing(1)
    );
    assert_eq!(
        refused(&[point(5, 1), point(6, 2), point(7, 2)], 0),
        ClockError::NotIncreasing(2)
    );
    let mut model = ClockModel::from_points(vec![point(1, 1)], 100).unwrap();
    model.offset_cycles = 100;
    assert_eq!(model.check(), Err(ClockError::Offset(100)));
}
