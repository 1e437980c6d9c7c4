//! Processes: what they are, how their code is changed while they run, and how it
//! is put back.
//!
//! - [`process`], [`translator`], [`maps`], [`object`], [`symbols`], [`markers`], [`debug`],
//!   [`resolve`]: looking, without touching; [`files`]: opening what others named
//! - [`threads`], [`tracer`], [`ptrace`], [`memory`], [`inject`], [`gadgets`], [`stacks`],
//!   [`survey`]: stopping threads, and what can be done with stopped ones
//! - [`session`], [`ledger`], [`attach`], [`guards`], [`returns`], [`unwinders`], [`patch`], [`counter`],
//!   [`detach`], [`recover`], [`remains`], [`family`]: probes in and out
//! - [`outside`]: sessions as others see them; [`memfd`]: descriptors of other processes
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
