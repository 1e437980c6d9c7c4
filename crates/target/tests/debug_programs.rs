//! Values by debug information in programs that compilers made, one file for each kind.

mod fixtures;
mod stopped;

#[path = "debug_programs/debug_arrivals.rs"]
mod debug_arrivals;
#[path = "debug_programs/debug_incomplete.rs"]
mod debug_incomplete;
#[path = "debug_programs/debug_parts.rs"]
mod debug_parts;
#[path = "debug_programs/debug_scopes.rs"]
mod debug_scopes;
#[path = "debug_programs/symbols_elsewhere.rs"]
mod symbols_elsewhere;
