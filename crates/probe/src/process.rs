//! All probes of the process.

use crate::error::{Error, checked};
use crate::{events, ffi};
use std::ffi::{c_int, c_uint};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Allows, as it is at first, or forbids jumps for all probes of the process. Returns the setting before.
///
/// # Errors
/// The helper process cannot be started, or has ended.
pub fn optimization(allowed: bool) -> Result<bool, Error> {
    // SAFETY: the function takes any number.
    let before = checked(unsafe { ffi::capriole_optimization(c_int::from(allowed)) })?;
    Ok(before != 0)
}

/// Waits until no probe waits for its jump, or for so long. Returns the number of those that still do.
///
/// # Errors
/// The helper process has ended.
pub fn optimize(limit: Duration) -> Result<usize, Error> {
    let milliseconds = c_uint::try_from(limit.as_millis()).unwrap_or(c_uint::MAX);
    // SAFETY: the function takes any number.
    let waiting = checked(unsafe { ffi::capriole_optimize(milliseconds) })?;
    Ok(usize::try_from(waiting).unwrap_or_default())
}

/// Disarms all probes, return probes, argument probes and replacements of the program, in one pause: when the
/// function returns, none of their handlers runs or will run. Until [`arm_all`] a registration does not arm a probe,
/// and enabling or disabling one changes what will be armed. Events and records go on.
///
/// # Errors
/// As of capriole_disarm_all(), in capriole-probe(3).
pub fn disarm_all() -> Result<(), Error> {
    // SAFETY: the function takes no arguments.
    checked(unsafe { ffi::capriole_disarm_all() }).map(drop)
}

/// Arms those that are enabled, all at once.
///
/// # Errors
/// As of capriole_arm_all(), in capriole-probe(3): some cannot be armed now; the others are.
pub fn arm_all() -> Result<(), Error> {
    // SAFETY: the function takes no arguments.
    checked(unsafe { ffi::capriole_arm_all() }).map(drop)
}

/// True between [`disarm_all`] and [`arm_all`]. Handlers may call it.
#[must_use]
pub fn all_disarmed() -> bool {
    // SAFETY: the function may always be called.
    unsafe { ffi::capriole_all_disarmed() != 0 }
}

/// Writes a line for each probe to a file: its address, kind, place and state.
///
/// # Errors
/// The function is called by a handler.
pub fn list_to(file: impl AsFd) -> Result<(), Error> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the file is open.
    checked(unsafe { ffi::capriole_list(fd) }).map(drop)
}

/// Returns a line for each probe: its address, kind, place and state.
///
/// # Errors
/// As [`list_to`], or no pipe can be made.
pub fn list() -> Result<String, Error> {
    events::collected(|pipe| list_to(pipe))
}

/// Writes a line for each function of the process that is [excluded from probes](crate#excluded-functions) to a file:
/// its first address and the one after its last, and its name.
///
/// # Errors
/// As of capriole_list_noprobe(), in capriole-probe(3).
pub fn list_noprobe_to(file: impl AsFd) -> Result<(), Error> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the file is open.
    checked(unsafe { ffi::capriole_list_noprobe(fd) }).map(drop)
}

/// Returns a line for each function of the process that is [excluded from probes](crate#excluded-functions).
///
/// # Errors
/// As [`list_noprobe_to`], or no pipe can be made.
pub fn list_noprobe() -> Result<String, Error> {
    events::collected(|pipe| list_noprobe_to(pipe))
}

/// Starts the helper process. The first registration does so as well; a program that is going to give up
/// rights first calls this before.
///
/// # Errors
/// The helper process cannot be started.
pub fn start() -> Result<(), Error> {
    // SAFETY: the function takes no arguments.
    checked(unsafe { ffi::capriole_start() }).map(drop)
}

/// Ends the helper process, and gives back all memory that probes have used. The next registration starts
/// another one.
///
/// # Errors
/// Something is still registered.
///
/// # Safety
/// What an [`Original`](crate::Original) has led to is not called any more: it is in that memory.
pub unsafe fn finish() -> Result<(), Error> {
    // SAFETY: the caller says that nobody uses what goes away.
    checked(unsafe { ffi::capriole_finish() }).map(drop)
}
