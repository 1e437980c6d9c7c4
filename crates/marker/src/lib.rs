//! Static markers: named, typed probe points in a program, which are one nop while nobody
//! looks.
//!
//! ```
//! use capriole_marker::mark;
//!
//! fn request(fd: i32, path: &std::ffi::CStr) {
//!     mark!(net, request, "fd=%d path=%s", fd, path);
//! }
//! # request(3, c"/index.html");
//! ```
//!
//! Capriole, perf, bpftrace, gdb and SystemTap find markers in the notes of the program's file
//! and switch them on and off while it runs. The notes are those of `capriole/marker.h`, the
//! header for C and C++.
//!
//! - [`mark!`]: a marker
//! - [`enabled!`], [`mark_guarded!`]: for arguments that cost something
//! - [`mark_text`]: a text for whoever records this program
//! - [`Argument`]: what can be given to a marker
//!
//! There is nothing to initialise and nothing to link. On other systems than Linux on x86-64
//! formats are checked, arguments are evaluated, and nothing else is left.
#![no_std]

mod argument;
mod emit;
mod format;
mod text;

pub use argument::Argument;

/// What macros expand to. Not for use by hand.
#[doc(hidden)]
pub mod private {
    pub use crate::argument::{Kind, floats};
    pub use crate::format::check;
    pub use crate::text::Text;
    #[cfg(all(
        target_arch = "x86_64",
        target_pointer_width = "64",
        target_os = "linux"
    ))]
    pub use core::arch::asm;
}

use core::ffi::CStr;

/// A marker: `mark!(provider, name)` or `mark!(provider, name, "format", arguments ...)`.
///
/// `provider` and `name` are identifiers, the format is as printf's, with as many conversions
/// as there are arguments, twelve at most. What an argument is is known from its type, so
/// length modifiers (`%ld`) are allowed and not needed. Arguments are evaluated, once and in
/// order, whether somebody looks or not; they are then in registers. See [`mark_guarded!`] where
/// that costs too much.
///
/// A text is a [`CStr`]; a `&str` has no end that somebody else could find.
///
/// ```
/// # use capriole_marker::mark;
/// # let (bytes, seconds) = (17_u64, 0.5_f64);
/// mark!(disk, flush);
/// mark!(disk, written, "bytes=%lu seconds=%f", bytes, seconds);
/// ```
///
/// What does not fit is an error when the program is compiled:
///
/// ```compile_fail
/// # use capriole_marker::mark;
/// mark!(disk, written, "bytes=%lu seconds=%f", 17_u64);
/// ```
///
/// ```compile_fail
/// # use capriole_marker::mark;
/// mark!(disk, written, "seconds=%f", 17_u64);
/// ```
#[macro_export]
macro_rules! mark {
    ($provider:ident, $name:ident $(,)?) => {
        $crate::__mark!($provider, $name, "", [])
    };
    ($provider:ident, $name:ident, $format:literal $(, $argument:expr)* $(,)?) => {
        $crate::__mark!($provider, $name, $format, [$($argument,)*])
    };
}

/// Whether somebody looks at the markers of that name: a load, a comparison and a branch. The
/// counter is read again each time.
///
/// ```
/// # use capriole_marker::{enabled, mark};
/// # let queue = [1_u32, 2];
/// if enabled!(queue, sum) {
///     let sum: u32 = queue.iter().sum();
///     mark!(queue, sum, "sum=%u", sum);
/// }
/// ```
#[macro_export]
macro_rules! enabled {
    ($provider:ident, $name:ident) => {
        $crate::__enabled!($provider, $name)
    };
}

/// [`mark!`] inside of an `if` [`enabled!`]: nothing is evaluated while nobody looks.
///
/// ```
/// # use capriole_marker::mark_guarded;
/// # let queue = [1_u32, 2];
/// mark_guarded!(queue, sum, "sum=%u", queue.iter().sum::<u32>());
/// ```
#[macro_export]
macro_rules! mark_guarded {
    ($provider:ident, $name:ident $($rest:tt)*) => {
        if $crate::enabled!($provider, $name) {
            $crate::mark!($provider, $name $($rest)*);
        }
    };
}

/// The marker `capriole:message` with a text.
#[inline]
pub fn mark_text(text: &CStr) {
    mark!(capriole, message, "%s", text);
}
