//! `capriole mark`: writes a message into running recordings, from outside.

use crate::output::{say, tell};
use crate::units;
use anyhow::{Context, anyhow, bail};
use capriole_codegen::program::STRING_LIMIT;
use capriole_host::error::TargetError;
use capriole_patch::outside::{sessions, writer};
use capriole_patch::recover::{FoundSession, find};
use capriole_proc::process::Process;
use capriole_ring::writer::WriteError;
use capriole_trace::clock::tsc;
use rustix::thread::sched_getcpu;
use serde_json::json;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::ExitCode;

/// Write a message into running recordings, and into the kernel's trace
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Write only into the recording of this process; may be given several times
    #[arg(short, long, value_name = "PID")]
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
            "the text has {}; at most {} are recorded",
            units::counted(text.len() as u64, "byte", "bytes"),
            units::count(STRING_LIMIT.into())
        );
    }
    let named = arguments.pid.iter().map(|pid| session(*pid));
    let found = match arguments.pid.is_empty() {
        true => sessions().into_iter().map(Ok).collect(),
        false => named.collect::<Vec<_>>(),
    };
    if found.is_empty() && !arguments.kernel {
        bail!(
            "no process is being recorded by this user; `capriole record` begins a recording, \
             and -p PID names one of somebody else's"
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
                write(&process, &session, &text)?;
                inodes.push(session.inode);
                marked.push(process);
            }
            Ok(())
        });
        errors.extend(written.err());
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
        for process in &marked {
            say!(
                "marked in the recording of process {} ({})",
                process.pid(),
                process.name()
            );
        }
        if let Some(path) = &kernel {
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

/// Finds the session of a process, even if another tool traces that process.
fn session(pid: u32) -> anyhow::Result<(Process, FoundSession)> {
    let process = Process::open(pid)?;
    let found = find(&process);
    // A reason from the preflight check is clearer than the error of a failed read.
    let found = found.map_err(|error| match process.preflight() {
        Err(reason) => anyhow::Error::from(reason),
        Ok(()) => error.into(),
    })?;
    // A session left by a dead recorder does not hide one with a live recorder.
    let session = found.into_iter().max_by_key(|s| s.owner.is_some());
    let session = session.ok_or_else(|| {
        anyhow!(
            "process {pid} ({}) is not being recorded; `capriole record -p {pid}` does it",
            process.name()
        )
    })?;
    Ok((process, session))
}

/// Writes a message into the recording of a process.
///
/// # Errors
/// The process is not being recorded, or the message cannot be written.
pub fn write_to(process: &Process, text: &str) -> anyhow::Result<()> {
    let (process, session) = session(process.pid())?;
    write(&process, &session, text)
}

fn write(process: &Process, session: &FoundSession, text: &str) -> anyhow::Result<()> {
    let (pid, name) = (process.pid(), process.name());
    if session.owner.is_none() {
        bail!(
            "the recorder of process {pid} ({name}) is not there: it has ended without taking its \
             probes out, which `capriole detach {pid}` does, or is in another PID namespace"
        );
    }
    let damaged = |what| TargetError::Damaged {
        pid: pid as i32,
        what,
    };
    let writer = writer(process, session)?;
    let cpu = sched_getcpu() as u32;
    match writer.write_text(cpu, own_tid(process), text.as_bytes(), tsc::read) {
        Ok(()) => Ok(()),
        Err(WriteError::Closed) => bail!(
            "process {pid} ({name}) is probed by something that keeps no texts, such as \
             `capriole stat`, or its recording is just ending"
        ),
        Err(WriteError::Full) => bail!(
            "the buffer of the recording of process {pid} ({name}) is full; try again, or \
             record with a larger --buffer-size"
        ),
        Err(WriteError::Busy) => bail!(
            "somebody else who writes to the recording of process {pid} ({name}) does not come \
             to an end; is a `capriole mark` stopped?"
        ),
        Err(WriteError::Late) => bail!(
            "the recording of process {pid} ({name}) ended meanwhile; the text may be missing"
        ),
        Err(WriteError::TooLong) => Err(damaged("its packets are too small").into()),
        Err(WriteError::Damaged) => Err(damaged("a packet").into()),
    }
}

/// Returns our thread id as the program sees it; 0 if it is in another PID namespace.
fn own_tid(process: &Process) -> u32 {
    let namespace = |path: &Path| std::fs::read_link(path).ok();
    let ours = namespace(Path::new("/proc/self/ns/pid"));
    match ours.is_some() && ours == namespace(&process.proc_path("ns/pid")) {
        true => std::process::id(),
        false => 0,
    }
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
