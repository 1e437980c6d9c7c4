//! Parts of tests that several crates need: programs to be built and run, probes in them, and what
//! they recorded.
//!
//! Tests of crates that probing needs use it without the feature `probing`: programs, files, efforts,
//! steps; with `objects` object files; with `values` programs that are stopped at an instruction.
#![allow(missing_docs)]

pub mod bounds;
#[cfg(feature = "probing")]
pub mod conversation;
pub mod effort;
pub mod files;
#[cfg(feature = "probing")]
pub mod instructions;
pub mod nm;
#[cfg(feature = "objects")]
pub mod objects;
#[cfg(feature = "probing")]
pub mod probed;
pub mod programs;
pub mod steps;
#[cfg(feature = "values")]
pub mod stopped;
#[cfg(feature = "probing")]
pub mod target;
pub mod tools;
pub mod uprobe;
pub mod waiting;
pub mod workshop;
