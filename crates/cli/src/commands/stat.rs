//! `capriole stat`: counts and aggregates events, without a trace.

mod columns;
#[cfg(test)]
mod fixtures;
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
use crate::probing::{self, Console, End, ProbeFlags, ReturnsBy, RunFlags, wait_for};
use crate::verbosity::timed;
use capriole::aggregate::model::{Interval, Snapshot, by_event, per_second};
use capriole::aggregate::{Keys, Source};
use capriole::filtered::Filtered;
use capriole::options;
use capriole::plan::{Planned, Probed, Request};
use capriole::program::Program;
use capriole::returns::Unseen;
use capriole::watch::{Ended, Watch};
use capriole_event::{Action, Aggregate, Aggregation, Base, Probe};
use capriole_object::symbols::shown::{Form, ShownNames};
use capriole_patch::detach::Detached;
use capriole_ring::{layout, summary};
use capriole_select::definitions;
use capriole_select::event::Event;
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
    /// `latency(LIB:FUNCTION) [by KEY …]`; patterns allowed; an empty LIB is the main program
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
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
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
            Planned::new(program.process(), &request)
        })?;
        let geometry = planned.geometry(0);
        lookup.begin(program.process(), &planned.selected);
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
        value.is_some_and(|value| value.fetch.base == Base::Latency)
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
    if arguments.run.pid.is_some() && !arguments.json {
        probing::say_begin(probed, "counting", arguments.run.duration);
    }
    let names = select::shown_names(&probed.selected, arguments.run.names.form());
    probing::say_dropped(probed, &names);
    probing::say_sites(probed, &names);
    let source = Source::new(probed);
    let clock_step_ns = source.clock_step_ns();
    let mut shown = Shown::new(arguments, probed, &names);
    let mut child = program.release();
    let started = Instant::now();
    let ended = watch(arguments, probed, &source, &mut shown, &mut lookup, started);
    let time = started.elapsed();
    // Calls are counted until the probes are out.
    let detached = timed("probes removed", || probed.detach());
    let over = ended.and_then(|ended| Ok((ended, detached?)));
    let (ended, detached) = match over {
        Ok(over) => over,
        Err(error) => {
            if !exit::is_broken_pipe(&error) {
                let aftermath = advice::told(&probed.aftermath());
                tell!("capriole: counting stopped; {aftermath}");
            }
            if let Some(child) = child {
                wait_for(child)?;
            }
            return Err(error);
        }
    };
    let mut whole = source.read(time, &probed.selected);
    lookup.name(probed.attached.process(), &mut whole);
    let folded = folding.map(|folding| folding.fold(&whole));
    let printed = match arguments.json {
        true => {
            let mut value = json(probed, &whole, &shown, ended, &detached);
            Filtered::of(&probed.attached).put_into(&mut value);
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
                _ => shown.finish(&whole),
            };
            let all = whole.calls();
            note!(
                "capriole: {} in {}{}",
                units::counted(all, "call", "calls"),
                units::time(time),
                End::of(ended, probed.attached.process(), child.as_mut()).remark()
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
            lookup.say_remarks();
            probing::say_end(probed, &detached);
            if all == 0 && whole.lost == 0 {
                probing::say_nothing_hit(probed, &names, None);
            }
            printed
        }
    };
    let printed = printed.and_then(|()| match (&folded, folding, &arguments.flame) {
        (Some(folded), Some(folding), Some(file)) => {
            stacks::draw(folded, folding, shown.form, lookup.title(), file)
        }
        _ => Ok(()),
    });
    match child {
        Some(child) => {
            let code = wait_for(child)?;
            printed.map(|()| code)
        }
        None => printed.map(|()| ExitCode::SUCCESS),
    }
}

/// Waits until something ends the counting, and shows results at intervals.
fn watch(
    arguments: &Arguments,
    probed: &mut Probed,
    source: &Source,
    shown: &mut Shown,
    lookup: &mut Lookup,
    started: Instant,
) -> anyhow::Result<Ended> {
    let mut watch = Watch::new(
        probed.attached.process(),
        probed.names(),
        arguments.run.duration,
    );
    let mut before = source.nothing();
    let period = match shown.screen {
        Some(_) => Some(REDRAW),
        None => arguments.interval,
    };
    let mut next = period.map(|period| started + period);
    loop {
        let ended = watch.ended(&mut probed.attached, &mut Console);
        watch.notices(&mut Console);
        if let Some(ended) = ended {
            return Ok(ended);
        }
        let others = || watch.other_processes(&probed.attached).collect();
        lookup.keep_looking(probed.attached.process(), others);
        let now = Instant::now();
        if let (Some(period), Some(due)) = (period, &mut next)
            && now >= *due
        {
            let mut until = source.read(now - started, &probed.selected);
            lookup.name(probed.attached.process(), &mut until);
            shown.interval(&until, &until.since(&before))?;
            before = until;
            while *due <= now {
                *due += period;
            }
        }
        let due = next.map_or(TICK, |next| next.saturating_duration_since(now).min(TICK));
        std::thread::sleep(watch.pause(&probed.attached, due));
    }
}

/// Output of results on standard output.
struct Shown {
    /// The events' names.
    names: Vec<String>,
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
            return print(&json::line(&interval_json(interval, &self.names)));
        }
        let page = Page::interval(interval, &self.titles).sorted_by(self.sort.as_deref());
        let lines = page.lines(style);
        let end = interval.end.as_secs_f64();
        print(&format!("{end:.3} s\n{}\n", text(&lines)))
    }

    /// Removes the table that was redrawn in place.
    fn clear(&mut self) -> anyhow::Result<()> {
        if let Some(screen) = &mut self.screen {
            screen.clear(Size::of_terminal())?;
        }
        Ok(())
    }

    /// Prints the totals at the end.
    fn finish(&mut self, whole: &Snapshot) -> anyhow::Result<()> {
        self.clear()?;
        let page = Page::whole(whole, &self.titles).hit_as(whole, &self.hit_as);
        let page = page.sorted_by(self.sort.as_deref());
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

/// Returns the titles of all events; functions of one name are told apart by their places.
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
        format!(" ({}:{:#x})", event.object_name(), site.file_offset)
    };
    let whole = |event: &Selected| {
        let title = title(event, names);
        match codes[&title].len() {
            1 => title,
            _ => title + &place(event),
        }
    };
    selected.iter().map(whole).collect()
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

fn interval_json(interval: &Interval, names: &[String]) -> Value {
    let events = by_event(&interval.groups).into_iter();
    let event = |(event, calls): (usize, u64)| {
        json!({
            "event": names[event],
            "calls": calls,
            "calls_per_second": per_second(calls, interval.time),
        })
    };
    let groups = json::groups(&interval.groups, names, interval.time, Extent::SinceStart);
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
    ended: Ended,
    detached: &Detached,
) -> Value {
    let mut sites = probed.sites_json(advice::words);
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
        "repaired": detached.repaired,
        "events": events,
        "lost": whole.lost,
        "damaged": whole.groups.iter().map(|group| group.damaged).sum::<u64>(),
        "groups": json::groups(&whole.groups, &shown.names, whole.time, Extent::Same),
    })
}
