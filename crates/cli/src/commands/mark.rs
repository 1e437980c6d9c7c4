//! `capriole mark`: writes a message into running recordings, from outside.

use crate::completion;
use anyhow::{Context, bail};
use capriole_codegen::fetch::STRING_LIMIT;
use capriole_patch::outside::sessions;
use capriole_proc::process::Process;
use capriole_select::message;
use capriole_text::output::is_talkative;
use capriole_text::units;
use capriole_text::{say, tell};
use serde_json::json;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

/// Write a message into running recordings, and into the kernel's trace
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Write only into the recording of this process; may be given several times
    #[arg(short, long, value_name = "PID", add = completion::processes())]
    pid: Vec<u32>,
    /// Also write into the kernel's trace (trace_marker)
    #[arg(short, long)]
    kernel: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The message, at most 1,024 bytes; several words form one message
    #[arg(required = true, value_name = "TEXT")]
    text: Vec<String>,
}

/// Directories where tracefs may be mounted.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Runs the command.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let text = arguments.text.join(" ");
    if text.len() > usize::from(STRING_LIMIT) {
        bail!(
            "the message has {}; at most {} are recorded: shorten it",
            units::counted(text.len() as u64, "byte", "bytes"),
            units::count(STRING_LIMIT.into())
        );
    }
    let named = arguments.pid.iter().map(|pid| message::session(*pid));
    let found = match arguments.pid.is_empty() {
        true => sessions().into_iter().map(Ok).collect(),
        false => named.collect::<Vec<_>>(),
    };
    if found.is_empty() && !arguments.kernel {
        bail!(
            "this user records no process now; `capriole record` begins a recording, and -p PID names \
             a process that another user records"
        );
    }
    // Write into every recording first, then report what went wrong.
    let mut marked: Vec<Process> = Vec::new();
    let mut inodes: Vec<u64> = Vec::new();
    let mut errors: Vec<anyhow::Error> = Vec::new();
    for found in found {
        let written = found.and_then(|(process, session)| {
            // Two processes may share a session.
            if !inodes.contains(&session.inode) {
                message::write(&process, &session, &text)?;
                inodes.push(session.inode);
                marked.push(process);
            }
            Ok(())
        });
        errors.extend(written.err().map(anyhow::Error::from));
    }
    // Without -p, a session that takes no messages is not a failure; for a process that the user
    // named, it is.
    let mut failed = !arguments.pid.is_empty() && !errors.is_empty();
    let mut kernel = None;
    if arguments.kernel {
        match to_kernel(&text) {
            Ok(path) => kernel = Some(path),
            Err(error) => {
                errors.push(error);
                failed = true;
            }
        }
    }
    if arguments.json {
        let recordings: Vec<_> = marked
            .iter()
            .map(|process| json!({"pid": process.pid(), "name": process.name()}))
            .collect();
        say!(
            "{}",
            json!({
                "text": text,
                "recordings": recordings,
                "kernel": kernel,
                "errors": errors.iter().map(crate::exit::message).collect::<Vec<_>>(),
            })
        );
    } else {
        for process in marked.iter().filter(|_| is_talkative()) {
            say!(
                "marked in the recording of process {} ({})",
                process.pid(),
                process.name()
            );
        }
        if let Some(path) = kernel.as_ref().filter(|_| is_talkative()) {
            say!("marked in the kernel's trace ({path})");
        }
        for error in &errors {
            tell!("capriole: {}", crate::exit::message(error));
        }
    }
    let nothing = marked.is_empty() && kernel.is_none();
    Ok(match failed || nothing {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// Writes to the kernel's trace_marker and returns its path.
fn to_kernel(text: &str) -> anyhow::Result<String> {
    let mut problem = None;
    for directory in TRACEFS {
        let path = format!("{directory}/trace_marker");
        // One write makes one line: the kernel ends the line where the write ends.
        let written = OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write(text.as_bytes()));
        match written {
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => problem = problem.or(Some((path, error))),
        }
    }
    match problem {
        Some((path, error)) => Err(error).with_context(|| {
            format!("cannot write to {path}; it takes root, and tracing that is on")
        }),
        None => bail!(
            "there is no trace_marker; mount it with \
             `mount -t tracefs nodev /sys/kernel/tracing`"
        ),
    }
}
