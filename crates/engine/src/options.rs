//! Options that control how sites are probed, and the clock.

use crate::error::{Context, Result, err};
use capriole_codegen::runtime::ClockReading;
use capriole_ring::layout::frame;
use capriole_trace::clock::{Clock, tsc};
use std::time::Duration;

/// Options that control how sites are probed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProbeOptions {
    /// Use breakpoints where no jump can be placed; a program that hits one while it blocks SIGTRAP
    /// is killed
    pub breakpoints: bool,
    /// Change only one instruction for each probe wherever possible: slower, but safe if another
    /// tool puts uprobes at the same places meanwhile
    pub one_instruction: bool,
    /// Continue without the events that cannot be probed, even if they were named, and report what
    /// is left out
    pub keep_going: bool,
    /// Probe the given addresses even where nothing shows that an instruction begins there; if none
    /// does, the program malfunctions
    pub trust_address: bool,
    /// Read the clock only after all earlier loads of the thread have completed: times of different
    /// CPUs then agree with the order of events, at a cost of some nanoseconds per event
    pub ordered_clock: bool,
    /// Reach every site by a breakpoint, also where a jump can be placed: for measurements
    pub only_breakpoints: bool,
}

/// Environment variable for tests: the time stamp counter advances in steps of this many ticks.
const CLOCK_STEP: &str = "CAPRIOLE_CLOCK_STEP";

impl ProbeOptions {
    /// Returns how probes read the clock.
    pub(crate) fn clock(&self) -> Result<ClockReading> {
        let step = simulated_step()?;
        Ok(ClockReading {
            ordered: self.ordered_clock,
            coarse: u64::from(step).max(tsc::step()) > 1,
            step,
        })
    }
}

/// Starts the clock of a recording.
///
/// # Errors
/// The time stamp counter cannot be used as a clock.
pub fn clock() -> Result<Clock> {
    let clock = Clock::start().context("the time stamp counter cannot be used as a clock")?;
    Ok(clock.with_step(u64::from(simulated_step()?)))
}

/// Returns the step of a simulated clock, in ticks; 0 for the real clock.
///
/// # Errors
/// The environment variable is not a number of ticks in range.
pub fn simulated_step() -> Result<u32> {
    let Some(step) = std::env::var_os(CLOCK_STEP) else {
        return Ok(0);
    };
    let number = step.to_str().and_then(|step| step.parse().ok());
    let number = number.filter(|step| *step <= 1 << 20);
    number.ok_or_else(|| {
        err!(
            Clock,
            "{CLOCK_STEP} has to be a number of ticks, at most 1048576"
        )
    })
}

/// Converts a time to ticks, rounded up, as precisely as the clock allows shortly after its
/// start. If the clock advances in steps, rounds down to a whole step: a call that took this
/// time may measure up to a step less.
///
/// # Errors
/// The clock has too few points.
pub fn ticks(clock: &Clock, time: Duration) -> Result<u64> {
    let model = clock.model()?;
    let hz = u128::from(model.freq_hz);
    let ticks = (time.as_nanos() * hz).div_ceil(1_000_000_000);
    let ticks = match u128::from(model.step) {
        0 | 1 => ticks,
        step => ticks / step * step,
    };
    // A call slot cannot hold a longer time.
    let most = (1 << (64 - frame::CALL_BITS)) - 1;
    Ok(u64::try_from(ticks).unwrap_or(u64::MAX).min(most))
}
