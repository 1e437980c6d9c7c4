//! Capabilities of the terminal at standard output.

use capriole_text::output;
use rustix::termios::tcgetwinsize;
use std::ffi::OsString;
use std::io::IsTerminal;

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Lines.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
}

impl Size {
    /// Returns the size of the terminal at standard output, if there is one with a movable cursor.
    /// A terminal that reports no size has 24 lines of 80 columns.
    pub fn of_terminal() -> Option<Size> {
        let out = output::terminal();
        if !out.is_terminal() || std::env::var_os("TERM").is_none_or(|term| term == "dumb") {
            return None;
        }
        let size = tcgetwinsize(&out).ok()?;
        let known = |number: u16, usual: usize| match number {
            0 => usual,
            number => number.into(),
        };
        Some(Size {
            rows: known(size.ws_row, 24),
            columns: known(size.ws_col, 80),
        })
    }
}

/// True if standard output is a terminal that shows more than ASCII.
pub fn shows_blocks() -> bool {
    output::terminal().is_terminal() && is_utf8(|name| std::env::var_os(name))
}

/// True if the locale's characters are UTF-8: the first variable that is set and not empty decides
/// (POSIX.1-2017, Base Definitions, 8.2).
fn is_utf8(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .filter_map(variable)
        .find(|value| !value.is_empty());
    let locale = locale.unwrap_or_default().to_string_lossy().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_decides() {
        for (variables, wanted) in [
            (&[][..], false),
            (&[("LANG", "C.UTF-8")], true),
            (&[("LANG", "de_DE.utf8")], true),
            (&[("LANG", "de_DE@euro")], false),
            (&[("LANG", "C.UTF-8"), ("LC_ALL", "C")], false),
            (&[("LANG", "C.UTF-8"), ("LC_ALL", "")], true),
            (&[("LANG", "C"), ("LC_CTYPE", "en_US.UTF-8")], true),
        ] {
            let variable = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name)?;
                Some(OsString::from(found.1))
            };
            assert_eq!(is_utf8(variable), wanted, "{variables:?}");
        }
    }
}
