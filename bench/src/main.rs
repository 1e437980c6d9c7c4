//! `capriole-bench`: measures what probes cost. `capriole bench` runs it.
#![deny(clippy::print_stdout, clippy::print_stderr)] // see `capriole_text::output`

mod commands;

use capriole_text::{output, tell};
use clap::Parser;
use std::process::ExitCode;

/// Error for arguments that clap accepts but that do not fit together.
#[derive(Debug, thiserror::Error)]
#[error("{0}; `capriole bench --help` shows how")]
struct Usage(&'static str);

fn main() -> ExitCode {
    // The measured program is this one, started again.
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words
        .first()
        .is_some_and(|first| first == capriole_bench::TARGET)
    {
        return ExitCode::from(capriole_bench::target_main(&words[1..]) as u8);
    }
    let arguments = match commands::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => {
            output::print_error(format_args!("{}", error.render()));
            return ExitCode::from(2);
        }
    };
    match commands::run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            tell!("capriole: {}", capriole_text::chain(error.as_ref()));
            match error.is::<Usage>() {
                true => ExitCode::from(2),
                false => ExitCode::FAILURE,
            }
        }
    }
}
