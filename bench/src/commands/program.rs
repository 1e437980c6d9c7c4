//! `capriole bench program`: the slowdown of real programs while every function of their library is
//! counted or recorded.

mod table;
mod uftrace;
mod watcher;

use self::watcher::{Seen, Watcher};
use super::{Arguments, Outcome, go_on, progress, skipped};
use anyhow::ensure;
use capriole_bench::BenchError;
use capriole_bench::scratch::Scratch;
use capriole_bench::spread::Spread;
use capriole_bench::workload::{Python, Sqlite, Times, Workload};
use capriole_host::signals;
use capriole_patch::session::is_session;
use capriole_proc::process::Process;
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

/// Way of tracing the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Not at all.
    Untraced,
    /// By `capriole stat`.
    Stat,
    /// By `capriole record`.
    Record,
    /// By `uftrace record -P`, which starts the program.
    Uftrace,
}

impl Way {
    /// Ways for any program.
    const ALL: [Way; 3] = [Way::Untraced, Way::Stat, Way::Record];
    /// Ways for Python.
    const PYTHON: [Way; 4] = [Way::Untraced, Way::Stat, Way::Record, Way::Uftrace];

    /// Returns the name in results.
    fn name(self) -> &'static str {
        match self {
            Way::Untraced => "untraced",
            Way::Stat => "stat",
            Way::Record => "record",
            Way::Uftrace => "uftrace",
        }
    }
}

/// State of a row during the rounds.
#[derive(Debug)]
struct Row {
    way: Way,
    rounds: Vec<Times>,
    /// Counts of the last round.
    seen: Option<Seen>,
    /// Calls not recorded, in all rounds.
    lost: u64,
    /// Bytes of the trace, in the last round.
    bytes: u64,
    skipped: Option<String>,
    failed: Option<String>,
}

/// Results of a round.
struct Round {
    times: Times,
    seen: Option<Seen>,
    bytes: u64,
}

/// A row's numbers. Times in nanoseconds.
#[derive(Debug, Serialize)]
struct Measured {
    name: String,
    /// Wall-clock time of the work; `cpu_ns` is the program's CPU time.
    wall_ns: Spread,
    cpu_ns: Spread,
    /// Median wall-clock time as a multiple of the untraced one; `cpu_times` likewise for CPU time.
    times: f64,
    cpu_times: f64,
    /// Functions with a probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    probed: Option<u64>,
    /// Functions that were meant to get a probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    functions: Option<u64>,
    /// Calls counted or recorded in the last round.
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<u64>,
    /// Calls not recorded, in all rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
    /// CPU time of the program minus the untraced one, per event.
    #[serde(skip_serializing_if = "Option::is_none")]
    ns_per_event: Option<f64>,
    /// Bytes of the trace, in the last round.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    rounds: usize,
}

impl Row {
    fn new(way: Way) -> Row {
        Row {
            way,
            rounds: Vec::new(),
            seen: None,
            lost: 0,
            bytes: 0,
            skipped: None,
            failed: None,
        }
    }

    fn add(&mut self, round: anyhow::Result<Round>) {
        match round {
            Ok(round) => {
                self.rounds.push(round.times);
                self.seen = round.seen;
                self.lost += round.seen.map_or(0, |seen| seen.lost);
                self.bytes = round.bytes;
            }
            Err(error) => match skipped(&error) {
                Some(why) => self.skipped = Some(why.to_owned()),
                None => self.failed = Some(format!("{error:#}")),
            },
        }
    }

    fn spread(&self, time: impl Fn(&Times) -> u64) -> Spread {
        Spread::of(
            &self
                .rounds
                .iter()
                .map(|t| time(t) as f64)
                .collect::<Vec<_>>(),
        )
    }

    fn measured(&self, name: String, untraced: &Row) -> Measured {
        let (wall, cpu) = (self.spread(|t| t.wall), self.spread(|t| t.cpu));
        let (bare_wall, bare_cpu) = (untraced.spread(|t| t.wall), untraced.spread(|t| t.cpu));
        let ratio = |a: Spread, b: Spread| a.median / b.median.max(1.0);
        let seen = self.seen;
        let events = seen.map(|seen| seen.events + seen.lost);
        Measured {
            name,
            wall_ns: wall,
            cpu_ns: cpu,
            times: ratio(wall, bare_wall),
            cpu_times: ratio(cpu, bare_cpu),
            probed: seen.map(|seen| seen.probed),
            functions: seen.map(|seen| seen.functions),
            events: seen.map(|seen| seen.events),
            lost: seen.map(|_| self.lost),
            ns_per_event: events
                .filter(|events| *events > 0)
                .map(|events| (cpu.median - bare_cpu.median) / events as f64),
            bytes: Some(self.bytes).filter(|bytes| *bytes > 0),
            rounds: self.rounds.len(),
        }
    }
}

/// Finds the units of work that take at least `round`.
fn calibrate(workload: &mut dyn Workload, round: Duration) -> Result<u64, BenchError> {
    let mut units = 1;
    loop {
        workload.work(units)?; // the first time is slower
        let wall = workload.work(units)?.wall.max(1);
        let wanted = round.as_nanos() as u64;
        if wall >= wanted {
            return Ok(units);
        }
        units = (units * wanted / wall).clamp(units + 1, units * 10);
    }
}

/// Measures one round of one row.
fn round(workload: &mut dyn Workload, way: Way, units: u64, buffer: u64) -> anyhow::Result<Round> {
    match way {
        Way::Untraced => {
            return Ok(Round {
                times: workload.work(units)?,
                seen: None,
                bytes: 0,
            });
        }
        Way::Uftrace => {
            let (times, bytes) = uftrace::round(workload.event(), units)?;
            return Ok(Round {
                times,
                seen: None,
                bytes,
            });
        }
        Way::Stat | Way::Record => {}
    }
    let scratch = Scratch::new()?;
    let trace = scratch.path().join("trace");
    let watcher = Watcher::start(way, workload.pid(), workload.event(), &trace, buffer)?;
    let times = workload.work(units)?;
    let seen = watcher.end()?;
    ensure!(seen.events > 0, "no call was seen");
    let process = Process::open(workload.pid())?;
    let left = process.maps()?.iter().any(is_session);
    ensure!(!left, "session memory is still mapped after the detach");
    Ok(Round {
        times,
        seen: Some(seen),
        bytes: seen.bytes,
    })
}

/// Measures the rows of one program, round after round.
fn measure(
    workload: &mut dyn Workload,
    ways: &[Way],
    arguments: &Arguments,
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Row>> {
    let round_time = Duration::from_millis(arguments.round_ms.unwrap_or(100));
    let units = calibrate(workload, round_time)?;
    let mut rows: Vec<Row> = ways.iter().copied().map(Row::new).collect();
    for _ in 0..arguments.rounds.unwrap_or(5) {
        for row in &mut rows {
            if row.failed.is_none() && row.skipped.is_none() {
                go_on()?;
                bar.set_message(format!("{}.{}", workload.name(), row.way.name()));
                row.add(round(workload, row.way, units, arguments.buffer_size));
            }
            bar.inc(1);
        }
    }
    Ok(rows)
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let rounds = u64::from(arguments.rounds.unwrap_or(5));
    signals::catch();
    signals::hold();
    type Start = fn() -> Result<Box<dyn Workload>, BenchError>;
    let python: Start = || Ok(Box::new(Python::start()?));
    let sqlite: Start = || Ok(Box::new(Sqlite::start()?));
    let programs = [
        ("python", python, &Way::PYTHON[..]),
        ("sqlite3", sqlite, &Way::ALL),
    ];
    let bar = progress(rounds * programs.iter().map(|p| p.2.len() as u64).sum::<u64>())?;
    let mut rows: Vec<Value> = Vec::new();
    let mut lines: Vec<table::Line> = Vec::new();
    let mut failed = false;
    let say = |rows: &mut Vec<Value>, name: &str, what: &str, why: &str| {
        rows.push(json!({"name": name, what: why}));
        table::Line::said(name, what, why)
    };
    for (program, start, ways) in programs {
        let result = start()
            .map_err(anyhow::Error::from)
            .and_then(|mut program| {
                let rows = measure(program.as_mut(), ways, arguments, &bar)?;
                program.end()?;
                Ok(rows)
            });
        let measured = match result {
            Ok(measured) => measured,
            Err(error) => {
                let Some(why) = skipped(&error) else {
                    return Err(error);
                };
                lines.push(say(&mut rows, program, "skipped", why));
                continue;
            }
        };
        for row in &measured {
            let name = format!("{program}.{}", row.way.name());
            lines.push(match (&row.skipped, &row.failed) {
                (Some(why), _) => say(&mut rows, &name, "skipped", why),
                (_, Some(why)) => {
                    failed = true;
                    say(&mut rows, &name, "failed", why)
                }
                _ => {
                    let numbers = row.measured(name, &measured[0]);
                    rows.push(json!(numbers));
                    table::Line::of(&numbers)
                }
            });
        }
    }
    bar.finish_and_clear();
    Ok(Outcome {
        text: table::of(&lines),
        rows: Value::Array(rows),
        failed,
    })
}
