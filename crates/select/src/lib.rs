//! From probes and events to sites: where each is, how it is reached, and what is done there.
//!
//! | layer | module | from, to |
//! | --- | --- | --- |
//! | parse | [`definitions`], [`calls`], [`intervals`] | text, probes |
//! | lower | [`event`], [`entry`] | probes, with those at the entry that serve them |
//! | fetch | [`debuginfod`] | probes, debug information that is not on this machine |
//! | select | [`select`](mod@select), [`fields`], [`marker`] | probes, sites with plans and fields |
//!
//! The crate `capriole` inserts the result into a process. Nothing here changes one.
//!
//! An [`Error`](error::Error) has a stable [`Code`](error::Code), a message, maybe
//! [`Advice`](advice::Advice), and the error that caused it.
#![forbid(unsafe_code)]

pub mod advice;
pub mod calls;
pub mod content;
pub mod debuginfod;
pub mod definitions;
pub mod entry;
mod enumerators;
pub mod error;
pub mod event;
pub mod fields;
pub mod intervals;
mod kept_memory;
pub mod marker;
pub mod message;
pub mod names;
mod results;
pub mod returns;
pub mod select;
pub mod slots;
