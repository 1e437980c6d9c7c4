//! Processes, object files and debug information. All tests are in one program, because each
//! program takes long to link.

mod fixtures;
mod stopped;

mod attach;
mod damaged;
mod debug_damaged;
mod debug_lookup;
mod debug_programs;
mod debug_values;
mod inlined;
mod markers;
mod namesakes;
mod objects;
mod process;
mod resolve;
mod running;
mod symbols;
