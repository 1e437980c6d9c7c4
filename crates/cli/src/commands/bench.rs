//! `capriole bench`: runs `capriole-bench`, which is a program of its own.

use anyhow::Context;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Name of the program.
const PROGRAM: &str = "capriole-bench";

/// Measure what probes cost on this machine
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    /// Arguments of the benchmarks: `capriole bench --help` shows them
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    words: Vec<OsString>,
}

/// Shows the help of the program.
pub fn help() -> anyhow::Result<ExitCode> {
    run(&Arguments {
        words: vec!["--help".into()],
    })
}

/// Runs the command: replaces this process with the program, which is looked for beside this one
/// and then in PATH.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let beside = std::env::current_exe()
        .ok()
        .map(|own| own.with_file_name(PROGRAM));
    let program = beside.filter(|path| path.exists());
    let program = program.unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(&program).args(&arguments.words).exec();
    Err(error).with_context(|| {
        format!("cannot run {}, the program of the benchmarks, which is built and installed beside capriole", program.display())
    })
}
