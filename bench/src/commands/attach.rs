//! `capriole bench attach`: the cost of attaching many probes to a running program, and of
//! detaching them.

mod footprint;
mod hits;
mod table;

use self::footprint::Footprint;
use super::{Arguments, Outcome, go_on, progress, skipped};
use anyhow::{Context, ensure};
use capriole::machine;
use capriole_bench::crowd::{self, Crowd};
use capriole_bench::server::Server;
use capriole_bench::spread::Spread;
use capriole_codegen::runtime::ClockReading;
use capriole_event::EventSpec;
use capriole_host::ptrace;
use capriole_host::signals;
use capriole_object::Objects;
use capriole_patch::attach::{Attached, Probe, attach};
use capriole_patch::detach::Detached;
use capriole_patch::guards::Guards;
use capriole_patch::session::is_session;
use capriole_planner::guards;
use capriole_planner::planner::Planner;
use capriole_planner::resolve::resolve;
use capriole_proc::process::Process;
use capriole_ring::layout::Geometry;
use capriole_select::select;
use capriole_select::select::{Origin, Part, Selected};
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Threads that continuously call the functions of the crowd.
const THREADS: usize = 4;
/// Memory for events in bytes: the default of `record`.
const BUFFER: u64 = 64 << 20;

/// A program to attach to.
trait Subject {
    fn name(&self) -> &'static str;
    fn pid(&self) -> u32;
    /// Returns the event that matches at least the first `sites` functions.
    fn event(&self, sites: usize) -> String;
    /// Checks that the program still works correctly.
    fn check(&mut self) -> anyhow::Result<()>;
}

impl Subject for Crowd {
    fn name(&self) -> &'static str {
        "crowd"
    }

    fn pid(&self) -> u32 {
        Crowd::pid(self)
    }

    fn event(&self, sites: usize) -> String {
        crowd::event(sites)
    }

    fn check(&mut self) -> anyhow::Result<()> {
        Ok(Crowd::check(self)?)
    }
}

impl Subject for Server {
    fn name(&self) -> &'static str {
        "node"
    }

    fn pid(&self) -> u32 {
        Server::pid(self)
    }

    fn event(&self, _: usize) -> String {
        ":*".to_owned()
    }

    fn check(&mut self) -> anyhow::Result<()> {
        Ok(Server::check(self)?)
    }
}

/// Sites of a program, found and planned.
struct Prepared {
    probes: Vec<Probe>,
    guards: Guards,
    /// Number of sites found.
    sites: usize,
    /// Sites without a probe, counted by reason.
    refused: BTreeMap<String, usize>,
    time: Duration,
}

/// Finds and plans `sites` functions, evenly spread if there are more.
fn prepare(process: &Process, event: &str, sites: usize) -> anyhow::Result<Prepared> {
    let started = Instant::now();
    let objects = Objects::of_process(process)?;
    let planner = Planner::of_process(process).with_breakpoints(false);
    let probe = Arc::new(EventSpec::parse(event)?.into());
    let mut found = resolve(&objects, &probe)?;
    let all = found.len();
    if all > sites {
        let wanted = |index: &usize| (index + 1) * sites / all > index * sites / all;
        let mut index = 0..all;
        found.retain(|_| index.next().is_some_and(|index| wanted(&index)));
    }
    let refs: Vec<_> = found.iter().collect();
    let plans = planner.plan_all(&refs);
    let selected: Vec<Selected> = found
        .into_iter()
        .zip(plans)
        .zip(0..)
        .map(|((site, plan), id)| Selected {
            id,
            definition: 0,
            probe: Arc::clone(&probe),
            origin: Origin::User { named: false },
            part: Part::Point,
            call: None,
            site,
            fields: Arc::default(),
            counter: None,
            fate: plan.into(),
        })
        .collect();
    let works = selected.iter().map(|event| vec![event.record()]);
    let probes = select::probes(&selected, works.collect());
    let guards = guards::find(&objects, &planner);
    let time = started.elapsed();
    let mut refused: BTreeMap<String, usize> = BTreeMap::new();
    for event in selected.iter().filter(|event| event.fate.plan().is_err()) {
        let last = event.refusals().last();
        let why = last.map_or("", |(_, refusal)| refusal.key());
        *refused.entry(why.to_owned()).or_default() += 1;
    }
    if !probes.overlapping.is_empty() {
        refused.insert("overlapping".to_owned(), probes.overlapping.len());
    }
    Ok(Prepared {
        sites: selected.len(),
        probes: probes.probes.into_iter().map(|(probe, _)| probe).collect(),
        guards,
        refused,
        time,
    })
}

/// One attach and detach: their results, durations, and the memory used between them.
struct Visit {
    attached: Attached,
    attach: Duration,
    footprint: Footprint,
    detached: Detached,
    detach: Duration,
}

/// Attaches, calls `meanwhile`, and detaches, as `record` does.
fn visit<T>(
    process: &Process,
    probes: Vec<Probe>,
    guards: &Guards,
    meanwhile: impl FnOnce(&Attached) -> anyhow::Result<T>,
) -> anyhow::Result<(Visit, T)> {
    let geometry = |journal| Geometry::for_buffer(BUFFER, machine::possible_cpus(), journal);
    let started = Instant::now();
    let attached = attach(
        &ptrace::host(process),
        probes,
        guards,
        ClockReading::default(),
        geometry,
    )?;
    let attach = started.elapsed();
    let seen = Footprint::of(process, &attached)
        .and_then(|footprint| Ok((footprint, meanwhile(&attached)?)));
    let started = Instant::now();
    let detached = attached.detach()?;
    let detach = started.elapsed();
    let (footprint, result) = seen?;
    let visit = Visit {
        attached,
        attach,
        footprint,
        detached,
        detach,
    };
    let (foreign, lingering) = (visit.detached.foreign, visit.detached.lingering);
    ensure!(foreign == 0, "{foreign} sites had been changed by others");
    ensure!(!lingering, "memory stays mapped after the detach");
    let left = process.maps()?.iter().any(is_session);
    ensure!(!left, "session memory is still mapped after the detach");
    Ok((visit, result))
}

/// State of a row during the rounds.
struct Row {
    sites: usize,
    rounds: Vec<(Duration, Visit)>,
    found: usize,
    refused: BTreeMap<String, usize>,
    failed: Option<String>,
}

impl Row {
    fn round(&mut self, subject: &mut dyn Subject) -> anyhow::Result<()> {
        let process = Process::open(subject.pid())?;
        let prepared = prepare(&process, &subject.event(self.sites), self.sites)?;
        ensure!(!prepared.probes.is_empty(), "nothing can be probed");
        let (visit, ()) = visit(&process, prepared.probes, &prepared.guards, |_| Ok(()))?;
        subject.check().context("with the probes, or without")?;
        self.found = prepared.sites;
        self.refused = prepared.refused;
        for error in visit
            .attached
            .outcomes()
            .iter()
            .filter_map(|o| o.as_ref().err())
        {
            *self.refused.entry(error.to_string()).or_default() += 1;
        }
        self.rounds.push((prepared.time, visit));
        Ok(())
    }

    fn spread(&self, quantity: impl Fn(&(Duration, Visit)) -> f64) -> Spread {
        Spread::of(&self.rounds.iter().map(quantity).collect::<Vec<_>>())
    }
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_nanos() as f64
}

/// A row's numbers. Times in nanoseconds, memory in bytes.
#[derive(Debug, Serialize)]
struct Measured {
    name: String,
    sites: usize,
    /// Sites with a probe. Values that are not a `Spread` come from the last round.
    probed: usize,
    tactics: BTreeMap<&'static str, usize>,
    refused: BTreeMap<String, usize>,
    plan_ns: Spread,
    attach_ns: Spread,
    attach_standstill_ns: Spread,
    attach_one_thread_ns: Spread,
    detach_ns: Spread,
    detach_standstill_ns: Spread,
    #[serde(flatten)]
    footprint: Footprint,
    bytes_per_probe: f64,
    bytes_per_probe_with_code: f64,
    rounds: usize,
}

impl Measured {
    /// Summarises a row; `None` if there was no round.
    fn of(program: &str, row: &Row) -> Option<Measured> {
        let (_, last) = row.rounds.last()?;
        let mut tactics = BTreeMap::new();
        for site in last.attached.outcomes().iter().flatten() {
            *tactics.entry(site.tactic.as_str()).or_default() += 1;
        }
        let probed: usize = tactics.values().sum();
        let footprint = last.footprint;
        let each = |bytes: u64| bytes as f64 / probed.max(1) as f64;
        Some(Measured {
            name: format!("{program}.{}", row.sites),
            sites: row.found,
            probed,
            tactics,
            refused: row.refused.clone(),
            plan_ns: row.spread(|(plan, _)| nanoseconds(*plan)),
            attach_ns: row.spread(|(_, v)| nanoseconds(v.attach)),
            attach_standstill_ns: row.spread(|(_, v)| nanoseconds(v.attached.standstill.all)),
            attach_one_thread_ns: row.spread(|(_, v)| nanoseconds(v.attached.standstill.one)),
            detach_ns: row.spread(|(_, v)| nanoseconds(v.detach)),
            detach_standstill_ns: row.spread(|(_, v)| nanoseconds(v.detached.standstill)),
            footprint,
            bytes_per_probe: each(footprint.session_bytes + footprint.stub_bytes),
            bytes_per_probe_with_code: each(
                footprint.session_bytes + footprint.stub_bytes + footprint.code_bytes,
            ),
            rounds: row.rounds.len(),
        })
    }
}

/// Returns the number of sites of each row.
fn sizes(most: usize) -> Vec<usize> {
    crowd::SETS
        .into_iter()
        .filter(|sites| *sites <= most)
        .collect()
}

/// Measures the rows of one program, round after round.
fn measure(
    subject: &mut dyn Subject,
    rounds: u32,
    most: usize,
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Row>> {
    let mut rows: Vec<Row> = sizes(most)
        .into_iter()
        .map(|sites| Row {
            sites,
            rounds: Vec::new(),
            found: 0,
            refused: BTreeMap::new(),
            failed: None,
        })
        .collect();
    for _ in 0..rounds {
        for row in rows.iter_mut().filter(|row| row.failed.is_none()) {
            bar.set_message(format!("{}.{}", subject.name(), row.sites));
            go_on()?;
            if let Err(error) = row.round(subject) {
                row.failed = Some(format!("{error:#}"));
                // A program that has ended, or works incorrectly, is of no use to the other rows.
                if subject.check().is_err() {
                    return Ok(rows);
                }
            }
            bar.inc(1);
        }
    }
    Ok(rows)
}

/// Adds the rows of one program to the outcome; true if one has failed.
fn report(outcome: &mut Vec<Value>, text: &mut String, program: &str, rows: &[Row]) -> bool {
    let mut measured = Vec::new();
    let mut failed = false;
    for row in rows {
        let name = format!("{program}.{}", row.sites);
        match (&row.failed, Measured::of(program, row)) {
            (None, Some(numbers)) => {
                outcome.push(json!(numbers));
                measured.push(numbers);
            }
            (why, _) => {
                failed = true;
                let why = why.as_deref().unwrap_or("the program is gone");
                *text += &format!("{name}  failed: {why}\n");
                outcome.push(json!({"name": name, "failed": why}));
            }
        }
    }
    *text += &table::of(program, &measured);
    failed
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let rounds = arguments.rounds.unwrap_or(5);
    let most = arguments.sites as usize;
    let programs = 2;
    let bar = progress(u64::from(rounds) * (programs * sizes(most).len() as u64 + 3))?;
    signals::catch();
    signals::hold();
    let (mut rows, mut text, mut failed) = (Vec::new(), String::new(), false);
    let skip = |rows: &mut Vec<Value>, text: &mut String, name: &str, error: anyhow::Error| {
        let Some(why) = skipped(&error) else {
            return Err(error);
        };
        *text += &format!("{name}  skipped: {why}\n");
        rows.push(json!({"name": name, "skipped": why}));
        Ok(())
    };

    let functions = sizes(most).last().copied().unwrap_or(1);
    match Crowd::start(functions, THREADS) {
        Ok(mut crowd) => {
            crowd.run(true)?;
            let measured = measure(&mut crowd, rounds, most, &bar)?;
            failed |= report(&mut rows, &mut text, "crowd", &measured);
            crowd.run(false)?;
            let round_ms = arguments.round_ms.unwrap_or(25);
            let results = hits::measure(&mut crowd, functions, rounds, round_ms, &bar)?;
            text += &format!("\n{}", hits::table(&results));
            rows.extend(results.iter().map(|row| json!(row)));
            failed |= hits::failed(&results);
        }
        Err(error) => skip(&mut rows, &mut text, "crowd", error.into())?,
    }
    text += "\n";
    match Server::start() {
        Ok(mut server) => {
            let measured = measure(&mut server, rounds, most, &bar)?;
            failed |= report(&mut rows, &mut text, "node", &measured);
        }
        Err(error) => skip(&mut rows, &mut text, "node", error.into())?,
    }
    bar.finish_and_clear();
    Ok(Outcome {
        text,
        rows: Value::Array(rows),
        failed,
    })
}
