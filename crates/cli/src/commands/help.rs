//! `capriole help`: help on commands and topics.

use crate::topics;
use capriole_manual::terminal::{self, Look};
use capriole_text::output;
use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory as _};
use rustix::termios::tcgetwinsize;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

/// Show help on a command or a topic
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The command or topic; without one, all are listed
    #[arg(value_name = "COMMAND|TOPIC", value_parser = words(), hide_possible_values = true)]
    word: Option<String>,
}

/// Width of the text if there is neither a terminal nor a value of COLUMNS, and the largest one: as
/// clap's.
const WIDEST: usize = 100;

/// Returns a parser for the names of topics and commands.
fn words() -> PossibleValuesParser {
    let topics = topics::ALL.iter();
    let topics = topics.map(|topic| (topic.name, topic.about));
    let words = crate::COMMANDS.iter().copied().chain(topics);
    words
        .map(|(name, about)| clap::builder::PossibleValue::new(name).help(about))
        .into()
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut command = crate::Cli::command();
    command.build();
    let Some(word) = &arguments.word else {
        return print_help(&mut command);
    };
    if let Some(topic) = topics::find(word) {
        let look = match styled() {
            true => Look::Ansi,
            false => Look::Plain,
        };
        let text = terminal::text(&topic.blocks(), width(), look);
        return print(&text);
    }
    match command.find_subcommand_mut(word) {
        // It has a program of its own, with its own help.
        Some(_) if word == "bench" => super::bench::help(),
        Some(command) => print_help(command),
        None => anyhow::bail!("`{word}` is neither a command nor a topic"),
    }
}

/// Prints the same as `--help` does.
fn print_help(command: &mut Command) -> anyhow::Result<ExitCode> {
    let text = command.render_help();
    match styled() {
        true => print(&text.ansi().to_string()),
        false => print(&text.to_string()),
    }
}

/// Prints text that has no foreign parts, and may have escape sequences.
fn print(text: &str) -> anyhow::Result<ExitCode> {
    let mut out = output::terminal();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(output::unwritable)?;
    Ok(ExitCode::SUCCESS)
}

/// True if standard output shows styles.
fn styled() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    output::terminal().is_terminal() && !is_set("NO_COLOR") && !dumb
}

/// Returns the width of text for standard output.
pub fn width() -> usize {
    // As clap: in `capriole help events | less` the terminal is known by standard input.
    let sizes = [
        tcgetwinsize(output::terminal()),
        tcgetwinsize(std::io::stdin()),
    ];
    let mut terminals = sizes.into_iter().flatten();
    let terminal = terminals.next().map(|size| usize::from(size.ws_col));
    let named = || std::env::var("COLUMNS").ok()?.parse().ok();
    let width = terminal.filter(|width| *width > 0).or_else(named);
    width.unwrap_or(WIDEST).min(WIDEST)
}
