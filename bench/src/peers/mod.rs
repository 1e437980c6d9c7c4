//! Other tools that see a call, each with a program of its own that makes the calls: the
//! same empty function, built from the sources in `bench/peers` as the tool wants it.
//!
//! | row | the function is |
//! | --- | --- |
//! | `bpftrace.count` | as it is; bpftrace puts a uprobe on it and counts |
//! | `lttng_ust` | with a tracepoint of an integer and a pointer |
//! | `uftrace` | compiled with `-pg`; entry and exit are recorded |
//! | `xray_fdr` | compiled with XRay's sleds; entry and exit are recorded |
//! | `gdb.fast_tracepoint` | with an instruction of five bytes; two registers are collected |
//! | `frida` | as it is; Frida calls a compiled handler that counts |
//!
//! A peer is started in each round and ended in it. Then it has to say, by what it wrote
//! itself, how many calls it saw: a round in which it saw others than were made is none, and
//! the row is skipped. Everything that was started is ended with the round, also when the
//! bench is interrupted or killed, and the files are in a directory that goes with the row.

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

/// How a tool is brought to see the calls of a program.
trait Tool {
    /// Makes the program, or says why it cannot be.
    fn build(&self, files: &Path) -> Result<(), String>;

    /// Starts the program, and returns when its calls are seen.
    fn start(&self, files: &Path) -> Result<Session, String>;

    /// Ends both; says how many calls the tool has seen.
    fn end(&self, session: Session, files: &Path) -> Result<u64, String>;

    /// Whether it is to see calls at all.
    fn sees(&self) -> bool {
        true
    }

    /// How many calls it can take in a round.
    fn most_calls(&self) -> u64 {
        u64::MAX
    }
}

/// What runs in a round. Killed when dropped, the tool first.
struct Session {
    /// The tool, where it is a process of its own.
    tool: Option<Program>,
    /// What makes the calls.
    program: Program,
}

impl Session {
    /// Of a program that has its tool in itself, or is started by it: whose calls are seen
    /// once it has told the function's address.
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
    /// The directory with what was built, or why nothing could be.
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

    /// Starts the program under the tool; the first time it is built.
    ///
    /// # Errors
    ///
    /// One line: what is not there, or what does not work.
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

    /// Makes calls in the loop.
    pub(crate) fn run(&mut self, calls: u64) -> Result<Run, String> {
        let [ns] = self.program()?.ask(&format!("run {calls}"))?;
        self.made += calls;
        Ok(Run {
            ns: ns as u64,
            hits: None,
        })
    }

    /// Makes calls each of which is timed alone.
    pub(crate) fn single(&mut self, calls: u64) -> Result<Singles, String> {
        let [p50, p99] = self.program()?.ask(&format!("single {calls}"))?;
        self.made += calls;
        Ok(Singles {
            p50,
            p99,
            hits: None,
        })
    }

    /// Whether the tool sees the calls.
    pub(crate) fn sees(&self) -> bool {
        self.tool.sees()
    }

    /// How many calls of the loop the tool can take in a round.
    pub(crate) fn most_calls(&self) -> u64 {
        self.tool.most_calls()
    }

    /// Ends what runs, if something does.
    ///
    /// # Errors
    ///
    /// The tool has not seen all calls, or too many, or does not say.
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

/// The peers' rows.
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
