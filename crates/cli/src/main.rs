//! The `capriole` command: traces every call of a running program, at a cost of nanoseconds.
#![deny(clippy::print_stdout, clippy::print_stderr)] // see `output`

mod advice;
mod commands;
mod exit;
mod probing;
mod subject;
mod usage;

use capriole::machine;
use capriole_text::{output, tell};
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Record calls of functions in running native programs, by probes that are inserted while they run.
#[derive(Debug, Parser)]
#[command(name = "capriole", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Record(commands::record::Arguments),
    Report(commands::report::Arguments),
    Stat(commands::stat::Arguments),
    List(commands::list::Arguments),
    Check(commands::check::Arguments),
    Detach(commands::detach::Arguments),
    Mark(commands::mark::Arguments),
    Bench(commands::bench::Arguments),
    /// The helper of a program that probes itself with libcapriole, which starts it.
    #[command(hide = true)]
    ProbeHelper(commands::probe_helper::Arguments),
}

fn main() -> ExitCode {
    let arguments = match Cli::try_parse() {
        Ok(arguments) => arguments,
        // Help and version contain no foreign text, so they may have colours.
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => {
            let words: Vec<OsString> = std::env::args_os().skip(1).collect();
            match usage::message(&error, &words) {
                Some(message) => tell!("capriole: {message}"),
                None => output::print_error(format_args!("{}", error.render())),
            }
            return ExitCode::from(2);
        }
    };
    exit::code(run(arguments.command))
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    // The other commands start no threads; detaching must work even when resources are short.
    if !matches!(
        command,
        Command::Detach(_)
            | Command::Report(_)
            | Command::Mark(_)
            | Command::Bench(_)
            | Command::ProbeHelper(_)
    ) {
        machine::check_threads()?;
    }
    match command {
        Command::Record(arguments) => commands::record::run(arguments),
        Command::Stat(arguments) => commands::stat::run(arguments),
        Command::Report(arguments) => commands::report::run(&arguments),
        Command::List(arguments) => commands::list::run(&arguments),
        Command::Check(arguments) => commands::check::run(&arguments),
        Command::Detach(arguments) => commands::detach::run(&arguments),
        Command::Mark(arguments) => commands::mark::run(&arguments),
        Command::Bench(arguments) => commands::bench::run(&arguments),
        Command::ProbeHelper(arguments) => commands::probe_helper::run(&arguments),
    }
}
