//! Patching and restoring the code of running processes.
//!
//! A module uses only those that stand below it:
//!
//! - [`outside`], [`family`], [`lanes`]: sessions as other processes see them; children; lanes of
//!   threads that ended
//! - [`attach`] (also probes that are added, disarmed and armed later), [`guards`], `probe`: probes in
//! - [`recover`], [`detach`]: probes out, also after the tracer was killed
//! - `cover`: private memory in the place of text that probes are written to
//! - [`other`]: the session of another kind beside one
//! - `installed`, `actions`, [`returns`], `states`, [`session`]: everything that a session has in a process, and
//!   the system calls that put it there
//! - [`stubs`], [`patch`]: pages of stubs, and the bytes of sites
//!
//! The journal of all this is in the crate `ledger`.
//!
//! Only [`patch`] writes instruction bytes of a program.
#![forbid(unsafe_code)]

mod actions;
pub mod attach;
mod cover;
pub mod detach;
pub mod family;
pub mod guards;
mod installed;
pub mod lanes;
#[cfg(test)]
mod layers;
pub mod other;
pub mod outside;
pub mod patch;
mod probe;
mod ranges;
pub mod recover;
pub mod returns;
pub mod session;
mod states;
pub mod stubs;
