//! `capriole report`: shows a trace.

use capriole_trace::{Trace, report};
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Show a recorded trace
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The trace directory
    #[arg(default_value = "capriole.trace")]
    directory: PathBuf,
    /// Calls, share and rate of each event, instead of every event
    #[arg(long)]
    summary: bool,
    /// Print JSON: one object, or without --summary one a line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let trace = Trace::open(&arguments.directory)?;
    let out = std::io::stdout().lock();
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let health = if arguments.summary {
        let (summary, health) = report::Summary::of(&trace)?;
        if arguments.json {
            serde_json::to_writer(&mut out, &summary)?;
            writeln!(out)?;
        } else {
            write!(out, "{summary}")?;
        }
        health
    } else if arguments.json {
        report::write_json_lines(&trace, &mut out)?
    } else {
        report::write_text(&trace, &mut out)?
    };
    out.flush()?;
    for damage in &health.shown {
        eprintln!("capriole: {damage}");
    }
    Ok(ExitCode::SUCCESS)
}
