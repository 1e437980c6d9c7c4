//! Common parts of `record` and `stat`: options of probes, messages about probed programs, and the
//! wait for a program that was started.

use crate::advice;
use crate::completion;
use crate::names::NamesFlag;
use crate::subject;
use capriole::advice::Message;
use capriole::copied_code;
use capriole::filtered::Filtered;
use capriole::open_calls;
use capriole::options::ProbeOptions;
use capriole::plan::{Known, Planned, Probed, Request};
use capriole::returns::{Returns, Unseen};
use capriole::uncovered::{self, Uncovered};
use capriole::watch::{Ended, Observer, not_followed};
use capriole_host::ending::Ending;
use capriole_host::signals;
use capriole_insn::Extent;
use capriole_object::Objects;
use capriole_object::symbols::shown::ShownNames;
use capriole_patch::detach::Detached;
use capriole_planner::resolve::{Body, Site};
use capriole_proc::process::Process;
use capriole_select::debuginfod;
use capriole_select::entry::compares_duration;
use capriole_select::event::has_duration;
use capriole_select::select::{self, Impossible, Selected};
use capriole_text::output::is_verbose;
use capriole_text::units::parse_duration;
use capriole_text::{detail, note, tell, units};
use capriole_trace::Role;
use clap::ValueHint;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

/// The program, further events, and the time limit: arguments of commands that probe a program.
#[derive(Debug, clap::Args)]
pub struct RunFlags {
    /// File of events, one per line, in the format of uprobe_events; `#` begins a comment
    #[arg(short, long = "file", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// The running process: its number, or its name if only one has it
    #[arg(
        short,
        long,
        value_name = "PID",
        value_parser = subject::pid,
        conflicts_with = "program",
        add = completion::processes()
    )]
    pub pid: Option<u32>,
    /// Stop after this time, such as 500ms, 2s, 1m
    #[arg(long, value_name = "TIME", value_parser = parse_limit)]
    pub duration: Option<Duration>,
    #[command(flatten)]
    pub names: NamesFlag,
    /// The program to start, and its arguments
    #[arg(
        trailing_var_arg = true,
        value_name = "PROGRAM",
        required_unless_present = "pid",
        add = completion::program()
    )]
    pub program: Vec<OsString>,
}

/// Parses a time limit.
fn parse_limit(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err(
            "the time must be longer than 0; without this option it goes on until the program ends \
             or Ctrl-C"
                .into(),
        ),
        limit => Ok(limit),
    }
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

/// Finds and plans the sites of events, with debug information from servers where it is needed.
pub fn plan(process: &Process, request: &Request<'_>) -> capriole::Result<Planned> {
    let mut known = Known::default();
    if debuginfod::may_fetch(request.events) {
        let objects = known.objects(process)?;
        debuginfod::fetch(objects, request.events, &note_wait);
    }
    Planned::with(&mut known, process, request)
}

/// Prints a message about something that takes long.
pub fn note_wait(message: &str) {
    note!("capriole: {message}");
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
            "capriole: the number of missed returns is not known: the program, or a child that it \
             forked, overwrote the memory of the recording; look for a wild pointer in it"
        );
    }
    if unseen.missed > 0 {
        tell!(
            "capriole: MISSED the returns of {}: too many calls were open at once, or a chain of \
             tail calls was too long, or it came back to a function with values of its entry; \
             follow fewer functions",
            units::counted(unseen.missed, "call", "calls")
        );
    }
}

/// Prints a message about children that executed other programs, if there were any.
pub fn say_not_followed(executed_children: u64) {
    if let Some(text) = not_followed(executed_children) {
        tell!("capriole: {text}");
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
    let subjects: HashSet<_> = shown.iter().map(|event| event.subject()).collect();
    let events = shown
        .iter()
        .map(|event| (event.definition, event.subject()));
    let events = events.collect::<HashSet<_>>().len();
    // More than one of the user's events may be at a function.
    let events = match events > subjects.len() {
        true => format!(" ({} events)", units::count(events as u64)),
        false => String::new(),
    };
    note!(
        "capriole: {doing} {}{events} of process {} ({}){}",
        units::counted(subjects.len() as u64, one, several),
        probed.attached.process().pid(),
        probed.attached.process().name(),
        if limit.is_some() {
            ""
        } else {
            ", until it ends or Ctrl-C"
        }
    );
}

/// Identifies a function of one of the user's events, wherever in it the event has sites.
fn function(event: &Selected) -> (usize, u64) {
    (event.definition, event.place_of_call())
}

/// Prints which functions are meant by names that leave something out, how many are left out, with
/// examples and reasons, and a warning if memory cannot be read.
pub fn say_dropped(probed: &Probed, names: &ShownNames) {
    for message in select::identified(&probed.selected) {
        tell!("capriole: {message}");
    }
    if probed.attached.unguarded {
        tell!(
            "capriole: fields in memory and thread names are not recorded: reading them takes \
             system calls, and this program could install a seccomp filter that forbids them, by \
             a call that cannot be watched; record registers"
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
    remark(&probed.selected);
    let asked = || {
        let all = probed.selected.iter().zip(&probed.dropped);
        all.filter(|(event, _)| !event.origin.is_implied())
    };
    // A function of which some exits have probes, and others not, is not left out itself.
    let has_exits: HashSet<_> = asked()
        .filter(|(event, dropped)| event.part.is_exit() && dropped.is_none())
        .map(|(event, _)| function(event))
        .collect();
    let is_exit = |event: &Selected| event.part.is_exit() && has_exits.contains(&function(event));
    let mut told = HashSet::new();
    let left_out = asked().filter_map(|(event, dropped)| Some((event, dropped.as_ref()?)));
    let left_out = left_out.filter(|(event, _)| told.insert((function(event), is_exit(event))));
    let (exits, functions): (Vec<_>, Vec<_>) = left_out.partition(|(event, _)| is_exit(event));
    let events: HashSet<_> = asked().map(|(event, _)| function(event)).collect();
    let all: HashSet<_> = events.iter().map(|(_, place)| place).collect();
    let (one, several) = match Selected::nouns(asked().map(|(event, _)| event)) {
        ("marker", _) => ("place of a marker", "places of markers"),
        nouns => nouns,
    };
    let places = units::counted(all.len() as u64, one, several);
    let all = match events.len() > all.len() {
        true => format!("{} events of {places}", units::count(events.len() as u64)),
        false => places,
    };
    let count = units::count(functions.len() as u64);
    say_left_out(&format!("{count} of {all}"), &functions, names);
    let left = exits.iter().map(|(event, _)| event.place_of_call());
    let count = units::counted(left.collect::<HashSet<_>>().len() as u64, one, several);
    say_left_out(&format!("some exits of {count}"), &exits, names);
}

/// Prints what is left out, with the reasons.
fn say_left_out(what: &str, left_out: &[(&Selected, &Message)], names: &ShownNames) {
    if left_out.is_empty() {
        return;
    }
    let reasons = left_out
        .iter()
        .map(|(event, reason)| event.fate.kind(reason));
    tell!(
        "capriole: left out: {what} ({}){}",
        tally(reasons),
        match is_verbose() {
            true => ":",
            false => "; `capriole check EVENT` shows why",
        }
    );
    if is_verbose() {
        for (event, reason) in left_out {
            let at = match &event.site.marker {
                Some(_) => event.at_exit(names),
                None => String::new(),
            };
            let name = names.get(&event.name());
            tell!("  {name}{at}: {}", advice::told(reason));
        }
    }
    if left_out
        .iter()
        .any(|(event, _)| event.site.body != Body::Own)
    {
        tell!("capriole: calls of the inlined copies among them are neither recorded nor counted");
    }
}

/// Maximum number of reasons, or of names, in one line.
const MOST_NAMED: usize = 3;

/// Counts equal reasons: `too short for a jump: 8; it never returns: 4`.
fn tally(reasons: impl Iterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for reason in reasons {
        *counts.entry(reason).or_default() += 1;
    }
    let mut counts: Vec<(String, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| Reverse(*count)); // stable
    let others: u64 = counts.iter().skip(MOST_NAMED).map(|(_, count)| count).sum();
    counts.truncate(MOST_NAMED);
    counts.extend((others > 0).then(|| ("other reasons".to_owned(), others)));
    let parts = counts
        .iter()
        .map(|(reason, count)| format!("{reason}: {}", units::count(*count)));
    parts.collect::<Vec<_>>().join("; ")
}

/// Returns the names of events, at most a few of them: `a, b, c and 4 more`.
fn named(names: &BTreeSet<String>) -> String {
    let first: Vec<&str> = names.iter().take(MOST_NAMED).map(String::as_str).collect();
    match names.len() - first.len() {
        0 => first.join(", "),
        more => format!(
            "{} and {} more",
            first.join(", "),
            units::count(more as u64)
        ),
    }
}

/// Prints which events were not hit, if none was, and objects that have functions of the same names.
/// Calls of `--graph` were recorded only if they took at least `least`.
pub fn say_nothing_hit(
    probed: &Probed,
    detached: &Detached,
    names: &ShownNames,
    least: Option<Duration>,
) {
    let events = asked(probed);
    let whole = |event: &Selected| has_duration(&event.probe);
    let hit_as = select::hit_as(&probed.selected);
    let selected = probed.selected.iter().zip(&probed.dropped).zip(hit_as);
    let unhit: BTreeSet<String> = selected
        .filter(|((event, dropped), number)| {
            let is_probed = dropped.is_none() && !event.origin.is_implied();
            is_probed && !event.part.begins_calls() && *number == event.id
        })
        // Such a call is named by its function, not by an exit.
        .map(|((event, _), _)| match whole(event) {
            true => names.get(&event.function()),
            false => names.get(&event.name()),
        })
        .collect();
    if unhit.is_empty() {
        return;
    }
    let filtered = events.iter().any(|event| {
        let entry = event.probe.entry.as_ref();
        let begun = entry.is_some_and(|entry| entry.guard.is_some());
        begun || event.probe.guard.is_some() && !whole(event)
    });
    let filtered = match filtered {
        true => ", or the filter rejected each hit",
        false => "",
    };
    let short = match least {
        Some(least) => format!(", or no call took {}", units::time(least)),
        None => String::new(),
    };
    tell!(
        "capriole: none of these was hit{filtered}{short}: {}",
        named(&unhit)
    );
    say_open_calls(probed, detached, &events, names);
    say_copied_code(probed, &events, names);
    if let Some(message) = timed_to_a_jump(&events, names) {
        tell!("capriole: {message}");
    }
    for message in elsewhere(probed.attached.process(), &events) {
        tell!("capriole: {message}");
    }
}

/// Returns the events on the command line that have probes.
pub fn asked(probed: &Probed) -> Vec<&Selected> {
    let both = probed.selected.iter().zip(&probed.dropped);
    let probes = both.filter(|(event, dropped)| dropped.is_none() && !event.origin.is_implied());
    probes.map(|(event, _)| event).collect()
}

/// Returns the processes that a recording of a running program does not cover.
pub fn uncovered(run: &RunFlags, probed: &Probed) -> Vec<Uncovered> {
    match run.pid {
        Some(_) => {
            let sites = probed.selected.iter().map(|event| event.site.address);
            uncovered::of(&probed.attached, &sites.collect::<Vec<u64>>())
        }
        None => Vec::new(),
    }
}

/// Returns the same for JSON.
pub fn uncovered_json(uncovered: &[Uncovered]) -> Value {
    let one = |other: &Uncovered| json!({"pid": other.pid, "name": other.name, "relation": other.relation.as_str()});
    uncovered.iter().map(one).collect()
}

/// Prints which of these events, which were not hit, are at functions that threads have been in since before.
pub fn say_open_calls(
    probed: &Probed,
    detached: &Detached,
    events: &[&Selected],
    names: &ShownNames,
) {
    let functions: Vec<Extent> = events.iter().map(|event| event.site.extent).collect();
    let process = probed.attached.process();
    let open = open_calls::on_stacks(process, &detached.stood, &functions);
    let open: BTreeSet<String> = open
        .into_iter()
        .map(|index| names.get(&events[index].function()))
        .collect();
    if !open.is_empty() {
        tell!(
            "capriole: a thread has been in {} since before the probes were in: its entry was not seen, and it has not returned",
            named(&open)
        );
    }
}

/// Prints which of these events, which were not hit, are at functions that the program has copied to memory
/// without a file.
pub fn say_copied_code(probed: &Probed, events: &[&Selected], names: &ShownNames) {
    for (function, address) in copied_code(probed, events) {
        tell!(
            "capriole: the program has a copy of {} in memory without a file, at {address:#x}; probes are not put \
             into copies",
            names.get(&function)
        );
    }
}

/// Returns the same for JSON.
pub fn copied_code_json(probed: &Probed, events: &[&Selected]) -> Value {
    let one =
        |(function, address)| json!({"function": function, "address": format!("{address:#x}")});
    copied_code(probed, events).into_iter().map(one).collect()
}

fn copied_code(probed: &Probed, events: &[&Selected]) -> BTreeMap<String, u64> {
    let sites: Vec<&Site> = events.iter().map(|event| &event.site).collect();
    let copies = copied_code::copies(probed.attached.process(), &sites).into_iter();
    copies
        .map(|(index, address)| (events[index].function(), address))
        .collect()
}

/// Explains why calls of functions that are left by a jump to another one were too short.
fn timed_to_a_jump(events: &[&Selected], names: &ShownNames) -> Option<String> {
    let is_timed = |event: &&&Selected| {
        event.role() == Role::TailCall
            && (has_duration(&event.probe) || compares_duration(&event.probe))
    };
    let timed = events.iter().filter(is_timed);
    let functions: BTreeSet<String> = timed.map(|event| names.get(&event.function())).collect();
    if functions.is_empty() {
        return None;
    }
    let (ends, its) = match functions.len() {
        1 => ("ends", "its"),
        _ => ("end", "their"),
    };
    Some(format!(
        "{} {ends} by a jump to another function (a tail call), and so does {its} time; record that \
         function, or add --return=stack for the whole time",
        named(&functions)
    ))
}

/// Finds other objects of a process that have functions of the same names, which the program may
/// call instead: allocators and other wrappers.
fn elsewhere(process: &Process, events: &[&Selected]) -> Vec<String> {
    let Ok(objects) = Objects::of_process(process) else {
        return Vec::new(); // it has ended
    };
    let symbols: BTreeSet<&str> = events
        .iter()
        .filter_map(|event| event.site.symbol.as_deref())
        .collect();
    let paths: HashSet<_> = events
        .iter()
        .map(|event| event.site.object.path())
        .collect();
    let mut messages = Vec::new();
    for object in objects
        .all()
        .filter(|object| !paths.contains(object.path()))
    {
        let Ok(table) = object.symbols() else {
            continue;
        };
        if let Some(name) = symbols.iter().find(|name| table.has_linkage_name(name)) {
            let colon = match object.is_main() {
                true => String::new(),
                false => object.name(),
            };
            messages.push(format!(
                "{} has a function `{name}` too, which may be the one that is called: -e '{colon}:{name}'",
                object.name()
            ));
        }
    }
    messages.truncate(MOST_NAMED);
    messages
}

/// With `--verbose`, prints each site with its place and how it is probed.
pub fn say_sites(probed: &Probed, names: &ShownNames) {
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
                names.get(&event.name()),
                event.at_exit(names),
                event.object_name(),
                event.site.file_offset
            );
        }
    }
}

/// Returns a message about places where another tool had changed probes.
pub fn repaired(detached: &Detached) -> Option<String> {
    let places = units::counted(detached.repaired as u64, "place", "places");
    let message = format!(
        "at {places} another tool (a uprobe, a debugger) has added or removed a breakpoint \
         meanwhile; the program's own bytes are restored, and the tool's breakpoints left"
    );
    (detached.repaired > 0).then_some(message)
}

/// Returns a message on how long the program was paused.
fn paused(attach: Duration, detached: &Detached) -> String {
    // Nothing was paused to detach if the program had ended, or had no probes any more.
    let out = match detached.standstill {
        Duration::ZERO => String::new(),
        time => format!(", {} (detach)", units::time(time)),
    };
    format!("program paused for {} (attach){out}", units::time(attach))
}

/// The end of a recording: the reason, and the program's end as far as it is known.
pub struct End {
    reason: Ended,
    status: Option<ExitStatus>,
    /// The program's name, if it is another one than at the start.
    renamed: Option<String>,
}

impl End {
    /// Looks at a program whose recording has ended for this reason. The status of one that is not our child may
    /// not be known.
    pub fn of(reason: Ended, probed: &Probed, child: Option<&mut Child>) -> End {
        let process = probed.attached.process();
        // A child that has ended keeps its name until it is waited for.
        let name = process.thread_name(process.pid()).ok();
        let status = match reason {
            Ended::Exited => match child {
                Some(child) => child.wait().ok(),
                None => probed.ending.status(),
            },
            _ => None,
        };
        End {
            reason,
            status,
            renamed: name.filter(|name| name != process.name()),
        }
    }

    /// Returns the program's status, if it is known.
    pub fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    /// Returns the remark behind the summary: what ended the recording.
    pub fn remark(&self) -> String {
        match (self.reason, &self.renamed) {
            (Ended::Executed, Some(name)) => format!(
                "; the program has executed another one ({name}), which is not followed; children \
                 are, until they execute one"
            ),
            (Ended::Exited, renamed) => {
                let ended = match self.status.map(|status| (status.code(), status.signal())) {
                    Some((_, Some(signal))) => {
                        format!("; the program was killed by {}", units::signal(signal))
                    }
                    Some((Some(code @ 1..), _)) => {
                        format!("; the program has ended with status {code}")
                    }
                    _ => "; the program has ended".to_owned(),
                };
                match renamed {
                    Some(name) => format!(
                        "{ended}, as `{name}`: it executed another program, which is not \
                         followed, or changed its name"
                    ),
                    None => ended,
                }
            }
            (reason, _) => reason.remark().to_owned(),
        }
    }
}

/// Prints how long the program was paused, and what is left in it.
pub fn say_end(probed: &Probed, detached: &Detached) {
    let attach = probed.attached.standstill.all;
    note!("capriole: {}", paused(attach, detached));
    let taken_out = probed.taken_out();
    if taken_out > 0 {
        tell!(
            "capriole: {} NOT recorded to the end: another tool (a uprobe, a debugger) wrote to the \
             same place; record again without it",
            units::counted(taken_out as u64, "event was", "events were")
        );
    }
    if let Some(message) = repaired(detached) {
        tell!("capriole: {message}");
    }
    if detached.foreign > 0 {
        tell!(
            "capriole: not restored: {} that another tool has changed, or the program unmapped",
            units::counted(detached.foreign as u64, "place", "places")
        );
    }
    if detached.lingering {
        tell!(
            "capriole: all bytes are restored; some memory stays mapped, because a thread is still in it, or \
             will return into it from a signal handler: `capriole detach {}` unmaps it later",
            probed.attached.process().pid()
        );
    }
    if detached.damaged > 0 {
        tell!(
            "capriole: in {} the probes stay: it overwrote the list of them; restart it when you can",
            units::counted(detached.damaged as u64, "child process", "child processes")
        );
    }
}

/// Time after which a wait for the program is explained: after Ctrl-C, and without it.
const EXPLAIN_SOON: Duration = Duration::from_millis(300);
const EXPLAIN_LATER: Duration = Duration::from_secs(1);

/// True if a process ignores SIGINT.
fn ignores_interrupt(pid: u32) -> bool {
    let status = Process::open(pid).and_then(|process| process.status());
    status.is_ok_and(|status| status.ignored.contains(libc::SIGINT))
}

/// Waits for a program that we started, and passes on its status. A further termination signal
/// leaves it running.
pub fn wait_for(mut child: Child) -> anyhow::Result<ExitCode> {
    let before = signals::requests();
    let explain = match before {
        0 => EXPLAIN_LATER,
        _ => EXPLAIN_SOON,
    };
    let started = Instant::now();
    let mut explained = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(crate::exit::passed_on(status));
        }
        let program = || {
            let name = Process::open(child.id()).map(|process| process.name().to_owned());
            let name = name.unwrap_or_else(|_| "the program".to_owned());
            format!("{name} (pid {})", child.id())
        };
        if signals::requests() > before {
            note!("capriole: left running: {}", program());
            return Ok(ExitCode::SUCCESS);
        }
        if !explained && started.elapsed() >= explain {
            explained = true;
            // Ctrl-C goes to both, so it is left running only if it ignores that.
            let then = match (before, ignores_interrupt(child.id())) {
                (0, _) => " to end",
                (_, true) => "; Ctrl-C again leaves it running",
                (_, false) => " to end; Ctrl-C again ends this wait",
            };
            tell!("capriole: waiting for {}{then}", program());
        }
        // A signal interrupts this wait; one that arrived just before it is noticed soon.
        match Process::open(child.id()) {
            Ok(process) => Ending::of(&process).wait(Duration::from_millis(100)),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Says what the names of selected functions do not tell: what is left out, and what has the same code.
pub fn remark(selected: &[Selected]) {
    for message in select::left_out(selected) {
        tell!("capriole: {message}");
    }
    if let Some(message) = select::in_unrolled_loops(selected) {
        tell!("capriole: {message}");
    }
    if let Some(message) = select::shared_code(selected) {
        note!("capriole: {message}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_no_time_is_not_mentioned() {
        let detached = |micros| Detached {
            standstill: Duration::from_micros(micros),
            ..Detached::default()
        };
        let attach = Duration::from_micros(5);
        assert_eq!(
            paused(attach, &detached(7)),
            "program paused for 5.0 us (attach), 7.0 us (detach)"
        );
        assert_eq!(
            paused(attach, &detached(0)),
            "program paused for 5.0 us (attach)"
        );
    }

    #[test]
    fn an_end_is_explained() {
        let told = |reason, status: Option<i32>, renamed: Option<&str>| {
            let end = End {
                reason,
                status: status.map(ExitStatus::from_raw),
                renamed: renamed.map(str::to_owned),
            };
            end.remark()
        };
        let all = [
            told(Ended::Exited, None, None),
            told(Ended::Exited, Some(0), None),
            told(Ended::Exited, Some(3 << 8), None),
            told(Ended::Exited, Some(libc::SIGSEGV | 0x80), None),
            told(Ended::Exited, Some(0), Some("sleep")),
            told(Ended::Executed, None, Some("sleep")),
            told(Ended::Executed, None, None),
        ];
        insta::assert_snapshot!(all.join("\n"), @r"
        ; the program has ended
        ; the program has ended
        ; the program has ended with status 3
        ; the program was killed by SIGSEGV
        ; the program has ended, as `sleep`: it executed another program, which is not followed, or changed its name
        ; the program has executed another one (sleep), which is not followed; children are, until they execute one
        ; the program has executed another one, which is not followed
        ");
    }

    #[test]
    fn reasons_are_counted() {
        let reasons = ["b", "a", "b", "d", "c", "e", "e", "e"].map(str::to_owned);
        assert_eq!(
            tally(reasons.into_iter()),
            "e: 3; b: 2; a: 1; other reasons: 2"
        );
        let names = |names: &[&str]| named(&names.iter().map(|name| name.to_string()).collect());
        assert_eq!(names(&["b", "a"]), "a, b");
        assert_eq!(names(&["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
    }
}
