//! Reading the processor's time stamp counter: the only unsafe code of the crate.
#![allow(unsafe_code)]

use std::arch::x86_64::{_mm_lfence, _rdtsc};

/// The time stamp counter, in ticks since it was last zero (mostly the machine's start).
///
/// The read is fenced on both sides: it happens after everything before it in program order
/// has completed and before anything after it begins (Intel SDM vol. 2B, RDTSC).
pub fn read() -> u64 {
    // SAFETY: LFENCE is part of SSE2, which every x86-64 processor has.
    unsafe { _mm_lfence() };
    // SAFETY: every x86-64 processor has RDTSC. A process that forbade it to itself with
    // prctl(PR_SET_TSC) gets SIGSEGV, which is defined behaviour.
    let ticks = unsafe { _rdtsc() };
    // SAFETY: as the first.
    unsafe { _mm_lfence() };
    ticks
}
