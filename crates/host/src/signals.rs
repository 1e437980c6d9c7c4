//! Signals such as Ctrl-C end a recording cleanly.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Number of these signals so far. A plain count: it publishes no other data.
static REQUESTS: AtomicU32 = AtomicU32::new(0);
/// Actions of the signals before they were caught.
static BEFORE: Mutex<Vec<(libc::c_int, libc::sigaction)>> = Mutex::new(Vec::new());
/// Set once there is something to end cleanly. Until then a signal ends this process.
static BEGUN: AtomicBool = AtomicBool::new(false);

extern "C" fn count(signal: libc::c_int) {
    REQUESTS.fetch_add(1, Ordering::Relaxed);
    if !BEGUN.load(Ordering::Relaxed) {
        // SAFETY: both are async-signal-safe. The signal is delivered when this handler returns.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        // SAFETY: as above.
        unsafe { libc::raise(signal) };
    }
}

/// Makes such signals only count from now on, to be polled by [`requests`]: a process is about to
/// be changed, or measured.
pub fn hold() {
    BEGUN.store(true, Ordering::Relaxed);
}

extern "C" fn go_on(_: libc::c_int) {}

/// Makes SIGINT, SIGTERM and SIGHUP end this process from now on; after [`hold`] they only request
/// the end. They interrupt blocking system calls. See also [`outlive_file_limit`]. A second call
/// changes nothing.
///
/// SIGINT and SIGTERM do so even if they were ignored: a shell without job control starts what is
/// to run in the background with SIGINT ignored, and that signal is how a script ends a recording.
/// An ignored SIGHUP stays ignored, because that is what `nohup` is for.
///
/// Programs that this process starts inherit the original actions only through [`Actions`].
pub fn catch() {
    let mut before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    if !before.is_empty() {
        return;
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        if signal != libc::SIGHUP || !is_ignored(signal) {
            before.push((signal, handle(signal, count)));
        }
    }
    before.push((libc::SIGXFSZ, handle(libc::SIGXFSZ, go_on)));
}

/// The actions that the signals had before they were caught, for a child to begin with. Empty if
/// they were not caught.
#[derive(Clone)]
pub struct Actions(Vec<(libc::c_int, libc::sigaction)>);

impl Actions {
    /// Returns those of this process.
    #[must_use]
    pub fn before() -> Actions {
        let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
        Actions(before.clone())
    }

    /// Restores them. Only makes system calls, as a child may between fork and exec.
    pub fn restore(&self) {
        for (signal, action) in &self.0 {
            // SAFETY: the action is one that the kernel returned.
            unsafe { libc::sigaction(*signal, action, std::ptr::null_mut()) };
        }
    }
}

/// Makes a write beyond the file size limit (SIGXFSZ) an error, like a full disk, from now on.
pub fn outlive_file_limit() {
    handle(libc::SIGXFSZ, go_on);
}

/// True if a signal is ignored by this process.
fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: zero is a valid `sigaction` (no flags, empty mask).
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only reads the action.
    unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    action.sa_sigaction == libc::SIG_IGN
}

/// Installs a handler and returns the previous action.
fn handle(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) -> libc::sigaction {
    // SAFETY: zero is a valid `sigaction` (no flags, empty mask).
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let mut before = action;
    action.sa_sigaction = handler as *const () as usize;
    // SAFETY: both handlers at most add to an atomic, which is async-signal-safe.
    unsafe { libc::sigaction(signal, &raw const action, &raw mut before) };
    before
}

/// Returns the number of requests to end so far.
pub fn requests() -> u32 {
    REQUESTS.load(Ordering::Relaxed)
}
