//! The kernel's ways of seeing a call, measured for comparison:
//!
//! - `kernel.uprobe`: a breakpoint that traps into the kernel, which records two
//!   registers ([`Uprobe`]);
//! - `kernel.uretprobe`: the same, and then the trap of the return;
//! - `kernel.uprobe_nop5`: a system call made from where a nop was;
//! - `kernel.trace_marker`: the program writes a message to ftrace's marker file
//!   ([`TraceMarker`]).
//!
//! All record into an instance of ftrace of their own, so that tracing that is going
//! on is not disturbed, and leave nothing behind: instance and probe are removed when
//! they are disarmed or dropped, and those of a benchmark that was killed are removed
//! by the next one.

mod marker;
mod tracefs;
mod uprobe;

pub use marker::TraceMarker;
pub use uprobe::{Kind as UprobeKind, Uprobe, UprobeAt};
