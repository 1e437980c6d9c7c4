//! The one error of this crate, drawn with a caret under the place it means.

use std::fmt;

/// Why a text is not an event, and where.
///
/// `Display` takes three or four lines:
///
/// ```text
/// there is no $arg7
///   libc:malloc $arg7
///               ^
///   help: six arguments are passed in registers: $arg1 to $arg6
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ParseError {
    /// The whole text that was parsed.
    pub text: String,
    /// Where the error is: characters (not bytes) from the start of `text`, 0-based.
    /// The number of characters in `text` when something is missing at its end.
    pub column: usize,
    /// What is wrong, a lower-case fragment without a full stop.
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
        let column = text
            .char_indices()
            .take_while(|(at, c)| at + c.len_utf8() <= byte)
            .count();
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
        writeln!(f, "{}", self.message)?;
        writeln!(f, "  {}", shown.trim_end())?;
        write!(f, "  {:>width$}", '^', width = self.column + 1)?;
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
            c if c.is_control() => '?',
            c => c,
        })
        .collect()
}
