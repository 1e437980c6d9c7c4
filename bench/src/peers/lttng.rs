//! `lttng_ust`: a static tracepoint of LTTng-UST with an integer and a pointer, recorded by a
//! session daemon of its own. babeltrace2 counts the events in the trace.

use std::path::Path;

use super::build::{build, compile_one, installed, link_program};
use super::{Peer, Program, Session, Tool, put};
use crate::marker::{LOOP_OPTIONS, LOOPS};

pub(super) struct Lttng;

/// Script that starts the daemon, runs the program and counts the events.
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
        recorded(session)
    }

    fn most_calls(&self) -> u64 {
        MOST_CALLS
    }
}

/// Most calls in a round. The sub-buffers of a CPU have room for all of them, so that none is lost
/// however slow the disk is.
const MOST_CALLS: u64 = 400_000;

/// Ends a session; returns the number of events in its trace.
fn recorded(session: Session) -> Result<u64, String> {
    let said = session.program.end()?;
    counted(&said).ok_or_else(|| "babeltrace2 counted nothing in its trace".to_owned())
}

/// The tracepoint with only a loop around it, recorded or not.
struct InALoop {
    on: bool,
}

/// Returns the peer whose calls are iterations of a loop around the tracepoint.
pub(crate) fn in_a_loop(on: bool) -> Peer {
    Peer::new(InALoop { on })
}

impl Tool for InALoop {
    fn build(&self, files: &Path) -> Result<(), String> {
        let all = ["unshare", "lttng-sessiond", "lttng", "babeltrace2"];
        let needed = if self.on { &all[..] } else { &all[..1] };
        needed.iter().try_for_each(|tool| installed(tool))?;
        put(files, "lttng-tracepoint.h", TRACEPOINT)?;
        let include = format!("-I{}", files.display());
        let compile = ["-O2", include.as_str()];
        let probes = compile_one(files, "cc", ("lttng.c", FUNCTION), &compile)?;
        let lttng = "-DCAPRIOLE_BENCH_LTTNG";
        let compile = [&LOOP_OPTIONS[..], &[include.as_str(), lttng]].concat();
        let loops = compile_one(files, "cc", ("loops.c", LOOPS), &compile)?;
        link_program(files, "cc", &[loops, probes], &["-llttng-ust", "-ldl"]).map(drop)
    }

    fn start(&self, files: &Path) -> Result<Session, String> {
        // No session daemon runs, and the program does not wait for one: the tracepoint stays off.
        let off = "HOME=\"$1\" LTTNG_UST_REGISTER_TIMEOUT=0 exec \"$1/program\"";
        let script = if self.on { SCRIPT } else { off };
        Session::of(Program::secluded(script, files, &[])?)
    }

    fn end(&self, session: Session, _: &Path) -> Result<u64, String> {
        match self.on {
            true => recorded(session),
            false => session.program.end().map(|_| 0),
        }
    }

    fn sees(&self) -> bool {
        self.on
    }

    fn most_calls(&self) -> u64 {
        if self.on { MOST_CALLS } else { u64::MAX }
    }
}

/// Parses the last sum that babeltrace2's counter printed.
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
