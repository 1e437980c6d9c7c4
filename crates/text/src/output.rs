//! Standard output and standard error: everything goes through [`Visible`], as nearly all of it
//! contains names and text from elsewhere.

use crate::Visible;
use std::fmt;
use std::io::{self, ErrorKind, StderrLock, Stdout, StdoutLock, Write};
use std::sync::atomic::{AtomicU8, Ordering};

/// Amount of messages on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors and warnings only.
    Quiet,
    /// Also progress and summaries.
    Normal,
    /// Also details of each phase.
    Verbose,
}

/// The [`Verbosity`] as a number. Set once, before other threads are started; it guards no data.
static VERBOSITY: AtomicU8 = AtomicU8::new(Verbosity::Normal as u8);

/// Sets the amount of messages for the whole process.
pub fn set_verbosity(verbosity: Verbosity) {
    VERBOSITY.store(verbosity as u8, Ordering::Relaxed);
}

/// True unless the user wants errors and warnings only.
pub fn is_talkative() -> bool {
    VERBOSITY.load(Ordering::Relaxed) >= Verbosity::Normal as u8
}

/// True if the user wants details.
pub fn is_verbose() -> bool {
    VERBOSITY.load(Ordering::Relaxed) >= Verbosity::Verbose as u8
}

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

/// Writes a line about progress, or of a summary, to standard error, unless the user wants errors and
/// warnings only.
#[macro_export]
macro_rules! note {
    ($($words:tt)*) => {
        if $crate::output::is_talkative() {
            $crate::tell!($($words)*);
        }
    };
}

/// Writes a line with details to standard error, if the user wants them.
#[macro_export]
macro_rules! detail {
    ($($words:tt)*) => {
        if $crate::output::is_verbose() {
            $crate::tell!($($words)*);
        }
    };
}

/// Standard output, whose errors name it.
#[derive(Debug)]
pub struct Output(StdoutLock<'static>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(unwritable)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(unwritable)
    }
}

/// Returns an error of the same kind that names standard output. An interrupted call is not an
/// error for the user, and stays as it is.
pub fn unwritable(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::Interrupted => error,
        kind => io::Error::new(kind, format!("cannot write to standard output: {error}")),
    }
}

/// Standard output.
#[allow(clippy::disallowed_methods)] // here alone
pub fn stdout() -> Visible<Output> {
    Visible::new(Output(io::stdout().lock()))
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
            tell!("capriole: {error}");
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
