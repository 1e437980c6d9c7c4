//! How the command ends: 0, 1 for an error (said on standard error), 2 for wrong
//! usage (said by clap), or the traced program's own status.

use std::process::{ExitCode, ExitStatus};

/// Turns a command's result into an exit code.
pub fn code(result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("capriole: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether whoever read our output (`head`, a pager) has had enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// The exit code that passes on a program's status: its own, or 128 plus the
/// number of the signal that ended it, as shells do.
pub fn passed_on(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let code = status
        .code()
        .or(status.signal().map(|s| 128 + s))
        .unwrap_or(1);
    ExitCode::from(code as u8)
}
