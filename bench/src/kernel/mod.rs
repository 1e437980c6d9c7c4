//! The kernel's ways of tracing a call, measured for comparison:
//!
//! - `kernel.uprobe`, `kernel.uprobe_4args`: a breakpoint that traps into the kernel, which records
//!   two or four registers ([`Uprobe`]);
//! - `kernel.uretprobe`: a breakpoint at the entry, and then the trap of the return;
//! - `kernel.uprobe_nop5`: a system call, reached by a call that replaces a nop;
//! - `kernel.uprobe_bpf`, `kernel.uretprobe_bpf`: the same traps, with a handler in BPF that counts
//!   ([`UprobeBpf`]);
//! - `kernel.trace_marker`: the program writes a message to ftrace's marker file
//!   ([`TraceMarker`]).
//!
//! Those that record do so into their own ftrace instance, so that other tracing is not disturbed.
//! Nothing is left behind: instance and probe are removed when they are disarmed or dropped, and
//! those of a killed benchmark by the next run. Those with BPF end with the process.

mod bpf;
mod marker;
mod tracefs;
mod uprobe;

pub use bpf::{BpfCounter, Moment, UprobeBpf};
pub use marker::TraceMarker;
pub use uprobe::{Kind as UprobeKind, Uprobe, UprobeAt};
