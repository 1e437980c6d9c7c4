//! The process or file whose sites are selected.

use crate::error::{Result, bail};
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
pub fn subject(pid: Option<u32>, path: Option<&Path>) -> Result<(Objects, Planner)> {
    match (pid, path) {
        (Some(pid), None) => {
            let process = Process::open(pid)?;
            process.preflight()?;
            translator::refuse(&process)?;
            Ok((
                Objects::of_process(&process)?,
                Planner::of_process(&process),
            ))
        }
        (None, Some(path)) => Ok((Objects::offline(path)?, Planner::offline())),
        (Some(_), Some(path)) => {
            bail!(
                NotProbeable,
                "give either -p PID or a file, not both: {}",
                path.display()
            )
        }
        (None, None) => bail!(NotProbeable, "give a process with -p PID, or a file"),
    }
}

/// Returns the path if it exists, else an error with a hint at what the user may have meant.
pub fn existing(path: &Path) -> Result<PathBuf> {
    if path.exists() {
        return Ok(path.to_owned());
    }
    bail!(
        NotProbeable,
        "{}: no such file (a process is given with -p PID)",
        path.display()
    )
}
