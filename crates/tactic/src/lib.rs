//! Tactics: how the code at a site is changed so that it leads to a detour.
//!
//! Pure: bytes and addresses in, a shape or refusals out. Nothing here touches a process, so
//! applying a shape cannot discover that it was wrong. What is x86-64 in it is in `x86_64/`.
//!
//! For every architecture:
//!
//! - [`site`]: the ladder of tactics, and reasons for refusal
//! - [`place`]: where jumps with fixed displacement bytes may lead
//!
//! For one architecture:
//!
//! - `jump`, `instruction`, `mask`: jumps and stubs, the instructions that they replace, the bytes
//!   of a displacement
//! - `prescribed`: the tactics whose jumps share bytes with other instructions
#![forbid(unsafe_code)]

// An architecture is a folder, with the same names of files in each.
#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
mod arch;
pub mod place;
pub mod site;
