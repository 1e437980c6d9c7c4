//! A program that answers every line of its input in the same way.
//!
//! It prints "ready", then for each line its answer and the line "done". When its input
//! ends it prints a line that begins with "ok" and ends with status 0.

use crate::target::standing;
use crate::waiting::PATIENCE;
use capriole_proc::process::Process;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// A running program. Killed when dropped.
pub struct Conversation {
    child: Child,
    pub pid: u32,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// Error message about the program.
pub type Wrong = String;

impl Conversation {
    /// Starts the program. `Ok(Err(why))`: the program reports that something is missing.
    pub fn start(command: &mut Command) -> Result<Result<Conversation, String>, Wrong> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{command:?}: {e}"))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in output.split(b'\n') {
                let Ok(line) = line else { break };
                if send
                    .send(String::from_utf8_lossy(&line).into_owned())
                    .is_err()
                {
                    break;
                }
            }
        });
        let mut conversation = Conversation {
            pid: child.id(),
            child,
            input,
            lines,
        };
        let first = conversation.line()?;
        if let Some(why) = first.strip_prefix("skipped: ") {
            return Ok(Err(why.to_owned()));
        }
        assert!(first.starts_with("ready"), "it said {first:?}");
        Ok(Ok(conversation))
    }

    pub fn process(&self) -> Process {
        Process::open(self.pid).expect("it runs")
    }

    fn line(&mut self) -> Result<String, Wrong> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("the program hangs\n{}", standing(self.pid)))
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.end()),
        }
    }

    /// Describes how the program ended, although it should still run.
    fn end(&mut self) -> Wrong {
        match self.child.wait() {
            Ok(status) => format!(
                "the program ended with {status}{}",
                if status.core_dumped() {
                    " (core dumped)"
                } else {
                    ""
                }
            ),
            Err(error) => format!("the program is gone: {error}"),
        }
    }

    /// Describes how the program ended, if it has.
    pub fn process_ended(&mut self) -> Option<Wrong> {
        // It may be about to end.
        for _ in 0..20 {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(format!("the program ended with {status}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    /// Sends a question without waiting for the answer.
    pub fn ask(&mut self, question: &str) -> Result<(), Wrong> {
        let input = self.input.as_mut().expect("its input is open");
        let asked = input
            .write_all(question.as_bytes())
            .and_then(|()| input.flush());
        asked.map_err(|_| self.end())
    }

    /// Reads the answer to the last question.
    pub fn answer(&mut self) -> Result<Vec<String>, Wrong> {
        let mut answer = Vec::new();
        loop {
            let line = self.line()?;
            if line == "done" {
                return Ok(answer);
            }
            answer.push(line);
        }
    }

    /// Closes the program's input. The program must then end with "ok" and this exit status.
    pub fn finish(mut self, farewell: &str, expected: i32) -> Result<(), Wrong> {
        self.ask(farewell)?;
        self.input = None;
        let mut last = String::new();
        while let Ok(line) = self.line() {
            last = line;
        }
        let status = self.child.wait().map_err(|e| e.to_string())?;
        match status.code() == Some(expected) && last.starts_with("ok") {
            true => Ok(()),
            false => Err(format!("the program ended with {status}, saying {last:?}")),
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Describes the first difference between two answers.
pub fn difference(expected: &[String], answer: &[String]) -> Option<String> {
    let at = expected.iter().zip(answer).position(|(a, b)| a != b);
    match at {
        Some(at) => Some(format!("{:?} instead of {:?}", answer[at], expected[at])),
        None if expected.len() != answer.len() => Some(format!(
            "{} lines instead of {}",
            answer.len(),
            expected.len()
        )),
        None => None,
    }
}
