//! `capriole detach`: removes every probe, including those of a dead recorder.

use crate::advice;
use crate::completion;
use crate::exit::Usage;
use crate::probing;
use crate::subject;
use crate::verbosity::timed;
use anyhow::{anyhow, bail};
use capriole::record::saving;
use capriole::record::saving::Saved;
use capriole_host::signals;
use capriole_proc::process::{Process, ProcessError};
use capriole_text::output::is_talkative;
use capriole_text::units;
use capriole_text::{say, tell};
use clap::ValueHint;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Remove every probe from a process, including those of a recorder that was killed
#[derive(Debug, clap::Args)]
#[command(override_usage = "capriole detach [OPTIONS] (PID | -p PID)")]
pub struct Arguments {
    /// The process: its number, or its name if only one has it
    #[arg(
        value_name = "PID",
        value_parser = subject::pid,
        required_unless_present = "named",
        conflicts_with = "named",
        add = completion::processes()
    )]
    pid: Option<u32>,
    /// The process, as for other commands
    #[arg(
        short = 'p',
        long = "pid",
        value_name = "PID",
        value_parser = subject::pid,
        add = completion::processes()
    )]
    named: Option<u32>,
    /// The trace of the killed recorder, if it was moved; the records that it had not written are added
    /// there, or without this option where it had made its trace. If that is not possible, nothing is changed
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    output: Option<PathBuf>,
    /// Throw away the records that a killed recorder had not written
    #[arg(long, conflicts_with = "output")]
    discard: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Some(pid) = arguments.pid.or(arguments.named) else {
        bail!(Usage("give a process"));
    };
    let process = Process::open(pid).map_err(|error| match error {
        ProcessError::NoSuchProcess { .. } => {
            anyhow!("{error}; events that a killed recorder had not yet written are lost with it")
        }
        error => error.into(),
    })?;
    signals::outlive_file_limit();
    let output = arguments.output.as_deref();
    let (report, saved) = timed("probes removed", || match arguments.discard {
        true => Ok((saving::discard(&process), None)),
        false => saving::detach(&process, output),
    })?;
    let waits = saved.as_ref().is_some_and(Saved::waits);
    let code = match waits {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    };
    let message = saved.as_ref().and_then(Saved::message);
    let message = message.as_ref().map(advice::told);
    let report = report.inspect_err(|_| {
        if let Some(message) = &message {
            tell!("capriole: {message}");
        }
    })?;
    if arguments.json {
        say!(
            "{}",
            json!({
                "pid": pid,
                "restored": report.restored,
                "changed_by_others": report.foreign,
                "repaired": report.repaired,
                "still_mapped": report.lingering || report.kept,
                "standstill_ns": report.standstill.as_nanos() as u64,
                "saved": saved.map(|saved| saved.json(advice::words)),
            })
        );
        return Ok(code);
    }
    if is_talkative() {
        say!(
            "{} taken out of process {} ({}); program paused for {}",
            units::counted(report.restored as u64, "probe", "probes"),
            process.pid(),
            process.name(),
            units::time(report.standstill)
        );
    }
    if let Some(message) = message {
        say!("{message}");
    }
    if let Some(message) = probing::repaired(&report) {
        say!("{message}");
    }
    if report.foreign > 0 {
        say!(
            "not restored: {} that another tool has changed, or the program unmapped",
            units::counted(report.foreign as u64, "site", "sites")
        );
    }
    if report.damaged > 0 {
        say!(
            "in {} the probes stay: it overwrote the list of them; restart it when you can",
            units::counted(report.damaged as u64, "child process", "child processes")
        );
    }
    if report.lingering && !waits {
        say!(
            "some memory stays mapped, because a thread is still in it, or will return into it from a signal \
             handler: `capriole detach {}` unmaps it later",
            process.pid()
        );
    }
    if report.kept {
        say!(
            "the memory of its own probes stays mapped, because the program may have addresses in it; \
             its library unmaps it when it registers the next probe, or finishes"
        );
    }
    Ok(code)
}
