//! `capriole bench`: what a hit costs here, next to the floor and to other ways.

use crate::machine;
use anyhow::Context;
use capriole_bench::{
    Function, HitOptions, Probe as BenchProbe, Progress, Row, RowResult, TargetInfo, default_rows,
    run_hit, table,
};
use capriole_plan::detour::{Record, Work};
use capriole_plan::site::{Shape, Tactic};
use capriole_ring::layout::Geometry;
use capriole_ring::reader::record_size;
use capriole_ring::{Counters, Reader};
use capriole_target::attach::{Attached, Probe, attach};
use capriole_target::object::Objects;
use capriole_target::planner::{Plan, Planner};
use capriole_target::process::Process;
use capriole_target::resolve::resolve;
use iced_x86::Register;
use indicatif::{ProgressBar, ProgressStyle};
use std::convert::Infallible;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Measure what a hit costs on this machine, next to other ways of seeing a call
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// What to measure
    #[arg(value_parser = ["hit"], default_value = "hit")]
    what: String,
    /// Rounds, at least 7; the median of them counts
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(7..=1000))]
    rounds: u32,
    /// Length of a round of one row, in milliseconds
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    round_ms: u64,
    /// Measure on this CPU
    #[arg(long)]
    cpu: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of the measured program.
#[derive(Debug, clap::Args)]
pub struct TargetArguments {
    /// Passed on
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Runs the measured program.
pub fn target(arguments: &TargetArguments) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::from(
        capriole_bench::target_main(&arguments.words) as u8,
    ))
}

/// What one of our own probes does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Counts.
    Count,
    /// Records two arguments.
    Record,
    /// The same, reached by a breakpoint.
    Breakpoint,
}

/// A function of the measured program under one of our own probes.
struct Ours {
    function: Function,
    kind: Kind,
    armed: Option<Armed>,
}

struct Armed {
    attached: Attached,
    /// If it records: a reader that takes the packets as `record` does, but only counts.
    reading: Option<Reading>,
}

struct Reading {
    count: Arc<Mutex<Count>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

struct Count {
    reader: Reader,
    bytes: u64,
}

impl Count {
    fn collect(&mut self) {
        let bytes = &mut self.bytes;
        let counted = self.reader.collect::<Infallible>(false, |packet| {
            *bytes += packet.content.len() as u64;
            Ok(())
        });
        match counted {
            Ok(_) => {}
            Err(never) => match never {},
        }
    }
}

fn lock(count: &Mutex<Count>) -> MutexGuard<'_, Count> {
    count.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reading {
    fn start(attached: &Attached) -> Reading {
        let memory = &attached.memory;
        let reader = Reader::new(memory.memory.clone(), memory.geometry, memory.base);
        let count = Arc::new(Mutex::new(Count { reader, bytes: 0 }));
        let stop = Arc::new(AtomicBool::new(false));
        let (counting, stopping) = (count.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !stopping.load(Ordering::Relaxed) {
                let mut count = lock(&counting);
                count.collect();
                count.reader.wait(Duration::from_millis(5));
            }
        });
        Reading {
            count,
            stop,
            thread,
        }
    }

    /// Events recorded so far, and those for which there was no room.
    fn hits(&self) -> u64 {
        let mut count = lock(&self.count);
        count.collect();
        let bytes = count.bytes + count.reader.pending();
        bytes / record_size(2) as u64 + count.reader.lost()
    }
}

impl Armed {
    fn new(attached: Attached, kind: Kind) -> Armed {
        let reading = (kind != Kind::Count).then(|| Reading::start(&attached));
        Armed { attached, reading }
    }

    fn hits(&self) -> u64 {
        match &self.reading {
            Some(reading) => reading.hits(),
            None => {
                let memory = &self.attached.memory;
                let counters = Counters::new(memory.memory.clone(), memory.geometry);
                counters.read().iter().sum()
            }
        }
    }

    fn disarm(self) -> Result<(), String> {
        let joined = match self.reading {
            Some(reading) => {
                reading.stop.store(true, Ordering::Relaxed);
                let joined = reading.thread.join();
                joined.map_err(|_| "the reader failed".to_owned())
            }
            None => Ok(()),
        };
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
        let event = format!(":{}", self.function.symbol());
        let spec = capriole_event::EventSpec::parse(&event).map_err(|e| anyhow::anyhow!("{e}"))?;
        let site = resolve(&objects, &spec)?
            .into_iter()
            .next()
            .context("no site")?;
        let plan = Planner::of_process(&process).plan(&site)?;
        let plan = if self.kind == Kind::Breakpoint {
            as_breakpoint(plan)
        } else {
            plan
        };
        let probe = Probe {
            shape: plan.shape,
            work: vec![match self.kind {
                Kind::Count => Work::Count { counter: 0 },
                Kind::Record | Kind::Breakpoint => Work::Record(Record {
                    event: 1,
                    fields: vec![Register::RDI, Register::RSI],
                }),
            }],
            near: site.object.range(),
            before: plan.before,
            stand_in: plan.breakpoint,
        };
        let cpus = machine::possible_cpus();
        let attached = attach(&process, &[probe], |journal| {
            Geometry::for_buffer(64 << 20, cpus, journal).with_counters(1)
        })?;
        if let Err(error) = &attached.outcomes[0] {
            attached.detach()?;
            anyhow::bail!("{error}");
        }
        self.armed = Some(Armed::new(attached, self.kind));
        Ok(())
    }
}

/// The same site reached by a breakpoint.
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
        Ok(self.armed.as_ref().map(Armed::hits))
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

/// Runs the command.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut rows = default_rows();
    let at = rows
        .iter()
        .position(|r| r.name().starts_with("kernel."))
        .unwrap_or(rows.len());
    rows.insert(
        at,
        Ours::row("capriole.int3", Function::Int3, Kind::Breakpoint),
    );
    rows.insert(
        at,
        Ours::row("capriole.record2", Function::Record2, Kind::Record),
    );
    rows.insert(
        at,
        Ours::row("capriole.count", Function::Count, Kind::Count),
    );
    let options = HitOptions {
        rounds: arguments.rounds as usize,
        round_time: Duration::from_millis(arguments.round_ms),
        cpu: arguments.cpu,
        ..HitOptions::default()
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bench-target").arg("--");
    let total = u64::from(arguments.rounds) * rows.len() as u64;
    let bar = ProgressBar::new(total);
    bar.set_style(ProgressStyle::with_template(
        "{msg:24} {wide_bar} {pos}/{len}",
    )?);
    let results = run_hit(command, rows, &options, |progress: Progress<'_>| {
        bar.set_message(progress.row.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    let results = results?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        print!("{}", table(&results));
    }
    let failed = results
        .iter()
        .any(|r| matches!(r, RowResult::Failed { .. }));
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
