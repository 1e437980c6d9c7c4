//! `capriole stat`: counts and aggregates events, without a trace.

mod columns;
#[cfg(test)]
mod fixtures;
mod functions;
mod json;
mod live;
mod lookup;
#[cfg(test)]
mod model_tests;
mod open_files;
mod plot;
mod stacks;
mod table;
mod terminal;
mod text;

use crate::advice;
use crate::exit;
use crate::new_file::new_file;
use crate::probing::{self, Console, End, ProbeFlags, ReturnsBy, RunFlags, wait_for};
use crate::verbosity::timed;
use capriole::aggregate::model::{Group, Interval, Snapshot, by_event, per_second};
use capriole::aggregate::{Keys, Source};
use capriole::filtered::Filtered;
use capriole::options;
use capriole::plan::{Probed, Request};
use capriole::program::Program;
use capriole::record::saving;
use capriole::returns::Unseen;
use capriole::uncovered;
use capriole::watch::{Ended, Watch};
use capriole_event::{Action, Aggregate, Aggregation, Base, Probe};
use capriole_object::symbols::shown::{Form, ShownNames};
use capriole_patch::detach::Detached;
use capriole_ring::{layout, summary};
use capriole_select::definitions;
use capriole_select::event::{Event, has_duration};
use capriole_select::select::{self, Mode, Selected};
use capriole_text::note;
use capriole_text::output;
use capriole_text::tell;
use capriole_text::units;
use capriole_text::units::parse_duration;
use capriole_trace::Role;
use clap::ValueHint;
use columns::Names;
use json::Extent;
use live::Screen;
use lookup::Lookup;
use serde_json::{Value, json};
use stacks::Folding;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{Stdout, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use terminal::Size;
use text::{Page, Stacks, Style};

/// Count the calls of functions in a running program, or in one that it starts
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "capriole stat [OPTIONS] EVENTS -p PID\n       \
                      capriole stat [OPTIONS] EVENTS -- PROGRAM [ARG]...\n       \
                      with EVENTS: (-e EVENT | -f FILE)...",
    after_help = "Topics: capriole help aggregates, events, fields, filters, returns, ..."
)]
pub struct Arguments {
    /// Event to count and aggregate: `LIB:FUNCTION [hist(FIELD) … by KEY … if FILTER]`, or
    /// `latency(LIB:FUNCTION) [by KEY …]`, or `latency(EVENT -> EVENT) [by KEY …]`; patterns allowed; an empty LIB is the main program
    #[arg(
        short,
        long = "event",
        value_name = "EVENT",
        required_unless_present = "files"
    )]
    events: Vec<String>,
    #[command(flatten)]
    run: RunFlags,
    /// Also print the calls of every interval of this length
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    interval: Option<Duration>,
    /// Show at most this many rows of a table, the first ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    top: Option<u32>,
    /// Sort the rows of each table by this column, such as calls, total, avg, p99 or max
    #[arg(long, value_name = "COLUMN")]
    sort: Option<String>,
    /// Also draw a histogram for each row of a table with keys
    #[arg(long)]
    histogram: bool,
    /// Print the keys that are call stacks as lines for tools that draw flame graphs, instead of tables
    #[arg(long, conflicts_with_all = ["json", "interval", "top", "sort", "histogram"])]
    folded: bool,
    /// Draw a flame graph of the keys that are call stacks into this file (SVG)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, value_parser = new_file())]
    flame: Option<PathBuf>,
    /// With --folded and --flame: the column to add up, calls unless given; a sum, or total
    #[arg(long, value_name = "COLUMN")]
    weight: Option<String>,
    /// Make room for at least this many keys in each event's table
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20)
    )]
    keys: u32,
    #[command(flatten)]
    probes: ProbeFlags,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    match interval < Duration::from_millis(1) {
        true => Err("the interval must be at least 1ms".into()),
        false => Ok(interval),
    }
}

/// Interval between checks for the end of counting.
const TICK: Duration = Duration::from_millis(10);
/// Interval between updates of the table on a terminal.
const REDRAW: Duration = Duration::from_secs(1);

/// Runs the command.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let events = definitions::parse_counted(&arguments.events, &arguments.run.files)?;
    if let Some(title) = &arguments.sort {
        check_column(title, &events)?;
    }
    let folding = Folding::of(&arguments, &events)?;
    let mut lookup = Lookup::default();
    let attach = |program: &Program| -> capriole::Result<Probed> {
        let clock = events.iter().any(Event::is_timed).then(options::clock);
        let clock = clock.transpose()?;
        let request = Request {
            entries: true,
            breakpoints: None,
            events: &events,
            options: &arguments.probes.into(),
            mode: Mode::new(arguments.probes.returns.into()),
            messages: false,
            keys: Keys {
                room: arguments.keys,
                summary: summary::ROOM,
            },
            clock: clock.as_ref(),
        };
        let planned = timed("functions found, probes planned", || {
            probing::plan(program.process(), &request)
        })?;
        let geometry = planned.geometry(0);
        let form = match arguments.json {
            true => Form::Full,
            false => arguments.run.names.form(),
        };
        if let Some(message) = saving::take_over(program.process())? {
            tell!("capriole: {}", advice::told(&message));
        }
        lookup.begin(program.process(), &planned.selected, form);
        timed("probes inserted", || {
            planned.attach(program.process(), None, geometry)
        })
    };
    let (program, mut probed) =
        Program::prepared(arguments.run.pid, &arguments.run.program, attach)?;
    count(&arguments, program, &mut probed, lookup, folding.as_ref())
}

/// Names of what the table of a definition will have.
struct DefinitionNames {
    keys: Vec<String>,
    measures: Vec<String>,
    in_nanoseconds: Vec<bool>,
}

impl DefinitionNames {
    fn names(&self) -> Names<'_> {
        Names {
            keys: &self.keys,
            measures: &self.measures,
            in_nanoseconds: &self.in_nanoseconds,
        }
    }
}

fn definition_names(probe: &Probe, aggregation: &Aggregation) -> DefinitionNames {
    let shown = || aggregation.aggregates.iter().filter(|a| a.field.is_some());
    let is_time = |aggregate: &Aggregate| {
        let value = aggregate.field.as_ref().and_then(|name| probe.find(name));
        value.is_some_and(|value| matches!(value.fetch.base, Base::Latency | Base::Interval))
    };
    let keys = aggregation.keys.iter();
    DefinitionNames {
        keys: keys.map(|key| key.name().to_owned()).collect(),
        measures: shown().map(Aggregate::to_string).collect(),
        in_nanoseconds: shown().map(is_time).collect(),
    }
}

/// Checks that some table has a column with this title.
fn check_column(title: &str, events: &[Event]) -> anyhow::Result<()> {
    let mut titles: Vec<String> = Vec::new();
    for probe in events.iter().map(Event::probe) {
        let updates = probe.actions.iter().filter_map(|action| match action {
            Action::Update { aggregation, .. } => Some(aggregation),
            _ => None,
        });
        for aggregation in updates {
            let names = definition_names(probe, aggregation);
            let names = names.names();
            if names.find(title).is_some() {
                return Ok(());
            }
            for (title, _) in names.columns() {
                if !titles.contains(&title) {
                    titles.push(title);
                }
            }
        }
    }
    anyhow::bail!(
        "no table has a column `{title}` to sort by; the columns are {}",
        titles.join(", ")
    )
}

fn count(
    arguments: &Arguments,
    program: Program,
    probed: &mut Probed,
    mut lookup: Lookup,
    folding: Option<&Folding>,
) -> anyhow::Result<ExitCode> {
    lookup.attached(&probed.attached);
    if arguments.run.pid.is_some() {
        probing::say_begin(probed, "counting", arguments.run.duration);
    }
    let names = select::shown_names(&probed.selected, arguments.run.names.form());
    probing::say_dropped(probed, &names);
    probing::say_sites(probed, &names);
    let source = Source::new(probed);
    let clock_step_ns = source.clock_step_ns();
    let mut shown = Shown::new(arguments, probed, &names);
    let started = match arguments.run.pid {
        Some(_) => probed.attached.since,
        None => Instant::now(),
    };
    let uncovered = probing::uncovered(&arguments.run, probed);
    if let Some(message) = uncovered::message(&uncovered) {
        tell!("capriole: {message}");
    }
    let mut child = program.release();
    let mut counting = Counting {
        source: &source,
        lookup,
        watch: Watch::new(probed, arguments.run.duration),
        before: source.nothing(),
        started,
    };
    let ended = until_end(arguments, probed, &mut shown, &mut counting);
    let Counting {
        mut lookup,
        watch,
        before,
        ..
    } = counting;
    let seen = Instant::now();
    let detached = timed("probes removed", || probed.detach());
    // Calls are counted until the probes are out, or have ended with the program.
    let out = detached.as_ref().ok().and_then(|detached| detached.out);
    let time = out.map_or(seen, |out| out.max(seen)) - started;
    let over = ended.and_then(|ended| Ok((ended, detached?)));
    let (ended, detached) = match over {
        Ok(over) => over,
        Err(error) => {
            if !exit::is_broken_pipe(&error) {
                let aftermath = advice::told(&probed.aftermath());
                tell!("capriole: counting stopped; {aftermath}");
            }
            return match child {
                Some(child) => exit::unless_unread(Err(error), wait_for(child)?),
                None => Err(error),
            };
        }
    };
    let end = End::of(ended, probed, child.as_mut());
    let mut whole = source.read(time, &probed.selected);
    let entered = source.entries(&probed.selected);
    let unended = unended(&whole, &entered, &shown.hit_as, &probed.selected);
    let mut last = whole.since(&before);
    let both = [&mut whole.groups[..], &mut last.groups[..]];
    lookup.name(both);
    let last_interval = match arguments.interval {
        Some(period) => shown.last_interval(&whole, &last, period),
        None => Ok(()),
    };
    let folded = folding.map(|folding| folding.fold(&whole));
    let printed = match arguments.json {
        true => {
            let mut value = json(probed, &whole, &shown, &entered, ended, &detached);
            Filtered::of(&probed.attached).put_into(&mut value);
            value["executed_children"] = json!(watch.executed_children());
            value["not_covered"] = probing::uncovered_json(&uncovered);
            let unhit = unhit(probed, &whole, &entered, &shown.hit_as);
            value["copied_code"] = probing::copied_code_json(probed, &unhit);
            if let Some(step) = clock_step_ns {
                value["clock_step_ns"] = json!(step);
            }
            if arguments.probes.returns == ReturnsBy::Stack {
                Unseen::of(&probed.attached).put_into(&mut value);
            }
            print(&json::line(&value))
        }
        false => {
            let printed = match &folded {
                Some(folded) if arguments.folded => shown
                    .clear()
                    .and_then(|()| print(&text(&folded.lines(shown.form)))),
                _ => shown.finish(&whole, unended.len()),
            };
            let all = whole.calls();
            note!(
                "capriole: {} in {}{}",
                units::counted(all, "call", "calls"),
                units::time(time),
                end.remark()
            );
            if let Some(step) = clock_step_ns.filter(|step| *step > 1) {
                note!("capriole: times are by a clock with steps of {step} ns");
            }
            if whole.lost > 0 {
                tell!(
                    "capriole: {} not counted: more than {} threads were being counted on one CPU at \
                     once, or were killed or left by longjmp meanwhile; use fewer fields in memory",
                    units::counted(whole.lost, "hit was", "hits were"),
                    layout::LANES - 1
                );
            }
            let damaged: u64 = whole.groups.iter().map(|group| group.damaged).sum();
            if damaged > 0 {
                tell!(
                    "capriole: {} impossible, and left out: the program, or a child that it forked, \
                     overwrote the counters; others may be wrong, too; look for a wild pointer in \
                     the program",
                    units::counted(damaged, "count was", "counts were")
                );
            }
            probing::say_unseen(Unseen::of(&probed.attached));
            probing::say_filtered(Filtered::of(&probed.attached));
            probing::say_not_followed(watch.executed_children());
            lookup.say_remarks();
            if arguments.folded {
                say_no_intervals(&whole, &shown.titles);
            }
            probing::say_end(probed, &detached);
            for (event, calls) in &unended {
                tell!(
                    "capriole: {} was entered {}, but no call of it was seen to return: they were left by \
                     exceptions or longjmp, or have not ended",
                    names.get(&probed.selected[*event].function()),
                    units::counted(*calls, "time", "times")
                );
            }
            let mut intervals = whole.groups.iter().filter_map(|group| group.intervals);
            let is_hit = intervals.any(|intervals| intervals.is_hit());
            if all == 0 && whole.lost == 0 && unended.is_empty() && !is_hit {
                probing::say_nothing_hit(probed, &detached, &names, None);
            } else {
                let unhit = unhit(probed, &whole, &entered, &shown.hit_as);
                probing::say_open_calls(probed, &detached, &unhit, &names);
                probing::say_copied_code(probed, &unhit, &names);
            }
            printed
        }
    };
    let drawn = match (&folded, folding, &arguments.flame) {
        (Some(folded), Some(folding), Some(file)) => {
            stacks::draw(folded, folding, shown.form, lookup.title(), file)
        }
        _ => Ok(()),
    };
    let printed = drawn.and(last_interval).and(printed);
    match child {
        Some(child) => exit::unless_unread(printed, wait_for(child)?),
        None => printed.map(|()| end.status().map_or(ExitCode::SUCCESS, exit::passed_on)),
    }
}

/// Returns the number of an event, and those of all that count as hit together with it, as one.
fn number_of(hit_as: &[u32], event: usize) -> usize {
    hit_as.get(event).map_or(event, |number| *number as usize)
}

/// Returns the numbers of the events that were hit. Starts and ends of intervals count as hit also if there was
/// no interval.
fn hit_events(whole: &Snapshot, hit_as: &[u32]) -> HashSet<usize> {
    let calls = by_event(&whole.groups);
    let counted = calls.into_iter().filter(|(_, calls)| *calls > 0);
    let mut hit: HashSet<usize> = counted.map(|(event, _)| event).collect();
    for group in &whole.groups {
        let Some(intervals) = &group.intervals else {
            continue;
        };
        if intervals.started + intervals.no_room + intervals.unreadable > 0 {
            hit.extend(&group.starts);
        }
        if intervals.unmatched + intervals.unreadable > 0 {
            hit.extend(&group.events);
        }
    }
    hit.into_iter()
        .map(|event| number_of(hit_as, event))
        .collect()
}

/// Returns the events that have a probe and were neither hit nor begun.
fn unhit<'a>(
    probed: &'a Probed,
    whole: &Snapshot,
    entered: &BTreeMap<usize, u64>,
    hit_as: &[u32],
) -> Vec<&'a Selected> {
    let hit = hit_events(whole, hit_as);
    let events = probed.selected.iter().zip(&probed.dropped);
    let events = events.filter(|(event, dropped)| {
        let is_entered = entered
            .get(&(event.id as usize))
            .is_some_and(|calls| *calls > 0);
        let is_hit = hit.contains(&number_of(hit_as, event.id as usize)) || is_entered;
        dropped.is_none() && !event.origin.is_implied() && !event.part.begins_calls() && !is_hit
    });
    events.map(|(event, _)| event).collect()
}

/// Returns the events at functions' exits that were not hit, although the functions were entered so
/// often. Events that count as hit together are one.
fn unended(
    whole: &Snapshot,
    entered: &BTreeMap<usize, u64>,
    hit_as: &[u32],
    selected: &[Selected],
) -> BTreeMap<usize, u64> {
    let number = |event: usize| number_of(hit_as, event);
    let hit = hit_events(whole, hit_as);
    // A filter at the exit may have rejected them.
    let rejects = |event: &usize| {
        let probe = selected.get(*event).map(|event| &event.probe);
        probe.is_some_and(|probe| probe.guard.is_some() && !has_duration(probe))
    };
    let counted = entered.iter();
    let counted = counted.filter(|(event, calls)| **calls > 0 && !rejects(event));
    let unended = counted.filter(|(event, _)| !hit.contains(&number(**event)));
    unended
        .map(|(event, calls)| (number(*event), *calls))
        .collect()
}

/// Prints the starts and ends of intervals without an interval, which the tables mention if they are shown.
fn say_no_intervals(whole: &Snapshot, titles: &[String]) {
    for group in &whole.groups {
        let title = group.events.first().map(|event| titles[*event].as_str());
        let name = title.map_or(String::new(), |title| format!("{title}: "));
        let lines = group.intervals.iter();
        for line in lines.flat_map(|intervals| text::remarks(intervals, &name, group.capacity)) {
            tell!("capriole: {line}");
        }
    }
}

/// Counting that goes on.
struct Counting<'a> {
    source: &'a Source,
    lookup: Lookup,
    watch: Watch,
    /// Totals at the end of the last interval that was shown.
    before: Snapshot,
    started: Instant,
}

/// Waits until something ends the counting, and shows results at intervals.
fn until_end(
    arguments: &Arguments,
    probed: &mut Probed,
    shown: &mut Shown,
    counting: &mut Counting<'_>,
) -> anyhow::Result<Ended> {
    let Counting {
        source,
        lookup,
        watch,
        before,
        started,
    } = counting;
    let period = match shown.screen {
        Some(_) => Some(REDRAW),
        None => arguments.interval,
    };
    let mut next = period.map(|period| *started + period);
    loop {
        let ended = watch.ended(&mut probed.attached, &mut Console);
        watch.notices(&mut Console);
        if let Some(ended) = ended {
            return Ok(ended);
        }
        let others = || watch.other_processes(&probed.attached).collect();
        lookup.keep_looking(others);
        let now = Instant::now();
        if let (Some(period), Some(due)) = (period, &mut next)
            && now >= *due
        {
            let mut until = source.read(now - *started, &probed.selected);
            let mut interval = until.since(before);
            // Rows of two snapshots are matched by their keys, which must not have names that may change.
            *before = until.clone();
            let both = [&mut until.groups[..], &mut interval.groups[..]];
            lookup.name(both);
            shown.interval(&until, &interval)?;
            while *due <= now {
                *due += period;
            }
        }
        let due = next.map_or(TICK, |next| next.saturating_duration_since(now).min(TICK));
        watch.wait(watch.pause(&probed.attached, due));
    }
}

/// Output of results on standard output.
struct Shown {
    /// The events' names.
    names: Vec<String>,
    /// The definitions of the events, as written.
    labels: Vec<String>,
    /// Names as shown in tables. For a timed call that ends at a tail call, the name says so.
    titles: Vec<String>,
    /// By event, the number of the event that counts as hit together with it.
    hit_as: Vec<u32>,
    json: bool,
    /// Maximum number of rows of a table.
    top: usize,
    /// Title of the column by which rows are sorted; `None` for the usual order.
    sort: Option<String>,
    /// True if histograms of tables with keys are shown, too.
    keyed_plots: bool,
    /// Form of names.
    form: Form,
    blocks: bool,
    /// Terminal on which the table is redrawn in place; `None` if it is not redrawn.
    screen: Option<Screen<Stdout>>,
}

impl Shown {
    fn new(arguments: &Arguments, probed: &Probed, names: &ShownNames) -> Shown {
        // A program that we started writes to the same terminal, so the cursor position is unknown.
        let live = arguments.run.pid.is_some() && !arguments.json && arguments.interval.is_none();
        let top = arguments.top.map(|top| top as usize);
        Shown {
            names: probed.selected.iter().map(Selected::name).collect(),
            labels: (probed.selected.iter())
                .map(|event| event.probe.label.clone())
                .collect(),
            titles: titles(&probed.selected, names),
            hit_as: select::hit_as(&probed.selected),
            json: arguments.json,
            top: top.unwrap_or(usize::MAX),
            sort: arguments.sort.clone(),
            keyed_plots: arguments.histogram,
            form: arguments.run.names.form(),
            blocks: terminal::shows_blocks(),
            screen: (live && Size::of_terminal().is_some())
                .then(|| Screen::new(output::terminal())),
        }
    }

    fn style(&self) -> Style {
        Style {
            rows: self.top,
            plots: usize::MAX,
            keyed_plots: self.keyed_plots,
            stacks: Stacks::Below,
            form: self.form,
            blocks: self.blocks,
            columns: usize::MAX,
        }
    }

    /// Shows everything so far if the table is redrawn in place, else the interval that just ended.
    fn interval(&mut self, until: &Snapshot, interval: &Interval) -> anyhow::Result<()> {
        let style = self.style();
        if let Some(screen) = &mut self.screen {
            let Some(size) = Size::of_terminal() else {
                return Ok(());
            };
            let page = Page::live(until, interval, &self.titles).hit_as(until, &self.hit_as);
            let page = page.sorted_by(self.sort.as_deref());
            let lines = live::fitting(&page, size, style);
            return Ok(screen.draw(&lines, size)?);
        }
        if self.json {
            return print(&json::line(&interval_json(interval, self)));
        }
        let page = Page::interval(interval, &self.titles).sorted_by(self.sort.as_deref());
        let lines = page.lines(style);
        let end = interval.end.as_secs_f64();
        print(&format!("{end:.3} s\n{}\n", text(&lines)))
    }

    /// Shows the interval from the last one to the end, so that all intervals add up to the totals. It
    /// may be shorter than the others, and is left out if nothing happened in it.
    fn last_interval(
        &mut self,
        whole: &Snapshot,
        interval: &Interval,
        period: Duration,
    ) -> anyhow::Result<()> {
        let is_short = interval.time < period;
        match is_short && interval.calls() == 0 {
            true => Ok(()),
            false => self.interval(whole, interval),
        }
    }

    /// Removes the table that was redrawn in place.
    fn clear(&mut self) -> anyhow::Result<()> {
        if let Some(screen) = &mut self.screen {
            screen.clear(Size::of_terminal())?;
        }
        Ok(())
    }

    /// Prints the totals at the end. `unended` events were not hit, and are mentioned for another reason.
    fn finish(&mut self, whole: &Snapshot, unended: usize) -> anyhow::Result<()> {
        self.clear()?;
        let page = Page::whole(whole, &self.titles).hit_as(whole, &self.hit_as);
        let page = page.mentioned(unended).sorted_by(self.sort.as_deref());
        print(&text(&page.lines(self.style())))
    }
}

fn title(event: &Selected, names: &ShownNames) -> String {
    let name = names.get(&event.name());
    match event.role() {
        Role::TailCall if event.part.is_of_calls() => format!("{name} (until its jump)"),
        _ => name,
    }
}

/// Splits an event as written into the part before its filter and the filter: `" if ..."`, or empty.
/// A filter inside `latency(...)` is not split off, as more may follow it.
fn parted(label: &str) -> (&str, &str) {
    if definitions::is_latency(label) {
        return (label, "");
    }
    let mut quoted = false;
    let mut escaped = false;
    for (at, character) in label.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ' ' if !quoted && label[at..].starts_with(" if ") => return label.split_at(at),
            _ => {}
        }
    }
    (label, "")
}

/// Returns suffixes for events that have one title, by definition: their filters where only these
/// differ, else the events as written.
fn apart(labels: &BTreeMap<usize, &str>) -> HashMap<usize, String> {
    let heads: HashSet<&str> = labels
        .values()
        .map(|label| parted(label).0.trim())
        .collect();
    let tails: HashSet<&str> = labels
        .values()
        .map(|label| parted(label).1.trim())
        .collect();
    let by_filter = heads.len() == 1 && tails.len() == labels.len();
    let suffix = |label: &str| match by_filter {
        true => parted(label).1.trim_end().to_owned(),
        false => format!(" [{}]", label.trim()),
    };
    let all: HashSet<&str> = labels.values().copied().collect();
    match all.len() {
        // The same event twice cannot be told apart.
        1 => HashMap::new(),
        _ => labels
            .iter()
            .map(|(definition, label)| (*definition, suffix(label)))
            .collect(),
    }
}

/// Returns the titles of all events. Functions of one name are told apart by their places, several
/// events at one function by their filters or as they were written.
fn titles(selected: &[Selected], names: &ShownNames) -> Vec<String> {
    // Several events may be at one function. Places of a marker are told apart by their fields.
    let code = |event: &Selected| match event.site.marker {
        Some(_) => u64::from(event.id),
        None => event.place_of_call(),
    };
    let mut codes: HashMap<String, HashSet<u64>> = HashMap::new();
    for event in selected {
        let title = title(event, names);
        codes.entry(title).or_default().insert(code(event));
    }
    let place = |event: &Selected| {
        let site = &event.site;
        let again = match site.object.is_part() {
            true => format!(", mapped again at {:#x}", site.address),
            false => String::new(),
        };
        format!(" ({}:{:#x}{again})", event.object_name(), site.file_offset)
    };
    let by_place = |event: &Selected| {
        let title = title(event, names);
        match codes[&title].len() {
            1 => title,
            _ => title + &place(event),
        }
    };
    let whole = |event: &Selected| match event.probe.ends_intervals() {
        true => format!("{} -> {}", starts(selected, event, names), by_place(event)),
        false => by_place(event),
    };
    let mut titles: Vec<String> = selected.iter().map(whole).collect();
    let mut labels: HashMap<String, BTreeMap<usize, &str>> = HashMap::new();
    for (event, title) in selected.iter().zip(&titles) {
        if !event.part.begins_calls() && !event.probe.starts_intervals() {
            let same = labels.entry(title.clone()).or_default();
            same.insert(event.definition, &event.probe.label);
        }
    }
    for (event, title) in selected.iter().zip(&mut titles) {
        let suffixes = labels.get(title).map(apart).unwrap_or_default();
        title.extend(suffixes.get(&event.definition).map(String::as_str));
    }
    titles
}

/// Returns the name of the event that starts the intervals which `end` ends; if there are several,
/// their pattern.
fn starts(selected: &[Selected], end: &Selected, names: &ShownNames) -> String {
    let is_start =
        |event: &&Selected| event.definition == end.definition && event.probe.starts_intervals();
    let starts = || selected.iter().filter(is_start);
    let all: HashSet<String> = starts().map(|event| title(event, names)).collect();
    let pattern = || starts().next().map(|event| event.probe.place.to_string());
    match all.len() {
        1 => all.into_iter().next(),
        _ => pattern(),
    }
    .unwrap_or_default()
}

fn text(lines: &[String]) -> String {
    lines
        .iter()
        .flat_map(|line| [line.as_str(), "\n"])
        .collect()
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = output::stdout();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Formats the groups, each with its event as written.
fn groups_json(shown: &Shown, groups: &[Group], time: Duration, extent: Extent) -> Vec<Value> {
    let of_events = groups.iter().filter(|group| !group.is_plain());
    let definitions =
        of_events.map(|group| group.events.first().map(|event| &shown.labels[*event]));
    let values = json::groups(groups, &shown.names, time, extent).into_iter();
    let with = values.zip(definitions).map(|(mut value, definition)| {
        value["definition"] = json!(definition);
        value
    });
    with.collect()
}

fn interval_json(interval: &Interval, shown: &Shown) -> Value {
    let events = by_event(&interval.groups).into_iter();
    let event = |(event, calls): (usize, u64)| {
        json!({
            "event": shown.names[event],
            "definition": shown.labels[event],
            "calls": calls,
            "calls_per_second": per_second(calls, interval.time),
        })
    };
    let groups = groups_json(shown, &interval.groups, interval.time, Extent::SinceStart);
    json!({
        "time_ns": interval.end.as_nanos() as u64,
        "interval_ns": interval.time.as_nanos() as u64,
        "events": events.filter(|(_, calls)| *calls > 0).map(event).collect::<Vec<_>>(),
        "groups": groups,
    })
}

fn json(
    probed: &Probed,
    whole: &Snapshot,
    shown: &Shown,
    entered: &BTreeMap<usize, u64>,
    ended: Ended,
    detached: &Detached,
) -> Value {
    let mut sites = probed.sites_json(advice::words);
    for (site, label) in sites.iter_mut().zip(&shown.labels) {
        site["definition"] = json!(label);
    }
    // Further sites of an event, by the event's number, which is that of its first site.
    let mut others: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
    for (index, event) in probed.selected.iter().enumerate() {
        if event.id as usize != index {
            let site = sites[index].take();
            others.entry(event.id as usize).or_default().push(site);
        }
    }
    let mut events: Vec<Value> = Vec::new();
    for (event, calls) in by_event(&whole.groups) {
        let mut site = sites[event].take();
        if let Some(others) = others.remove(&event) {
            site["other_sites"] = json!(others);
        }
        site["calls"] = json!(calls);
        if let Some(entered) = entered.get(&event) {
            site["entered"] = json!(entered);
        }
        site["calls_per_second"] = json!(per_second(calls, whole.time));
        events.push(site);
    }
    // Sites without a probe come last.
    sites.extend(others.into_values().flatten());
    events.extend(sites.into_iter().filter(|site| !site.is_null()));
    json!({
        "pid": probed.attached.process().pid(),
        "duration_ns": whole.time.as_nanos() as u64,
        "ended": ended.as_str(),
        "restartable_sequences": probed.attached.survey.rseq_offset.is_some(),
        "standstill_ns": probed.standstill_json(detached),
        "taken_out": probed.taken_out(),
        "unreached_uprobes": probed.attached.all_unreached(),
        "repaired": detached.repaired,
        "events": events,
        "lost": whole.lost,
        "damaged": whole.groups.iter().map(|group| group.damaged).sum::<u64>(),
        "groups": groups_json(shown, &whole.groups, whole.time, Extent::Same),
    })
}
