//! Patching and restoring the code of running processes.
//!
//! A module uses only those that stand below it:
//!
//! - [`outside`], [`family`], [`lanes`]: sessions as other processes see them; children; lanes of
//!   threads that ended
//! - [`attach`] (also probes that are added, disarmed and armed later), [`guards`], `probe`: probes in
//! - [`recover`], [`detach`]: probes out, also after the tracer was killed
//! - `installed`, [`returns`], `states`, [`session`]: everything that a session has in a process, and
//!   the system calls that put it there
//! - [`ledger`], [`remains`], [`counter`], [`stubs`], [`patch`]: the journal, and the bytes themselves
//!
//! Only [`patch`] writes instruction bytes of a program.
#![forbid(unsafe_code)]

pub mod attach;
pub mod counter;
pub mod detach;
pub mod family;
pub mod guards;
mod installed;
pub mod lanes;
pub mod ledger;
pub mod outside;
pub mod patch;
mod probe;
pub mod recover;
pub mod remains;
pub mod returns;
pub mod session;
mod states;
pub mod stubs;
