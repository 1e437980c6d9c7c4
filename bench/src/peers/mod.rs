//! Other tools that trace a call, each with a program of its own that makes the calls: the same
//! empty function, built from the sources in `bench/peers` as the tool needs it.
//!
//! | row | the function is |
//! | --- | --- |
//! | `bpftrace.count` | unmodified; bpftrace places a uprobe on it and counts |
//! | `lttng_ust` | with a tracepoint of an integer and a pointer |
//! | `uftrace` | compiled with `-pg`; entry and exit are recorded |
//! | `xray_fdr` | compiled with XRay's sleds; entry and exit are recorded |
//! | `gdb.fast_tracepoint` | with a five-byte instruction; two registers are collected |
//! | `frida` | unmodified; Frida calls a compiled handler that counts |
//! A peer is started and ended in each round. Its own output must then give the number of calls
//! that it saw: if this differs from the number of calls made, the round is discarded and the row
//! is skipped. Everything that was started ends with the round, also when the bench is interrupted
//! or killed, and the files are in a directory that is removed with the row.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::Run;
use crate::runner::Row;
use crate::scratch::Scratch;
use crate::single::Singles;

mod bpftrace;
pub(crate) mod build;
mod frida;
mod gdb;
mod lttng;
pub(crate) mod program;
mod uftrace;
mod xray;

pub(crate) use lttng::in_a_loop as lttng_in_a_loop;
use program::Program;

/// A tool that traces the calls of a program.
trait Tool {
    /// Builds the program; the error says why it cannot be built.
    fn build(&self, files: &Path) -> Result<(), String>;

    /// Starts the program, and returns once its calls are traced.
    fn start(&self, files: &Path) -> Result<Session, String>;

    /// Ends both; returns the number of calls that the tool has seen.
    fn end(&self, session: Session, files: &Path) -> Result<u64, String>;

    /// True if the tool is expected to see calls.
    fn sees(&self) -> bool {
        true
    }

    /// Most calls that the tool can take in a round.
    fn most_calls(&self) -> u64 {
        u64::MAX
    }
}

/// The processes of a round. Killed on drop, the tool first.
struct Session {
    /// The tool, if it is a process of its own.
    tool: Option<Program>,
    /// The program that makes the calls.
    program: Program,
}

impl Session {
    /// Creates the session of a program that contains its tool, or is started by it. Its calls are
    /// traced once it has printed the function's address.
    fn of(mut program: Program) -> Result<Session, String> {
        program.address()?;
        Ok(Session {
            tool: None,
            program,
        })
    }
}

/// A tool and its program.
pub struct Peer {
    tool: Box<dyn Tool>,
    /// Directory of the built files, or the reason why the build failed.
    built: Option<Result<Scratch, String>>,
    session: Option<Session>,
    /// Calls made since it was started.
    made: u64,
}

impl Peer {
    fn new(tool: impl Tool + 'static) -> Peer {
        Peer {
            tool: Box::new(tool),
            built: None,
            session: None,
            made: 0,
        }
    }

    fn files(&mut self) -> Result<PathBuf, String> {
        let tool = &self.tool;
        let built = self.built.get_or_insert_with(|| {
            let scratch = Scratch::new().map_err(|error| format!("no place for files: {error}"))?;
            tool.build(scratch.path())?;
            Ok(scratch)
        });
        match built {
            Ok(scratch) => Ok(scratch.path().to_owned()),
            Err(why) => Err(why.clone()),
        }
    }

    /// Starts the program under the tool; builds it on first use.
    ///
    /// # Errors
    /// One line: the part that is missing or does not work.
    pub(crate) fn start(&mut self) -> Result<(), String> {
        let files = self.files()?;
        self.made = 0;
        self.session = Some(self.tool.start(&files)?);
        Ok(())
    }

    fn program(&mut self) -> Result<&mut Program, String> {
        let session = self.session.as_mut().ok_or("it is not running")?;
        Ok(&mut session.program)
    }

    /// Makes `calls` calls in the loop.
    pub(crate) fn run(&mut self, calls: u64) -> Result<Run, String> {
        let [ns] = self.program()?.ask(&format!("run {calls}"))?;
        self.made += calls;
        Ok(Run {
            ns: ns as u64,
            hits: None,
        })
    }

    /// Makes `calls` calls, each timed alone.
    pub(crate) fn single(&mut self, calls: u64) -> Result<Singles, String> {
        let [p50, p99] = self.program()?.ask(&format!("single {calls}"))?;
        self.made += calls;
        Ok(Singles {
            p50,
            p99,
            hits: None,
        })
    }

    /// True if the tool sees the calls.
    pub(crate) fn sees(&self) -> bool {
        self.tool.sees()
    }

    /// Most calls of the loop that the tool can take in a round.
    pub(crate) fn most_calls(&self) -> u64 {
        self.tool.most_calls()
    }

    /// Ends the session, if there is one.
    ///
    /// # Errors
    /// The tool has seen too few or too many calls, or reports no number.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        let files = self.files()?;
        let seen = self.tool.end(session, &files)?;
        let expected = if self.tool.sees() { self.made } else { 0 };
        match expected {
            made if made == seen => Ok(()),
            made => Err(format!("it saw {seen} calls, and {made} were made")),
        }
    }
}

/// Returns the peers' rows.
pub fn peer_rows() -> Vec<Row> {
    vec![
        Row::peer("bpftrace.count", Peer::new(bpftrace::Bpftrace)),
        Row::peer("lttng_ust", Peer::new(lttng::Lttng)),
        Row::peer("uftrace", Peer::new(uftrace::Uftrace)),
        Row::peer("xray_fdr", Peer::new(xray::Xray)),
        Row::peer("gdb.fast_tracepoint", Peer::new(gdb::Gdb)),
        Row::peer("frida", Peer::new(frida::Frida)),
    ]
}

/// Writes a source or a script into the directory.
pub(crate) fn put(files: &Path, name: &str, text: &str) -> Result<PathBuf, String> {
    let path = files.join(name);
    fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Claims to have seen one call more than were made.
    struct Liar;

    impl Tool for Liar {
        fn build(&self, files: &Path) -> Result<(), String> {
            build::plain(files).map(drop)
        }

        fn start(&self, files: &Path) -> Result<Session, String> {
            Session::of(Program::start(&mut build::program(files), files)?)
        }

        fn end(&self, session: Session, _: &Path) -> Result<u64, String> {
            session.program.end().map(|_| 124)
        }
    }

    #[test]
    fn what_a_tool_says_is_compared_with_what_was_done() {
        let mut peer = Peer::new(Liar);
        if let Err(why) = peer.start() {
            println!("skipped: {why}");
            return;
        }
        peer.run(100).expect("calls");
        let singles = peer.single(23).expect("calls");
        assert!(
            0.0 <= singles.p50 && singles.p50 <= singles.p99,
            "{singles:?}"
        );
        let files = peer.files().expect("a directory");
        let why = peer.end().expect_err("it lies");
        assert_eq!(why, "it saw 124 calls, and 123 were made");
        assert_eq!(peer.end(), Ok(()));
        assert!(files.exists());
        drop(peer);
        assert!(!files.exists());
    }
}
