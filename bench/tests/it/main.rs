//! The benchmarks, run for a short time: numbers are checked for being possible, never for their
//! size.

use capriole_testkit::files::locked;
use std::fs::File;
use std::process::{Command, Stdio};

mod bench;
mod bench_hit;
mod bench_marker;
mod bench_probes;
mod floor;
mod hit;

/// Returns the command with these arguments, to be started.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_capriole-bench"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Waits until no other test measures kernel probes, until the result is dropped: such a probe counts
/// the calls of every process that has mapped the file.
fn kernel_probes() -> File {
    locked("kernel-probes-of-the-benchmark")
}
