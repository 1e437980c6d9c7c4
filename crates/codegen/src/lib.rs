//! Machine code of detours: the work done at a site, compiled.
//!
//! Pure: actions and addresses in, bytes out.
//!
//! - [`condition`]: conditions under which events are recorded
//! - [`fetch`]: fields of an event, and the work that fetches them
//! - [`program`]: programs for the resident, for all that straight code cannot do
//! - [`histogram`]: buckets of numbers
//! - [`work`]: the work done at a site, from which code is generated
//! - [`runtime`]: facts about the session and the target
//! - [`detour`]: the code that does the work and runs the displaced instructions
#![forbid(unsafe_code)]

pub mod condition;
pub mod detour;
pub mod fetch;
pub mod histogram;
pub mod program;
pub mod runtime;
pub mod work;
