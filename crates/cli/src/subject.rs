//! The process or file that a command looks at.

use crate::verbosity::timed;
use anyhow::{Result, bail};
use capriole_event::{EventSpec, ObjectRef};
use capriole_object::Objects;
use capriole_planner::planner::Planner;
use capriole_proc::process::Process;
use capriole_proc::translator;
use std::path::{Path, PathBuf};

/// Returns the file of the first event, if it is given by its path.
pub fn file_of(events: &[EventSpec]) -> Option<PathBuf> {
    match &events.first()?.object {
        ObjectRef::Path(path) => Some(PathBuf::from(path)),
        ObjectRef::Main | ObjectRef::Name(_) => None,
    }
}

/// Opens the objects of a process or of a file, and creates its planner.
pub fn open(pid: Option<u32>, path: Option<&Path>) -> Result<(Objects, Planner)> {
    match (pid, path) {
        (Some(pid), None) => Ok(timed("process examined", || of_process(pid))?),
        (None, Some(path)) => {
            let objects =
                timed("file read", || Objects::offline(path)).map_err(capriole::Error::from)?;
            Ok((objects, Planner::offline()))
        }
        (Some(_), Some(path)) => {
            bail!("give either -p PID or a file, not both: {}", path.display())
        }
        (None, None) => bail!("give a process with -p PID, or a file"),
    }
}

fn of_process(pid: u32) -> capriole::Result<(Objects, Planner)> {
    let process = Process::open(pid)?;
    process.preflight()?;
    translator::refuse(&process)?;
    Ok((
        Objects::of_process(&process)?,
        Planner::of_process(&process),
    ))
}

/// Returns the path if it exists, else an error with a hint at what the user may have meant.
pub fn existing(path: &Path) -> Result<PathBuf> {
    if path.exists() {
        return Ok(path.to_owned());
    }
    bail!(
        "{}: no such file (a process is given with -p PID)",
        path.display()
    )
}
