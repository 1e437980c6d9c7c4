//! `capriole stat`: how often, without a trace.

use crate::probing::{Ended, Planned, Probed, Program, Watch, wait_for};
use crate::selection::{self, Selected};
use crate::units::{self, parse_duration};
use crate::{exit, machine, signals};
use capriole_event::EventSpec;
use capriole_ring::Counters;
use capriole_ring::layout::{Geometry, MAX_COUNTERS, MIN_PACKET_SIZE};
use capriole_target::detach::Detached;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Count the calls of functions of a running program, or of one that is started
#[derive(Debug, clap::Args)]
#[command(override_usage = "capriole stat [OPTIONS] -e EVENT... (-p PID | [--] PROGRAM [ARGS]...)")]
pub struct Arguments {
    /// What to count: `LIB:FUNCTION [FIELD … if FILTER]`, patterns allowed; an empty LIB is
    /// the main program
    #[arg(
        short,
        long = "event",
        value_name = "EVENT",
        required_unless_present = "files"
    )]
    events: Vec<String>,
    /// A file of events, one a line, as uprobe_events takes them; `#` begins a comment
    #[arg(short, long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The running process
    #[arg(short, long, value_name = "PID", conflicts_with = "program")]
    pid: Option<u32>,
    /// Stop counting after this time, such as 500ms, 2s, 1m
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Also print, each time this time is over, what was called in it
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    interval: Option<Duration>,
    /// Never use breakpoints; functions that need one are left out
    #[arg(long)]
    no_breakpoints: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The program to start, and its arguments
    #[arg(
        trailing_var_arg = true,
        value_name = "PROGRAM",
        required_unless_present = "pid"
    )]
    program: Vec<OsString>,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    match interval < Duration::from_millis(1) {
        true => Err("the interval must be at least 1ms".into()),
        false => Ok(interval),
    }
}

/// Between two looks at whether something has ended it.
const TICK: Duration = Duration::from_millis(10);

/// Runs the command.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let mut events = selection::parse(&arguments.events, &arguments.files)?;
    for event in events.iter_mut().filter(|event| event.filter.is_none()) {
        event.arguments.clear(); // a call is a call
    }
    let program = Program::find(arguments.pid, &arguments.program)?;
    // Only now: the program has its signals and its priority as they were.
    signals::catch();
    match attach(&arguments, &events, &program) {
        Ok(mut probed) => count(&arguments, program, &mut probed),
        Err(error) => {
            program.abandon();
            Err(error)
        }
    }
}

/// Probes that count, each with the counter of its event's number.
fn attach(
    arguments: &Arguments,
    events: &[EventSpec],
    program: &Program,
) -> anyhow::Result<Probed> {
    let process = program.process();
    let breakpoints = !arguments.no_breakpoints;
    let planned = Planned::new(process, events, breakpoints, Selected::count)?;
    if let Some(error) = planned
        .selected
        .iter()
        .find_map(|e| e.fields.fetch.count(0).err())
    {
        anyhow::bail!("{error}");
    }
    let counters = planned.selected.len() as u32;
    anyhow::ensure!(counters <= MAX_COUNTERS, "too many functions to count");
    planned.attach(process, |journal| {
        // Packets for nothing: the layout wants a few.
        let buffer = MIN_PACKET_SIZE as u64;
        Geometry::for_buffer(buffer, machine::possible_cpus(), journal).with_counters(counters)
    })
}

/// The calls of an event in some time.
struct Calls<'a> {
    event: &'a Selected,
    calls: u64,
}

impl Calls<'_> {
    fn per_second(&self, time: Duration) -> f64 {
        match time.is_zero() {
            true => 0.0,
            false => self.calls as f64 / time.as_secs_f64(),
        }
    }
}

/// Events that have a probe, the most frequent one first.
fn sorted<'a>(probed: &'a Probed, calls: &[u64]) -> Vec<Calls<'a>> {
    let events = probed.selected.iter().zip(&probed.dropped).zip(calls);
    let mut sorted: Vec<Calls<'_>> = events
        .filter(|((_, dropped), _)| dropped.is_none())
        .map(|((event, _), &calls)| Calls { event, calls })
        .collect();
    sorted.sort_by_key(|event| Reverse(event.calls)); // stable: then as asked for
    sorted
}

fn count(arguments: &Arguments, program: Program, probed: &mut Probed) -> anyhow::Result<ExitCode> {
    if arguments.pid.is_some() && !arguments.json {
        probed.say_begin("counting", arguments.duration);
    }
    probed.say_dropped();
    let memory = &probed.attached.memory;
    let counters = Counters::new(memory.memory.clone(), memory.geometry);
    let child = program.release();
    let started = Instant::now();
    let ended = watch(arguments, probed, &counters);
    let time = started.elapsed();
    // What is called until the probes are out is counted.
    let detached = probed.detach();
    let over = ended.and_then(|ended| Ok((ended, detached?)));
    let (ended, detached) = match over {
        Ok(over) => over,
        Err(error) => {
            if !exit::is_broken_pipe(&error) {
                eprintln!("capriole: counting stopped; {}", probed.aftermath());
            }
            if let Some(child) = child {
                wait_for(child)?;
            }
            return Err(error);
        }
    };
    let sorted = sorted(probed, &counters.read());
    let printed = match arguments.json {
        true => print(&format!(
            "{}\n",
            json(probed, &sorted, time, ended, &detached)
        )),
        false => {
            let printed = print(&table(&sorted, time));
            let all = sorted.iter().map(|c| c.calls).fold(0, u64::wrapping_add);
            eprintln!(
                "capriole: {} in {}{}",
                units::counted(all, "call", "calls"),
                units::time(time),
                ended.remark()
            );
            probed.say_end(ended, &detached);
            printed
        }
    };
    match child {
        Some(child) => {
            let code = wait_for(child)?;
            printed.map(|()| code)
        }
        None => printed.map(|()| ExitCode::SUCCESS),
    }
}

/// Waits until something ends it, and prints what was called in every interval.
fn watch(arguments: &Arguments, probed: &mut Probed, counters: &Counters) -> anyhow::Result<Ended> {
    let mut watch = Watch::new(&probed.attached.process, arguments.duration)?;
    let started = Instant::now();
    let mut before = vec![0; probed.selected.len()];
    let mut last = started;
    let mut next = arguments.interval.map(|interval| started + interval);
    loop {
        if let Some(ended) = watch.ended(&mut probed.attached) {
            return Ok(ended);
        }
        let now = Instant::now();
        if let (Some(interval), Some(due)) = (arguments.interval, &mut next)
            && now >= *due
        {
            let calls = counters.read();
            let delta = calls
                .iter()
                .zip(&before)
                .map(|(new, old)| new.wrapping_sub(*old));
            let delta: Vec<u64> = delta.collect();
            let mut sorted = sorted(probed, &delta);
            sorted.retain(|event| event.calls > 0);
            print(&match arguments.json {
                true => format!("{}\n", interval_json(&sorted, now - started, now - last)),
                false => interval_table(&sorted, now - started, now - last),
            })?;
            (before, last) = (calls, now);
            while *due <= now {
                *due += interval;
            }
        }
        let due = next.map_or(TICK, |next| next.saturating_duration_since(now).min(TICK));
        std::thread::sleep(watch.pause(&probed.attached, due));
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The events that were hit, and how many were not.
fn table(sorted: &[Calls<'_>], time: Duration) -> String {
    let hit: Vec<&Calls<'_>> = sorted.iter().filter(|event| event.calls > 0).collect();
    let row = |event: &&Calls<'_>| {
        let name = event.event.name();
        [
            event.calls.to_string(),
            units::rate(event.per_second(time)),
            name,
        ]
    };
    let head = ["calls", "calls/s", "event"].map(String::from);
    let rows: Vec<[String; 3]> = std::iter::once(head).chain(hit.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (calls, rates) = (width(0), width(1));
    let mut text = String::new();
    for [count, rate, name] in rows.iter().filter(|_| !hit.is_empty()) {
        let _ = writeln!(text, "{count:>calls$}  {rate:>rates$}  {name}");
    }
    let silent = (sorted.len() - hit.len()) as u64;
    if silent > 0 {
        let gap = if hit.is_empty() { "" } else { "\n" };
        let silent = units::counted(silent, "event was", "events were");
        let _ = writeln!(text, "{gap}{silent} never hit");
    }
    text
}

fn interval_table(sorted: &[Calls<'_>], at: Duration, time: Duration) -> String {
    format!("{:.3} s\n{}\n", at.as_secs_f64(), table(sorted, time))
}

fn interval_json(sorted: &[Calls<'_>], at: Duration, time: Duration) -> Value {
    let event = |event: &Calls<'_>| {
        json!({
            "event": event.event.name(),
            "calls": event.calls,
            "calls_per_second": event.per_second(time),
        })
    };
    json!({
        "time_ns": at.as_nanos() as u64,
        "interval_ns": time.as_nanos() as u64,
        "events": sorted.iter().map(event).collect::<Vec<_>>(),
    })
}

fn json(
    probed: &Probed,
    sorted: &[Calls<'_>],
    time: Duration,
    ended: Ended,
    detached: &Detached,
) -> Value {
    let mut sites = probed.sites_json();
    let mut events: Vec<Value> = Vec::new();
    for event in sorted {
        let mut site = sites[event.event.id as usize].take();
        site["calls"] = json!(event.calls);
        site["calls_per_second"] = json!(event.per_second(time));
        events.push(site);
    }
    // Those without a probe come last.
    events.extend(sites.into_iter().filter(|site| !site.is_null()));
    json!({
        "pid": probed.attached.process.pid(),
        "duration_ns": time.as_nanos() as u64,
        "ended": ended.as_str(),
        "restartable_sequences": probed.attached.survey.rseq_offset.is_some(),
        "standstill_ns": probed.standstill_json(detached),
        "events": events,
    })
}
