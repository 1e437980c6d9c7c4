//! Ctrl-C and its like end a recording cleanly.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// How many such signals came. Only a count: nothing else is published by it.
static REQUESTS: AtomicU32 = AtomicU32::new(0);
/// What the signals did before they were caught.
static BEFORE: Mutex<Vec<(libc::c_int, libc::sigaction)>> = Mutex::new(Vec::new());
/// Set once there is something to bring to an end. Until then a signal ends this process.
static BEGUN: AtomicBool = AtomicBool::new(false);

extern "C" fn count(signal: libc::c_int) {
    REQUESTS.fetch_add(1, Ordering::Relaxed);
    if !BEGUN.load(Ordering::Relaxed) {
        // SAFETY: both are async-signal-safe. The signal comes when this handler returns.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        // SAFETY: as above.
        unsafe { libc::raise(signal) };
    }
}

/// From now on such signals wait until somebody asks for them: a process is about to be changed,
/// or measured.
pub fn hold() {
    BEGUN.store(true, Ordering::Relaxed);
}

extern "C" fn go_on(_: libc::c_int) {}

/// From now on SIGINT, SIGTERM and SIGHUP end this process, also where they were ignored; after
/// [`hold`] they only ask to end. System calls that wait are interrupted by them. See also
/// [`outlive_file_limit`].
///
/// A program that is to keep these signals as they were is started before, or after
/// [`let_go`].
pub fn catch() {
    let mut before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        before.push((signal, handle(signal, count)));
    }
    before.push((libc::SIGXFSZ, handle(libc::SIGXFSZ, go_on)));
}

/// The signals do again what they did before they were caught.
pub fn let_go() {
    let mut before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    for (signal, action) in before.drain(..).rev() {
        // SAFETY: the action is one that the kernel has told.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// From now on a file that reaches the limit for files (SIGXFSZ) is an error like a full disk.
pub fn outlive_file_limit() {
    handle(libc::SIGXFSZ, go_on);
}

/// What the signal did before.
fn handle(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) -> libc::sigaction {
    // SAFETY: zero is a valid `sigaction` (no flags, empty mask).
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let mut before = action;
    action.sa_sigaction = handler as *const () as usize;
    // SAFETY: both handlers at most add to an atomic, which is async-signal-safe.
    unsafe { libc::sigaction(signal, &raw const action, &raw mut before) };
    before
}

/// How often it was asked to end.
pub fn requests() -> u32 {
    REQUESTS.load(Ordering::Relaxed)
}
