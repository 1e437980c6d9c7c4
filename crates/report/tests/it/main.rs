//! Traces, written and read. All tests are in one program, because each program takes long to
//! link.

mod common;

mod babeltrace;
mod call_ends;
mod call_stacks;
mod calls;
mod calls_random;
mod clock;
mod graph;
mod marker_text;
mod reading;
mod report;
mod typed;
mod whole;
mod writing;
