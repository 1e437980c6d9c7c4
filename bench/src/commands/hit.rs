//! `capriole bench hit`: the cost of a hit on this machine, next to the floor and to other tracers.

use super::reading::Reading;
use super::{Arguments, Outcome};
use crate::Usage;
use anyhow::Context;
use capriole::aggregate::AggregateTable;
use capriole::event::CallSpec;
use capriole::fields::{Purpose, Reader};
use capriole::machine;
use capriole::slots::Area;
use capriole::{calls, slots};
use capriole_bench::{
    BenchError, Function, HitOptions, Probe as BenchProbe, Progress, Row, RowResult, TEXT,
    TargetInfo, chart, default_rows, peer_rows, run_hit, table,
};
use capriole_codegen::runtime::ClockReading;
use capriole_codegen::work::Work;
use capriole_event::EventSpec;
use capriole_host::ptrace;
use capriole_object::Objects;
use capriole_patch::attach::{Attached, Probe, attach};
use capriole_planner::guards;
use capriole_planner::planner::{Plan, Planner};
use capriole_planner::resolve::{Site, followed, resolve};
use capriole_planner::unwinders;
use capriole_proc::process::Process;
use capriole_ring::layout::Geometry;
use capriole_ring::reader::record_size;
use capriole_ring::tables::{TableReader, Tables};
use capriole_tactic::site::{Shape, Tactic};
use capriole_trace::write_file;
use std::process::Command;
use std::time::Duration;

/// Work of one of our own probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Aggregates, with these aggregates and keys; counts if there are none.
    Add(&'static str),
    /// Records these fields.
    Record(&'static str),
    /// Records [`TEXT`], from memory.
    Text,
    /// Records nothing: no hit passes the filter.
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

impl Kind {
    /// Returns the event at a function, and the size of its records in bytes. [`TEXT`] is at the
    /// address `text`.
    fn event(self, function: Function, text: u64) -> (String, usize) {
        let symbol = only(function.symbol());
        let fields = |fields: &str| format!(":{symbol} {fields}");
        match self {
            Kind::Add(of) => (fields(of), record_size(0)),
            Kind::Record(of) => (fields(of), record_size(of.split_whitespace().count())),
            Kind::Breakpoint => (fields("$arg1 $arg2"), record_size(2)),
            Kind::Both | Kind::Stack => (fields("$arg1 $arg2"), record_size(2) + record_size(1)),
            Kind::Time => (format!("latency(:{symbol})"), record_size(0)),
            Kind::Reject => (
                fields("$arg1 if arg1 == 0x8000000000000001"),
                record_size(1),
            ),
            // The mask of fields that could not be read, the length, the string.
            Kind::Text => {
                let size = record_size(1) + (4 + TEXT.len() - 1).next_multiple_of(8);
                (fields(&format!("text=@{text:#x}:string")), size)
            }
        }
    }
}

/// A function of the measured program with one of our own probes.
struct Ours {
    function: Function,
    kind: Kind,
    armed: Option<Armed>,
}

struct Armed {
    attached: Attached,
    /// If it records: a reader that takes the packets as `record` does, but only counts.
    reading: Option<Reading>,
    /// If it aggregates: the table of its aggregates.
    kept: Option<AggregateTable>,
    /// True if nothing may be recorded.
    rejects: bool,
}

impl Armed {
    fn new(
        attached: Attached,
        kind: Kind,
        kept: Option<AggregateTable>,
        record_bytes: usize,
    ) -> Armed {
        let reading = kept.is_none();
        let reading = reading.then(|| Reading::start(&attached, record_bytes));
        Armed {
            attached,
            reading,
            kept,
            rejects: kind == Kind::Reject,
        }
    }

    fn hits(&self) -> u64 {
        match (&self.reading, &self.kept) {
            (Some(reading), _) => reading.hits(),
            (None, Some(kept)) => {
                let memory = &self.attached.memory;
                kept.hits(&TableReader::new(memory.memory.clone(), memory.geometry))
            }
            (None, None) => 0,
        }
    }

    fn disarm(self) -> Result<(), String> {
        let joined = self.reading.map_or(Ok(()), Reading::end);
        self.attached.detach().map_err(|e| e.to_string())?;
        joined
    }
}

impl Ours {
    fn row(name: &str, function: Function, kind: Kind) -> Row {
        Row::probed(
            name,
            function,
            Box::new(Ours {
                function,
                kind,
                armed: None,
            }),
        )
    }

    fn attach(&mut self, info: &TargetInfo) -> anyhow::Result<()> {
        let process = Process::open(info.pid)?;
        let objects = Objects::of_process(&process)?;
        let site = |event: &str| -> anyhow::Result<(EventSpec, Site)> {
            let spec = EventSpec::parse(event).map_err(|e| anyhow::anyhow!("{e}"))?;
            let mut sites = resolve(&objects, &spec)?.into_iter();
            Ok((spec, sites.next().context("no site")?))
        };
        let text = match self.kind {
            Kind::Text => {
                // The target runs this same executable, mapped elsewhere.
                let (_, there) = site(&format!(":{}", only(self.function.symbol())))?;
                let here = self.function.address();
                let text = std::ptr::from_ref(&TEXT) as u64;
                there.address.wrapping_add(text.wrapping_sub(here))
            }
            _ => 0,
        };
        let (event, record_bytes) = self.kind.event(self.function, text);
        let planner = Planner::of_process(&process);
        let mut guards = guards::find(&objects, &planner);
        if self.kind == Kind::Stack {
            guards = guards.with_unwinders(unwinders::find(&objects, &planner)?);
        }
        let mut tables = Tables::default();
        let mut kept = None;
        let mut probes = Vec::new();
        let mut add = |site: &Site, work: Vec<Work>| -> anyhow::Result<()> {
            let plan = planner.plan(site)?;
            let plan = match self.kind {
                Kind::Breakpoint => as_breakpoint(plan),
                _ => plan,
            };
            probes.push(Probe::new(plan, site.object.range()).with(work));
            Ok(())
        };
        let mut sum = |spec: &EventSpec, site: &Site| -> anyhow::Result<Vec<Work>> {
            let fields = Reader::new(Purpose::Count).fields(spec, site, Area::default())?;
            let made = AggregateTable::new(spec, &[&fields], 1..2, KEYS, &mut tables)?;
            let work = made.work(1, &fields)?;
            kept = Some(made);
            Ok(work)
        };
        let record = |id: u32, spec: &EventSpec, site: &Site| -> anyhow::Result<Vec<Work>> {
            let fields = Reader::new(Purpose::Record).fields(spec, site, Area::default())?;
            Ok(vec![fields.fetch.work(id)?])
        };
        match self.kind {
            Kind::Add(_) => {
                let (spec, site) = site(&event)?;
                add(&site, sum(&spec, &site)?)?;
            }
            Kind::Time => {
                let CallSpec { begin, exit, .. } =
                    calls::latency(&event)?.context("it times calls")?;
                let entry = begin.context("calls are timed from their entry on")?;
                let at = resolve(&objects, &entry)?.remove(0);
                let call = slots::number(at.address, Area::default());
                add(
                    &at,
                    vec![Work::Enter {
                        call,
                        kept: Vec::new(),
                        filter: None,
                    }],
                )?;
                for at in resolve(&objects, &exit)? {
                    add(&at, sum(&exit, &at)?)?;
                }
            }
            Kind::Both => {
                let (spec, at) = site(&event)?;
                add(&at, record(1, &spec, &at)?)?;
                let (spec, at) = site(&format!(
                    ":{}%return $retval:x64",
                    only(self.function.symbol())
                ))?;
                add(&at, record(2, &spec, &at)?)?;
            }
            _ => {
                let (spec, site) = site(&event)?;
                add(&site, record(1, &spec, &site)?)?;
            }
        }
        if self.kind == Kind::Stack {
            let event = format!(":{}%return $retval:x64", only(self.function.symbol()));
            let spec = EventSpec::parse(&event).map_err(|e| anyhow::anyhow!("{e}"))?;
            let (at, refused) = followed(&objects, &spec)?
                .into_iter()
                .next()
                .context("it is there")?;
            refused.map_or(Ok(()), Err)?;
            let returns = record(2, &spec, &at)?;
            let points = probes.iter_mut().flat_map(|probe| &mut probe.points);
            points.for_each(|point| point.returns = returns.clone());
        }
        let timed = self.kind == Kind::Time;
        let cpus = machine::possible_cpus();
        let attached = attach(
            &ptrace::host(&process),
            probes,
            &guards,
            ClockReading::default(),
            |journal| {
                let geometry = Geometry::for_buffer(64 << 20, cpus, journal).with_tables(&tables);
                if timed {
                    geometry.with_frames(1, 0)
                } else {
                    geometry
                }
            },
        )?;
        if let Some(error) = attached.outcomes.iter().find_map(|o| o.as_ref().err()) {
            let error = error.to_string();
            attached.detach()?;
            anyhow::bail!("{error}");
        }
        self.armed = Some(Armed::new(attached, self.kind, kept, record_bytes));
        Ok(())
    }
}

/// Returns the plan with its site reached by a breakpoint.
fn as_breakpoint(plan: Plan) -> Plan {
    let shape = plan.shape;
    let first = shape.displaced.first().copied();
    let start = shape.covered.start;
    let resume = first.map_or(shape.resume, |i| i.next_ip());
    Plan {
        shape: Shape {
            tactic: Tactic::Int3,
            covered: capriole_insn::Extent::new(start, start + 1),
            resume,
            displaced: first.into_iter().collect(),
            placed: None,
            ..shape
        },
        ..plan
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
        match (armed.rejects, armed.hits()) {
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

/// All arguments passed in registers.
const SIX: &str = "$arg1 $arg2 $arg3 $arg4 $arg5 $arg6";
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
    let mut rows = rows_of_one_thread();
    if threads > 1 {
        let again = rows_of_one_thread().into_iter().filter(with_threads);
        let again: Vec<Row> = again.map(|row| row.on_threads(threads)).collect();
        rows.extend(again);
    }
    rows.extend(peer_rows());
    rows
}

fn rows_of_one_thread() -> Vec<Row> {
    let mut rows = default_rows();
    let at = rows
        .iter()
        .position(|r| r.name().starts_with("kernel."))
        .unwrap_or(rows.len());
    let ours = [
        Ours::row("capriole.count", Function::Count, Kind::Add("")),
        Ours::row(
            "capriole.count_by_key",
            Function::ByKey,
            Kind::Add("by key=$arg1:u8"),
        ),
        Ours::row("capriole.sum", Function::Sum, Kind::Add("sum(n=$arg2)")),
        Ours::row("capriole.hist", Function::Hist, Kind::Add("hist(n=$arg2)")),
        Ours::row(
            "capriole.hist_by_key",
            Function::HistByKey,
            Kind::Add("hist(n=$arg2) by key=$arg1:u8"),
        ),
        Ours::row("capriole.reject", Function::Reject, Kind::Reject),
        Ours::row("capriole.record0", Function::Record0, Kind::Record("")),
        Ours::row(
            "capriole.record2",
            Function::Record2,
            Kind::Record("$arg1 $arg2"),
        ),
        Ours::row("capriole.record6", Function::Record6, Kind::Record(SIX)),
        Ours::row("capriole.entry_exit", Function::EntryExit, Kind::Both),
        Ours::row("capriole.return.stack", Function::ReturnStack, Kind::Stack),
        Ours::row("capriole.latency", Function::Latency, Kind::Time),
        Ours::row("capriole.string", Function::Text, Kind::Text),
        Ours::row("capriole.int3", Function::Int3, Kind::Breakpoint),
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
