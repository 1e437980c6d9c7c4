//! Ctrl-C and its like end a recording cleanly.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

/// How many such signals came. Only a count: nothing else is published by it.
static REQUESTS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: libc::c_int) {
    REQUESTS.fetch_add(1, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP only ask to end. System calls that wait
/// are interrupted by them.
pub fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: zero is a valid `sigaction` (no flags, empty mask).
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = count as *const () as usize;
        // SAFETY: the handler only adds to an atomic, which is async-signal-safe.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
}

/// How often it was asked to end.
pub fn requests() -> u32 {
    REQUESTS.load(Ordering::Relaxed)
}
