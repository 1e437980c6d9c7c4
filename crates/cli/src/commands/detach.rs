//! `capriole detach`: takes every probe out, also a dead tracer's.

use crate::units;
use capriole_target::process::Process;
use capriole_target::recover::detach_all;
use serde_json::json;
use std::process::ExitCode;

/// Take every probe out of a process, also those of a recorder that was killed
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The process
    pid: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let process = Process::open(arguments.pid)?;
    let report = detach_all(&process)?;
    if arguments.json {
        println!(
            "{}",
            json!({
                "pid": arguments.pid,
                "restored": report.restored,
                "changed_by_others": report.foreign,
                "still_mapped": report.lingering,
                "standstill_ns": report.standstill.as_nanos() as u64,
            })
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{} probes taken out of process {} ({}), which stood still for {}",
        units::count(report.restored as u64),
        process.pid(),
        process.name(),
        units::time(report.standstill)
    );
    if report.foreign > 0 {
        println!(
            "{} sites were left alone: somebody else has changed or unmapped them since",
            report.foreign
        );
    }
    if report.lingering {
        println!(
            "memory stays mapped, because a signal handler will return into it; \
             `capriole detach {}` removes it later",
            process.pid()
        );
    }
    Ok(ExitCode::SUCCESS)
}
