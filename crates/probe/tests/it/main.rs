//! Tests of the crate, and of what C programs are given: the header, the libraries, the installation
//! and the manual pages.
#![allow(missing_docs)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "each handler here is one that keeps the promises of a handler, or breaks one on purpose"
)]

mod arguments;
mod declarations;
mod events;
mod example;
mod header;
mod helper;
mod install;
mod manual;
mod probes;
mod replace;
mod returns;
mod support;
mod symbols;
