//! `uftrace`: the function is compiled with `-pg`, and its entry and exit are recorded. No
//! other function of the program is.

use std::path::Path;

use super::build::{HIT, UNTOUCHED, build, installed};
use super::{Program, Session, Tool};

pub(super) struct Uftrace;

/// Script that records calls and prints a report. uftrace shares memory with the program by files
/// in /dev/shm, which would stay if it were killed.
const SCRIPT: &str = r#"
rm -rf "$1/data"
uftrace record --no-pager --no-libcall --no-event -d "$1/data" "$1/program"
uftrace report --no-pager -f call -d "$1/data"
rm -rf "$1/data"
"#;

impl Tool for Uftrace {
    fn build(&self, files: &Path) -> Result<(), String> {
        for tool in ["unshare", "uftrace"] {
            installed(tool)?;
        }
        let compile = [UNTOUCHED, &["-pg"]].concat();
        build(files, "cc", ("hit.c", HIT), &compile, &["-pg"]).map(drop)
    }

    fn start(&self, files: &Path) -> Result<Session, String> {
        Session::of(Program::secluded(SCRIPT, files, &[])?)
    }

    fn end(&self, session: Session, _: &Path) -> Result<u64, String> {
        let said = session.program.end()?;
        counted(&said).ok_or_else(|| "its report does not have the function".to_owned())
    }

    /// A call takes 32 bytes in files.
    fn most_calls(&self) -> u64 {
        1_000_000
    }
}

/// Parses `CALLS  capriole_peer`.
fn counted(said: &str) -> Option<u64> {
    said.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [.., calls, "capriole_peer"] => calls.parse().ok(),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_the_report() {
        let report = "       Calls  Function\n  ==========  ====\n      102000  capriole_peer\n";
        assert_eq!(counted(report), Some(102_000));
        assert_eq!(counted("       1  main\n"), None);
    }
}
