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
    let mut messages = std::iter::successors(Some(error), |e| e.source()).map(ToString::to_string);
    let mut text = messages.next().unwrap_or_default();
    for cause in messages {
        if !text.ends_with(&cause) {
            text += ": ";
            text += &cause;
        }
    }
    text
}
