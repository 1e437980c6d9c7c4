//! The bench target: a child process that calls a copy of the empty function as often as requested
//! and reports how long that took.
//!
//! It reads commands from standard input, one a line, and answers each with a line:
//!
//! | command | answer |
//! | --- | --- |
//! | (at the start) | `ready {json}`: see [`Ready`] |
//! | `run SYMBOL CALLS THREADS` | `ok NANOSECONDS HITS`; HITS is `-` where the target counts none |
//! | `single SYMBOL CALLS THREADS` | `ok P50 P99 HITS`: each call timed alone, see [`crate::single`] |
//! | `marker PATH` | `ok`: the file that `mark` writes to; without a path it is closed |
//! | `mark CALLS` | `ok NANOSECONDS HITS`: calls, each with a message written |
//! | `singlemark CALLS` | `ok P50 P99 HITS`: calls as for `mark`, each timed alone |
//! With more than one thread, each makes CALLS calls, on a CPU of its own; NANOSECONDS is the mean
//! over the threads. The threads are new for each command and start together.
//! The answer to a command that fails is `error TEXT`. The target ends at the end of its input, and
//! when its parent dies.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, Write};
use std::sync::Barrier;

use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

use crate::floor;
use crate::floor::Floor;
use crate::function;
use crate::function::Function;
use crate::single::{Samples, now};

/// Description of the target, printed when it is ready.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ready {
    /// Process id in its own pid namespace.
    pub pid: u32,
    /// Run-time address of each copy, by symbol.
    pub functions: BTreeMap<String, u64>,
    /// Reason why `floor.record` cannot be measured, if there is one.
    pub floor_record_skipped: Option<String>,
}

/// Message that `mark` writes, as long as a record's text would be.
const MESSAGE: &[u8] = b"capriole_bench: arg1=0x0123456789abcdef arg2=0x0123456789abcdef\n";

/// Runs the bench target; `arguments` are `[--cpu N] [--packet BYTES]`. Returns the exit status: 0
/// at the end of the input, 1 for a failure, 2 for an unknown argument.
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
    // The pipe of the answers may outlive the parent; this process must not.
    let parent_death = rustix::process::Signal::KILL;
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(parent_death)) {
        eprintln!("bench target: cannot ask to die with the parent: {error}");
        return 1;
    }
    let cpus = allowed_cpus();
    if let Some(Err(error)) = cpu.map(stay_on) {
        eprintln!("bench target: {error}");
        return 1;
    }
    match serve(
        packet_bytes,
        cpus,
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

/// Returns the CPUs that this thread may run on.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    set.map_or_else(
        |_| Vec::new(),
        |set| {
            (0..CpuSet::MAX_CPU)
                .filter(|&cpu| set.is_set(cpu))
                .collect()
        },
    )
}

/// Pins this thread to a CPU.
fn stay_on(cpu: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|error| format!("cannot stay on CPU {cpu}: {error}"))
}

fn serve(
    packet_bytes: u64,
    cpus: Vec<usize>,
    input: impl BufRead,
    mut output: impl Write,
) -> std::io::Result<()> {
    let floor = floor::install(packet_bytes);
    let address = |f: &Function| (f.symbol().to_owned(), f.address());
    let ready = Ready {
        pid: std::process::id(),
        functions: Function::ALL.iter().map(address).collect(),
        floor_record_skipped: floor.as_ref().err().map(ToString::to_string),
    };
    let mut server = Server {
        cpus,
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
    /// The CPUs for threads.
    cpus: Vec<usize>,
    floor: Option<&'static Floor>,
    marker: Option<File>,
}

impl Server {
    fn command(&mut self, line: &str) -> Result<String, String> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        match command {
            "run" => {
                let (function, calls, threads) = subject(rest)?;
                self.run(function, calls, threads)
            }
            "single" => {
                let (function, calls, threads) = subject(rest)?;
                self.single(function, calls, threads)
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
            "singlemark" => self.single_mark(number(rest)?),
            _ => Err(format!("no command {command:?}")),
        }
    }

    /// Runs `work`; returns its result and the number of calls counted by the target itself,
    /// formatted for the answer.
    fn counted<T>(
        &self,
        function: Function,
        threads: usize,
        work: impl FnOnce() -> Result<T, String>,
    ) -> Result<(T, String), String> {
        let hits: &dyn Fn() -> Option<u64> = match (function, self.floor) {
            (Function::FloorCount, _) if threads > 1 => {
                return Err("its counter is for one thread".to_owned());
            }
            (Function::FloorCount, _) => &|| Some(floor::count()),
            (Function::FloorRecord, Some(floor)) => &|| Some(floor.committed()),
            (Function::FloorRecord, None) => return Err("its stub is not installed".to_owned()),
            _ => &|| None,
        };
        let before = hits();
        let result = work()?;
        let hits = hits().zip(before).map(|(after, before)| after - before);
        let hits = hits.map_or("-".to_owned(), |hits| hits.to_string());
        Ok((result, hits))
    }

    /// Runs `work` at the same time in several threads, each on a CPU of its own; with one, this
    /// thread runs it.
    fn on_threads<T: Send>(
        &self,
        threads: usize,
        work: impl Fn() -> T + Sync,
    ) -> Result<Vec<T>, String> {
        if threads <= 1 {
            return Ok(vec![work()]);
        }
        let cpus = self.cpus.get(..threads).ok_or_else(|| {
            let cpus = self.cpus.len();
            format!("{threads} threads want as many CPUs, and there are {cpus}")
        })?;
        let barrier = Barrier::new(threads);
        let one = |cpu| {
            let stays = stay_on(cpu);
            barrier.wait();
            stays.map(|()| work())
        };
        std::thread::scope(|scope| {
            let one = &one;
            let threads: Vec<_> = cpus
                .iter()
                .map(|&cpu| scope.spawn(move || one(cpu)))
                .collect();
            let joined = threads.into_iter().map(|thread| {
                let result = thread.join();
                result.map_err(|_| "a thread has panicked".to_owned())?
            });
            joined.collect()
        })
    }

    fn run(&self, function: Function, calls: u64, threads: usize) -> Result<String, String> {
        let work = || {
            let start = now();
            function::call(function, calls);
            now() - start
        };
        let (times, hits) = self.counted(function, threads, || self.on_threads(threads, work))?;
        let mean = times.iter().sum::<u64>() / times.len() as u64;
        Ok(format!("{mean} {hits}"))
    }

    fn single(&self, function: Function, calls: u64, threads: usize) -> Result<String, String> {
        let call = function.pointer();
        let work = || {
            Samples::take(calls, |number| {
                call(number, calls - number);
                Ok(())
            })
        };
        let (samples, hits) = self.counted(function, threads, || self.on_threads(threads, work))?;
        let mut all = Samples::default();
        for samples in samples {
            all.add(samples?);
        }
        quantiles(all).map(|quantiles| format!("{quantiles} {hits}"))
    }

    fn mark(&self, calls: u64) -> Result<String, String> {
        let file = self.marker()?;
        let start = now();
        for _ in 0..calls {
            mark(file)?;
        }
        Ok(format!("{} -", now() - start))
    }

    fn single_mark(&self, calls: u64) -> Result<String, String> {
        let file = self.marker()?;
        let samples = Samples::take(calls, |_| mark(file))?;
        quantiles(samples).map(|quantiles| format!("{quantiles} -"))
    }

    fn marker(&self) -> Result<&File, String> {
        Ok(self.marker.as_ref().ok_or("no marker file is open")?)
    }
}

/// Makes a call and writes a message.
fn mark(file: &File) -> Result<(), String> {
    function::call(Function::Marker, 1);
    match rustix::io::write(file, MESSAGE) {
        Ok(written) if written == MESSAGE.len() => Ok(()),
        Ok(written) => Err(format!("only {written} bytes of a message written")),
        Err(error) => Err(format!("cannot write a message: {error}")),
    }
}

fn quantiles(samples: Samples) -> Result<String, String> {
    let (p50, p99) = samples.quantiles().ok_or("no call to be timed")?;
    Ok(format!("{p50:.3} {p99:.3}"))
}

/// Parses `SYMBOL CALLS THREADS`.
fn subject(text: &str) -> Result<(Function, u64, usize), String> {
    let mut words = text.split(' ');
    let symbol = words.next().unwrap_or_default();
    let function = Function::from_symbol(symbol)
        .ok_or_else(|| format!("no function {symbol} in the bench target"))?;
    let calls = number(words.next().unwrap_or_default())?;
    let threads = number(words.next().unwrap_or("1"))?;
    Ok((function, calls, threads as usize))
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers to the lines, without the `ready` line.
    fn talk(lines: &str) -> Vec<String> {
        let mut output = Vec::new();
        let cpus = allowed_cpus();
        serve(
            floor::DEFAULT_PACKET_BYTES,
            cpus,
            lines.as_bytes(),
            &mut output,
        )
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
            ["error \"many\" is no number"]
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
    fn single_calls_are_counted_and_have_quantiles() {
        let answers =
            talk("single capriole_bench_floor_count 300 1\nsingle capriole_bench_hit 0 1\n");
        let words: Vec<&str> = answers[0].split(' ').collect();
        let [p50, p99] = [1, 2].map(|at: usize| words[at].parse::<f64>().expect("a number"));
        assert!(0.0 <= p50 && p50 <= p99, "{answers:?}");
        assert_eq!((words[0], words[3]), ("ok", "300"), "{answers:?}");
        assert_eq!(answers[1], "error no call to be timed");
    }

    #[test]
    fn each_thread_makes_all_calls_on_a_cpu_of_its_own() {
        let cpus = allowed_cpus().len();
        let too_many = cpus + 1;
        let answers = talk(&format!(
            "run capriole_bench_floor_record 500 {cpus}\nsingle capriole_bench_floor_record 500 {cpus}\n\
             run capriole_bench_hit 5 {too_many}\nrun capriole_bench_floor_count 5 2\n"
        ));
        assert_eq!(
            answers[2],
            format!("error {too_many} threads want as many CPUs, and there are {cpus}")
        );
        assert_eq!(answers[3], "error its counter is for one thread");
        if let Err(why) = floor::install(floor::DEFAULT_PACKET_BYTES) {
            println!("skipped: {why}");
            return;
        }
        let hits = format!(" {}", 500 * cpus);
        assert!(answers[0].ends_with(&hits), "{answers:?}");
        assert!(answers[1].ends_with(&hits), "{answers:?}");
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
