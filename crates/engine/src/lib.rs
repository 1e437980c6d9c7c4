//! The engine of Capriole: probes in running processes, from the text of an event to records.
#![forbid(unsafe_code)]

pub mod aggregate;
pub mod calls;
pub mod content;
pub mod definitions;
pub mod entry;
pub mod error;
pub mod fields;
pub mod filtered;
pub mod machine;
pub mod marker;
pub mod message;
pub mod names;
pub mod options;
pub mod plan;
pub mod program;
pub mod record;
pub mod returns;
pub mod select;
pub mod slots;
pub mod watch;

pub use error::{Code, Error, Result};
