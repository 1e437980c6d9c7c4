//! `capriole record`: the main job.

mod recorder;

use crate::selection::{self, Selected};
use crate::units::{self, parse_duration, parse_size};
use crate::{exit, machine, signals};
use anyhow::{Context, bail};
use capriole_event::EventSpec;
use capriole_ring::layout::Geometry;
use capriole_target::attach::{Attached, attach};
use capriole_target::detach::Detached;
use capriole_target::error::TargetError;
use capriole_target::launch::{Launched, launch};
use capriole_target::object::Objects;
use capriole_target::planner::Planner;
use capriole_target::process::Process;
use capriole_target::recover::detach_all;
use capriole_trace::ExitStatus;
use capriole_trace::clock::Clock;
use recorder::{Ended, Recorder};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::Duration;

/// Record every call of functions of a running program, or of one that is started
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "capriole record [OPTIONS] -e EVENT... (-p PID | [--] PROGRAM [ARGS]...)"
)]
pub struct Arguments {
    /// What to record: `LIB:FUNCTION [$arg1 NAME=$arg2 …]`, patterns allowed; an
    /// empty LIB is the main program
    #[arg(short, long = "event", value_name = "EVENT", required = true)]
    events: Vec<String>,
    /// The running process
    #[arg(short, long, value_name = "PID", conflicts_with = "program")]
    pid: Option<u32>,
    /// The trace directory
    #[arg(short, long, value_name = "DIR", default_value = "capriole.trace")]
    output: PathBuf,
    /// Stop recording after this time, such as 500ms, 2s, 1m
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Memory shared with the program for events not yet on disk
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    buffer_size: u64,
    /// Never use breakpoints; functions that need one are left out
    #[arg(long)]
    no_breakpoints: bool,
    /// Print what was recorded where as JSON, when it is over
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

/// The traced program.
enum Program {
    Running(Process),
    Started(Launched),
}

impl Program {
    fn process(&self) -> &Process {
        match self {
            Program::Running(process) => process,
            Program::Started(launched) => &launched.process,
        }
    }
}

/// Runs the command.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let events = selection::parse(&arguments.events)?;
    let program = match arguments.pid {
        Some(pid) => {
            let process = Process::open(pid)?;
            process.preflight()?;
            Program::Running(process)
        }
        None => Program::Started(launch(&arguments.program[0], &arguments.program[1..])?),
    };
    // Only now: the program has its signals and its priority as they were.
    signals::catch();
    match prepare(&arguments, &events, program.process()) {
        Ok(prepared) => record(&arguments, program, prepared),
        Err(error) => {
            // A program that was started for this is not left running unwatched.
            if let Program::Started(mut launched) = program {
                let _ = launched.child.kill();
                drop(launched.hold);
                let _ = launched.child.wait();
            }
            Err(error)
        }
    }
}

/// Everything that can fail before the program is touched, and the attach.
struct Prepared {
    selected: Vec<Selected>,
    /// For each event, why it is not recorded after all.
    dropped: Vec<Option<String>>,
    /// For each event, its probe.
    probe_of: Vec<Option<usize>>,
    attached: Attached,
    recorder: Recorder,
}

fn prepare(
    arguments: &Arguments,
    events: &[EventSpec],
    process: &Process,
) -> anyhow::Result<Prepared> {
    let objects = Objects::of_process(process)?;
    let planner = Planner::of_process(process).with_breakpoints(!arguments.no_breakpoints);
    let selected = selection::select(&objects, &planner, events)?;
    selection::refuse_named(&selected)?;
    let plan = selection::probes(&selected);
    let mut dropped: Vec<Option<String>> = selected
        .iter()
        .map(|e| e.plan.as_ref().err().map(ToString::to_string))
        .collect();
    for (index, other) in plan.overlapping {
        let other = selected[other].name();
        let reason = format!("its probe would overlap that of {other}; record one of the two");
        dropped[index] = Some(reason);
    }
    let clock = Clock::start().context("the time stamp counter cannot be used as a clock")?;
    // The trace directory first: no attach for nothing if it cannot be made.
    let events = selected.iter().zip(&dropped).filter(|(_, d)| d.is_none());
    let recorder = Recorder::create(
        &arguments.output,
        process,
        events.map(|(event, _)| event.info()).collect(),
        clock,
    )?;
    let probes: Vec<_> = plan.probes.iter().map(|(probe, _)| probe.clone()).collect();
    let geometry =
        |journal| Geometry::for_buffer(arguments.buffer_size, machine::possible_cpus(), journal);
    // Planning has used all processors, at the usual priority.
    machine::hurry();
    let attached = match attach(process, &probes, geometry) {
        Ok(attached) => attached,
        Err(error) => {
            recorder.abandon();
            // What it has mapped already is of no use to anybody.
            if matches!(
                error,
                TargetError::NoSpace { .. } | TargetError::Refused { .. }
            ) {
                let _ = detach_all(process);
            }
            let pid = process.pid() as i32;
            return Err(match error {
                TargetError::Memory { .. }
                | TargetError::Ptrace { .. }
                | TargetError::Share { .. }
                | TargetError::Refused { .. }
                | TargetError::NoThread { .. }
                    if is_over(process) =>
                {
                    TargetError::Vanished { pid }
                }
                error => error,
            }
            .into());
        }
    };
    let mut probe_of = vec![None; selected.len()];
    for (number, (_, events)) in plan.probes.iter().enumerate() {
        for index in events {
            probe_of[*index] = Some(number);
            if let Err(error) = &attached.outcomes[number] {
                dropped[*index] = Some(error.to_string());
            }
        }
    }
    let failed = selected
        .iter()
        .zip(&dropped)
        .find(|(e, d)| e.named && d.is_some());
    let none = dropped.iter().all(Option::is_some);
    if let Some((event, Some(reason))) =
        failed.or(selected.iter().zip(&dropped).next().filter(|_| none))
    {
        attached.detach()?;
        recorder.abandon();
        bail!("{} cannot be probed: {reason}", event.name());
    }
    Ok(Prepared {
        selected,
        dropped,
        probe_of,
        attached,
        recorder,
    })
}

fn record(arguments: &Arguments, program: Program, prepared: Prepared) -> anyhow::Result<ExitCode> {
    let Prepared {
        selected,
        dropped,
        probe_of,
        mut attached,
        mut recorder,
    } = prepared;
    let probed = dropped.iter().filter(|d| d.is_none()).count();
    if arguments.pid.is_some() && !arguments.json {
        eprintln!(
            "capriole: recording {} of process {} ({}){}",
            units::counted(probed as u64, "function", "functions"),
            attached.process.pid(),
            attached.process.name(),
            if arguments.duration.is_some() {
                ""
            } else {
                ", until it ends or Ctrl-C"
            }
        );
    }
    say_dropped(&selected, &dropped);
    let mut child = match program {
        Program::Running(_) => None,
        Program::Started(launched) => {
            drop(launched.hold); // now it runs
            Some(launched.child)
        }
    };
    let ended = recorder.run(&mut attached, arguments.duration);
    let detached = match attached.detach() {
        // It ended while it was being left: nothing is left to take out.
        Err(_) if is_over(&attached.process) => Ok(Detached::default()),
        result => result,
    };
    let status = match &ended {
        Ok(Ended::Exited) => exit_status(child.as_mut()),
        _ => None,
    };
    let summary = recorder.finish(&attached, detached.as_ref().ok(), status);
    // What ended it first is what the user has to hear of.
    let over = ended.and_then(|ended| Ok((ended, detached?, summary?)));
    let (ended, detached, summary) = match over {
        Ok(over) => over,
        Err(error) => {
            let cut_short = cut_short(&arguments.output, &attached);
            eprintln!("capriole: {}", exit::message(&error));
            eprintln!("capriole: {cut_short}");
            if let Some(child) = child {
                wait_for(child)?;
            }
            return Ok(ExitCode::FAILURE);
        }
    };

    let standstill = attached.standstill;
    if arguments.json {
        let sites: Vec<Value> = selected
            .iter()
            .zip(&dropped)
            .zip(&probe_of)
            .map(|((event, dropped), probe)| {
                let mut site = event.json();
                let outcome = probe.and_then(|number| attached.outcomes[number].as_ref().ok());
                site["state"] = match (dropped, outcome) {
                    (None, Some(outcome)) => json!(outcome.state.name(outcome.tactic)),
                    _ => json!("not probed"),
                };
                if let Some(reason) = dropped {
                    site["reason"] = json!(reason);
                }
                site
            })
            .collect();
        let value = json!({
            "trace": arguments.output.to_string_lossy(),
            "pid": attached.process.pid(),
            "events": summary.events,
            "lost": summary.lost,
            "bytes": summary.bytes,
            "duration_ns": summary.duration.as_nanos() as u64,
            "standstill_ns": {
                "attach": standstill.all.as_nanos() as u64,
                "attach_one_thread": standstill.one.as_nanos() as u64,
                "detach": detached.standstill.as_nanos() as u64,
            },
            "restartable_sequences": attached.survey.rseq_offset.is_some(),
            "thread_ids": attached.survey.tid_offset.is_some(),
            "ended": ended.as_str(),
            "sites": sites,
        });
        println!("{value}");
    } else {
        say_summary(arguments, &attached, &summary, ended, &detached);
    }
    match child {
        Some(child) => wait_for(child),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Whether a process has ended, or is so far in ending that its memory is gone.
fn is_over(process: &Process) -> bool {
    !process.is_alive() || process.maps().map_or(true, |maps| maps.is_empty())
}

/// What is left when a recording ended with an error.
fn cut_short(trace: &Path, attached: &Attached) -> String {
    let program = if !attached.process.is_alive() {
        "the program has ended".to_owned()
    } else if attached.is_mapped() {
        let pid = attached.process.pid();
        format!("its probes are still in the program: `capriole detach {pid}` takes them out")
    } else {
        "the program goes on without probes".to_owned()
    };
    format!(
        "recording stopped there; {program}; {} has what was recorded until then",
        trace.display()
    )
}

/// Waits for a program that we started, and passes on its status. Whoever asks
/// (once more) that we end has us leave it running.
fn wait_for(mut child: Child) -> anyhow::Result<ExitCode> {
    let before = signals::requests();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(exit::passed_on(status));
        }
        if signals::requests() > before {
            eprintln!("capriole: process {} is left running", child.id());
            return Ok(ExitCode::SUCCESS);
        }
        let pid = Pid::from_child(&child);
        match pidfd_open(pid, PidfdFlags::empty()) {
            // A signal ends this wait; one that came just before it is seen soon.
            Ok(ended) => {
                let soon = Timespec {
                    tv_sec: 0,
                    tv_nsec: 200_000_000,
                };
                let _ = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&soon));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn exit_status(child: Option<&mut Child>) -> Option<ExitStatus> {
    use std::os::unix::process::ExitStatusExt;
    let status = child?.wait().ok()?;
    status
        .code()
        .map(ExitStatus::Exited)
        .or(status.signal().map(ExitStatus::Signaled))
}

/// How many functions are left out, and why, most frequent reason first.
fn say_dropped(selected: &[Selected], dropped: &[Option<String>]) {
    let left_out: Vec<(&Selected, &String)> = selected
        .iter()
        .zip(dropped)
        .filter_map(|(e, d)| Some((e, d.as_ref()?)))
        .collect();
    if left_out.is_empty() {
        return;
    }
    eprintln!(
        "capriole: left out: {} of {}; `capriole list` tells why. For example:",
        units::count(left_out.len() as u64),
        units::counted(selected.len() as u64, "function", "functions")
    );
    for (event, reason) in left_out.iter().take(3) {
        eprintln!("  {}: {reason}", event.name());
    }
}

fn say_summary(
    arguments: &Arguments,
    attached: &Attached,
    summary: &recorder::Summary,
    ended: Ended,
    detached: &Detached,
) {
    let output = arguments.output.display();
    eprintln!(
        "capriole: {} in {} -> {output} ({}){}",
        units::counted(summary.events, "event", "events"),
        units::time(summary.duration),
        units::bytes(summary.bytes),
        ended.remark(),
    );
    if summary.lost > 0 {
        eprintln!(
            "capriole: {} LOST because the buffer was full; give a larger --buffer-size \
             (now {} KiB) or record fewer functions",
            units::counted(summary.lost, "event", "events"),
            units::count(arguments.buffer_size >> 10)
        );
    }
    if summary.damaged > 0 {
        eprintln!(
            "capriole: {} could not be read: the program wrote over session memory",
            units::counted(summary.damaged, "packet", "packets")
        );
    }
    if attached.survey.tid_offset.is_none() {
        let why = match arguments.pid {
            None => "a static program has none yet when it starts; attach with -p PID to see them",
            Some(_) => "this program keeps them nowhere that was found",
        };
        eprintln!("capriole: thread ids are unknown: {why}");
    }
    let out = match ended {
        Ended::Exited => String::new(),
        _ => format!(" and {} to detach", units::time(detached.standstill)),
    };
    eprintln!(
        "capriole: the program stood still for {} to attach{out}",
        units::time(attached.standstill.all)
    );
    if detached.lingering {
        eprintln!(
            "capriole: all bytes are back, but memory stays mapped because a signal handler will \
             return into it; `capriole detach {}` removes it later",
            attached.process.pid()
        );
    }
    let dir = match arguments.output.to_str() {
        Some("capriole.trace") => String::new(),
        _ => format!(" {output}"),
    };
    eprintln!("capriole: show it with `capriole report{dir}`");
}
