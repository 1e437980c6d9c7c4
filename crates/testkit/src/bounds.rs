//! Bounds for what tests start: a test that fails or is killed must not leave a recorder that fills the
//! disk.

use rustix::process::{
    Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit,
};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Most seconds that a command may run.
const SECONDS: u32 = 900;
/// Most bytes of a file that it may write. Shared memory counts as a file, so less would end programs
/// with large buffers.
const FILE: u64 = 32 << 30;

/// Lets a command die with the thread that starts it, after 15 minutes, and get an error for files of
/// more than 32 GiB.
pub fn bounded(command: &mut Command) -> &mut Command {
    // SAFETY: it only makes system calls.
    unsafe { command.pre_exec(set) }
}

/// Sets the bounds of this process.
fn set() -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // SAFETY: sets a timer of this process.
    unsafe { libc::alarm(SECONDS) };
    let maximum = getrlimit(Resource::Fsize).maximum;
    let current = Some(maximum.map_or(FILE, |maximum| maximum.min(FILE)));
    Ok(setrlimit(Resource::Fsize, Rlimit { current, maximum })?)
}
