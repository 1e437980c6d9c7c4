//! `capriole record`: records events into a trace directory.

use crate::advice;
use crate::exit::{self, with_remedy};
use crate::new_file::new_file;
use crate::probing::{self, Console, End, ProbeFlags, ReturnsBy, RunFlags, wait_for};
use crate::verbosity::timed;
use capriole::aggregate::Keys;
use capriole::filtered::Filtered;
use capriole::machine;
use capriole::options;
use capriole::plan::{Probed, Request};
use capriole::program::Program;
use capriole::record::saving;
use capriole::record::{Recorder, Summary};
use capriole::returns::Unseen;
use capriole::uncovered;
use capriole_object::symbols::shown::ShownNames;
use capriole_patch::detach::Detached;
use capriole_proc::process::Process;
use capriole_ring::layout;
use capriole_select::calls;
use capriole_select::definitions;
use capriole_select::event::Event;
use capriole_select::message;
use capriole_select::select;
use capriole_select::select::Mode;
use capriole_text::units;
use capriole_text::units::{parse_duration, parse_size};
use capriole_text::{note, say, tell};
use capriole_trace::ExitStatus;
use capriole_trace::clock::Clock;
use clap::ValueHint;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Record every call of functions in a running program, or in one that it starts
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "capriole record [OPTIONS] EVENTS -p PID\n       \
                      capriole record [OPTIONS] EVENTS -- PROGRAM [ARG]...\n       \
                      with EVENTS: (-e EVENT | --graph EVENT | -f FILE)...",
    after_help = "Topics: capriole help events, fields, types, filters, returns, stacks, ..."
)]
pub struct Arguments {
    /// Event to record: `LIB:FUNCTION [$arg1 NAME=+0($arg2):string …] [if FILTER]`,
    /// patterns allowed; an empty LIB is the main program
    #[arg(
        short,
        long = "event",
        value_name = "EVENT",
        required_unless_present_any = ["files", "graph"]
    )]
    events: Vec<String>,
    /// Function whose calls are recorded from entry to exit, with the return value, for call
    /// graphs: `LIB:FUNCTION [$arg1 …] [if FILTER]`, patterns allowed
    #[arg(long, value_name = "EVENT")]
    graph: Vec<String>,
    /// With --graph: record only calls that took at least this time, such as 10us; shorter calls
    /// are dropped inside the program
    #[arg(long, value_name = "TIME", requires = "graph", value_parser = parse_duration)]
    min_duration: Option<Duration>,
    #[command(flatten)]
    run: RunFlags,
    /// The trace directory
    #[arg(short, long, value_name = "DIR", default_value = "capriole.trace", value_hint = ValueHint::DirPath, value_parser = new_file())]
    output: PathBuf,
    /// Memory shared with the program for events not yet on disk
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    buffer_size: u64,
    #[command(flatten)]
    probes: ProbeFlags,
    /// At the end, print a JSON summary of the recording and its sites
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    machine::check_buffer(arguments.buffer_size)?;
    let events = definitions::parse_plain(&arguments.events, &arguments.run.files)?;
    let mut events: Vec<Event> = events.into_iter().map(Event::from).collect();
    let clock = options::clock()?;
    let least = arguments
        .min_duration
        .map(|time| options::ticks(&clock, time));
    let least = least.transpose()?;
    for (at, text) in arguments.graph.iter().enumerate() {
        // Drop duplicates here: with `--min-duration`, `select()` cannot.
        if least.is_none() || !arguments.graph[..at].contains(text) {
            events.push(calls::graph(text, least)?);
        }
    }
    let prepare =
        |program: &Program| prepare(&arguments, &events, program.process(), clock.clone());
    let (program, (probed, recorder)) =
        Program::prepared(arguments.run.pid, &arguments.run.program, prepare)?;
    record(&arguments, program, probed, recorder)
}

/// Does everything that can fail before the program is touched, then attaches.
fn prepare(
    arguments: &Arguments,
    events: &[Event],
    process: &Process,
    clock: Clock,
) -> capriole::Result<(Probed, Recorder)> {
    let request = Request {
        entries: false,
        breakpoints: None,
        events,
        options: &arguments.probes.into(),
        mode: Mode::new(arguments.probes.returns.into()),
        messages: true,
        keys: Keys::default(),
        clock: Some(&clock),
    };
    let planned = timed("functions found, probes planned", || {
        probing::plan(process, &request)
    })?;
    // Save what a killed recorder left in the process before its trace is moved aside.
    if let Some(message) = saving::take_over(process)? {
        tell!("capriole: {}", advice::told(&message));
    }
    // Create the trace directory first: no need to attach if that fails. An older trace stays where
    // it is until the probes are in.
    let mut events = select::infos(planned.kept());
    // An event number that no other event uses.
    let texts = planned.selected.len() as u32;
    events.push(message::from_outside(texts));
    let mut recorder = Recorder::create(&arguments.output, process, events, texts, clock)?;
    let geometry = planned.geometry(arguments.buffer_size);
    let attach = || planned.attach(process, Some(&recorder.trace()), geometry);
    match timed("probes inserted", attach) {
        Ok(probed) => match recorder.begin(&probed.attached) {
            Ok(()) => Ok((probed, recorder)),
            Err(error) => {
                let detached = probed.detach();
                recorder.abandon();
                detached?;
                Err(error)
            }
        },
        Err(error) => {
            recorder.abandon();
            Err(error)
        }
    }
}

fn record(
    arguments: &Arguments,
    program: Program,
    mut probed: Probed,
    mut recorder: Recorder,
) -> anyhow::Result<ExitCode> {
    if arguments.run.pid.is_some() {
        probing::say_begin(&probed, "recording", arguments.run.duration);
    }
    let names = select::shown_names(&probed.selected, arguments.run.names.form());
    probing::say_dropped(&probed, &names);
    probing::say_sites(&probed, &names);
    if arguments.run.pid.is_none() {
        recorder.set_start(Instant::now());
    }
    let uncovered = probing::uncovered(&arguments.run, &probed);
    if let Some(message) = uncovered::message(&uncovered) {
        tell!("capriole: {message}");
        recorder.warn(message);
    }
    let mut child = program.release();
    let ended = recorder.run(&mut probed, arguments.run.duration, &mut Console);
    let detached = timed("probes removed", || probed.detach_and_flush(&mut recorder));
    let attached = &probed.attached;
    let end = ended.as_ref().ok();
    let end = end.map(|ended| End::of(*ended, &probed, child.as_mut()));
    let status = end.as_ref().and_then(End::status);
    let summary = timed("trace completed", || {
        recorder.finish(attached, detached.as_ref().ok(), status.map(traced))
    });
    // Report the first error, which ended the recording.
    let over = ended.and_then(|ended| Ok((ended, detached?, summary?)));
    let (ended, detached, summary) = match over {
        Ok(over) => over,
        Err(error) => {
            let aftermath = advice::told(&probed.aftermath());
            let output = arguments.output.display();
            let kept = match arguments.output.is_dir() {
                true => format!("{output} has the events until then"),
                false => format!("{output} was removed or moved meanwhile: its events are lost"),
            };
            tell!("capriole: {}", with_remedy(error.full_with(advice::words)));
            tell!("capriole: recording stopped; {aftermath}; {kept}");
            if let Some(child) = child {
                wait_for(child)?;
            }
            return Ok(ExitCode::FAILURE);
        }
    };

    let unseen = Unseen::of(attached);
    if arguments.json {
        let unhit = match summary.events {
            0 => probing::asked(&probed),
            _ => Vec::new(),
        };
        let mut value = json!({
            "trace": arguments.output.to_string_lossy(),
            "pid": attached.process().pid(),
            "events": summary.events,
            "lost": summary.lost,
            "lost_busy": summary.busy,
            "damaged": summary.damaged,
            "bytes": summary.bytes,
            "duration_ns": summary.duration.as_nanos() as u64,
            "standstill_ns": probed.standstill_json(&detached),
            "restartable_sequences": attached.survey.rseq_offset.is_some(),
            "thread_ids": attached.survey.tid_offset.is_some(),
            "ended": ended.as_str(),
            "executed_children": summary.executed_children,
            "not_covered": probing::uncovered_json(&uncovered),
            "copied_code": probing::copied_code_json(&probed, &unhit),
            "taken_out": probed.taken_out(),
            "unreached_uprobes": attached.all_unreached(),
            "repaired": detached.repaired,
            "sites": probed.sites_json(advice::words),
        });
        Filtered::of(attached).put_into(&mut value);
        if arguments.probes.returns == ReturnsBy::Stack {
            unseen.put_into(&mut value);
        }
        say!("{value}");
    } else {
        let remark = end.map_or_else(String::new, |end| end.remark());
        say_summary(arguments, &probed, &names, &summary, &remark, &detached);
    }
    let code = match child {
        Some(child) => wait_for(child)?,
        None => status.map_or(ExitCode::SUCCESS, exit::passed_on),
    };
    if !arguments.output.is_dir() {
        tell!(
            "capriole: {} was removed or moved while it was being recorded; record again",
            arguments.output.display()
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(code)
}

/// Converts a status for the trace.
fn traced(status: std::process::ExitStatus) -> ExitStatus {
    use std::os::unix::process::ExitStatusExt;
    match status.signal() {
        Some(signal) => ExitStatus::Signaled(signal),
        None => ExitStatus::Exited(status.code().unwrap_or(0)),
    }
}

fn say_summary(
    arguments: &Arguments,
    probed: &Probed,
    names: &ShownNames,
    summary: &Summary,
    remark: &str,
    detached: &Detached,
) {
    let output = arguments.output.display();
    note!(
        "capriole: {} in {} -> {output} ({}){remark}",
        units::counted(summary.events, "event", "events"),
        units::time(summary.duration),
        units::bytes(summary.bytes),
    );
    let full = summary.lost.saturating_sub(summary.busy);
    if full > 0 {
        tell!(
            "capriole: {} LOST because the buffer was full; give a larger --buffer-size \
             (now {} KiB) or record fewer functions",
            units::counted(full, "event", "events"),
            units::count(arguments.buffer_size >> 10)
        );
    }
    if summary.busy > 0 {
        tell!(
            "capriole: {} LOST because more than {} threads were recording on one CPU at once, or \
             were killed or left by longjmp meanwhile; record fewer fields in memory",
            units::counted(summary.busy, "event", "events"),
            layout::LANES - 1
        );
    }
    if arguments.probes.returns == ReturnsBy::Stack {
        probing::say_unseen(Unseen::of(&probed.attached));
    }
    probing::say_filtered(Filtered::of(&probed.attached));
    if summary.damaged > 0 {
        tell!(
            "capriole: {} in the buffer could not be read: the program, or a child that it forked, \
             overwrote it; the number of lost events may be wrong, too; look for a wild pointer in \
             the program",
            units::counted(summary.damaged, "place", "places")
        );
    }
    if probed.attached.survey.tid_offset.is_none() {
        let own_storage = probed.attached.survey.own_storage;
        let why = match arguments.run.pid {
            _ if own_storage => {
                "the program, or a library that it uses, may give threads thread pointers of its own"
            }
            None => "a static program has none yet when it starts; attach with -p PID to have them",
            Some(_) => "it is not known where this program's C library keeps them",
        };
        note!("capriole: thread ids are unknown: {why}");
    }
    probing::say_not_followed(summary.executed_children);
    probing::say_end(probed, detached);
    if summary.events == 0 && full == 0 {
        probing::say_nothing_hit(probed, detached, names, arguments.min_duration);
        return;
    }
    let dir = match arguments.output.to_str() {
        Some("capriole.trace") => String::new(),
        _ => format!(" {output}"),
    };
    note!("capriole: show it with `capriole report{dir}`");
}
