//! The one error of this crate, drawn with a caret under the place it means.

use std::fmt;

/// Why a text is not an event, and where.
///
/// `Display` takes three or four lines:
///
/// ```text
/// invalid register name `%foo`
///   libc:malloc %foo
///               ^
///   help: the registers are %ax, %bx, %cx, %dx, %si, %di, %bp, %sp and %r8 to %r15
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ParseError {
    /// The whole text that was parsed: of a file of definitions, the line.
    pub text: String,
    /// Where the error is: bytes from the start of `text`, 0-based, at the start of a
    /// character. The length of `text` when something is missing at its end.
    pub column: usize,
    /// What is wrong, a lower-case fragment without a full stop, in the words of the kernel's
    /// `error_log` where it knows the same mistake.
    pub message: String,
    /// What to write instead; empty when `message` already says so.
    pub help: String,
}

impl ParseError {
    /// An error at a byte position of `text`. The position is moved back to the start of the
    /// character it falls into and to the end of the text if it lies behind it.
    pub(crate) fn at(
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
        }
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

/// One column a character: a tab or a newline would move the caret away from its place.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\t' | '\n' | '\r' => ' ',
            c if crate::is_hidden(c) => '?',
            c => c,
        })
        .collect()
}
