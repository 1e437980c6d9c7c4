//! Places of values, and the first instructions of a function, which put parameters into them.
//!
//! The input is the function's bytes and a place that debug information gives; the output is the
//! place of the same object at the function's entry, or `None`. Nothing here reads debug
//! information or touches a process. What is x86-64 in it is in `x86_64/`.
//!
//! For every architecture:
//!
//! - [`Place`]: where an object is, as far as a probe can reach it
//!
//! For one architecture:
//!
//! - [`Prologue`]: symbolic execution of a function's first instructions
//! - [`instructions`]: questions about single instructions
//! - [`registers`]: registers by their DWARF numbers, and those of parameters
#![forbid(unsafe_code)]

// An architecture is a folder, with the same names of files in each.
#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
mod arch;
mod place;

pub use arch::{instructions, prologue::Prologue, registers};
pub use place::{Place, Start, Sum, Window};
