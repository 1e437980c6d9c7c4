//! Machine code as data. All tests are in one program, because each program takes long to link.

mod support;

mod examples;
mod exits;
mod indirect_jumps;
mod liveness_execution;
mod objdump;
mod properties;
mod relocate_execution;
mod switches;
