//! Parts of tests that several crates need: programs to be built and run, probes in them, and what
//! they recorded.
#![allow(missing_docs)]

pub mod conversation;
pub mod files;
pub mod instructions;
pub mod probed;
pub mod programs;
pub mod target;
pub mod uprobe;
