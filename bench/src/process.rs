//! Control of the bench target: starting it and sending it commands.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::function::Function;
use crate::single::Singles;
use crate::target::Ready;

/// Error that ends the whole measurement. An error of a single row is in its [`crate::RowResult`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The bench target could not be started.
    #[error("cannot start the bench target: {0}")]
    Start(std::io::Error),
    /// The bench target ended or closed its pipes.
    #[error("the bench target is gone ({0}); was it killed by a probe?")]
    Gone(String),
    /// The bench target refused a command.
    #[error("the bench target says: {0}")]
    Refused(String),
    /// The bench target's answer cannot be parsed.
    #[error("the bench target answered {0:?}, which is no answer")]
    Answer(String),
    /// `/proc` could not be read.
    #[error("cannot read {0}")]
    Proc(String),
    /// A signal requested a stop; every probe has been removed.
    #[error("stopped by signal {0}")]
    Interrupted(i32),
    /// Something required is missing.
    #[error("skipped: {0}")]
    Skipped(String),
    /// Two rows have the same name, or there is no round.
    #[error("bad request: {0}")]
    Request(String),
}

/// One measured call of the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Duration of the loop, in nanoseconds of CLOCK_MONOTONIC.
    pub ns: u64,
    /// Calls that the target itself counted; `None` for functions that it does not count.
    pub hits: Option<u64>,
}

/// Description of the target for a probe that is to be armed in it.
#[derive(Debug, Clone)]
pub struct TargetInfo {
    /// Process id.
    pub pid: u32,
    functions: BTreeMap<String, u64>,
}

impl TargetInfo {
    /// Creates the description of another program, which has none of the copies.
    pub(crate) fn of_program(pid: u32) -> TargetInfo {
        TargetInfo {
            pid,
            functions: BTreeMap::new(),
        }
    }

    /// Returns the run-time address of a copy of the function in the target.
    pub fn address(&self, function: Function) -> u64 {
        self.functions[function.symbol()]
    }

    /// Returns the offset of a copy in the target's executable file, in bytes. Works for stripped
    /// files.
    ///
    /// # Errors
    ///
    /// The target's memory map cannot be read.
    pub fn file_offset(&self, function: Function) -> Result<u64, BenchError> {
        let path = format!("/proc/{}/maps", self.pid);
        let maps = std::fs::read_to_string(&path)
            .map_err(|error| BenchError::Proc(format!("{path}: {error}")))?;
        file_offset(&maps, self.address(function)).ok_or_else(|| {
            BenchError::Proc(format!("the mapping of {} in {path}", function.symbol()))
        })
    }
}

/// Returns the file offset of a mapped address; `maps` is the content of `/proc/PID/maps`.
fn file_offset(maps: &str, address: u64) -> Option<u64> {
    maps.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (hex(start)?, hex(end)?);
        let offset = hex(words.nth(1)?)?;
        (start..end)
            .contains(&address)
            .then(|| address - start + offset)
    })
}

/// A running bench target. Killed when dropped.
#[derive(Debug)]
pub struct Target {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    ready: Ready,
    info: TargetInfo,
}

impl Target {
    /// Starts the bench target. `command` runs a program that calls
    /// [`crate::target_main`]; `--cpu` and `--packet` are added to its arguments.
    ///
    /// # Errors
    /// It cannot be started or does not report that it is ready.
    pub fn spawn(
        mut command: Command,
        cpu: Option<usize>,
        packet: u64,
    ) -> Result<Target, BenchError> {
        if let Some(cpu) = cpu {
            command.arg("--cpu").arg(cpu.to_string());
        }
        command.arg("--packet").arg(packet.to_string());
        // A process group of its own, so that Ctrl-C at the terminal does not end it before the
        // probes are removed.
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(BenchError::Start)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked to be pipes");
        };
        let pid = child.id();
        let ready = Ready {
            pid,
            functions: BTreeMap::new(),
            floor_record_skipped: None,
        };
        let info = TargetInfo {
            pid,
            functions: BTreeMap::new(),
        };
        let output = BufReader::new(output);
        let mut target = Target {
            child,
            input,
            output,
            ready,
            info,
        };
        let line = target.answer()?;
        target.ready = line
            .strip_prefix("ready ")
            .and_then(|json| serde_json::from_str(json).ok())
            .ok_or(BenchError::Answer(line))?;
        target.info.functions.clone_from(&target.ready.functions);
        if let Some(missing) = Function::ALL
            .iter()
            .find(|f| !target.info.functions.contains_key(f.symbol()))
        {
            return Err(BenchError::Answer(format!(
                "no address of {}",
                missing.symbol()
            )));
        }
        Ok(target)
    }

    /// Returns the description of the target for probes.
    pub fn info(&self) -> &TargetInfo {
        &self.info
    }

    /// Returns the reason why `floor.record` cannot be measured in the target, if there is one.
    pub fn floor_record_skipped(&self) -> Option<&str> {
        self.ready.floor_record_skipped.as_deref()
    }

    /// Calls a copy of the function `calls` times in each of `threads` threads; the time is the
    /// mean over the threads.
    ///
    /// # Errors
    /// The target has ended, or refuses the command.
    pub fn run(
        &mut self,
        function: Function,
        calls: u64,
        threads: usize,
    ) -> Result<Run, BenchError> {
        self.timed(&format!("run {} {calls} {threads}", function.symbol()))
    }

    /// Makes the calls of [`Target::run`], each timed alone.
    ///
    /// # Errors
    /// The target has ended, or refuses the command.
    pub fn single(
        &mut self,
        function: Function,
        calls: u64,
        threads: usize,
    ) -> Result<Singles, BenchError> {
        self.timed_alone(&format!("single {} {calls} {threads}", function.symbol()))
    }

    /// Opens the file that [`Target::mark`] writes to.
    ///
    /// # Errors
    /// The target has ended, or cannot open the file.
    pub fn open_marker(&mut self, path: &Path) -> Result<(), BenchError> {
        self.ask(&format!("marker {}", path.display())).map(drop)
    }

    /// Closes the marker file, if one is open.
    ///
    /// # Errors
    /// The target has ended.
    pub fn close_marker(&mut self) -> Result<(), BenchError> {
        self.ask("marker").map(drop)
    }

    /// Calls [`Function::Marker`] and writes a message to the marker file, `calls` times.
    ///
    /// # Errors
    /// The target has ended, or cannot write.
    pub fn mark(&mut self, calls: u64) -> Result<Run, BenchError> {
        self.timed(&format!("mark {calls}"))
    }

    /// Makes the calls of [`Target::mark`], each timed alone.
    ///
    /// # Errors
    /// The target has ended, or cannot write.
    pub fn single_mark(&mut self, calls: u64) -> Result<Singles, BenchError> {
        self.timed_alone(&format!("singlemark {calls}"))
    }

    fn timed_alone(&mut self, command: &str) -> Result<Singles, BenchError> {
        let answer = self.ask(command)?;
        parse_singles(&answer).ok_or(BenchError::Answer(answer))
    }

    fn timed(&mut self, command: &str) -> Result<Run, BenchError> {
        let answer = self.ask(command)?;
        parse_run(&answer).ok_or(BenchError::Answer(answer))
    }

    fn ask(&mut self, command: &str) -> Result<String, BenchError> {
        let sent = writeln!(self.input, "{command}").and_then(|()| self.input.flush());
        if sent.is_err() {
            return Err(self.gone());
        }
        let line = self.answer()?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("ok", rest) => Ok(rest.to_owned()),
            ("error", rest) => Err(BenchError::Refused(rest.to_owned())),
            _ => Err(BenchError::Answer(line)),
        }
    }

    fn answer(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(read) if read > 0 => Ok(line.trim_end().to_owned()),
            _ => Err(self.gone()),
        }
    }

    /// Returns the error for a target that does not answer, with its exit status if it has ended.
    fn gone(&mut self) -> BenchError {
        // It has closed its pipes; if it is still running, it is of no use.
        let status = match self.child.try_wait() {
            Ok(None) => {
                std::thread::sleep(std::time::Duration::from_millis(100));
                self.child.try_wait()
            }
            status => status,
        };
        match status {
            Ok(Some(status)) => BenchError::Gone(status.to_string()),
            Ok(None) => BenchError::Gone("it closed its pipes".to_owned()),
            Err(error) => BenchError::Gone(error.to_string()),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn parse_run(answer: &str) -> Option<Run> {
    let (ns, hits) = answer.split_once(' ')?;
    Some(Run {
        ns: ns.parse().ok()?,
        hits: parse_hits(hits)?,
    })
}

fn parse_singles(answer: &str) -> Option<Singles> {
    let mut words = answer.split(' ');
    let mut next = || words.next();
    Some(Singles {
        p50: next()?.parse().ok()?,
        p99: next()?.parse().ok()?,
        hits: parse_hits(next()?)?,
    })
}

/// Parses a number, or `-` for none.
fn parse_hits(word: &str) -> Option<Option<u64>> {
    match word {
        "-" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_come_from_the_mapping_that_holds_the_address() {
        let maps = "555555554000-555555560000 r--p 00000000 fe:00 7 /a b\n\
                    555555560000-555555570000 r-xp 0000c000 fe:00 7 /a b\n\
                    7ffff7fc0000-7ffff7fc1000 rw-p 00000000 00:00 0\n";
        assert_eq!(file_offset(maps, 0x5555_5556_0010), Some(0xc010));
        assert_eq!(file_offset(maps, 0x5555_5555_4000), Some(0));
        assert_eq!(file_offset(maps, 0x5555_5557_0000), None);
    }

    #[test]
    fn answers_are_numbers() {
        let singles = Singles {
            p50: 1.5,
            p99: 20.0,
            hits: Some(7),
        };
        assert_eq!(parse_singles("1.5 20.000 7"), Some(singles));
        assert_eq!(parse_singles("1.5 20.000"), None);
        assert_eq!(parse_run("12 -"), Some(Run { ns: 12, hits: None }));
        assert_eq!(
            parse_run("12 13"),
            Some(Run {
                ns: 12,
                hits: Some(13)
            })
        );
        assert_eq!(parse_run("12"), None);
        assert_eq!(parse_run("12 x"), None);
    }

    #[test]
    fn a_program_that_is_no_target_is_an_error() {
        let error =
            Target::spawn(Command::new("/bin/false"), None, 64).expect_err("it ends at once");
        assert!(
            matches!(&error, BenchError::Gone(why) if why.contains('1')),
            "{error}"
        );
        let mut echo = Command::new("/bin/echo");
        echo.arg("hello");
        let error = Target::spawn(echo, None, 64).expect_err("it does not say ready");
        assert!(matches!(error, BenchError::Answer(_)), "{error}");
    }
}
