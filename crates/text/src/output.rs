//! Standard output and standard error: everything goes through [`Visible`], as nearly all of it
//! contains names and text from elsewhere.

use crate::Visible;
use std::fmt;
use std::io::{self, ErrorKind, StderrLock, Stdout, StdoutLock, Write};

/// Writes a line of text or JSON to standard output.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {
        $crate::output::print(format_args!("{}\n", format_args!($($words)*)))
    };
}

/// Writes a line to standard error.
#[macro_export]
macro_rules! tell {
    ($($words:tt)*) => {
        $crate::output::print_error(format_args!("{}\n", format_args!($($words)*)))
    };
}

/// Standard output.
#[allow(clippy::disallowed_methods)] // here alone
pub fn stdout() -> Visible<StdoutLock<'static>> {
    Visible::new(io::stdout().lock())
}

/// Standard output without filter, for checking terminal features or moving the cursor.
#[allow(clippy::disallowed_methods)] // here alone
pub fn terminal() -> Stdout {
    io::stdout()
}

/// Standard error.
#[allow(clippy::disallowed_methods)] // here alone
pub fn stderr() -> Visible<StderrLock<'static>> {
    Visible::new(io::stderr().lock())
}

/// Prints to standard output. A closed pipe (the reader has had enough) is ignored; after any other
/// error the command exits with status 1.
pub fn print(text: fmt::Arguments<'_>) {
    let mut out = stdout();
    let written = out
        .write_all(text.to_string().as_bytes())
        .and_then(|()| out.flush());
    match written {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => {
            drop(out);
            tell!("capriole: cannot write to standard output: {error}");
            std::process::exit(1);
        }
    }
}

/// Prints to standard error, if there is one.
pub fn print_error(text: fmt::Arguments<'_>) {
    let mut out = stderr();
    let _ = out
        .write_all(text.to_string().as_bytes())
        .and_then(|()| out.flush());
}
