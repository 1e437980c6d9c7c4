//! `lttng_ust`: a static tracepoint of LTTng-UST with an integer and a pointer, recorded by
//! a session daemon of its own. babeltrace2 counts what is in the trace.

use std::path::Path;

use super::build::{build, installed};
use super::{Program, Session, Tool, put};

pub(super) struct Lttng;

/// What starts the daemon, runs the program and counts.
const SCRIPT: &str = include_str!("../../peers/lttng.sh");
const TRACEPOINT: &str = include_str!("../../peers/lttng-tracepoint.h");
const FUNCTION: &str = include_str!("../../peers/lttng.c");

impl Tool for Lttng {
    fn build(&self, files: &Path) -> Result<(), String> {
        for tool in ["unshare", "lttng-sessiond", "lttng", "babeltrace2"] {
            installed(tool)?;
        }
        put(files, "lttng-tracepoint.h", TRACEPOINT)?;
        let include = format!("-I{}", files.display());
        let compile = ["-O2", &include];
        let link = ["-llttng-ust", "-ldl"];
        build(files, "cc", ("lttng.c", FUNCTION), &compile, &link).map(drop)
    }

    fn start(&self, files: &Path) -> Result<Session, String> {
        Session::of(Program::secluded(SCRIPT, files, &[])?)
    }

    fn end(&self, session: Session, _: &Path) -> Result<u64, String> {
        let said = session.program.end()?;
        counted(&said).ok_or_else(|| "babeltrace2 counted nothing in its trace".to_owned())
    }

    /// The sub-buffers of a CPU have room for them all, so that none is lost however slow
    /// the disk is.
    fn most_calls(&self) -> u64 {
        400_000
    }
}

/// The last sum of babeltrace2's counter.
fn counted(said: &str) -> Option<u64> {
    let line = said.lines().rfind(|line| line.contains(" Event message"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_sum_counts() {
        let said = "          10001 Event messages\n              2 Packet beginning messages\n\
                    \n          12000 Event messages\n              0 Discarded event messages\n";
        assert_eq!(counted(said), Some(12000));
        assert_eq!(counted("   3 Packet end messages\n"), None);
        assert_eq!(counted("   1 Event message\n"), Some(1));
    }
}
