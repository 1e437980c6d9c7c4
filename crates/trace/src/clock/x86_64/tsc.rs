//! Reads the processor's time stamp counter: the only unsafe code of the crate.
#![allow(unsafe_code)]

use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::hint::black_box;
use std::sync::OnceLock;

/// Number of readings for [`step`].
const READINGS: usize = 4_000;

/// Largest step that is looked for, in ticks.
const MOST: u64 = 4096;
/// Smallest step that [`rounded_step`] can tell from a clock that counts every tick.
const LEAST: u64 = 8;

/// Returns the step of the counter in ticks; 1 if no larger step can be detected. Some
/// processors count a slower clock and multiply (26 ticks at a time at 2.6 GHz with a 100 MHz
/// clock).
///
/// The step is the greatest common divisor of all differences between successive readings; or,
/// where the multiplication is rounded, the number that almost all small differences are multiples
/// of, to one tick. The pauses between readings vary, so that the differences of a clock that counts
/// every tick vary as well. It is measured once per process, in less than a millisecond.
pub fn step() -> u64 {
    static STEP: OnceLock<u64> = OnceLock::new();
    *STEP.get_or_init(|| {
        let times = (0..READINGS).map(|reading| {
            (0..reading % 11).for_each(|turn| _ = black_box(turn));
            if reading % 3 == 0 {
                black_box(black_box(READINGS) / black_box(3));
            }
            // SAFETY: every x86-64 processor has RDTSC; see `read`.
            unsafe { _rdtsc() }
        });
        step_of(&times.collect::<Vec<u64>>())
    })
}

fn step_of(times: &[u64]) -> u64 {
    let apart = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
    let apart: Vec<u64> = apart.filter(|ticks| *ticks > 0).collect();
    match apart.iter().copied().fold(0, greatest_common_divisor) {
        0 => 1,
        1 => rounded_step(apart),
        common => common,
    }
}

/// Returns the step whose multiples, to one tick, are 99 of 100 differences that are smaller than
/// four steps, if these are a quarter of all or more: the one with the most exact multiples. In larger
/// differences the errors of rounding add up, and a step may also be seen in two parts (1 and 25
/// ticks of 26).
fn rounded_step(mut apart: Vec<u64>) -> u64 {
    apart.sort_unstable();
    let exact = |step: u64| {
        let small = &apart[..apart.partition_point(|ticks| *ticks < 4 * step)];
        let (mut exact, mut others) = (0, 0);
        for ticks in small {
            match ticks % step {
                0 => exact += 1,
                rest if rest == 1 || rest == step - 1 => {}
                _ => others += 1,
            }
        }
        (4 * small.len() >= apart.len() && 100 * others <= small.len()).then_some(exact)
    };
    // A step is at most a difference that is seen often.
    let most = apart.get(apart.len() / 4).map_or(0, |ticks| ticks + 1);
    let steps = LEAST..=most.min(MOST);
    let steps = steps.filter_map(|step| Some((exact(step)?, step)));
    steps.max().map_or(1, |(_, step)| step)
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Returns the time stamp counter, in ticks since it was last zero (usually at boot).
///
/// The read is fenced on both sides: it happens after everything before it in program order
/// has completed and before anything after it begins (Intel SDM vol. 2B, RDTSC).
pub fn read() -> u64 {
    // SAFETY: LFENCE is part of SSE2, which every x86-64 processor has.
    unsafe { _mm_lfence() };
    // SAFETY: every x86-64 processor has RDTSC. A process that has disabled it with
    // prctl(PR_SET_TSC) gets SIGSEGV, which is defined behaviour.
    let ticks = unsafe { _rdtsc() };
    // SAFETY: as for the first LFENCE.
    unsafe { _mm_lfence() };
    ticks
}

#[cfg(test)]
mod tests {
    use super::step_of;

    #[test]
    fn a_step_is_what_all_differences_are_multiples_of() {
        assert_eq!(step_of(&[0, 26, 52, 130, 130, 156]), 26);
        assert_eq!(step_of(&[7, 29, 70, 99]), 1);
        assert_eq!(step_of(&[5, 5, 5]), 1);
        assert_eq!(step_of(&[]), 1);
        // Rounded by a hypervisor.
        let scaled: Vec<u64> = (0..1000).map(|n| n / 2 * 2611 / 100).collect();
        assert_eq!(step_of(&scaled), 26);
        // The same, where no two readings are equal.
        let scaled: Vec<u64> = (0..1000).map(|n| (n + n / 3) * 2611 / 100).collect();
        assert_eq!(step_of(&scaled), 26);
        // Steps that are seen in two parts.
        let parts = (0..1000).map(|n| n * 26 + u64::from(n % 20 == 0));
        assert_eq!(step_of(&parts.collect::<Vec<_>>()), 26);
    }

    /// Readings that take as long as ever on a clock that counts each tick, or each second one.
    #[test]
    fn varying_times_are_no_step() {
        for (unit, base) in [(1, 18), (1, 25), (2, 9), (1, 40), (1, 200)] {
            let mut time = 0;
            let times = (0..10_000_u64).map(|reading| {
                time += unit * (base + reading % 61 + reading * reading % 7);
                time
            });
            assert_eq!(step_of(&times.collect::<Vec<_>>()), unit, "{unit} {base}");
        }
    }
}
