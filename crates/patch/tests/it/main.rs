//! Probes that come and go in running programs, without the command. All tests are in one program,
//! because each program takes long to link.

mod additions;
mod breakpoints;
mod every_instruction;
mod failing_host;
mod hammered;
mod markers_hammered;
mod parked;
mod waiting_calls;
