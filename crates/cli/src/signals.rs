//! Ctrl-C and its like end a recording cleanly.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

/// How many such signals came. Only a count: nothing else is published by it.
static REQUESTS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: libc::c_int) {
    REQUESTS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn go_on(_: libc::c_int) {}

/// From now on SIGINT, SIGTERM and SIGHUP only ask to end, also where they were
/// ignored. System calls that wait are interrupted by them. A trace file that
/// reaches the limit for files (SIGXFSZ) is an error like a full disk.
///
/// A program that is to keep these signals as they were is started before.
pub fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        handle(signal, count);
    }
    handle(libc::SIGXFSZ, go_on);
}

fn handle(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) {
    // SAFETY: zero is a valid `sigaction` (no flags, empty mask).
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    // SAFETY: both handlers at most add to an atomic, which is async-signal-safe.
    unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
}

/// How often it was asked to end.
pub fn requests() -> u32 {
    REQUESTS.load(Ordering::Relaxed)
}
