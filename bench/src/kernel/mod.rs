//! The kernel's ways of seeing a call, measured for comparison:
//!
//! - `kernel.uprobe`: a breakpoint that traps into the kernel, which records two
//!   registers ([`Uprobe`]);
//! - `kernel.trace_marker`: the program writes a message to ftrace's marker file
//!   ([`TraceMarker`]).
//!
//! Both record into an instance of ftrace of their own, so that tracing that is going
//! on is not disturbed, and leave nothing behind: instance and probe are removed when
//! they are disarmed or dropped, and those of a benchmark that was killed are removed
//! by the next one.

mod marker;
mod tracefs;
mod uprobe;

pub use marker::TraceMarker;
pub use uprobe::Uprobe;
