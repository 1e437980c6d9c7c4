//! Reads the processor's time stamp counter: the only unsafe code of the crate.
#![allow(unsafe_code)]

use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::sync::OnceLock;

/// Number of readings for [`step`].
const READINGS: usize = 10_000;

/// Returns the step of the counter in ticks; 1 if no larger step can be detected. Some
/// processors count a slower clock and multiply (26 ticks at a time at 2.6 GHz with a 100 MHz
/// clock).
///
/// The step is the greatest common divisor of all differences between successive readings; or,
/// where a hypervisor has scaled and rounded them, the smallest difference, provided that
/// readings are often equal. It is measured once per process, which takes some 200 us.
pub fn step() -> u64 {
    static STEP: OnceLock<u64> = OnceLock::new();
    *STEP.get_or_init(|| {
        // SAFETY: every x86-64 processor has RDTSC; see `read`.
        let times: Vec<u64> = (0..READINGS).map(|_| unsafe { _rdtsc() }).collect();
        step_of(&times)
    })
}

fn step_of(times: &[u64]) -> u64 {
    let apart = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
    let (mut common, mut least, mut same) = (0, u64::MAX, 0);
    for ticks in apart {
        common = greatest_common_divisor(common, ticks);
        match ticks {
            0 => same += 1,
            _ => least = least.min(ticks),
        }
    }
    match (common, same * 10 > times.len()) {
        (0, _) => 1,
        (1, true) => least,
        (common, _) => common,
    }
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
    }
}
