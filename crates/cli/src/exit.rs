//! Exit status of the command: 0, 1 for an error (printed on standard error), 2 for wrong usage, or
//! the traced program's own status.

use crate::advice;
use capriole::error::message_of;
use capriole_event::ParseError;
use capriole_text::tell;
use std::fmt;
use std::process::{ExitCode, ExitStatus};

/// Error for arguments that clap accepts but that do not fit together.
#[derive(Debug)]
pub struct Usage(pub &'static str);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; `capriole help` shows how", self.0)
    }
}

impl std::error::Error for Usage {}

/// Turns a command's result into an exit code.
pub fn code(result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let message = message(&error);
            tell!("capriole: {message}");
            match is_usage(&error, &message) {
                true => ExitCode::from(2),
                false => ExitCode::FAILURE,
            }
        }
    }
}

/// True if the command line is invalid: its arguments, or an event, with a mistake that the message points at.
fn is_usage(error: &anyhow::Error, message: &str) -> bool {
    let points = message.lines().any(|line| line.trim() == "^");
    points
        || error
            .chain()
            .any(|cause| cause.is::<Usage>() || cause.is::<ParseError>())
}

/// Formats an error and its causes, without causes that its message already contains.
pub fn message(error: &anyhow::Error) -> String {
    let message = |cause| advice::told(&message_of(cause));
    with_remedy(capriole_text::joined(error.chain().map(message)))
}

/// Appends what to do about an error of the system, if its words do not say it.
pub fn with_remedy(message: String) -> String {
    let full = |errno: i32| message.contains(&format!("(os error {errno})"));
    let remedy = match () {
        () if message.contains("ulimit") => "",
        () if full(libc::EMFILE) => {
            "; this process may not open more files: raise the limit (ulimit -n)"
        }
        () if full(libc::ENFILE) => "; the system may not open more files (sysctl fs.file-max)",
        () => "",
    };
    message + remedy
}

/// True if the reader of our output (`head`, a pager) closed the pipe.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// Returns the program's exit code if the results were printed, or if their reader had closed the pipe.
///
/// # Errors
/// Any other error of `printed`.
pub fn unless_unread(printed: anyhow::Result<()>, code: ExitCode) -> anyhow::Result<ExitCode> {
    match printed {
        Err(error) if !is_broken_pipe(&error) => Err(error),
        _ => Ok(code),
    }
}

/// Returns the exit code that passes on a program's status: its own, or 128 plus the number of the
/// signal that ended it, as shells do.
pub fn passed_on(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let code = status
        .code()
        .or(status.signal().map(|s| 128 + s))
        .unwrap_or(1);
    ExitCode::from(code as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn errors_of_libraries_have_advice() {
        use capriole_host::error::TargetError;
        let recorded = TargetError::AlreadyRecorded { pid: 7, owner: 9 };
        let told = "process 7 is already being recorded by capriole, process 9; end that one, or \
                    take its probes out with `capriole detach 7`";
        let inside = capriole::Error::from(TargetError::AlreadyRecorded { pid: 7, owner: 9 });
        assert_eq!(message(&recorded.into()), told);
        assert_eq!(message(&inside.into()), told);
        let gone = anyhow::Error::from(TargetError::Vanished { pid: 7 }).context("cannot attach");
        assert_eq!(
            message(&gone),
            "cannot attach: process 7 ended while it was being attached to; start it again and \
             attach earlier, or use `capriole record -- PROGRAM`"
        );
    }

    #[test]
    fn the_limit_of_open_files_is_named() {
        let error = std::io::Error::from_raw_os_error(libc::EMFILE);
        let error = Err::<(), _>(error).context("cannot read /proc/7/maps");
        assert_eq!(
            message(&error.unwrap_err()),
            "cannot read /proc/7/maps: Too many open files (os error 24); this process may not \
             open more files: raise the limit (ulimit -n)"
        );
    }

    #[test]
    fn a_cause_is_said_once() {
        let full = || std::io::Error::from_raw_os_error(libc::ENOSPC);
        let plain = Err::<(), _>(full()).context("cannot write cpu0");
        let doubled = Err::<(), _>(full()).context(format!("cannot write cpu0: {}", full()));
        for error in [plain.unwrap_err(), doubled.unwrap_err()] {
            assert_eq!(
                message(&error),
                "cannot write cpu0: No space left on device (os error 28)"
            );
        }
    }
}
