//! Processes as `/proc` shows them: status, threads, mappings, address-space layout.
//!
//! - [`process`]: one process and its threads; [`translator`]: programs run by an emulator
//! - [`maps`]: mappings, and gaps between them
//! - [`files`]: opening paths that come from outside
#![forbid(unsafe_code)]

pub mod files;
pub mod maps;
pub mod process;
pub mod translator;
