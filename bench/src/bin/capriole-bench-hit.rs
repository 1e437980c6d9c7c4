//! Measures the rows of `capriole bench hit` that do not depend on Capriole: the bare call, the
//! floors and the kernel's. `--json` prints them as JSON; a numeric argument sets the number of
//! rounds.

use std::process::{Command, ExitCode};

use capriole_bench::{BenchError, HitOptions, default_rows, run_hit, table, target_main};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "--target") {
        return ExitCode::from(target_main(&arguments[1..]) as u8);
    }
    let mut options = HitOptions::default();
    let mut json = false;
    for argument in &arguments {
        match (argument.as_str(), argument.parse()) {
            ("--json", _) => json = true,
            (_, Ok(rounds)) => options.rounds = rounds,
            _ => {
                eprintln!("usage: capriole-bench-hit [--json] [ROUNDS]");
                return ExitCode::from(2);
            }
        }
    }
    match measure(&options, json) {
        Ok(text) => {
            println!("{}", text.trim_end());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("capriole-bench-hit: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &HitOptions, json: bool) -> Result<String, BenchError> {
    let mut target = Command::new("/proc/self/exe");
    target.arg("--target");
    let results = run_hit(target, default_rows(), options, |_| {})?;
    if json {
        return serde_json::to_string_pretty(&results)
            .map_err(|error| BenchError::Request(error.to_string()));
    }
    Ok(table(&results))
}
