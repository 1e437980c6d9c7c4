//! The process or file that a command looks at.

use crate::verbosity::timed;
use anyhow::{Result, bail};
use capriole_event::{EventSpec, ObjectRef};
use capriole_object::Objects;
use capriole_planner::planner::Planner;
use capriole_proc::process::Process;
use capriole_proc::translator;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Returns the file of the first event, if it is given by its path.
pub fn file_of(events: &[EventSpec]) -> Option<PathBuf> {
    match &events.first()?.object {
        ObjectRef::Path(path) => Some(PathBuf::from(path)),
        ObjectRef::Any | ObjectRef::Main | ObjectRef::Name(_) => None,
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

/// Refuses a file in place of an event, with the event behind it: `list ./program handle`.
pub fn refuse_swapped(command: &str, event: &str, path: &Path) -> Result<()> {
    if Path::new(event).is_file() && !path.exists() {
        let path = path.display();
        bail!("the file stands last: write `capriole {command} '{path}' {event}`");
    }
    Ok(())
}

/// Returns the path if it exists. A name without a directory is also that of a command in PATH.
pub fn existing(path: &Path) -> Result<PathBuf> {
    if path.exists() {
        return Ok(path.to_owned());
    }
    let name = path.as_os_str().as_bytes();
    let is_name = !name.contains(&b'/');
    let directories = std::env::var_os("PATH").filter(|_| is_name);
    let directories = directories.iter().flat_map(std::env::split_paths);
    let mut commands = directories.map(|directory| directory.join(path));
    match commands.find(|command| command.is_file()) {
        Some(command) => Ok(command),
        None => bail!(
            "{}: no such file{} (a process is given with -p PID)",
            path.display(),
            if is_name { ", and no such command" } else { "" }
        ),
    }
}

/// Maximum number of processes that a message lists.
const LISTED: usize = 10;
/// Maximum number of characters of a command line that a message shows.
const SHOWN: usize = 60;

/// Message for several processes at once.
pub const ONE_PROCESS: &str = "one command has one process, and records its children too; for several \
    processes start a command for each, as in `for pid in 12 34; do capriole record -p $pid -o \
    trace.$pid -e EVENT & done; wait`; `report --compare` takes two traces";

/// Parses the value of `-p`: the number of a process, or its name if only one has it.
pub fn pid(text: &str) -> Result<u32, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text
            .parse()
            .map_err(|_| "no process has such a number".to_owned());
    }
    let others = Process::others();
    let mut found: Vec<Process> = others.filter(|process| is_called(process, text)).collect();
    found.sort_by_key(Process::pid);
    match found.as_slice() {
        [] if text.contains([',', ' ']) => Err(ONE_PROCESS.to_owned()),
        [] => Err("no running process is called that".to_owned()),
        [process] => Ok(process.pid()),
        several => {
            let listed = several.iter().take(LISTED);
            let list: String = listed
                .map(|process| format!("\n  {:>7}  {}", process.pid(), command(process)))
                .collect();
            let more = match several.len().saturating_sub(LISTED) {
                0 => String::new(),
                more => format!("\n  and {more} more"),
            };
            Err(format!(
                "{} processes are called that; give the number of one:{list}{more}",
                several.len()
            ))
        }
    }
}

/// True if a process has this name: that of its main thread, of its program's file, or the first
/// word of its command line.
fn is_called(process: &Process, name: &str) -> bool {
    let line = process.command_line();
    if line.is_empty() {
        return false; // a thread of the kernel, or a process that has ended
    }
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let first = first
        .rsplit(|byte| *byte == b'/')
        .next()
        .unwrap_or_default();
    let file = process.exe().ok();
    let file = file.as_deref().and_then(Path::file_name);
    process.name() == name || first == name.as_bytes() || file.is_some_and(|file| file == name)
}

fn command(process: &Process) -> String {
    let line = process.command_line();
    let text = String::from_utf8_lossy(&line);
    let text = text.trim_end_matches('\0').replace('\0', " ");
    let short: String = text.chars().take(SHOWN).collect();
    capriole_text::printable(&short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_given_by_number_or_name() {
        assert_eq!(pid("17"), Ok(17));
        assert!(pid("99999999999").is_err());
        assert!(pid("").is_err());
        let error = pid("no-such-program").unwrap_err();
        assert_eq!(error, "no running process is called that");
        for several in ["12,34", "12 34", "no-such-program,no-other"] {
            assert_eq!(pid(several).unwrap_err(), ONE_PROCESS);
        }
    }
}
