//! Time: ticks of the time stamp counter (TSC) and their conversion.
//!
//! Records carry raw TSC values. While a recording runs, [`Clock`] takes a [`SyncPoint`] about
//! every second: the TSC, `CLOCK_MONOTONIC` and `CLOCK_REALTIME` at one moment. A
//! [`ClockModel`] made of those points converts any TSC value:
//!
//! ```text
//!  monotonic ns
//!        |            . ' p2      between two points: the straight line through them
//!        |      p1 '              outside: the line through the first and the last
//!        |   /                    CTF metadata: one line through p0 for everything, with an
//!        | p0                       integral frequency in hertz, to CLOCK_REALTIME
//!        +------------------ tsc
//! ```

mod convert;
mod model;
mod scale;
mod source;
mod sync;
// An architecture is a folder, with the same names of files in each.
#[cfg_attr(target_arch = "x86_64", path = "x86_64/tsc.rs")]
pub mod tsc;

pub use convert::Converter;
pub use model::{ClockError, ClockModel, SyncPoint};
pub use scale::Scale;
pub use source::unstable_warning;
pub use sync::Clock;
pub(crate) use sync::past;
