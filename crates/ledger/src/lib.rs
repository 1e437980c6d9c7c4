//! The memory by which probes are removed from a process, also after their tracer was killed.
//!
//! - `ledger`: the ledger of a session, its header and its journal
//! - [`change`]: a change of code, as the journal has it
//! - [`counter`]: reference counters that were raised
//! - [`remains`]: records that a dead recorder left in session memory
//!
//! The tracer writes a ledger before it changes the process; recovery reads it. Nothing here stops
//! threads or writes code.
#![forbid(unsafe_code)]

pub mod change;
pub mod counter;
mod ledger;
pub mod remains;

pub use ledger::{
    Action, Arena, EXTENSION_VERSION, Entry, FAULTS, Header, Identity, Kind, LEDGER_NAME, Ledger,
    MAGIC, MAX_ARENAS, MAX_ENTRIES, MAX_STUBS, MemoryAt, VERSION, header, is_ledger, journal,
};
