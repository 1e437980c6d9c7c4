//! `capriole bench hit`: the cost of a hit on this machine, next to the floor and to other tracers.

use super::reading::Reading;
use super::{Arguments, Outcome};
use crate::Usage;
use anyhow::Context;
use capriole::aggregate::{Keys, Source};
use capriole::options;
use capriole::plan::{Known, Planned, Probed, Request};
use capriole::probe::{
    Action, Aggregate, Base, FieldType, Guard, KeyKind, Map, Probe as BuiltProbe, Shown, Value,
};
use capriole::{ProbeOptions, Returns};
use capriole_bench::{
    BenchError, Function, HitOptions, Probe as BenchProbe, Progress, Row, RowResult, TEXT,
    TargetInfo, chart, default_rows, peer_rows, run_hit, table,
};
use capriole_planner::resolve::resolve;
use capriole_proc::process::Process;
use capriole_ring::reader::record_size;
use capriole_ring::summary;
use capriole_select::event::Event;
use capriole_select::select::Mode;
use capriole_trace::write_file;
use std::cell::RefCell;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

/// Work of one of our own probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Counts; by key, the lowest byte of the first argument.
    Count { keyed: bool },
    /// Adds up the second argument.
    Sum,
    /// Histogram of the second argument; by the same key.
    Histogram { keyed: bool },
    /// Records so many arguments.
    Record(u8),
    /// Records [`TEXT`], from memory.
    Text,
    /// Records nothing: no hit passes the guard.
    Reject,
    /// Records two arguments, reached by a breakpoint.
    Breakpoint,
    /// Records two arguments at the entry, and the result at the exit.
    Both,
    /// Records as [`Kind::Both`], with the return address replaced.
    Stack,
    /// Times the call, from entry to exit.
    Time,
}

/// Returns a pattern that matches only this symbol. For a plain name, debug information would be
/// read each time to find inlined copies: there are none.
fn only(symbol: &str) -> String {
    let (head, last) = symbol.split_at(symbol.len() - 1);
    format!("{head}[{last}]")
}

/// Returns a probe at the entry of a function that reads so many arguments.
fn entry(function: Function, arguments: u8) -> BuiltProbe {
    let probe = BuiltProbe::at_function("", only(function.symbol()));
    (1..=arguments).fold(probe, |probe, number| {
        probe.value(format!("arg{number}"), Value::argument(number))
    })
}

/// Returns a probe that updates a table of its own.
fn update(probe: BuiltProbe, keyed: bool, aggregate: Option<Aggregate>) -> BuiltProbe {
    let key = Value::argument(1).typed(FieldType::number(Shown::Unsigned, 1));
    let (probe, keys) = match keyed {
        true => (probe.value("key", key), vec![KeyKind::from("key")]),
        false => (probe, Vec::new()),
    };
    probe.update(Map::Own, keys, aggregate)
}

impl Kind {
    /// Returns the probes at a function, and the size of their records in bytes. [`TEXT`] is at the
    /// address `text`.
    fn probes(self, function: Function, text: u64) -> (Vec<BuiltProbe>, usize) {
        let of_second = || entry(function, 0).value("n", Value::argument(2));
        let leaving = || BuiltProbe::at_return("", only(function.symbol()));
        match self {
            Kind::Count { keyed } => {
                let probe = update(entry(function, 0), keyed, None);
                (vec![probe], record_size(0))
            }
            Kind::Sum => {
                let probe = update(of_second(), false, Some(Aggregate::sum("n")));
                (vec![probe], record_size(0))
            }
            Kind::Histogram { keyed } => {
                let probe = update(of_second(), keyed, Some(Aggregate::histogram("n")));
                (vec![probe], record_size(0))
            }
            Kind::Time => {
                let probe = leaving().value("ns", Value::latency());
                let probe = update(probe, false, Some(Aggregate::histogram("ns")));
                (vec![probe], record_size(0))
            }
            Kind::Record(of) => (
                vec![entry(function, of).record()],
                record_size(usize::from(of)),
            ),
            Kind::Breakpoint => (vec![entry(function, 2).record()], record_size(2)),
            Kind::Both | Kind::Stack => {
                let result = Value::result().typed(FieldType::X64);
                let exit = leaving().value("ret", result).record();
                (
                    vec![entry(function, 2).record(), exit],
                    record_size(2) + record_size(1),
                )
            }
            Kind::Reject => {
                let none = Guard::equal("arg1", 0x8000_0000_0000_0001_u64);
                (vec![entry(function, 1).when(none).record()], record_size(1))
            }
            // The mask of fields that could not be read, the length, the string.
            Kind::Text => {
                let size = record_size(1) + (4 + TEXT.len() - 1).next_multiple_of(8);
                let text = Value::from(Base::Address(text)).typed(FieldType::STRING);
                (vec![entry(function, 0).value("text", text).record()], size)
            }
        }
    }
}

/// A function of the measured program with one of our own probes.
struct Ours {
    function: Function,
    kind: Kind,
    armed: Option<Armed>,
    known: SharedKnown,
}

/// Analysis of the files of the measured program, shared by all rows: it takes much longer than placing
/// a probe.
pub type SharedKnown = Rc<RefCell<Known>>;

/// One of our own probes in a process.
pub struct Armed {
    probed: Probed,
    /// If it records: a reader that takes the packets as `record` does, but only counts.
    reading: Option<Reading>,
    /// The tables of its aggregates.
    source: Source,
}

impl Armed {
    /// Attaches the probes of some events, whose records have this size in bytes; `None` if they
    /// record nothing.
    pub fn new(
        known: &SharedKnown,
        process: &Process,
        events: &[Event],
        options: &ProbeOptions,
        returns: Returns,
        record_bytes: Option<usize>,
    ) -> anyhow::Result<Armed> {
        let clock = events.iter().any(Event::is_timed).then(options::clock);
        let clock = clock.transpose()?;
        let request = Request {
            breakpoints: None,
            events,
            options,
            mode: Mode {
                first_id: 1,
                ..Mode::new(returns)
            },
            messages: false,
            keys: Keys {
                room: KEYS,
                summary: summary::ROOM,
            },
            clock: clock.as_ref(),
            // As the command does it.
            entries: record_bytes.is_none(),
        };
        let planned = Planned::with(&mut known.borrow_mut(), process, &request)?;
        let geometry = planned.geometry(64 << 20);
        let mut probed = planned.attach(process, None, geometry)?;
        if let Some(reason) = probed.dropped.iter().flatten().next() {
            let reason = reason.to_string();
            probed.detach()?;
            anyhow::bail!("{reason}");
        }
        let source = Source::new(&mut probed);
        let reading = record_bytes.map(|bytes| Reading::start(&probed.attached, bytes));
        Ok(Armed {
            probed,
            reading,
            source,
        })
    }

    /// Returns the number of hits that were recorded, or else counted.
    pub fn hits(&self) -> u64 {
        let reading = self.reading.as_ref();
        reading.map_or_else(|| self.source.hits(), Reading::hits)
    }

    /// Returns the number of sites with a probe.
    pub fn sites(&self) -> usize {
        self.probed.selected.len()
    }

    /// Takes the probes out.
    pub fn disarm(self) -> Result<(), String> {
        let joined = self.reading.map_or(Ok(()), Reading::end);
        self.probed.detach().map_err(|e| e.to_string())?;
        joined
    }
}

impl Ours {
    fn row(known: &SharedKnown, name: &str, function: Function, kind: Kind) -> Row {
        Row::probed(
            name,
            function,
            Box::new(Ours {
                function,
                kind,
                armed: None,
                known: known.clone(),
            }),
        )
    }

    fn attach(&mut self, info: &TargetInfo) -> anyhow::Result<()> {
        let process = Process::open(info.pid)?;
        let text = match self.kind {
            Kind::Text => {
                // The target runs this same executable, mapped elsewhere.
                let mut known = self.known.borrow_mut();
                let there = resolve(known.objects(&process)?, &entry(self.function, 0))?.remove(0);
                let here = self.function.address();
                let text = std::ptr::from_ref(&TEXT) as u64;
                there.address.wrapping_add(text.wrapping_sub(here))
            }
            _ => 0,
        };
        let (probes, record_bytes) = self.kind.probes(self.function, text);
        let records = probes.iter().any(|p| p.actions == [Action::Record]);
        let events: Vec<Event> = probes.into_iter().map(Event::from).collect();
        let options = ProbeOptions {
            breakpoints: true,
            only_breakpoints: self.kind == Kind::Breakpoint,
            ..ProbeOptions::default()
        };
        let returns = match self.kind {
            Kind::Stack => Returns::Stack,
            _ => Returns::Exits,
        };
        let record_bytes = records.then_some(record_bytes);
        self.armed = Some(Armed::new(
            &self.known,
            &process,
            &events,
            &options,
            returns,
            record_bytes,
        )?);
        Ok(())
    }
}

impl BenchProbe for Ours {
    fn arm(&mut self, info: &TargetInfo) -> Result<(), String> {
        self.attach(info).map_err(|e| format!("{e:#}"))
    }

    fn hits(&mut self) -> Result<Option<u64>, String> {
        let Some(armed) = &self.armed else {
            return Ok(None);
        };
        match (self.kind == Kind::Reject, armed.hits()) {
            (false, hits) => Ok(Some(hits)),
            (true, 0) => Ok(None),
            (true, hits) => Err(format!("{hits} hits passed the filter")),
        }
    }

    fn disarm(&mut self) -> Result<(), String> {
        self.armed.take().map_or(Ok(()), Armed::disarm)
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.disarm();
    }
}

/// Keys that the tables have room for.
pub const KEYS: u32 = 1024;
/// Minimum number of rounds.
const ROUNDS: u32 = 7;

/// Returns all rows: the bare call and the floors, ours, the kernel's, and those of other tools.
/// The bare call, the floors and ours are added again with `threads` threads if that is more than
/// one; but not `floor.count`, whose counter is for one thread.
fn all_rows(threads: usize) -> Vec<Row> {
    let with_threads =
        |row: &Row| row.name() != "floor.count" && !row.name().starts_with("kernel.");
    let known = SharedKnown::default();
    let mut rows = rows_of_one_thread(&known);
    if threads > 1 {
        let again = rows_of_one_thread(&known).into_iter().filter(with_threads);
        let again: Vec<Row> = again.map(|row| row.on_threads(threads)).collect();
        rows.extend(again);
    }
    rows.extend(peer_rows());
    rows
}

fn rows_of_one_thread(known: &SharedKnown) -> Vec<Row> {
    let mut rows = default_rows();
    let at = rows
        .iter()
        .position(|r| r.name().starts_with("kernel."))
        .unwrap_or(rows.len());
    let ours = [
        Ours::row(
            known,
            "capriole.count",
            Function::Count,
            Kind::Count { keyed: false },
        ),
        Ours::row(
            known,
            "capriole.count_by_key",
            Function::ByKey,
            Kind::Count { keyed: true },
        ),
        Ours::row(known, "capriole.sum", Function::Sum, Kind::Sum),
        Ours::row(
            known,
            "capriole.hist",
            Function::Hist,
            Kind::Histogram { keyed: false },
        ),
        Ours::row(
            known,
            "capriole.hist_by_key",
            Function::HistByKey,
            Kind::Histogram { keyed: true },
        ),
        Ours::row(known, "capriole.reject", Function::Reject, Kind::Reject),
        Ours::row(
            known,
            "capriole.record0",
            Function::Record0,
            Kind::Record(0),
        ),
        Ours::row(
            known,
            "capriole.record2",
            Function::Record2,
            Kind::Record(2),
        ),
        // All arguments passed in registers.
        Ours::row(
            known,
            "capriole.record6",
            Function::Record6,
            Kind::Record(6),
        ),
        Ours::row(
            known,
            "capriole.entry_exit",
            Function::EntryExit,
            Kind::Both,
        ),
        Ours::row(
            known,
            "capriole.return.stack",
            Function::ReturnStack,
            Kind::Stack,
        ),
        Ours::row(known, "capriole.latency", Function::Latency, Kind::Time),
        Ours::row(known, "capriole.string", Function::Text, Kind::Text),
        Ours::row(known, "capriole.int3", Function::Int3, Kind::Breakpoint),
    ];
    rows.splice(at..at, ours);
    rows
}

/// True if `name` is the row's name, or its beginning up to a dot or an at sign.
pub fn is_named(row: &str, name: &str) -> bool {
    let rest = row.strip_prefix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '@']))
}

/// True if the row is among those requested. The bare call always is: others are compared with it.
fn wanted(row: &str, names: &[String]) -> bool {
    names.is_empty() || is_named(row, "bare") || names.iter().any(|name| is_named(row, name))
}

/// Returns the number of threads for the rows that are measured with more than one.
fn threads(arguments: &Arguments) -> anyhow::Result<usize> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = arguments.threads.map_or(cpus, |n| n as usize);
    anyhow::ensure!(
        threads <= cpus,
        Usage("`--threads` cannot be more than the CPUs that capriole may run on")
    );
    Ok(threads)
}

/// Returns the options of the measurement; `few` is the message for too few rounds.
pub(super) fn options(arguments: &Arguments, few: &'static str) -> anyhow::Result<HitOptions> {
    let rounds = arguments.rounds.unwrap_or(9);
    anyhow::ensure!(rounds >= ROUNDS, Usage(few));
    Ok(HitOptions {
        rounds: rounds as usize,
        round_time: Duration::from_millis(arguments.round_ms.unwrap_or(25)),
        cpu: arguments.cpu,
        ..HitOptions::default()
    })
}

/// Measures `rows` rows and shows the progress: passes to `run` the command of the measured
/// program, and a callback for the progress.
pub(super) fn measured<R>(
    options: &HitOptions,
    rows: usize,
    run: impl FnOnce(Command, &mut dyn FnMut(Progress<'_>)) -> Result<R, BenchError>,
) -> anyhow::Result<R> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(capriole_bench::TARGET);
    let bar = super::progress(options.rounds as u64 * rows as u64)?;
    let results = run(command, &mut |progress| {
        bar.set_message(progress.row.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    Ok(results?)
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let mut rows = all_rows(threads(arguments)?);
    for name in &arguments.rows {
        anyhow::ensure!(
            rows.iter().any(|row| is_named(row.name(), name)),
            "no row of `bench hit` is named {name}, or begins so"
        );
    }
    rows.retain(|row| wanted(row.name(), &arguments.rows));
    let options = options(arguments, "`bench hit` wants at least 7 rounds")?;
    let results = measured(&options, rows.len(), |command, progress| {
        run_hit(command, rows, &options, progress)
    })?;
    if let Some(path) = &arguments.svg {
        write_file(path, chart(&results).as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(Outcome {
        text: table(&results),
        failed: results
            .iter()
            .any(|r| matches!(r, RowResult::Failed { .. })),
        rows: serde_json::to_value(&results)?,
    })
}
