//! The benchmarks, run for a short time: numbers are checked for being possible, never for their
//! size.

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
