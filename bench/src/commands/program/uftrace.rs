//! uftrace, for comparison. It starts the program and patches the functions of the library
//! before the program runs. It also records function exits.

use capriole_bench::BenchError;
use capriole_bench::scratch::Scratch;
use capriole_bench::workload::{Python, Times, Workload};
use std::io::ErrorKind;
use std::process::{Command, Stdio};

/// Runs a round; returns its times and the number of bytes written. The work runs once untimed
/// first, because the program of the other rows has also run it before.
///
/// # Errors
/// [`BenchError::Skipped`] if there is no uftrace, or no libpython for it to patch.
pub fn round(event: &str, units: u64) -> Result<(Times, u64), BenchError> {
    let skip = |why: String| BenchError::Skipped(why);
    let library = event
        .strip_suffix(":*")
        .filter(|library| !library.is_empty())
        .ok_or_else(|| skip("there is no libpython".to_owned()))?;
    let version = Command::new("uftrace")
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    let version = version.map_err(|error| match error.kind() {
        ErrorKind::NotFound => skip("uftrace is not installed".to_owned()),
        _ => skip(format!("uftrace: {error}")),
    })?;
    if !String::from_utf8_lossy(&version.stdout).contains("dynamic") {
        return Err(skip("this uftrace cannot patch programs".to_owned()));
    }
    let scratch = Scratch::new().map_err(BenchError::Start)?;
    let data = scratch.path().join("uftrace");
    let mut command = Command::new("uftrace");
    command.args(["record", "--no-libcall", "--no-event", "-P"]);
    command.arg(format!(".@{library}"));
    command.arg("-d").arg(&data).arg(Python::program()?);
    let mut python = Python::start_by(command.stderr(Stdio::null()))?;
    python.work(1)?;
    let times = python.work(units)?;
    Box::new(python).end()?;
    let files = std::fs::read_dir(&data).map_err(BenchError::Start)?;
    let bytes = files.flatten().filter_map(|file| file.metadata().ok());
    Ok((times, bytes.map(|file| file.len()).sum()))
}
