//! Planning of probes: the tactic by which a site reaches its detour, and the detour's code.
//!
//! Pure: bytes and addresses in, a plan or a refusal out. Nothing here touches a process, so that
//! everything can be tested as functions of bytes, and applying a plan cannot discover that it was
//! wrong.
//!
//! - [`site`]: the ladder of tactics, and reasons for refusal
//! - [`place`]: where jumps with fixed displacement bytes may lead
//! - [`condition`]: conditions under which events are recorded
//! - [`program`]: fields of an event, and programs that read them from memory
//! - [`detour`]: the code that records an event and runs the displaced instructions
#![forbid(unsafe_code)]

pub mod condition;
pub mod detour;
pub mod place;
pub mod program;
pub mod site;
