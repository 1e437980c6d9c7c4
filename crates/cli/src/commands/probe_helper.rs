//! `capriole probe-helper`: serves the program that has started it, see the crate `capriole-helper`.

use anyhow::{Context, bail};
use capriole::machine;
use capriole_text::chain;
use clap::{Args, ValueEnum};
use rustix::fs::FileType;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Task {
    TryPtrace,
}

#[derive(Debug, Args)]
pub struct Arguments {
    /// Another task: `try-ptrace` calls ptrace once, and succeeds if that is permitted
    #[arg(value_enum)]
    task: Option<Task>,
}

/// Serves the program at the other end of the connection that is standard input.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.task == Some(Task::TryPtrace) {
        return Ok(match capriole_helper::try_ptrace() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        });
    }
    let input = std::io::stdin().as_fd().try_clone_to_owned()?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&input)?.st_mode);
    if kind != FileType::Socket {
        bail!("only a program that is linked with libcapriole can start this");
    }
    let connection = UnixStream::from(input);
    // Nobody sees what this process prints.
    match machine::check_threads() {
        Ok(()) => capriole_helper::serve(connection),
        Err(error) => capriole_helper::refuse(connection, chain(&error)),
    }
    .context("the program's messages")?;
    Ok(ExitCode::SUCCESS)
}
