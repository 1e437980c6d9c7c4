//! Control of other processes by ptrace: stopping threads, and operations on stopped threads.
//!
//! - [`tracer`], [`threads`], [`ptrace`]: seizing and stopping threads
//! - [`memory`], [`gadgets`], [`inject`]: reading and writing memory, and making system calls in
//!   a stopped thread
//! - [`stacks`], [`survey`]: examining stopped threads
//! - [`memfd`]: descriptors of other processes
//! - [`signals`]: signals that end the tracer itself
//! - [`launch`]: starting a program and stopping it before its own code runs
#![deny(unsafe_code)]

pub mod error;
pub mod gadgets;
pub mod inject;
pub mod launch;
pub mod memfd;
pub mod memory;
pub mod ptrace;
pub mod signals;
pub mod stacks;
pub mod steps;
pub mod survey;
pub mod threads;
pub mod tracer;

pub use error::TargetError;
