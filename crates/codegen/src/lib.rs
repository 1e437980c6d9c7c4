//! Machine code of detours: the work done at a site, compiled.
//!
//! Pure: actions and addresses in, bytes out.
//!
//! - [`condition`]: conditions under which events are recorded
//! - [`program`]: fields of an event, and programs that read them from memory
//! - [`detour`]: the code that records an event and runs the displaced instructions
#![forbid(unsafe_code)]

pub mod condition;
pub mod detour;
pub mod program;
