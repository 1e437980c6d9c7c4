//! Text for people: safe output of foreign text, units of time and size.
//!
//! - [`visible`]: characters that would act on a terminal
//! - [`units`]: parsing and formatting of times, sizes and counts
//! - [`output`]: standard output and standard error, both filtered
#![forbid(unsafe_code)]

pub mod output;
pub mod units;
pub mod visible;

pub use visible::{Visible, is_hidden, printable};

/// Formats an error and its causes in one line, without causes that a message in front of them
/// already contains.
#[must_use]
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let all = std::iter::successors(Some(error), |e| e.source());
    joined(all.map(ToString::to_string))
}

/// Joins messages in one line, outermost first, without those that the ones in front of them already
/// end with.
#[must_use]
pub fn joined(mut messages: impl Iterator<Item = String>) -> String {
    let mut text = messages.next().unwrap_or_default();
    for cause in messages {
        if !text.ends_with(&cause) {
            text += ": ";
            text += &cause;
        }
    }
    text
}
