//! Patching and restoring the code of running processes.
//!
//! - [`attach`] (also probes that are added, disarmed and armed later), [`session`], [`stubs`], [`patch`], [`counter`], [`returns`], [`guards`]: probes in
//! - [`detach`], [`recover`], [`remains`], [`family`], [`ledger`]: probes out, also after the tracer
//!   was killed
//! - [`lanes`]: lanes of threads that ended; [`outside`]: sessions as other processes see them
//!
//! Only [`patch`] writes instruction bytes of a program.
#![forbid(unsafe_code)]

pub mod attach;
pub mod counter;
pub mod detach;
pub mod family;
pub mod guards;
pub mod lanes;
pub mod ledger;
pub mod outside;
pub mod patch;
pub mod recover;
pub mod remains;
pub mod returns;
pub mod session;
mod states;
pub mod stubs;
