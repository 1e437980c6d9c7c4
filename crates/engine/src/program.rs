//! The program to be probed: a process that runs, or one that is started.

use crate::error::{Code, Result};
use capriole_host::ptrace::launch::{Launched, launch};
use capriole_host::ptrace::threads::Hold;
use capriole_host::signals;
use capriole_proc::process::Process;
use capriole_proc::translator;
use std::ffi::OsString;
use std::process::Child;
use std::time::{Duration, Instant};

/// Limits for restarting a program until its events can be probed: number of starts, and time.
const MOST_STARTS: u32 = 10;
const STARTING: Duration = Duration::from_secs(2);
/// Advice for [`Code::Misplaced`].
const ANEW: &str = "that depends on where the program was loaded, and may be possible when it was \
                    started anew";

/// The program to be probed.
pub enum Program {
    /// A process that was already running.
    Running(Process),
    /// A program that we started; it is paused before its first function.
    Started(Launched),
    /// A program that we started, and that runs now.
    Released(Process, Child),
}

impl Program {
    /// Opens process `pid`, or starts the program in `words` with its arguments.
    ///
    /// # Errors
    /// There is no such process, it may not be probed, or the program cannot be started.
    pub fn find(pid: Option<u32>, words: &[OsString]) -> Result<Program> {
        Ok(match pid {
            Some(pid) => {
                let process = Process::open(pid)?;
                process.preflight()?;
                translator::refuse(&process)?;
                Program::Running(process)
            }
            None => {
                let program = Program::Started(launch(&words[0], &words[1..])?);
                if let Err(error) = translator::refuse(program.process()) {
                    program.abandon();
                    return Err(error.into());
                }
                program
            }
        })
    }

    /// Finds or starts the program and runs `prepare` on it. If an event cannot be probed because
    /// of where the program happens to be loaded, which differs with each start, starts it again:
    /// only its loader has run so far.
    ///
    /// # Errors
    /// The errors of [`Program::find`] and of `prepare`; after the latter the program is abandoned.
    pub fn prepared<T>(
        pid: Option<u32>,
        words: &[OsString],
        mut prepare: impl FnMut(&Program) -> Result<T>,
    ) -> Result<(Program, T)> {
        signals::catch();
        let begin = Instant::now();
        for start in 1.. {
            let program = Program::find(pid, words)?;
            let error = match prepare(&program) {
                Ok(prepared) => return Ok((program, prepared)),
                Err(error) => error,
            };
            program.abandon();
            let again = pid.is_none() && start < MOST_STARTS && begin.elapsed() < STARTING;
            if error.code() != Code::Misplaced || !again {
                return Err(match (error.code(), pid) {
                    (Code::Misplaced, Some(_)) => error.then(format!("; {ANEW}")),
                    (Code::Misplaced, None) => {
                        error.then(format!("; {start} starts in a row were no better"))
                    }
                    _ => error,
                });
            }
        }
        unreachable!("the number of starts is limited")
    }

    /// Returns the process.
    pub fn process(&self) -> &Process {
        match self {
            Program::Running(process) => process,
            Program::Started(launched) => &launched.process,
            Program::Released(process, _) => process,
        }
    }

    /// Returns the process, the child to wait for if we started it, and what keeps it stopped. Only
    /// the thread that started it can let it go.
    pub(crate) fn parts(self) -> (Process, Option<Child>, Option<Hold>) {
        match self {
            Program::Running(process) => (process, None, None),
            Program::Started(Launched {
                process,
                child,
                hold,
            }) => (process, Some(child), Some(hold)),
            Program::Released(process, child) => (process, Some(child), None),
        }
    }

    /// Ends a program that we started, so that it is not left running unwatched.
    pub fn abandon(self) {
        match self {
            Program::Running(_) => {}
            Program::Started(mut launched) => {
                let _ = launched.child.kill();
                drop(launched.hold);
                let _ = launched.child.wait();
            }
            Program::Released(_, mut child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    /// Lets a program that we started run.
    #[must_use]
    pub fn released(self) -> Program {
        match self {
            Program::Started(launched) => {
                drop(launched.hold); // now it runs
                Program::Released(launched.process, launched.child)
            }
            program => program,
        }
    }

    /// Lets a program that we started run, and returns it to be waited for.
    pub fn release(self) -> Option<Child> {
        match self.released() {
            Program::Running(_) | Program::Started(_) => None,
            Program::Released(_, child) => Some(child),
        }
    }
}
