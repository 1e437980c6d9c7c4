//! A running program that is measured: it executes commands from its standard input and answers
//! each with a line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::process::BenchError;

/// A running program. Killed when dropped.
#[derive(Debug)]
pub struct Talk {
    child: Child,
    /// `None` once it is to end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talk {
    /// Starts the program in a process group of its own, so that Ctrl-C at the terminal does not
    /// end it while its probes are in.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn start(command: &mut Command) -> Result<Talk, BenchError> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(BenchError::Start)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked to be pipes");
        };
        let output = BufReader::new(output);
        Ok(Talk {
            child,
            input: Some(input),
            output,
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command (one or more lines); returns the text after `ok` in the answer.
    ///
    /// # Errors
    /// It has ended, answers `error`, or its answer cannot be parsed.
    pub fn ask(&mut self, what: &str) -> Result<String, BenchError> {
        let sent = match &mut self.input {
            Some(input) => writeln!(input, "{what}").and_then(|()| input.flush()),
            None => Ok(()),
        };
        if sent.is_err() {
            return Err(self.gone());
        }
        self.answer()
    }

    /// Closes its input, and waits until it exits by itself.
    ///
    /// # Errors
    ///
    /// It fails.
    pub fn end(mut self) -> Result<(), BenchError> {
        self.input = None;
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(BenchError::Gone(status.to_string())),
            Err(error) => Err(BenchError::Gone(error.to_string())),
        }
    }

    /// Reads the next line, which begins with `ok`; returns the text after that.
    ///
    /// # Errors
    /// See [`ask`](Self::ask).
    pub fn answer(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        if !matches!(self.output.read_line(&mut line), Ok(read) if read > 0) {
            return Err(self.gone());
        }
        let line = line.trim_end();
        match line.split_once(' ').unwrap_or((line, "")) {
            ("ok", rest) => Ok(rest.to_owned()),
            ("error", rest) => Err(BenchError::Refused(rest.to_owned())),
            _ => Err(BenchError::Answer(line.to_owned())),
        }
    }

    /// Returns the error for a program that does not answer, with its exit status if it has ended.
    fn gone(&mut self) -> BenchError {
        // It has closed its pipes, and is about to end or of no use.
        std::thread::sleep(Duration::from_millis(100));
        match self.child.try_wait() {
            Ok(Some(status)) => BenchError::Gone(status.to_string()),
            Ok(None) => BenchError::Gone("it closed its pipes".to_owned()),
            Err(error) => BenchError::Gone(error.to_string()),
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Parses the numbers of an answer.
///
/// # Errors
/// The answer is not `N` numbers.
pub(crate) fn numbers<const N: usize>(answer: &str) -> Result<[u64; N], BenchError> {
    let words: Result<Vec<u64>, _> = answer.split_whitespace().map(str::parse).collect();
    let numbers = words.ok().and_then(|words| words.try_into().ok());
    numbers.ok_or_else(|| BenchError::Answer(answer.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_refusals_and_ends_are_told_apart() {
        let script = "echo ok ready; read x; echo ok $x 2; read x; echo error no; read x; exit 3";
        let mut talk = Talk::start(Command::new("sh").args(["-c", script])).expect("a shell");
        assert_eq!(talk.answer().expect("it is there"), "ready");
        let answer = talk.ask("7").expect("an answer");
        assert_eq!(numbers(&answer).expect("numbers"), [7, 2]);
        assert!(numbers::<1>(&answer).is_err());
        assert!(matches!(talk.ask("8"), Err(BenchError::Refused(why)) if why == "no"));
        let gone = talk.ask("9").expect_err("it ends");
        assert!(
            matches!(&gone, BenchError::Gone(why) if why.contains('3')),
            "{gone}"
        );
    }
}
