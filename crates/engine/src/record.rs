//! Recording: from session memory to a trace directory.

pub mod recorder;
pub(crate) mod recording;
pub mod saving;

pub use recorder::{Recorder, Summary};
