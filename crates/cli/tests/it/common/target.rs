//! Programs that run, and the command.

pub use capriole_testkit::target::*;
use std::process::{Command, Output, Stdio};

/// Returns the command that is tested, with bounds.
pub fn own() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_capriole"));
    capriole_testkit::bounds::bounded(&mut command);
    command
}

/// Runs `capriole` with these arguments.
pub fn capriole(arguments: &[&str]) -> Output {
    command(arguments).output().expect("capriole starts")
}

/// Returns the command with these arguments, to be started.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = own();
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Asserts that a command has failed: with status 2 if its message points at a mistake in an event, else 1.
pub fn assert_failed(output: &Output) {
    let said = told(output);
    let status = match said.lines().any(|line| line.trim() == "^") {
        true => 2,
        false => 1,
    };
    assert_eq!(output.status.code(), Some(status), "{said}");
}
