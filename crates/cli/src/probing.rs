//! Common parts of `record` and `stat`: options of probes, messages about probed programs, and the
//! wait for a program that was started.

use crate::advice;
use crate::completion;
use capriole::advice::Message;
use capriole::filtered::Filtered;
use capriole::options::ProbeOptions;
use capriole::plan::Probed;
use capriole::returns::{Returns, Unseen};
use capriole::watch::{Ended, Observer};
use capriole_host::signals;
use capriole_patch::detach::Detached;
use capriole_planner::resolve::Body;
use capriole_select::select::{self, Impossible, Part, Selected};
use capriole_text::output::is_verbose;
use capriole_text::units::parse_duration;
use capriole_text::{detail, note, tell, units};
use clap::ValueHint;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::HashSet;
use std::ffi::OsString;
use std::mem::{Discriminant, discriminant};
use std::path::PathBuf;
use std::process::{Child, ExitCode};
use std::time::Duration;

/// The program, further events, and the time limit: arguments of commands that probe a program.
#[derive(Debug, clap::Args)]
pub struct RunFlags {
    /// File of events, one per line, in the format of uprobe_events; `#` begins a comment
    #[arg(short, long = "file", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// The running process
    #[arg(
        short,
        long,
        value_name = "PID",
        conflicts_with = "program",
        add = completion::processes()
    )]
    pub pid: Option<u32>,
    /// Stop after this time, such as 500ms, 2s, 1m
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// The program to start, and its arguments
    #[arg(
        trailing_var_arg = true,
        value_name = "PROGRAM",
        required_unless_present = "pid",
        add = completion::program()
    )]
    pub program: Vec<OsString>,
}

/// Options that control how sites are probed, and how returns are detected.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct ProbeFlags {
    /// How function returns are detected: probes at the exits, or a replaced return address
    #[arg(long = "return", value_name = "HOW", value_enum, default_value_t)]
    pub returns: ReturnsBy,
    /// Use breakpoints where no jump can be placed; a program that hits one while it blocks SIGTRAP
    /// is killed
    #[arg(long)]
    breakpoints: bool,
    /// Change only one instruction for each probe wherever possible: slower, but safe if another
    /// tool puts uprobes at the same places meanwhile
    #[arg(long)]
    one_instruction: bool,
    /// Continue without the events that cannot be probed, even if they were named, and report what
    /// is left out
    #[arg(long)]
    keep_going: bool,
    /// Probe the given addresses even where nothing shows that an instruction begins there; if none
    /// does, the program malfunctions
    #[arg(long)]
    trust_address: bool,
    /// Read the clock only after all earlier loads of the thread have completed: times of different
    /// CPUs then agree with the order of events, at a cost of some nanoseconds per event
    #[arg(long)]
    ordered_clock: bool,
}

impl From<ProbeFlags> for ProbeOptions {
    fn from(flags: ProbeFlags) -> ProbeOptions {
        ProbeOptions {
            breakpoints: flags.breakpoints,
            one_instruction: flags.one_instruction,
            keep_going: flags.keep_going,
            trust_address: flags.trust_address,
            ordered_clock: flags.ordered_clock,
            ..ProbeOptions::default()
        }
    }
}

/// Value of `--return`: how returns are detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum ReturnsBy {
    // By a probe at each of its exits
    #[default]
    Exits,
    // By the return address, which is replaced at the entry; works through tail calls too
    Stack,
}

impl From<ReturnsBy> for Returns {
    fn from(by: ReturnsBy) -> Returns {
        match by {
            ReturnsBy::Exits => Returns::Exits,
            ReturnsBy::Stack => Returns::Stack,
        }
    }
}

/// Observer of a recording: ended by Ctrl-C, with messages on standard error.
pub struct Console;

impl Observer for Console {
    fn end_requested(&mut self) -> bool {
        signals::requests() > 0
    }

    fn tell(&mut self, message: &str) {
        tell!("capriole: {message}");
    }
}

/// Prints a warning about returns that were not seen, if there are any.
pub fn say_unseen(unseen: Unseen) {
    if unseen.damaged {
        tell!(
            "capriole: how many returns were missed is not known: the program, or a child \
             that it forked, wrote over session memory"
        );
    }
    if unseen.missed > 0 {
        tell!(
            "capriole: the returns of {} were MISSED: too many calls were open at once, or \
             functions left for one another; follow fewer functions",
            units::counted(unseen.missed, "call", "calls")
        );
    }
}

/// Prints a warning about values that were not read because of a seccomp filter, if any.
pub fn say_filtered(filtered: Filtered) {
    if let Some(text) = filtered.message() {
        tell!("capriole: {text}");
    }
}

/// Prints `capriole: DOING 3 functions of process 17 (name)`, and what ends it if there is no
/// time limit.
pub fn say_begin(probed: &Probed, doing: &str, limit: Option<Duration>) {
    let shown = probed.selected.iter().zip(&probed.dropped);
    let shown = shown
        .filter(|(event, d)| {
            d.is_none() && !event.part.begins_calls() && !event.origin.is_implied()
        })
        .map(|(event, _)| event);
    let shown: Vec<&Selected> = shown.collect();
    let (one, several) = Selected::nouns(shown.iter().copied());
    let subjects = shown.iter().map(|event| (part(event), event.subject()));
    let subjects = subjects.collect::<HashSet<_>>().len();
    note!(
        "capriole: {doing} {} of process {} ({}){}",
        units::counted(subjects as u64, one, several),
        probed.attached.process().pid(),
        probed.attached.process().name(),
        if limit.is_some() {
            ""
        } else {
            ", until it ends or Ctrl-C"
        }
    );
}

/// Identifies the user's event, and the part of it at entries or exits.
fn part(event: &Selected) -> (usize, Discriminant<Part>) {
    (event.definition, discriminant(&event.part))
}

/// Prints how many functions are left out, with examples and reasons, and a warning if memory
/// cannot be read.
pub fn say_dropped(probed: &Probed) {
    if probed.attached.unguarded {
        tell!(
            "capriole: what is in memory, and thread names, cannot be read in this program: \
             that takes system calls, and it has calls of its own by which it could install \
             a seccomp filter unnoticed"
        );
    }
    if !probed.impossible.is_empty() {
        let definitions = probed.selected.iter();
        let definitions = definitions.filter(|event| !event.origin.is_implied());
        let definitions: HashSet<&str> = definitions.map(|e| e.probe.label.as_str()).collect();
        let all = definitions.len() + probed.impossible.len();
        tell!(
            "capriole: left out: {} of {}:",
            units::count(probed.impossible.len() as u64),
            units::counted(all as u64, "event", "events")
        );
        for Impossible { reason, .. } in &probed.impossible {
            tell!("  {}", advice::told(reason));
        }
    }
    for message in select::namesakes(&probed.selected) {
        tell!("capriole: {message}");
    }
    let mut told = HashSet::new();
    let left_out: Vec<(&Selected, &Message)> = probed
        .selected
        .iter()
        .zip(&probed.dropped)
        .filter_map(|(e, d)| Some((e, d.as_ref().filter(|_| !e.origin.is_implied())?)))
        .filter(|(e, _)| told.insert((part(e), e.place_of_call())))
        .collect();
    if left_out.is_empty() {
        return;
    }
    let asked = || {
        let all = probed.selected.iter();
        all.filter(|event| !event.origin.is_implied())
    };
    let all: HashSet<_> = asked()
        .map(|event| (part(event), event.place_of_call()))
        .collect();
    let (one, several) = match Selected::nouns(asked()) {
        ("marker", _) => ("place of a marker", "places of markers"),
        nouns => nouns,
    };
    tell!(
        "capriole: left out: {} of {}{}:",
        units::count(left_out.len() as u64),
        units::counted(all.len() as u64, one, several),
        match is_verbose() {
            true => "",
            false => "; `capriole list` tells why. For example",
        }
    );
    let shown = if is_verbose() { usize::MAX } else { 3 };
    for (event, reason) in left_out.iter().take(shown) {
        let at = match &event.site.marker {
            Some(_) => event.at_exit(),
            None => String::new(),
        };
        tell!("  {}{at}: {}", event.name(), advice::told(reason));
    }
    if left_out
        .iter()
        .any(|(event, _)| event.site.body != Body::Own)
    {
        tell!("  calls that come by there are not in what is recorded or counted");
    }
}

/// With `--verbose`, prints each site with its place and how it is probed.
pub fn say_sites(probed: &Probed) {
    if !is_verbose() {
        return;
    }
    let sites = probed.sites_json(advice::words);
    for (event, site) in probed.selected.iter().zip(sites) {
        let state = site["state"].as_str().unwrap_or_default();
        // The reasons of the others are printed by `say_dropped`.
        if site["reason"].is_null() {
            detail!(
                "  {:#014x}  {:<8}  {:<10}  {}{} ({}+{:#x})",
                event.site.address,
                event.tactic(),
                state,
                event.name(),
                event.at_exit(),
                event.site.object.name(),
                event.site.file_offset
            );
        }
    }
}

/// Returns a message about places where another tool had changed probes.
pub fn repaired(detached: &Detached) -> Option<String> {
    let places = units::counted(detached.repaired as u64, "place", "places");
    let message = format!(
        "at {places} another tool (a uprobe, a debugger) had come or gone since; the program's own \
         bytes are back, and its breakpoints were left"
    );
    (detached.repaired > 0).then_some(message)
}

/// Returns a message on how long the program was paused.
fn stood_still(attach: Duration, ended: Ended, detached: &Detached) -> String {
    let out = match ended {
        // After `capriole detach`, which printed its own time, there was nothing left to stop for.
        Ended::Exited | Ended::Detached => String::new(),
        _ => format!(" and {} to detach", units::time(detached.standstill)),
    };
    format!(
        "the program stood still for {} to attach{out}",
        units::time(attach)
    )
}

/// Prints how long the program was paused, and what is left in it.
pub fn say_end(probed: &Probed, ended: Ended, detached: &Detached) {
    let attach = probed.attached.standstill.all;
    note!("capriole: {}", stood_still(attach, ended, detached));
    let taken_out = probed.taken_out();
    if taken_out > 0 {
        tell!(
            "capriole: {} NOT recorded to the end: another tool came to the same places",
            units::counted(taken_out as u64, "event was", "events were")
        );
    }
    if let Some(message) = repaired(detached) {
        tell!("capriole: {message}");
    }
    if detached.foreign > 0 {
        tell!(
            "capriole: left alone: {} that somebody else has changed or unmapped since",
            units::counted(detached.foreign as u64, "place", "places")
        );
    }
    if detached.lingering {
        tell!(
            "capriole: all bytes are back, but memory stays mapped because a signal handler \
             will return into it; `capriole detach {}` removes it later",
            probed.attached.process().pid()
        );
    }
    if detached.damaged > 0 {
        tell!(
            "capriole: {} wrote over what tells how the probes are taken out; they stay there",
            units::counted(detached.damaged as u64, "child", "children")
        );
    }
}

/// Waits for a program that we started, and passes on its status. A further termination signal
/// leaves it running.
pub fn wait_for(mut child: Child) -> anyhow::Result<ExitCode> {
    let before = signals::requests();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(crate::exit::passed_on(status));
        }
        if signals::requests() > before {
            note!("capriole: process {} is left running", child.id());
            return Ok(ExitCode::SUCCESS);
        }
        let pid = Pid::from_child(&child);
        match pidfd_open(pid, PidfdFlags::empty()) {
            // A signal interrupts this wait; one that arrived just before it is noticed soon.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_detach_is_given_only_by_who_detached() {
        let detached = Detached {
            standstill: Duration::from_micros(7),
            ..Detached::default()
        };
        let told = |ended| stood_still(Duration::from_micros(5), ended, &detached);
        assert_eq!(
            told(Ended::Requested),
            "the program stood still for 5.0 us to attach and 7.0 us to detach"
        );
        for ended in [Ended::Detached, Ended::Exited] {
            assert_eq!(told(ended), "the program stood still for 5.0 us to attach");
        }
    }
}
