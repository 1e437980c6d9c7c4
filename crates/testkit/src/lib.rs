//! Parts of tests that several crates need: programs to be built and run, probes in them, and what
//! they recorded.
//!
//! Tests of crates that probing needs use it without the feature `probing`: programs, files, efforts,
//! steps.
#![allow(missing_docs)]

pub mod bounds;
#[cfg(feature = "probing")]
pub mod conversation;
pub mod effort;
pub mod files;
#[cfg(feature = "probing")]
pub mod instructions;
#[cfg(feature = "probing")]
pub mod probed;
pub mod programs;
pub mod steps;
#[cfg(feature = "probing")]
pub mod target;
pub mod uprobe;
pub mod waiting;
