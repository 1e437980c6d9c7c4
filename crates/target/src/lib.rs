//! Target processes: inspection, and patching and restoring their code while they run.
//!
//! - [`process`], [`translator`], [`maps`], [`object`], [`symbols`], [`markers`], [`debug`],
//!   [`resolve`]: inspection without changes; [`files`]: opening paths that come from outside
//! - [`threads`], [`tracer`], [`ptrace`], [`memory`], [`inject`], [`gadgets`], [`stacks`],
//!   [`survey`]: stopping threads, and operations on stopped threads
//! - [`session`], [`ledger`], [`attach`], [`guards`], [`returns`], [`unwinders`], [`patch`],
//!   [`counter`], [`detach`], [`recover`], [`remains`], [`family`]: inserting and removing probes
//! - [`outside`]: sessions as other processes see them; [`memfd`]: descriptors of other processes
//! - [`launch`]: starting a program and stopping it before its own code runs
//!
//! Only [`patch`] writes instruction bytes of a program.
#![deny(unsafe_code)]

pub mod attach;
pub mod counter;
pub mod debug;
pub mod detach;
pub mod error;
pub mod family;
pub mod files;
pub mod gadgets;
pub mod guards;
pub mod inject;
pub mod lanes;
pub mod launch;
pub mod ledger;
pub mod maps;
pub mod markers;
pub mod memfd;
pub mod memory;
pub mod object;
pub mod outside;
pub mod patch;
pub mod planner;
pub mod process;
pub mod ptrace;
pub mod recover;
pub mod remains;
pub mod resolve;
pub mod returns;
pub mod session;
pub mod stacks;
mod states;
pub mod steps;
pub mod stubs;
pub mod survey;
pub mod symbols;
pub mod threads;
pub mod tracer;
pub mod translator;
pub mod unwinders;

pub use error::TargetError;
