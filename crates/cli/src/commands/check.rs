//! `capriole check`: one site in detail.

mod assembly;
mod detour;
mod parts;
mod site;
mod threads;
mod used;

use self::detour::Sketch;
use self::threads::Threads;
use crate::completion;
use crate::exit::Usage;
use crate::probing::{ReturnsBy, note_wait, remark};
use crate::subject;
use crate::verbosity::timed;
use anyhow::bail;
use capriole_object::Objects;
use capriole_select::debuginfod;
use capriole_select::definitions;
use capriole_select::event::Event;
use capriole_select::select::{self, Fate, Mode, Selected};
use capriole_text::output;
use capriole_text::say;
use clap::ValueHint;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show how a site would be probed: tactics, reasons, bytes, the detour
#[derive(Debug, clap::Args)]
#[command(override_usage = "capriole check [OPTIONS] EVENT (-p PID | PATH)")]
pub struct Arguments {
    /// The event, such as `libc:malloc` or `:main+4`
    event: String,
    /// File to check instead of a process; not needed if the event contains the path of one
    #[arg(conflicts_with = "pid", value_hint = ValueHint::FilePath)]
    path: Option<PathBuf>,
    /// The running process: its number, or its name if only one has it
    #[arg(short, long, value_name = "PID", value_parser = subject::pid, add = completion::processes())]
    pid: Option<u32>,
    /// How function returns are detected: probes at the exits, or a replaced return address
    #[arg(long = "return", value_name = "HOW", value_enum, default_value_t)]
    returns: ReturnsBy,
    /// Assume that an instruction begins at the given address, even where nothing shows it
    #[arg(long)]
    trust_address: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command. The exit status is 0 if every site can be probed, else 1.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if let Some(path) = &arguments.path {
        subject::refuse_swapped("check", &arguments.event, path)?;
    }
    let events = definitions::parse_plain(std::slice::from_ref(&arguments.event), &[])?;
    let path = match (&arguments.path, arguments.pid) {
        (Some(path), _) => Some(path.clone()),
        (None, Some(_)) => None,
        (None, None) => subject::file_of(&events),
    };
    let path = path.as_deref().map(subject::existing).transpose()?;
    if path.is_none() && arguments.pid.is_none() {
        bail!(Usage("give a file, or a process with -p PID"));
    }
    let (objects, planner) = subject::open(arguments.pid, path.as_deref())?;
    let planner = planner.with_trusted_addresses(arguments.trust_address);
    let events: Vec<Event> = events.into_iter().map(|e| Event::alone(e.into())).collect();
    let mode = Mode::new(arguments.returns.into());
    let selected = timed("functions found, probes planned", || {
        debuginfod::fetch(&objects, &events, &note_wait);
        select::select(&objects, &planner, &events, mode)
    })?;
    let threads = Threads::of(&objects);
    if arguments.json {
        let sites: Vec<_> = selected
            .iter()
            .map(|event| json(event, &objects, &threads))
            .collect();
        say!("{}", serde_json::to_string_pretty(&sites)?);
    } else {
        for event in &selected {
            output::print(format_args!("{}", describe(event, &objects, &threads)));
        }
    }
    remark(&selected);
    let all = selected.iter().all(|e| e.fate.reason().is_none());
    Ok(if all {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Formats the site and its detour as text.
fn describe(event: &Selected, objects: &Objects, threads: &Threads) -> String {
    let mut text = site::describe(event);
    if event.part.is_followed() && event.fate.reason().is_none() {
        text.push_str(
            "  returns   its return address is replaced here; the event is when it comes back by that\n",
        );
    } else if let Fate::Planned(plan) = &event.fate {
        match Sketch::of(event, &plan.shape, objects, threads) {
            Ok(sketch) => sketch.describe(threads, &mut text),
            Err(reason) => {
                let _ = writeln!(text, "  detour    cannot be made: {reason}");
            }
        }
    }
    text
}

/// Formats the site and its detour for `--json`.
fn json(event: &Selected, objects: &Objects, threads: &Threads) -> Value {
    let mut value = site::json(event);
    if event.part.is_followed() {
        value["return"] = serde_json::json!("stack");
    } else if let Fate::Planned(plan) = &event.fate
        && let Ok(sketch) = Sketch::of(event, &plan.shape, objects, threads)
    {
        sketch.json(&mut value);
    }
    value
}
