//! Control of a process: stopping its threads, and operations on stopped threads.
//!
//! - [`host`]: what the patcher needs of a process, as traits
//! - [`ptrace`]: the host for other processes
//! - [`volunteer`]: the host for a program that asks for its own changes
//! - `x86_64`: registers, signal frames, and the instructions by which a thread makes calls for us
//! - [`ending`]: how a process has ended
//! - [`stacks`], [`survey`]: examining stopped threads
//! - [`memfd`]: descriptors of other processes
//! - [`signals`]: signals that end the tracer itself
//! - [`standard`]: the descriptors with which the tracer was started
#![deny(unsafe_code)]

pub mod ending;
pub mod error;
pub mod host;
pub mod memfd;
pub mod ptrace;
pub mod signals;
pub mod stacks;
pub mod standard;
pub mod steps;
pub mod survey;
pub mod volunteer;
mod x86_64;

pub use error::TargetError;
pub use host::Host;
