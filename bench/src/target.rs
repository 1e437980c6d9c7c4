//! The bench target: a child process that calls a copy of the empty function as
//! often as it is told and says how long that took.
//!
//! It reads commands from standard input, one a line, and answers each with a line:
//!
//! | command | answer |
//! | --- | --- |
//! | (at the start) | `ready {json}`: see [`Ready`] |
//! | `run SYMBOL CALLS` | `ok NANOSECONDS HITS`; HITS is `-` where the target counts none |
//! | `marker PATH` | `ok`: the file that `mark` writes to; without a path it is closed |
//! | `mark CALLS` | `ok NANOSECONDS HITS`: calls, each with a message written |
//!
//! or `error TEXT`. It ends with the input, and when its parent dies.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, Write};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::floor::{self, Floor};
use crate::function::{self, Function};

/// What the target says of itself when it is ready.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ready {
    /// Process id in its own pid namespace.
    pub pid: u32,
    /// Run-time address of each copy, by symbol.
    pub functions: BTreeMap<String, u64>,
    /// Why `floor.record` cannot be measured, if it cannot.
    pub floor_record_skipped: Option<String>,
}

/// What `mark` writes: as long as a record's text would be.
const MESSAGE: &[u8] = b"capriole_bench: arg1=0x0123456789abcdef arg2=0x0123456789abcdef\n";

/// The bench target's `main`: arguments are `[--cpu N] [--packet BYTES]`. Returns the
/// exit status: 0 at the end of the input, 1 if it cannot be what it should, 2 for an
/// argument it does not know.
pub fn target_main(arguments: &[String]) -> i32 {
    let mut packet_bytes = floor::DEFAULT_PACKET_BYTES;
    let mut cpu = None;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse::<u64>().ok());
        match (argument.as_str(), value) {
            ("--cpu", Some(number)) => cpu = Some(number as usize),
            ("--packet", Some(bytes)) => packet_bytes = bytes,
            _ => {
                eprintln!("bench target: {argument} is not an argument with a number");
                return 2;
            }
        }
    }
    // The answers' pipe may outlive the parent; this does not.
    let parent_death = rustix::process::Signal::KILL;
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(parent_death)) {
        eprintln!("bench target: cannot ask to die with the parent: {error}");
        return 1;
    }
    if let Some(cpu) = cpu {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
            eprintln!("bench target: cannot stay on CPU {cpu}: {error}");
            return 1;
        }
    }
    match serve(
        packet_bytes,
        std::io::stdin().lock(),
        std::io::stdout().lock(),
    ) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("bench target: {error}");
            1
        }
    }
}

fn serve(packet_bytes: u64, input: impl BufRead, mut output: impl Write) -> std::io::Result<()> {
    let floor = floor::install(packet_bytes);
    let address = |f: &Function| (f.symbol().to_owned(), f.address());
    let ready = Ready {
        pid: std::process::id(),
        functions: Function::ALL.iter().map(address).collect(),
        floor_record_skipped: floor.as_ref().err().map(ToString::to_string),
    };
    let mut server = Server {
        floor: floor.ok(),
        marker: None,
    };
    writeln!(output, "ready {}", serde_json::to_string(&ready)?)?;
    output.flush()?;
    for line in input.lines() {
        match server.command(&line?) {
            Ok(answer) => writeln!(output, "{}", format!("ok {answer}").trim_end())?,
            Err(error) => writeln!(output, "error {error}")?,
        }
        output.flush()?;
    }
    Ok(())
}

struct Server {
    floor: Option<&'static Floor>,
    marker: Option<File>,
}

impl Server {
    fn command(&mut self, line: &str) -> Result<String, String> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        match command {
            "run" => {
                let (symbol, calls) = rest.split_once(' ').unwrap_or((rest, ""));
                let function = Function::from_symbol(symbol)
                    .ok_or_else(|| format!("no function {symbol} in the bench target"))?;
                self.run(function, number(calls)?)
            }
            "marker" if rest.is_empty() => {
                self.marker = None;
                Ok(String::new())
            }
            "marker" => {
                let file = File::options().write(true).open(rest);
                self.marker = Some(file.map_err(|error| format!("cannot open {rest}: {error}"))?);
                Ok(String::new())
            }
            "mark" => self.mark(number(rest)?),
            _ => Err(format!("no command {command:?}")),
        }
    }

    fn run(&self, function: Function, calls: u64) -> Result<String, String> {
        let hits: &dyn Fn() -> Option<u64> = match (function, self.floor) {
            (Function::FloorCount, _) => &|| Some(floor::count()),
            (Function::FloorRecord, Some(floor)) => &|| Some(floor.committed()),
            (Function::FloorRecord, None) => return Err("its stub is not installed".to_owned()),
            _ => &|| None,
        };
        let before = hits();
        let start = now();
        function::call(function, calls);
        let ns = now() - start;
        match hits().zip(before) {
            Some((after, before)) => Ok(format!("{ns} {}", after - before)),
            None => Ok(format!("{ns} -")),
        }
    }

    fn mark(&mut self, calls: u64) -> Result<String, String> {
        let file = self.marker.as_ref().ok_or("no marker file is open")?;
        let start = now();
        for _ in 0..calls {
            function::call(Function::Marker, 1);
            match rustix::io::write(file, MESSAGE) {
                Ok(written) if written == MESSAGE.len() => {}
                Ok(written) => return Err(format!("only {written} bytes of a message written")),
                Err(error) => return Err(format!("cannot write a message: {error}")),
            }
        }
        Ok(format!("{} -", now() - start))
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a number of calls"))
}

/// CLOCK_MONOTONIC in nanoseconds.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers to the lines, without the `ready` line.
    fn talk(lines: &str) -> Vec<String> {
        let mut output = Vec::new();
        serve(floor::DEFAULT_PACKET_BYTES, lines.as_bytes(), &mut output)
            .expect("no pipe to break");
        let text = String::from_utf8(output).expect("answers are text");
        let mut lines = text.lines().map(str::to_owned);
        assert!(lines.next().expect("a first line").starts_with("ready {"));
        lines.collect()
    }

    #[test]
    fn what_it_does_not_understand_is_named() {
        assert_eq!(talk("dance\n"), ["error no command \"dance\""]);
        assert_eq!(
            talk("run capriole_bench_none 3\n"),
            ["error no function capriole_bench_none in the bench target"]
        );
        assert_eq!(
            talk("run capriole_bench_hit many\n"),
            ["error \"many\" is not a number of calls"]
        );
        assert_eq!(talk("mark 3\n"), ["error no marker file is open"]);
    }

    #[test]
    fn the_count_is_the_number_of_calls() {
        let answers = talk("run capriole_bench_floor_count 1234\nrun capriole_bench_hit 5\n");
        assert!(
            answers[0].starts_with("ok ") && answers[0].ends_with(" 1234"),
            "{answers:?}"
        );
        assert!(answers[1].ends_with(" -"), "{answers:?}");
    }

    #[test]
    fn messages_are_written_whole() {
        let path = std::env::temp_dir().join(format!("capriole-bench-mark-{}", std::process::id()));
        File::create(&path).expect("a temporary file");
        let answers = talk(&format!("marker {}\nmark 3\n", path.display()));
        let written = std::fs::read(&path).expect("the file is there");
        std::fs::remove_file(&path).expect("the file is there");
        assert_eq!(answers[0], "ok");
        assert_eq!(written, MESSAGE.repeat(3));
    }
}
