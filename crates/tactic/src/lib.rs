//! Tactics: how the code at a site is changed so that it leads to a detour.
//!
//! Pure: bytes and addresses in, a shape or refusals out. Nothing here touches a process, so
//! applying a shape cannot discover that it was wrong.
//!
//! - [`site`]: the ladder of tactics, and reasons for refusal
//! - [`place`]: where jumps with fixed displacement bytes may lead
#![forbid(unsafe_code)]

pub mod place;
pub mod site;
