//! Static markers: named, typed probe points in a program, each a single nop while disabled.
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
//! Capriole, perf, bpftrace, gdb and SystemTap find markers in the ELF notes of the program's file
//! and enable and disable them while it runs. The notes have the format of `capriole/marker.h`, the
//! header for C and C++.
//!
//! - [`mark!`]: a marker
//! - [`enabled!`], [`mark_guarded!`]: for arguments that are expensive to compute
//! - [`mark_text`]: a text message for the trace
//! - [`Argument`]: values that can be passed to a marker
//!
//! There is nothing to initialise and nothing to link. On systems other than Linux on x86-64,
//! formats are checked and arguments are evaluated, and no other code is generated.
#![no_std]

mod argument;
mod emit;
mod format;
mod text;

pub use argument::Argument;

/// Items that the macros expand to. Not for direct use.
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
/// `provider` and `name` are identifiers. The format is as printf's, with as many conversions as
/// there are arguments, twelve at most. The types of arguments are known, so length modifiers
/// (`%ld`) are allowed but not needed. Arguments are evaluated, once and in order, whether the
/// marker is enabled or not, and are then in registers. Use [`mark_guarded!`] if that costs too
/// much.
///
/// Strings are passed as [`CStr`]; a `&str` has no terminator that a tracer could find.
///
/// ```
/// # use capriole_marker::mark;
/// # let (bytes, seconds) = (17_u64, 0.5_f64);
/// mark!(disk, flush);
/// mark!(disk, written, "bytes=%lu seconds=%f", bytes, seconds);
/// ```
///
/// A format that does not fit the arguments is a compile error:
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

/// True while a tracer has the markers of that name enabled; costs a load, a comparison and a
/// branch. The counter is read again each time.
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

/// [`mark!`] inside an `if` [`enabled!`]: nothing is evaluated while the marker is disabled.
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

/// Emits the marker `capriole:message` with a text.
#[inline]
pub fn mark_text(text: &CStr) {
    mark!(capriole, message, "%s", text);
}
