//! From a site to machine code: which tactic reaches the detour, and the detour.
//!
//! Pure: bytes and addresses in, a plan or a reason out. Nothing here touches a
//! process, so that everything can be tested as functions of bytes, and applying a
//! plan cannot discover that it was wrong.
//!
//! - [`site`]: the ladder of tactics, and why one was refused
//! - [`place`]: where jumps with fixed displacement bytes may lead
//! - [`condition`]: when an event is wanted
//! - [`program`]: what an event records, and what does it if it is in memory
//! - [`detour`]: the code that records an event and runs the displaced instructions
#![forbid(unsafe_code)]

pub mod condition;
pub mod detour;
pub mod place;
pub mod program;
pub mod site;
