//! The standard descriptors with which this program was started.
//!
//! Before `main`, Rust opens `/dev/null` in place of standard descriptors that are closed, so that no
//! other file gets their numbers. That also hides that results go nowhere; so this module looks
//! earlier, when the C library runs the constructors.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

/// True if standard output was closed. Set before there are other threads; it guards no data.
static OUTPUT_CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: the section holds pointers to functions that take nothing the C library does not pass;
// `look` neither takes nor returns anything, and uses nothing of Rust's runtime.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: this call only reads the flags of a descriptor, which may be closed.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    OUTPUT_CLOSED.store(flags < 0, Ordering::Relaxed);
}

/// True if standard output was closed when this program was started.
#[must_use]
pub fn output_was_closed() -> bool {
    OUTPUT_CLOSED.load(Ordering::Relaxed)
}
