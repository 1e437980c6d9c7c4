//! `xray_fdr`: the flight data recorder of LLVM's XRay. Its log is read here.

use std::fs;
use std::path::{Path, PathBuf};

use super::build::{HIT, UNTOUCHED, compile_one, link_all, program};
use super::{Program, Session, Tool};

pub(super) struct Xray;

const CONTROL: &str = include_str!("../../peers/xray.c");
/// Prefix of log file names.
const LOG: &str = "xray-log.";

/// Options with room for all records of a round, 16 bytes a call; otherwise older ones would be
/// overwritten before they are counted. The threshold is 0, since calls of less than 5 us are not
/// recorded otherwise.
const OPTIONS: &str = "func_duration_threshold_us=0:buffer_size=1048576:buffer_max=64";

impl Tool for Xray {
    fn build(&self, files: &Path) -> Result<(), String> {
        let sleds = ["-fxray-instrument", "-fxray-instruction-threshold=1"];
        let compile = [UNTOUCHED, &sleds[..]].concat();
        let function = compile_one(files, "clang", ("hit.c", HIT), &compile)?;
        let control = compile_one(files, "clang", ("xray.c", CONTROL), &["-O1"])?;
        let objects = [function, control];
        link_all(files, "clang", &objects, &["-fxray-instrument"]).map(drop)
    }

    fn start(&self, files: &Path) -> Result<Session, String> {
        let mut command = program(files);
        let base = files.join(LOG);
        command.env(
            "XRAY_OPTIONS",
            format!("verbosity=0:xray_logfile_base={}", base.display()),
        );
        command.env("CAPRIOLE_XRAY_FDR", OPTIONS);
        Session::of(Program::start(&mut command, files)?)
    }

    fn end(&self, session: Session, files: &Path) -> Result<u64, String> {
        session.program.end()?;
        let log = logs(files).pop().ok_or("it wrote no log")?;
        let bytes = fs::read(&log).map_err(|error| format!("cannot read its log: {error}"));
        let _ = fs::remove_file(&log);
        entries(&bytes?).ok_or_else(|| "its log cannot be understood".to_owned())
    }

    fn most_calls(&self) -> u64 {
        1_500_000
    }
}

fn logs(files: &Path) -> Vec<PathBuf> {
    let is_log = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(LOG);
    let files = fs::read_dir(files).into_iter().flatten().flatten();
    files
        .filter(|file| is_log(&file.file_name()))
        .map(|file| file.path())
        .collect()
}

/// Counts the function entries in a log, as defined by LLVM's "XRay Flight Data Recorder Trace
/// Format" and `xray_fdr_log_records.h`, versions 3 to 5: a header of 32 bytes, then records. The
/// lowest bit of a record is 1 for metadata (16 bytes) and 0 for a function (8 bytes). `None` if it
/// is no such log or has events of the program's own.
fn entries(log: &[u8]) -> Option<u64> {
    const FLIGHT_DATA_RECORDER: u8 = 1;
    /// Kinds of metadata followed by a payload: custom and typed events.
    const WITH_PAYLOAD: [u8; 2] = [5, 8];
    const ENTRY: u8 = 0;
    const ENTRY_WITH_ARGUMENTS: u8 = 3;
    let (header, mut records) = log.split_at_checked(32)?;
    if !matches!(header[0], 3..=5) || header[2] != FLIGHT_DATA_RECORDER {
        return None;
    }
    let mut entries = 0;
    while let Some(&first) = records.first() {
        let is_function = first & 1 == 0;
        let size = match is_function {
            true if matches!(first >> 1 & 7, ENTRY | ENTRY_WITH_ARGUMENTS) => {
                entries += 1;
                8
            }
            true => 8,
            false if WITH_PAYLOAD.contains(&(first >> 1)) => return None,
            false => 16,
        };
        records = records.get(size..)?;
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_told_from_exits_and_metadata() {
        let mut log = vec![5, 0, 1, 0];
        log.resize(32, 0);
        let metadata = |kind: u8| [[kind << 1 | 1; 1].as_slice(), &[0; 15]].concat();
        let call = |kind: u8| [0x10 | kind << 1, 0, 0, 0, 9, 0, 0, 0];
        log.extend(metadata(7));
        log.extend(metadata(0));
        assert_eq!(entries(&log), Some(0));
        for kind in [0, 1, 0, 2, 3, 1] {
            log.extend(call(kind));
        }
        log.extend(metadata(7));
        log.extend(call(0));
        assert_eq!(entries(&log), Some(4));
        assert_eq!(entries(&log[..log.len() - 1]), None, "cut off");
        log.extend(metadata(5));
        assert_eq!(entries(&log), None, "payload follows");
        log[2] = 0;
        assert_eq!(entries(&log), None, "basic mode");
        assert_eq!(entries(&[]), None);
    }
}
