//! The options `--quiet` and `--verbose`, which all commands have.

use capriole_text::output::{self, Verbosity};
use capriole_text::{detail, units};
use std::time::Instant;

/// Options for the amount of messages on standard error.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Flags {
    /// Print no progress and no summary on standard error, only errors and warnings
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "verbose",
        display_order = 900
    )]
    quiet: bool,
    /// Print more on standard error: each site and how it is probed, everything that is left out, and
    /// the time of each phase
    #[arg(short, long, global = true, display_order = 901)]
    verbose: bool,
}

impl Flags {
    /// Makes the options effective.
    pub fn apply(self) {
        output::set_verbosity(match self {
            Flags { quiet: true, .. } => Verbosity::Quiet,
            Flags { verbose: true, .. } => Verbosity::Verbose,
            _ => Verbosity::Normal,
        });
    }
}

/// Does a phase of the work; with `--verbose`, prints its time.
pub fn timed<T>(phase: &str, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let done = work();
    detail!("capriole: {phase}: {}", units::time(started.elapsed()));
    done
}
