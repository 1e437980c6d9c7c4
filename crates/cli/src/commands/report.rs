//! `capriole report`: shows a trace.

use crate::names::NamesFlag;
use crate::new_file::new_file;
use crate::verbosity::timed;
use capriole_report;
use capriole_report::calls::Functions;
use capriole_report::{
    CallSummary, Callers, Comparison, Flame, FlameBy, GraphOptions, Order, StackCallers,
    StackFlame, TextOptions,
};
use capriole_text::output;
use capriole_text::{detail, tell};
use capriole_trace::{Health, Trace, write_file};
use clap::ValueHint;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use capriole_text::units;

/// Show a recorded trace
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("form").args(["graph", "summary", "callers", "flame", "compare"]))]
pub struct Arguments {
    /// The trace directory
    #[arg(default_value = "capriole.trace", value_hint = ValueHint::DirPath)]
    directory: PathBuf,
    /// Show nested calls with the time that each took, instead of every event
    #[arg(long)]
    graph: bool,
    /// Show a table: the number of hits of each event, or the times of each function's calls
    #[arg(long)]
    summary: bool,
    /// Show which function called which, how often and for how long
    #[arg(long)]
    callers: bool,
    /// Draw a flame graph into this file (SVG)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, value_parser = new_file())]
    flame: Option<PathBuf>,
    /// Compare the times of each function's calls in two traces
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], value_hint = ValueHint::DirPath, conflicts_with = "directory")]
    compare: Option<Vec<PathBuf>>,
    /// With --graph: maximum depth of the calls shown
    #[arg(long, value_name = "N", requires = "graph", value_parser = clap::value_parser!(u64).range(1..))]
    depth: Option<u64>,
    /// With --graph: leave out calls shorter than this time, such as 10us
    #[arg(long, value_name = "TIME", requires = "graph", value_parser = units::parse_duration)]
    min_duration: Option<Duration>,
    /// With --summary of calls: sort key for functions, self time unless given
    #[arg(long, value_name = "BY", value_enum, requires = "summary")]
    sort: Option<Sort>,
    /// With --flame and --callers: quantity shown for functions; by default time if calls were
    /// recorded, else events by call stack
    #[arg(long, value_name = "BY", value_enum)]
    by: Option<By>,
    /// Show markers by their fields instead of their printf formats
    #[arg(long, conflicts_with_all = ["summary", "callers", "flame", "compare", "json"])]
    fields: bool,
    #[command(flatten)]
    names: NamesFlag,
    /// Print JSON: one object, or one per line with --graph and when listing events
    #[arg(long)]
    json: bool,
}

/// Values of `--sort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    // Time in the function itself
    #[value(name = "self")]
    OwnTime,
    // Time from entry to exit
    Total,
    // Calls
    Calls,
}

/// Values of `--by`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum By {
    // Time
    Time,
    // Calls
    Calls,
    // Events, by their call stacks
    Events,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if let Some(directories) = &arguments.compare {
        return compare(arguments, directories);
    }
    let trace = timed("trace opened", || Trace::open(&arguments.directory))?;
    let started = Instant::now();
    let functions = Functions::of(&trace.document().events);
    let has_calls = !functions.is_empty();
    let has_stacks = capriole_report::has_call_stacks(trace.document());
    let pictures = arguments.callers || arguments.flame.is_some();
    if arguments.by.is_some() && !pictures {
        anyhow::bail!("--by needs --flame FILE or --callers");
    }
    let by_events = pictures
        && match arguments.by {
            Some(by) => by == By::Events,
            None => has_stacks && !has_calls,
        };
    if by_events && !has_stacks {
        anyhow::bail!(
            "{} has no call stacks: record them by the field `stack`, as in -e 'libc:malloc stack'",
            arguments.directory.display()
        );
    }
    let wants_calls = arguments.graph || pictures && !by_events || arguments.sort.is_some();
    if wants_calls {
        check_calls(&functions, &arguments.directory)?;
    }
    let names = arguments.names.form();
    let mut out = BufWriter::with_capacity(1 << 16, output::stdout());
    let health = if arguments.graph {
        graph(arguments, &trace, &mut out)?
    } else if arguments.callers && by_events {
        let (mut callers, health) = StackCallers::of(&trace)?;
        callers.names = names;
        put(arguments, &callers, &mut out)?;
        health
    } else if arguments.callers {
        let (mut callers, health) = Callers::of(&trace)?;
        callers.names = names;
        put(arguments, &callers, &mut out)?;
        health
    } else if let Some(file) = &arguments.flame {
        match by_events {
            true => stack_flame(arguments, &trace, file, &mut out)?,
            false => flame(arguments, &trace, file, &mut out)?,
        }
    } else if arguments.summary && (functions.have_stack_pointers() || arguments.sort.is_some()) {
        let order = match arguments.sort {
            None | Some(Sort::OwnTime) => Order::Own,
            Some(Sort::Total) => Order::Total,
            Some(Sort::Calls) => Order::Calls,
        };
        let (mut summary, health) = CallSummary::of(&trace, order)?;
        summary.advice_on_loss = ON_LOSS;
        summary.names = names;
        put(arguments, &summary, &mut out)?;
        health
    } else if arguments.summary {
        let (mut summary, health) = capriole_report::Summary::of(&trace)?;
        summary.advice_on_loss = ON_LOSS;
        summary.names = names;
        put(arguments, &summary, &mut out)?;
        health
    } else if arguments.json {
        capriole_report::write_json_lines(&trace, &mut out)?
    } else {
        let options = TextOptions {
            fields: arguments.fields,
            names,
        };
        capriole_report::write_text(&trace, &mut out, &options)?
    };
    out.flush()?;
    detail!(
        "capriole: trace read and shown: {}",
        units::time(started.elapsed())
    );
    tell_health(&health);
    Ok(ExitCode::SUCCESS)
}

fn tell_health(health: &Health) {
    for damage in &health.shown {
        tell!("capriole: {damage}");
    }
    for remark in &health.remarks {
        tell!("capriole: {remark}");
    }
}

/// Shows the calls of two traces in one table.
fn compare(arguments: &Arguments, directories: &[PathBuf]) -> anyhow::Result<ExitCode> {
    if arguments.by.is_some() {
        anyhow::bail!("--by needs --flame FILE or --callers");
    }
    let mut both = Vec::new();
    for directory in directories {
        let trace = timed("trace opened", || Trace::open(directory))?;
        check_calls(&Functions::of(&trace.document().events), directory)?;
        let (summary, health) = CallSummary::of(&trace, Order::Total)?;
        tell_health(&health);
        both.push(summary);
    }
    let [before, after] = <[CallSummary; 2]>::try_from(both)
        .map_err(|_| anyhow::anyhow!("--compare needs two traces: --compare BEFORE AFTER"))?;
    let mut comparison = Comparison::of(before, after);
    comparison.names = arguments.names.form();
    let mut out = BufWriter::new(output::stdout());
    put(arguments, &comparison, &mut out)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Fails if a trace has no calls from entry to exit.
fn check_calls(functions: &Functions, directory: &Path) -> anyhow::Result<()> {
    if functions.is_empty() {
        anyhow::bail!(
            "{} has no calls from entry to exit: record them by `capriole record --graph EVENT`",
            directory.display()
        );
    }
    Ok(())
}

/// Advice in a summary if events were lost.
const ON_LOSS: &str = "; record with a larger --buffer-size";

/// Prints a report as text or as JSON.
fn put<T>(arguments: &Arguments, report: &T, out: &mut impl Write) -> anyhow::Result<()>
where
    T: std::fmt::Display + serde::Serialize,
{
    if arguments.json {
        serde_json::to_writer(&mut *out, report)?;
        writeln!(out)?;
    } else {
        write!(out, "{report}")?;
    }
    Ok(())
}

fn graph(arguments: &Arguments, trace: &Trace, out: &mut impl Write) -> anyhow::Result<Health> {
    let shortest = arguments.min_duration.unwrap_or_default().as_nanos();
    let options = GraphOptions {
        depth: arguments.depth.map(|depth| depth as usize),
        min_duration_ns: u64::try_from(shortest).unwrap_or(u64::MAX),
        fields: arguments.fields,
        names: arguments.names.form(),
    };
    Ok(match arguments.json {
        true => capriole_report::write_graph_json(trace, out, &options)?,
        false => capriole_report::write_graph(trace, out, &options)?,
    })
}

/// Draws a flame graph of calls; with `--json`, also prints its data.
fn flame(
    arguments: &Arguments,
    trace: &Trace,
    file: &Path,
    out: &mut impl Write,
) -> anyhow::Result<Health> {
    let (flame, health) = Flame::of(trace)?;
    let by = match arguments.by {
        Some(By::Calls) => FlameBy::Calls,
        _ => FlameBy::Time,
    };
    save(
        arguments,
        trace,
        file,
        flame.lost_events,
        |title, picture| flame.draw(by, arguments.names.form(), title, picture),
    )?;
    let unended: u64 = flame.stacks.iter().map(|stack| stack.unended).sum();
    if unended > 0 && by == FlameBy::Time {
        tell!(
            "capriole: the end of {} was not recorded: the picture shows the time up to the last event \
             in each",
            units::counted(unended, "call", "calls")
        );
    }
    if arguments.json {
        serde_json::to_writer(&mut *out, &flame)?;
        writeln!(out)?;
    }
    Ok(health)
}

/// Draws a flame graph of events by their call stacks; with `--json`, also prints its data.
fn stack_flame(
    arguments: &Arguments,
    trace: &Trace,
    file: &Path,
    out: &mut impl Write,
) -> anyhow::Result<Health> {
    let (flame, health) = StackFlame::of(trace)?;
    save(
        arguments,
        trace,
        file,
        flame.lost_events,
        |title, picture| flame.draw(arguments.names.form(), title, picture),
    )?;
    if arguments.json {
        serde_json::to_writer(&mut *out, &flame)?;
        writeln!(out)?;
    }
    Ok(health)
}

/// Draws a picture, with the program's command line as title, into a file.
fn save(
    arguments: &Arguments,
    trace: &Trace,
    file: &Path,
    lost: u64,
    draw: impl FnOnce(&str, &mut Vec<u8>) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let title = trace.document().target.command_line.join(" ");
    let mut picture = Vec::new();
    draw(&title, &mut picture).map_err(|error| {
        anyhow::anyhow!("cannot draw {}: {error}", arguments.directory.display())
    })?;
    write_file(file, &picture)
        .map_err(|error| anyhow::anyhow!("cannot write {}: {error}", file.display()))?;
    if lost > 0 {
        tell!(
            "capriole: {} were lost: the picture shows what was recorded",
            units::counted(lost, "event", "events")
        );
    }
    Ok(())
}
