//! `capriole list`: what can be probed, and how.

use crate::exit::Usage;
use crate::selection::{self, Selected};
use crate::units;
use anyhow::bail;
use capriole_plan::site::Tactic;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// List functions, and the tactic by which each would be reached
#[derive(Debug, clap::Args)]
#[command(override_usage = "capriole list [OPTIONS] [PATTERN] (-p PID | PATH)")]
pub struct Arguments {
    /// `[PATTERN] PATH`, or with -p only `[PATTERN]`, such as `libc:mem*` or `:main`
    #[arg(value_name = "PATTERN|PATH", num_args = 0..=2)]
    words: Vec<String>,
    /// The running process
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,
    /// Count tactics and reasons instead of listing functions
    #[arg(long)]
    summary: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// The pattern as an event, and the file.
    fn subject(&self) -> anyhow::Result<(String, Option<PathBuf>)> {
        let (pattern, path) = match (self.pid, self.words.as_slice()) {
            (Some(_), []) => (None, None),
            (Some(_), [pattern]) => (Some(pattern), None),
            (Some(_), _) => bail!(Usage("with -p PID only a pattern may follow")),
            (None, []) => bail!(Usage("give a file, or a process with -p PID")),
            (None, [path]) => (None, Some(path)),
            (None, [pattern, path]) => (Some(pattern), Some(path)),
            (None, _) => bail!(Usage("at most a pattern and a file may be given")),
        };
        let event = match pattern {
            None => ":*".to_owned(),
            // `lib:fun*` is an event; `ns::fun*` is a pattern for the main program.
            Some(pattern) if pattern.replace("::", "").contains(':') => pattern.clone(),
            Some(pattern) => format!(":{pattern}"),
        };
        Ok((event, path.map(PathBuf::from)))
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (event, path) = arguments.subject()?;
    let events = selection::parse(&[event])?;
    let path = path.map(|p| selection::existing(&p)).transpose()?;
    let (objects, planner) = selection::subject(arguments.pid, path.as_deref())?;
    let selected = selection::select(&objects, &planner, &events)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    match (arguments.summary, arguments.json) {
        (false, false) => table(&selected, &mut out)?,
        (false, true) => {
            let sites: Vec<_> = selected.iter().map(Selected::json).collect();
            writeln!(out, "{}", serde_json::to_string_pretty(&sites)?)?;
        }
        (true, json) => summary(&selected, json, &mut out)?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn table(selected: &[Selected], out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(
        out,
        "{:>18}  {:>7}  {:<8}  FUNCTION",
        "ADDRESS", "BYTES", "TACTIC"
    )?;
    for event in selected {
        let size = event.site.extent.end - event.site.extent.start;
        write!(
            out,
            "{:>#18x}  {size:>7}  {:<8}  {}",
            event.site.address,
            event.tactic(),
            event.name()
        )?;
        match &event.plan {
            Err(refused) => writeln!(out, "  ({refused})")?,
            Ok(plan) if event.tactic() == "int3" => {
                let why = plan.shape.refusals.last().map(|(_, r)| r.to_string());
                writeln!(out, "  ({})", why.unwrap_or_default())?;
            }
            Ok(_) => writeln!(out)?,
        }
    }
    Ok(())
}

fn summary(selected: &[Selected], as_json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let mut tactics: BTreeMap<&str, u64> = BTreeMap::new();
    // Why the best tactic that moves code, the region, was not used.
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for event in selected {
        *tactics.entry(event.tactic()).or_default() += 1;
        if matches!(event.tactic(), "int3" | "none")
            && let Some((_, refusal)) = event.refusals().iter().rfind(|(t, _)| t.as_str() != "int3")
        {
            *reasons.entry(refusal.key()).or_default() += 1;
        }
    }
    let total = selected.len() as u64;
    if as_json {
        let value = json!({"functions": total, "tactics": tactics, "refusals": reasons});
        writeln!(out, "{value}")?;
        return Ok(());
    }
    writeln!(out, "{}", units::counted(total, "function", "functions"))?;
    let line = |out: &mut dyn Write, name: &str, count: u64| {
        let share = 100.0 * count as f64 / total.max(1) as f64;
        writeln!(
            out,
            "  {name:<28} {:>9}  {share:>6.2} %",
            units::count(count)
        )
    };
    for tactic in Tactic::ALL.map(Tactic::as_str).into_iter().chain(["none"]) {
        line(out, tactic, tactics.get(tactic).copied().unwrap_or(0))?;
    }
    if !reasons.is_empty() {
        writeln!(out, "why not a jump:")?;
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
        for (reason, count) in reasons {
            line(out, reason, count)?;
        }
    }
    Ok(())
}
