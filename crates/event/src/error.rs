//! The error type of this crate, printed with a caret under the error's column.

use std::fmt;

/// Parse error and its position in the input.
///
/// `Display` prints three or four lines:
///
/// ```text
/// invalid register name `%foo`
///   libc:malloc %foo
///               ^
///   help: the registers are %ax, %bx, %cx, %dx, %si, %di, %bp, %sp and %r8 to %r15
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ParseError {
    /// The whole input; for a definition file, the line.
    pub text: String,
    /// Position of the error: 0-based byte offset in `text`, at the start of a character. The
    /// length of `text` if something is missing at its end.
    pub column: usize,
    /// Message: a lower-case fragment without a full stop, in the words of the kernel's `error_log`
    /// if the kernel has the same error.
    pub message: String,
    /// Suggested correction; empty if `message` already gives it.
    pub help: String,
    /// A use of the event that is possible instead; belongs behind `help`. Each program that parses
    /// events has its own words for it.
    pub instead: Option<Instead>,
}

/// A use of an event that has a value which an aggregate cannot take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instead {
    /// Record the event with its call stack, and let a report count the callers.
    CountCallers,
    /// Record the event, to see each value.
    SeeEach,
}

impl ParseError {
    /// Creates an error at a byte position of `text`. The position is moved back to the start of
    /// the character it falls into, or to the end of the text if it lies beyond.
    pub fn at(
        text: &str,
        byte: usize,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        let mut column = byte.min(text.len());
        while !text.is_char_boundary(column) {
            column -= 1;
        }
        ParseError {
            text: text.to_string(),
            column,
            message: one_line(&message.into()),
            help: one_line(&help.into()),
            instead: None,
        }
    }

    /// Adds a use of the event that is possible instead.
    pub(crate) fn instead(self, instead: Option<Instead>) -> Self {
        ParseError { instead, ..self }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = one_line(&self.text);
        let before = self.text.get(..self.column).unwrap_or(&self.text);
        writeln!(f, "{}", self.message)?;
        writeln!(f, "  {}", shown.trim_end())?;
        write!(f, "  {:>width$}", '^', width = before.chars().count() + 1)?;
        if !self.help.is_empty() {
            write!(f, "\n  help: {}", self.help)?;
        }
        Ok(())
    }
}

/// Makes each character one column wide: a tab or a newline would displace the caret.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\t' | '\n' | '\r' => ' ',
            c if capriole_text::is_hidden(c) => '?',
            c => c,
        })
        .collect()
}
