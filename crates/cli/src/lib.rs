//! The `capriole` command: traces every call of a running program, at a cost of nanoseconds.
#![deny(clippy::print_stdout, clippy::print_stderr)] // see `output`

mod advice;
mod commands;
mod completion;
mod exit;
mod manual;
mod names;
mod new_file;
mod probing;
mod subject;
mod topics;
mod usage;
mod verbosity;
mod version;

use capriole::machine;
use capriole_host::{signals, standard};
use capriole_text::{output, tell};
use clap::{CommandFactory as _, Parser, Subcommand};
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

/// Record calls of functions in running native programs, by probes that are inserted while they run.
#[derive(Debug, Parser)]
#[command(
    name = "capriole",
    version = version::short(),
    long_version = version::long(),
    about,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = topics::list(commands::help::width())
)]
struct Cli {
    #[command(flatten)]
    verbosity: verbosity::Flags,
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
    Help(commands::help::Arguments),
    #[command(hide = true)]
    Generate(commands::generate::Arguments),
    /// The helper of a program that probes itself with libcapriole, which starts it.
    #[command(hide = true)]
    ProbeHelper(commands::probe_helper::Arguments),
}

/// Names of the subcommands that `capriole help` shows, with a line about each.
const COMMANDS: [(&str, &str); 9] = [
    ("record", "Record calls into a trace"),
    ("report", "Show a recorded trace"),
    ("stat", "Count and aggregate calls, without a trace"),
    ("list", "List functions and markers"),
    ("check", "Examine one site"),
    ("detach", "Remove every probe"),
    ("mark", "Write a message into recordings"),
    ("bench", "Measure what probes cost"),
    ("help", "Show help"),
];

/// Does what the command line of this process asks for. Returns its exit status.
pub fn main() -> ExitCode {
    match completion::answer(Cli::command) {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => {}
        Err(error) => {
            output::print_error(format_args!("{}", error.render()));
            return ExitCode::FAILURE;
        }
    }
    let arguments = match Cli::try_parse() {
        Ok(arguments) => arguments,
        // Help and version contain no foreign text, so they may have colours.
        Err(error) if !error.use_stderr() => {
            if let Err(error) = has_output() {
                return exit::code(Err(error));
            }
            let written = error.print().and_then(|()| output::terminal().flush());
            let written = written.map_err(output::unwritable);
            return exit::code(written.map(|()| ExitCode::SUCCESS).map_err(Into::into));
        }
        Err(error) => {
            let words: Vec<OsString> = std::env::args_os().skip(1).collect();
            match usage::message(&error, &words) {
                Some(message) => tell!("capriole: {message}"),
                None => output::print_error(format_args!("{}", error.render())),
            }
            return ExitCode::from(2);
        }
    };
    arguments.verbosity.apply();
    exit::code(run(arguments.command))
}

/// Refuses a closed standard output: results would be lost without any message.
fn has_output() -> anyhow::Result<()> {
    if standard::output_was_closed() {
        anyhow::bail!(
            "standard output is closed, so the results have no place to go; nothing was done: open \
             it, or redirect it to /dev/null"
        );
    }
    Ok(())
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    // First: while SIGINT is ignored, as in the background of a script, one would be lost, and what
    // it was to end would go on.
    if matches!(command, Command::Record(_) | Command::Stat(_)) {
        signals::catch();
    }
    // Probes are taken out whether or not somebody reads about it; the helper prints nothing.
    if !matches!(command, Command::Detach(_) | Command::ProbeHelper(_)) {
        has_output()?;
    }
    // The other commands start no threads; detaching must work even when resources are short.
    if !matches!(
        command,
        Command::Detach(_)
            | Command::Report(_)
            | Command::Mark(_)
            | Command::Bench(_)
            | Command::Help(_)
            | Command::Generate(_)
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
        Command::Help(arguments) => commands::help::run(&arguments),
        Command::Generate(arguments) => commands::generate::run(&arguments),
        Command::Bench(arguments) => commands::bench::run(&arguments),
        Command::ProbeHelper(arguments) => commands::probe_helper::run(&arguments),
    }
}
