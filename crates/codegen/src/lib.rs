//! Machine code of detours: the work done at a site, compiled.
//!
//! Pure: actions and addresses in, bytes out. What is x86-64 in it is in `x86_64/`.
//!
//! For every architecture:
//!
//! - [`condition`]: conditions under which events are recorded
//! - [`fetch`]: fields of an event, and the work that fetches them
//! - [`program`]: programs for the resident, for all that straight code cannot do
//! - [`histogram`]: buckets of numbers
//! - [`work`]: the work done at a site, from which code is generated
//! - [`runtime`]: facts about the session and the target
//!
//! For one architecture:
//!
//! - [`detour`]: the code that does the work and runs the displaced instructions
#![forbid(unsafe_code)]

// An architecture is a folder, with the same names of files in each.
#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
mod arch;
pub mod condition;
pub mod fetch;
pub mod histogram;
pub mod program;
pub mod runtime;
pub mod work;

pub use arch::detour;
