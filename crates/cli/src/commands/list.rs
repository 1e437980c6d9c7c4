//! `capriole list`: lists the functions and markers that can be probed, and how.

mod args;
mod markers;

use crate::advice;
use crate::completion;
use crate::exit::Usage;
use crate::names::NamesFlag;
use crate::probing::{note_wait, remark};
use crate::subject;
use crate::verbosity::timed;
use anyhow::bail;
use capriole_insn::Extent;
use capriole_object::symbols::shown::ShownNames;
use capriole_planner::planner::{Planned, Planner};
use capriole_planner::resolve::Site;
use capriole_select::debuginfod;
use capriole_select::definitions;
use capriole_select::event::Event;
use capriole_select::select::{self, Fate, Mode, Selected};
use capriole_tactic::site::{Refusal, Refused, Tactic};
use capriole_text::output;
use capriole_text::printable;
use capriole_text::units;
use clap::ValueHint;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

/// List functions, and the tactic by which each would be reached
#[derive(Debug, clap::Args)]
#[command(override_usage = "capriole list [OPTIONS] [PATTERN] (-p PID | PATH)")]
pub struct Arguments {
    /// `[PATTERN] PATH`, or with -p only `[PATTERN]`, such as `libc:mem*` or `:main`;
    /// `usdt:PATH:*` lists static markers
    #[arg(value_name = "PATTERN|PATH", num_args = 0..=2, value_hint = ValueHint::FilePath)]
    words: Vec<String>,
    /// The running process: its number, or its name if only one has it
    #[arg(short, long, value_name = "PID", value_parser = subject::pid, add = completion::processes())]
    pid: Option<u32>,
    /// Count tactics and reasons instead of listing functions
    #[arg(long)]
    summary: bool,
    /// Count every instruction of every function, each planned on its own
    #[arg(long, requires = "summary", conflicts_with = "pid")]
    instructions: bool,
    /// Show parameters and variables from debug information, and which of them can be recorded
    #[arg(long, conflicts_with = "summary")]
    args: bool,
    #[command(flatten)]
    names: NamesFlag,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Splits the words into the pattern, as an event, and the file.
    fn subject(&self) -> anyhow::Result<(String, Option<PathBuf>)> {
        let (pattern, path) = match (self.pid, self.words.as_slice()) {
            (Some(_), []) => (None, None),
            (Some(_), [pattern]) => (Some(pattern), None),
            (Some(_), _) => bail!(Usage("with -p PID only a pattern may follow")),
            (None, []) => bail!(Usage("give a file, or a process with -p PID")),
            // The file is in the event.
            (None, [pattern]) if pattern.starts_with("usdt:") => (Some(pattern), None),
            (None, [path]) => (None, Some(path)),
            (None, [pattern, path]) => (Some(pattern), Some(path)),
            (None, _) => bail!(Usage("at most a pattern and a file may be given")),
        };
        let event = match pattern {
            None => ":*".to_owned(),
            Some(offset) if offset.starts_with(|c: char| c.is_ascii_digit()) => {
                format!(":{offset}")
            }
            Some(pattern) => pattern.clone(),
        };
        Ok((event, path.map(PathBuf::from)))
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (event, path) = arguments.subject()?;
    if let Some(path) = &path {
        subject::refuse_swapped("list", &event, path)?;
    }
    let events = definitions::parse_plain(&[event], &[])?;
    let path = match arguments.pid {
        Some(_) => path,
        None => path.or_else(|| subject::file_of(&events)),
    };
    let path = path.map(|p| subject::existing(&p)).transpose()?;
    let (objects, planner) = subject::open(arguments.pid, path.as_deref())?;
    let events: Vec<Event> = events.into_iter().map(|e| Event::alone(e.into())).collect();
    let selected = timed("functions found, probes planned", || {
        match arguments.args {
            true => debuginfod::fetch_all(&objects, &events, &note_wait),
            false => debuginfod::fetch(&objects, &events, &note_wait),
        }
        select::select(&objects, &planner, &events, Mode::default())
    })?;
    let names = select::shown_names(&selected, arguments.names.form());
    let mut out = BufWriter::new(output::stdout());
    match (arguments.summary, arguments.json) {
        (false, false) if arguments.args => args::write(&selected, &names, &mut out)?,
        (false, true) if arguments.args => {
            let found = args::json(&selected);
            writeln!(out, "{}", serde_json::to_string_pretty(&found)?)?;
        }
        (false, false) if selected.iter().any(|event| event.site.marker.is_some()) => {
            markers::table(&selected, &mut out)?;
        }
        (false, false) => {
            table(&selected, &names, &mut out)?;
            out.flush()?;
            markers::mention(arguments, &objects, &selected);
        }
        (false, true) => {
            let sites: Vec<_> = selected.iter().map(|e| e.json(advice::words)).collect();
            writeln!(out, "{}", serde_json::to_string_pretty(&sites)?)?;
        }
        (true, json) => {
            let summary = match arguments.instructions {
                true => {
                    let all = arguments.words.len() < 2;
                    Summary::of_instructions(&selected, all, &planner)?
                }
                false => Summary::of_functions(&selected),
            };
            match json {
                true => writeln!(out, "{}", summary.json())?,
                false => summary.write(&mut out)?,
            }
        }
    }
    out.flush()?;
    remark(&selected);
    Ok(ExitCode::SUCCESS)
}

fn table(selected: &[Selected], names: &ShownNames, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(
        out,
        "{:>18}  {:>7}  {:<8}  FUNCTION",
        "ADDRESS", "BYTES", "TACTIC"
    )?;
    for event in selected {
        let size = event.site.extent.end - event.site.extent.start;
        write!(
            out,
            "{:>#18x}  {size:>7}  {:<8}  {}{}",
            event.site.address,
            event.tactic(),
            printable(&names.get(&event.name())),
            printable(&event.at_exit(names))
        )?;
        let remark = match &event.fate {
            Fate::Planned(plan) if plan.shape.tactic.is_breakpoint() => {
                let last = plan.shape.refusals.last();
                last.map(|(_, refusal)| advice::told(&(*refusal).into()))
            }
            fate => fate.reason().as_ref().map(advice::told),
        };
        match remark {
            Some(remark) => writeln!(out, "  ({})", printable(&remark))?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}

/// Number of sites by key: a tactic or a reason.
type Counts = BTreeMap<&'static str, u64>;

/// Number of sites that each tactic reaches, and the reasons why the others cannot be reached.
#[derive(Debug, Default)]
struct Summary {
    functions: u64,
    /// Number of instructions, if they were planned instead of functions.
    instructions: Option<u64>,
    /// Number of instructions that no known control flow reaches: padding, or data.
    not_reached: u64,
    /// Sites by tactic; `none` if no tactic reaches them.
    tactics: Counts,
    /// Sites that no jump reaches, by the reason of the last refused jump.
    reasons: Counts,
    /// Refusals of each tactic that was tried, by reason.
    refused: BTreeMap<Tactic, Counts>,
}

impl Summary {
    fn of_functions(selected: &[Selected]) -> Summary {
        let mut summary = Summary::default();
        for event in selected {
            summary.functions += 1;
            let tactic = event.fate.plan().ok().map(|plan| plan.shape.tactic);
            summary.add(tactic, event.refusals());
        }
        summary
    }

    /// Adds a site and its tactic, if one reaches it.
    fn add(&mut self, tactic: Option<Tactic>, refusals: &[(Tactic, Refusal)]) {
        let name = tactic.map_or("none", Tactic::as_str);
        *self.tactics.entry(name).or_default() += 1;
        if tactic.is_none_or(Tactic::is_breakpoint)
            && let Some((_, refusal)) = refusals.iter().rfind(|(t, _)| !t.is_breakpoint())
        {
            *self.reasons.entry(refusal.key()).or_default() += 1;
        }
        for (tactic, refusal) in refusals {
            let reasons = self.refused.entry(*tactic).or_default();
            *reasons.entry(refusal.key()).or_default() += 1;
        }
    }

    /// Adds a function whose instructions were planned.
    fn add_function(&mut self, plans: &[Planned]) {
        self.functions += 1;
        for plan in plans {
            let (tactic, refusals) = match plan {
                Ok(plan) => (Some(plan.shape.tactic), &plan.shape.refusals),
                Err(Refused { refusals }) => (None, refusals),
            };
            let not_reached = matches!(refusals.first(), Some((_, Refusal::NotReached { .. })));
            if plan.is_err() && not_reached {
                self.not_reached += 1;
                continue;
            }
            *self.instructions.get_or_insert(0) += 1;
            self.add(tactic, refusals);
        }
    }

    fn merge(&mut self, other: Summary) {
        let add = |to: &mut Counts, from: Counts| {
            for (word, count) in from {
                *to.entry(word).or_default() += count;
            }
        };
        self.functions += other.functions;
        self.instructions = match (self.instructions, other.instructions) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0) + b.unwrap_or(0)),
        };
        self.not_reached += other.not_reached;
        add(&mut self.tactics, other.tactics);
        add(&mut self.reasons, other.reasons);
        for (tactic, reasons) in other.refused {
            add(self.refused.entry(tactic).or_default(), reasons);
        }
    }

    /// Plans every instruction of the selected functions, or of all functions known in their file,
    /// named or not. Each is planned as if it were the only one.
    fn of_instructions(
        selected: &[Selected],
        all: bool,
        planner: &Planner,
    ) -> anyhow::Result<Summary> {
        let Some(first) = selected.first() else {
            return Ok(Summary::default());
        };
        let object = &first.site.object;
        let mut functions: Vec<Extent> = match all {
            true => object.code()?.functions().to_vec(),
            false => selected.iter().map(|event| event.site.extent).collect(),
        };
        functions.sort_unstable();
        functions.dedup();
        // Where functions overlap, an instruction is counted once.
        let mut end = 0;
        let functions: Vec<(Site, u64)> = functions
            .into_iter()
            .filter_map(|extent| {
                let from = end;
                end = from.max(extent.end);
                Some((Site::of_function(object, extent)?, from))
            })
            .collect();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut summary = Summary::default();
            while let Some((function, from)) = functions.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Ok(plans) = planner.plan_each(function, *from) {
                    summary.add_function(&plans);
                }
            }
            summary
        };
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let mut summary = Summary {
            instructions: Some(0),
            ..Summary::default()
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            for worker in workers {
                match worker.join() {
                    Ok(part) => summary.merge(part),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
        Ok(summary)
    }

    fn json(&self) -> Value {
        let refused = self
            .refused
            .iter()
            .map(|(tactic, reasons)| (tactic.as_str(), reasons));
        let refused: BTreeMap<_, _> = refused.collect();
        let mut value = json!({
            "functions": self.functions,
            "tactics": self.tactics,
            "refusals": self.reasons,
            "refused": refused,
        });
        if let Some(instructions) = self.instructions {
            value["instructions"] = json!(instructions);
            value["not_reached"] = json!(self.not_reached);
        }
        value
    }

    fn write(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let functions = units::counted(self.functions, "function", "functions");
        let total = match self.instructions {
            None => {
                writeln!(out, "{functions}")?;
                self.functions
            }
            Some(instructions) => {
                let counted = units::counted(instructions, "instruction", "instructions");
                let apart = units::count(self.not_reached);
                writeln!(
                    out,
                    "{counted} of {functions}, without {apart} that nothing leads to"
                )?;
                instructions
            }
        };
        let line = |out: &mut dyn Write, name: &str, count: u64| {
            let share = 100.0 * count as f64 / total.max(1) as f64;
            let count = units::count(count);
            writeln!(out, "  {name:<28} {count:>9}  {share:>6.2} %")
        };
        for tactic in Tactic::ALL.map(Tactic::as_str).into_iter().chain(["none"]) {
            line(out, tactic, self.tactics.get(tactic).copied().unwrap_or(0))?;
        }
        if !self.reasons.is_empty() {
            writeln!(out, "why not a jump:")?;
            for (reason, count) in by_count(&self.reasons) {
                line(out, reason, count)?;
            }
        }
        if !self.refused.is_empty() {
            writeln!(out, "refused, tactic by tactic:")?;
        }
        for tactic in Tactic::ALL {
            let reasons = self.refused.get(&tactic);
            for (index, (reason, count)) in reasons.into_iter().flat_map(by_count).enumerate() {
                let name = if index == 0 { tactic.as_str() } else { "" };
                let count = units::count(count);
                writeln!(out, "  {name:<9} {reason:<28} {count:>9}")?;
            }
        }
        Ok(())
    }
}

/// Sorts counts, the most frequent first.
fn by_count(counts: &Counts) -> Vec<(&'static str, u64)> {
    let mut counts: Vec<_> = counts.iter().map(|(word, count)| (*word, *count)).collect();
    counts.sort_by_key(|(word, count)| (std::cmp::Reverse(*count), *word));
    counts
}
