//! `capriole bench hit`: what a hit costs here, next to the floor and to other ways.

use super::reading::Reading;
use super::{Arguments, Outcome};
use crate::exit::Usage;
use crate::machine;
use anyhow::Context;
use capriole_bench::{
    Function, HitOptions, Probe as BenchProbe, Progress, Row, RowResult, TargetInfo, default_rows,
    run_hit, table,
};
use capriole_plan::detour::{Record, Work};
use capriole_plan::site::{Shape, Tactic};
use capriole_ring::Counters;
use capriole_ring::layout::Geometry;
use capriole_target::attach::{Attached, Probe, attach};
use capriole_target::guards::Guards;
use capriole_target::object::Objects;
use capriole_target::planner::{Plan, Planner};
use capriole_target::process::Process;
use capriole_target::resolve::resolve;
use iced_x86::Register;
use std::process::Command;
use std::time::Duration;

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
        let event = format!(":{}", self.function.symbol());
        let spec = capriole_event::EventSpec::parse(&event).map_err(|e| anyhow::anyhow!("{e}"))?;
        let site = resolve(&objects, &spec)?
            .into_iter()
            .next()
            .context("no site")?;
        let planner = Planner::of_process(&process);
        let guards = Guards::find(&objects, &planner);
        let plan = planner.plan(&site)?;
        let plan = if self.kind == Kind::Breakpoint {
            as_breakpoint(plan)
        } else {
            plan
        };
        let probe = Probe {
            shape: plan.shape,
            work: vec![match self.kind {
                Kind::Count => Work::Count {
                    counter: 0,
                    filter: None,
                },
                Kind::Record | Kind::Breakpoint => {
                    Record::new(1, vec![Register::RDI, Register::RSI]).into()
                }
            }],
            near: site.object.range(),
            before: plan.before,
            stand_in: plan.breakpoint,
        };
        let cpus = machine::possible_cpus();
        let attached = attach(&process, vec![probe], &guards, |journal| {
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

/// Fewest rounds.
const ROUNDS: u32 = 7;

/// Measures.
pub fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
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
    let rounds = arguments.rounds.unwrap_or(9);
    anyhow::ensure!(
        rounds >= ROUNDS,
        Usage("`bench hit` wants at least 7 rounds")
    );
    let options = HitOptions {
        rounds: rounds as usize,
        round_time: Duration::from_millis(arguments.round_ms.unwrap_or(25)),
        cpu: arguments.cpu,
        ..HitOptions::default()
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bench-target").arg("--");
    let bar = super::progress(u64::from(rounds) * rows.len() as u64)?;
    let results = run_hit(command, rows, &options, |progress: Progress<'_>| {
        bar.set_message(progress.row.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    let results = results?;
    Ok(Outcome {
        text: table(&results),
        failed: results
            .iter()
            .any(|r| matches!(r, RowResult::Failed { .. })),
        rows: serde_json::to_value(&results)?,
    })
}
