//! Messages in a recording: from the program, at its markers `capriole:message`, and from
//! outside, by `capriole mark`.

use crate::advice::Advice;
use crate::error::{Error, Result, bail, err};
use crate::event::Event;
use capriole_event::{FieldType, ObjectRef, Probe};
use capriole_host::TargetError;
use capriole_host::ptrace;
use capriole_ledger::Kind;
use capriole_object::Objects;
use capriole_object::markers::Markers;
use capriole_patch::outside::writer;
use capriole_patch::recover::{FoundSession, find_of};
use capriole_planner::resolve::{Site, resolve};
use capriole_proc::process::Process;
use capriole_ring::writer::WriteError;
use capriole_trace::clock::tsc;
use capriole_trace::{EventInfo, FieldInfo, Role, TextFormat};
use rustix::thread::sched_getcpu;
use std::path::Path;

/// Provider of the markers that carry messages.
const PROVIDER: &str = "capriole";
/// Name of these markers.
const NAME: &str = "message";
/// Section with the notes of `capriole/marker.h`; without it a file has no messages.
const NOTES: &str = ".note.capriole";

/// Returns an event for the program's own messages for each object that has some, except for
/// objects where the user's events select these markers and so choose the fields.
pub fn events(objects: &Objects, asked: &[Event]) -> Vec<Probe> {
    let probe = Probe::at_marker("", PROVIDER, NAME).all_arguments();
    let probe = probe.record().labelled(format!("usdt::{PROVIDER}:{NAME}"));
    let asked: Vec<Site> = asked
        .iter()
        .flat_map(Event::probes)
        .filter(|asked| asked.place.matches_marker(PROVIDER, NAME))
        .flat_map(|asked| {
            let texts = Probe {
                object: asked.object.clone(),
                ..probe.clone()
            };
            // Errors are reported when the user's event itself is resolved.
            resolve(objects, &texts).unwrap_or_default()
        })
        .collect();
    let is_asked = |path: &Path| asked.iter().any(|site| site.object.path() == path);
    let with_notes = objects.all().filter(|object| {
        let file = object.file();
        let has = |markers: &Markers| {
            let mut all = markers.all.iter();
            all.any(|marker| probe.place.matches_marker(&marker.provider, &marker.name))
        };
        let has_texts = file.section(NOTES).is_some() && file.markers().is_ok_and(has);
        has_texts && !is_asked(object.path())
    });
    let event = |path: String| Probe {
        object: ObjectRef::Path(path),
        implied: true,
        ..probe.clone()
    };
    let mut paths: Vec<String> = with_notes
        .filter_map(|object| Some(object.path().to_str()?.to_owned()))
        .collect();
    // An object that is loaded twice gets one event.
    paths.dedup();
    paths.into_iter().map(event).collect()
}

/// Returns the event for messages from outside: like that for the program's own, but without a
/// place.
pub fn from_outside(id: u32) -> EventInfo {
    EventInfo {
        id,
        name: format!("{PROVIDER}:{NAME}"),
        symbol: None,
        symbol_offset: 0,
        object: String::new(),
        soname: None,
        build_id: None,
        offset: 0,
        address: 0,
        fields: vec![FieldInfo::new("arg1".to_owned(), FieldType::STRING)],
        faults: false,
        tactic: "none".to_owned(),
        refusals: Vec::new(),
        role: Role::Point,
        call: None,
        format: Some(TextFormat {
            text: "%s".to_owned(),
            arguments: vec![FieldType::U64],
        }),
    }
}

/// Finds the session of a process, even if another tool traces that process.
pub fn session(pid: u32) -> Result<(Process, FoundSession)> {
    let process = Process::open(pid)?;
    let found = find_of(&*ptrace::host(&process), Kind::Recorder);
    // A reason from the preflight check is clearer than the error of a failed read.
    let found = found.map_err(|error| match process.preflight() {
        Err(reason) => Error::from(reason),
        Ok(()) => error.into(),
    })?;
    // A session left by a dead recorder does not hide one with a live recorder.
    let session = found.into_iter().max_by_key(|s| s.owner.is_some());
    let session = session.ok_or_else(|| {
        err!(
            NothingAttached,
            "process {pid} ({}) is not being recorded",
            process.name()
        )
        .advise(Advice::RecordProcess { pid })
    })?;
    Ok((process, session))
}

/// Writes a message into the recording of a process.
///
/// # Errors
/// The process is not being recorded, or the message cannot be written.
pub fn write_to(process: &Process, text: &str) -> Result<()> {
    let (process, session) = session(process.pid())?;
    write(&process, &session, text)
}

/// Writes a message into a session of a process.
///
/// # Errors
/// The recording takes no messages, is full, or is ending.
pub fn write(process: &Process, session: &FoundSession, text: &str) -> Result<()> {
    let (pid, name) = (process.pid(), process.name());
    if session.owner.is_none() {
        return Err(err!(
            Trace,
            "the recorder of process {pid} ({name}) is gone: it ended without removing its \
             probes"
        )
        .advise(Advice::DetachDoesIt { pid })
        .then(", or is in another PID namespace"));
    }
    let damaged = |what| TargetError::Damaged {
        pid: pid as i32,
        what,
    };
    let writer = writer(process, session)?;
    let cpu = sched_getcpu() as u32;
    match writer.write_text(cpu, own_tid(process), text.as_bytes(), tsc::read) {
        Ok(()) => Ok(()),
        Err(WriteError::Closed) => Err(err!(
            Trace,
            "process {pid} ({name}) is probed by a command that takes no messages"
        )
        .advise(Advice::SuchAsCounting)
        .then(", or its recording is just ending")),
        Err(WriteError::Full) => Err(err!(
            Busy,
            "the buffer of the recording of process {pid} ({name}) is full; try again"
        )
        .advise(Advice::LargerBuffer)),
        Err(WriteError::Busy) => Err(err!(
            Busy,
            "another writer of messages blocks the recording of process {pid} ({name})"
        )
        .advise(Advice::IsAWriterStopped)),
        Err(WriteError::Late) => bail!(
            Trace,
            "the recording of process {pid} ({name}) ended meanwhile; the message may be missing"
        ),
        Err(WriteError::TooLong) => Err(damaged("its packets are too small").into()),
        Err(WriteError::Damaged) => Err(damaged("a packet").into()),
    }
}

/// Returns our thread id as the program sees it; 0 if it is in another PID namespace.
fn own_tid(process: &Process) -> u32 {
    match process.shares_pid_namespace() {
        true => std::process::id(),
        false => 0,
    }
}
