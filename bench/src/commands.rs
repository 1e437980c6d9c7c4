//! The benchmarks of Capriole itself: what probes cost on this machine.

mod attach;
mod hit;
mod marker;
mod probes;
mod program;
mod reading;

use crate::Usage;
use capriole_bench::BenchError;
use capriole_text::output;
use capriole_text::say;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;

use capriole_text::units::parse_size;

/// Measure what probes cost on this machine
#[derive(Debug, clap::Parser)]
#[command(
    name = "capriole-bench",
    bin_name = "capriole bench",
    version,
    max_term_width = 100
)]
pub struct Arguments {
    /// Benchmark to run: hit (a probe hit next to other ways of observing a call), attach
    /// (attaching to programs with many functions), program (real programs with every function
    /// probed), marker (static markers, off and on), or probes (probes that a program puts into
    /// itself)
    #[arg(
        value_parser = ["hit", "attach", "program", "marker", "probes"],
        default_value = "hit"
    )]
    what: String,
    /// Number of rounds, whose median counts: for hit, marker and probes at least 7 [default: 9],
    /// for the others at least 1 [default: 5]
    #[arg(long, value_parser = clap::value_parser!(u32).range(..=1000))]
    rounds: Option<u32>,
    /// Length of a round of one row, in milliseconds [default: 25, for program 100]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    round_ms: Option<u64>,
    /// hit, marker, probes: measure on this CPU
    #[arg(long)]
    cpu: Option<usize>,
    /// hit: add rows with this many threads to those with one [default: the number of CPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// hit, marker, probes: only these rows and the rows they are compared with; the first part of
    /// a name selects all rows that begin with it
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    rows: Vec<String>,
    /// hit: also draw a chart
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// attach, probes: maximum number of sites
    #[arg(long, default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(1..))]
    sites: u32,
    /// program: size of the memory shared with the recorded program
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    buffer_size: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Results of a benchmark.
struct Outcome {
    /// Table for a human reader.
    text: String,
    /// For `--json`: a list of objects, each with its name.
    rows: Value,
    /// True if a row has failed.
    failed: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        arguments.rounds != Some(0)
            || matches!(arguments.what.as_str(), "hit" | "marker" | "probes"),
        Usage("a benchmark needs at least 1 round")
    );
    let outcome = match arguments.what.as_str() {
        "attach" => attach::run(arguments)?,
        "program" => program::run(arguments)?,
        "marker" => marker::run(arguments)?,
        "probes" => probes::run(arguments)?,
        _ => hit::run(arguments)?,
    };
    match arguments.json {
        true => say!("{}", serde_json::to_string_pretty(&outcome.rows)?),
        false => output::print(format_args!("{}", outcome.text)),
    }
    Ok(match outcome.failed {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn progress(total: u64) -> anyhow::Result<ProgressBar> {
    let bar = ProgressBar::new(total);
    bar.set_style(ProgressStyle::with_template(
        "{msg:24} {wide_bar} {pos}/{len}",
    )?);
    Ok(bar)
}

/// Returns the reason if the error means that something is skipped.
fn skipped(error: &anyhow::Error) -> Option<&str> {
    match error.downcast_ref() {
        Some(BenchError::Skipped(why)) => Some(why),
        _ => None,
    }
}

/// Checks for a request to stop, between two rounds, when no probe is in a program.
/// # Errors
/// A signal has requested a stop.
fn go_on() -> anyhow::Result<()> {
    anyhow::ensure!(
        capriole_host::signals::requests() == 0,
        "stopped by a signal"
    );
    Ok(())
}
