//! `capriole record`: the main job.

mod recorder;

use crate::selection::{self, Selected};
use crate::units::{self, parse_duration, parse_size};
use crate::{exit, machine, signals};
use anyhow::{Context, bail};
use capriole_ring::layout::Geometry;
use capriole_target::attach::{Attached, attach};
use capriole_target::launch::{Launched, launch};
use capriole_target::object::Objects;
use capriole_target::planner::Planner;
use capriole_target::process::Process;
use capriole_trace::ExitStatus;
use capriole_trace::clock::Clock;
use recorder::{Ended, Recorder};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, ExitCode};
use std::time::Duration;

/// Record every call of functions of a running program, or of one that is started
#[derive(Debug, clap::Args)]
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
    signals::catch();
    let program = match arguments.pid {
        Some(pid) => {
            let process = Process::open(pid)?;
            process.preflight()?;
            Program::Running(process)
        }
        None => Program::Started(launch(&arguments.program[0], &arguments.program[1..])?),
    };
    match prepare(&arguments, program.process()) {
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
    attached: Attached,
    recorder: Recorder,
}

fn prepare(arguments: &Arguments, process: &Process) -> anyhow::Result<Prepared> {
    let objects = Objects::of_process(process)?;
    let planner = Planner::of_process(process).with_breakpoints(!arguments.no_breakpoints);
    let selected = selection::select(&objects, &planner, &arguments.events)?;
    selection::refuse_named(&selected)?;
    let plan = selection::probes(&selected);
    let mut dropped: Vec<Option<String>> = selected
        .iter()
        .map(|e| e.plan.as_ref().err().map(ToString::to_string))
        .collect();
    for index in plan.overlapping {
        dropped[index] = Some("its bytes overlap those of another probe".into());
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
    let attached = match attach(process, &probes, geometry) {
        Ok(attached) => attached,
        Err(error) => {
            recorder.abandon();
            return Err(error.into());
        }
    };
    for ((_, events), outcome) in plan.probes.iter().zip(&attached.outcomes) {
        if let Err(error) = outcome {
            for index in events {
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
        attached,
        recorder,
    })
}

fn record(arguments: &Arguments, program: Program, prepared: Prepared) -> anyhow::Result<ExitCode> {
    let Prepared {
        selected,
        dropped,
        attached,
        mut recorder,
    } = prepared;
    let probed = dropped.iter().filter(|d| d.is_none()).count();
    if arguments.pid.is_some() && !arguments.json {
        eprintln!(
            "capriole: recording {} functions of process {} ({}){}",
            units::count(probed as u64),
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
    let ended = recorder.run(&attached, arguments.duration);
    let detached = attached.detach();
    let status = match &ended {
        Ok(Ended::ProgramEnded) => exit_status(child.as_mut()),
        _ => None,
    };
    let summary = recorder.finish(&attached, detached.as_ref().ok(), status);
    let detached = detached?;
    // What ended it first is what the user has to hear of.
    let ended = ended?;
    let summary = summary?;

    let standstill = attached.standstill;
    if arguments.json {
        let sites: Vec<Value> = selected
            .iter()
            .zip(&dropped)
            .map(|(event, dropped)| {
                let mut site = event.json();
                site["state"] = match dropped {
                    None if event.tactic() == "int3" => json!("breakpoint"),
                    None => json!("optimised"),
                    Some(_) => json!("not probed"),
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
        Some(mut child) => Ok(exit::passed_on(child.wait()?)),
        None => Ok(ExitCode::SUCCESS),
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
        "capriole: {} of {} functions are left out; `capriole list` tells why. For example:",
        units::count(left_out.len() as u64),
        units::count(selected.len() as u64)
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
    detached: &capriole_target::detach::Detached,
) {
    let output = arguments.output.display();
    eprintln!(
        "capriole: {} events in {} -> {output} ({}){}",
        units::count(summary.events),
        units::time(summary.duration),
        units::bytes(summary.bytes),
        ended.remark(),
    );
    if summary.lost > 0 {
        eprintln!(
            "capriole: {} events were LOST because the buffer was full; give a larger --buffer-size \
             (now {} MiB) or record fewer functions",
            units::count(summary.lost),
            arguments.buffer_size >> 20
        );
    }
    if summary.damaged > 0 {
        eprintln!(
            "capriole: {} packets were unreadable: the program wrote over session memory",
            summary.damaged
        );
    }
    if attached.survey.tid_offset.is_none() {
        eprintln!(
            "capriole: thread ids are unknown: this program keeps them nowhere that was found"
        );
    }
    let out = match ended {
        Ended::ProgramEnded => String::new(),
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
