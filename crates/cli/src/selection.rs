//! From what the user wrote to sites with plans.

use crate::fields::{Fields, Purpose, Reader};
use crate::units;
use anyhow::{Context, anyhow, bail};
use capriole_event::{
    Base, DefinitionError, DefinitionErrors, EventSpec, FetchArg, Gpr, ParseError, Place,
    definitions,
};
use capriole_plan::detour::{Record, Work};
use capriole_plan::site::{Refusal, Refused, Tactic};
use capriole_target::attach::Probe;
use capriole_target::object::Objects;
use capriole_target::planner::{Plan, Planner};
use capriole_target::process::Process;
use capriole_target::resolve::{Body, Site, resolve};
use capriole_trace::{EventInfo, RefusalInfo};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An event at one site: what will be recorded there, and how it is reached.
#[derive(Debug)]
pub struct Selected {
    /// The event's number in the trace.
    pub id: u32,
    /// Which of the events that the user wrote it is of, from 0 on.
    pub definition: usize,
    /// Where.
    pub site: Site,
    /// What it records.
    pub fields: Arc<Fields>,
    /// The name that the user gave it.
    pub given_name: Option<String>,
    /// How, or why not.
    pub plan: Result<Plan, Refused>,
    /// Why it has no probe although it could have one: what the event asks for is not there
    /// in this copy of the function.
    pub left_out: Option<String>,
    /// Whether the user named this very function, rather than a pattern.
    pub named: bool,
}

impl Selected {
    /// The event's name: that which was given, or [`Selected::place`].
    pub fn name(&self) -> String {
        self.given_name.clone().unwrap_or_else(|| self.place())
    }

    /// The function, with the offset if there is one, or the place in the file; of a copy
    /// that was inlined, which function, and there.
    pub fn place(&self) -> String {
        let place = match (&self.site.symbol, self.site.offset) {
            (Some(symbol), 0) => symbol.clone(),
            (Some(symbol), offset) => format!("{symbol}+{offset:#x}"),
            (None, _) => format!("{}:{:#x}", self.site.object.name(), self.site.file_offset),
        };
        match &self.site.body {
            Body::Inlined { function } => format!("{function} (inlined in {place})"),
            Body::Own | Body::Clone => place,
        }
    }

    /// Why it has no probe.
    pub fn refused(&self) -> Option<String> {
        let refused = self.plan.as_ref().err().map(ToString::to_string);
        refused.or_else(|| self.left_out.clone())
    }

    /// `reserved`, `jump`, `region`, `int3`, or `none`.
    pub fn tactic(&self) -> &'static str {
        self.plan
            .as_ref()
            .map_or("none", |plan| plan.shape.tactic.as_str())
    }

    /// Why other tactics were not used.
    pub fn refusals(&self) -> &[(Tactic, Refusal)] {
        match &self.plan {
            Ok(plan) => &plan.shape.refusals,
            Err(refused) => &refused.refusals,
        }
    }

    /// The site for `--json`.
    pub fn json(&self) -> Value {
        let refusals: Vec<Value> = self
            .refusals()
            .iter()
            .map(|(t, r)| json!({"tactic": t.as_str(), "reason": r.to_string()}))
            .collect();
        let mut site = json!({
            "event": self.name(),
            "object": self.site.object.path().to_string_lossy(),
            "symbol": self.site.symbol,
            "offset": format!("{:#x}", self.site.file_offset),
            "address": format!("{:#x}", self.site.address),
            "tactic": self.tactic(),
            "refusals": refusals,
        });
        if let Body::Inlined { function } = &self.site.body {
            site["inlined"] = json!(function);
        }
        if let Some(reason) = &self.left_out {
            site["left_out"] = json!(reason);
        }
        site
    }

    /// What its probe does to record it.
    pub fn record(&self) -> Work {
        // That it can be made was found out when the event was read.
        let made = self.fields.fetch.work(self.id);
        made.unwrap_or_else(|_| Record::new(self.id, Vec::new()).into())
    }

    /// The event for the trace.
    pub fn info(&self) -> EventInfo {
        let build_id = self.site.object.file().build_id();
        EventInfo {
            id: self.id,
            name: self.name(),
            symbol: self.site.symbol.clone(),
            symbol_offset: self.site.offset,
            object: self.site.object.path().to_string_lossy().into_owned(),
            build_id: build_id.map(|id| id.iter().map(|b| format!("{b:02x}")).collect()),
            offset: self.site.link_address,
            address: self.site.address,
            fields: self.fields.infos.clone(),
            faults: self.fields.fetch.can_fault(),
            tactic: self.tactic().to_owned(),
            refusals: self
                .refusals()
                .iter()
                .map(|(t, r)| RefusalInfo {
                    tactic: t.to_string(),
                    reason: r.to_string(),
                })
                .collect(),
        }
    }
}

/// Reads events: those of the command line, then those of files of definitions.
///
/// # Errors
/// The first that cannot be understood, with a mark where; of a file, all of them.
pub fn parse(events: &[String], files: &[PathBuf]) -> anyhow::Result<Vec<EventSpec>> {
    read(events, files, |_| Ok(()))
}

/// Reads events of which each hit is looked at: without aggregates and keys.
///
/// # Errors
/// As [`parse`], and at the first aggregate or key.
pub fn parse_plain(events: &[String], files: &[PathBuf]) -> anyhow::Result<Vec<EventSpec>> {
    read(events, files, |spec| match spec.aggregation.at() {
        None => Ok(()),
        Some(column) => Err(ParseError {
            text: spec.text.clone(),
            column,
            message: "aggregates and `by` are for `capriole stat`".to_string(),
            help: "give it the event, or write the fields alone, without aggregates and `by`"
                .to_string(),
        }),
    })
}

fn read(
    events: &[String],
    files: &[PathBuf],
    check: impl Fn(&EventSpec) -> Result<(), ParseError>,
) -> anyhow::Result<Vec<EventSpec>> {
    let mut parsed: Vec<EventSpec> = Vec::new();
    for text in events {
        let spec = EventSpec::parse(text)?;
        check(&spec)?;
        parsed.push(spec);
    }
    for file in files {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let wrong = |errors| anyhow!("{}: {errors}", file.display());
        let read = definitions(&text).map_err(wrong)?;
        if read.is_empty() {
            bail!("{}: no event is defined there", file.display());
        }
        let refused = read.iter().filter_map(|(line, spec)| {
            let error = check(spec).err()?;
            Some(DefinitionError { line: *line, error })
        });
        let refused: Vec<_> = refused.collect();
        if !refused.is_empty() {
            return Err(wrong(DefinitionErrors(refused)));
        }
        parsed.extend(read.into_iter().map(|(_, spec)| spec));
    }
    Ok(parsed)
}

/// Finds the sites of events and plans them.
///
/// # Errors
/// An event that cannot be found, or whose fields cannot be recorded. One that is found but
/// cannot be probed has its reasons in [`Selected::plan`]; a copy of a function, made by the
/// compiler, in which a field cannot be recorded has them in [`Selected::left_out`].
pub fn select(
    objects: &Objects,
    planner: &Planner,
    events: &[EventSpec],
    purpose: Purpose,
) -> anyhow::Result<Vec<Selected>> {
    let mut found: Vec<(Site, usize)> = Vec::new();
    for (definition, spec) in events.iter().enumerate() {
        let sites = resolve(objects, spec).with_context(|| format!("event `{}`", spec.text))?;
        found.extend(sites.into_iter().map(|site| (site, definition)));
    }
    let mut reader = Reader::new(purpose);
    let mut fields: Vec<Result<Arc<Fields>, anyhow::Error>> = Vec::new();
    let mut last: Option<(&EventSpec, &Site)> = None;
    for (site, definition) in &found {
        let spec = &events[*definition];
        // They depend on the site only if debug information or addresses are asked for.
        let same = last.is_some_and(|(other, before)| {
            std::ptr::eq(other, spec)
                && Arc::ptr_eq(&before.object, &site.object)
                && before.body == Body::Own
                && site.body == Body::Own
                && is_alike(spec)
        });
        let read = match (same, fields.last()) {
            (true, Some(Ok(before))) => Ok(before.clone()),
            _ => reader.fields(spec, site).map(Arc::new),
        };
        // The function was named, not what the compiler made of it.
        fields.push(match site.body {
            Body::Own => Ok(read?),
            Body::Clone | Body::Inlined { .. } => read,
        });
        last = Some((spec, site));
    }
    drop(reader);
    // Two events may mean the same; one record of it will do.
    let mut seen: HashSet<(u64, Body, Arc<Fields>)> = HashSet::new();
    // What is counted has a table for each definition.
    let several = events.len() > 1 && purpose == Purpose::Record;
    let mut is_new = |site: &Site, fields: &Arc<Fields>| {
        !several || seen.insert((site.address, site.body.clone(), fields.clone()))
    };
    let all = found.into_iter().zip(fields);
    let distinct: Vec<_> = all
        .filter(|((site, _), fields)| match fields {
            Ok(fields) => is_new(site, fields),
            Err(_) => true,
        })
        .collect();
    let sites: Vec<&Site> = distinct.iter().map(|((site, _), _)| site).collect();
    let plans = planner.plan_all(&sites);
    // Whether an event is recorded at all.
    let mut works = vec![false; events.len()];
    for (((_, definition), fields), plan) in distinct.iter().zip(&plans) {
        works[*definition] |= fields.is_ok() && plan.is_ok();
    }
    let mut selected = Vec::with_capacity(plans.len());
    for (((site, definition), fields), plan) in distinct.into_iter().zip(plans) {
        let spec = &events[definition];
        let (fields, left_out) = match fields {
            Ok(fields) => (fields, None),
            Err(error) if !works[definition] => return Err(error),
            Err(error) => (Arc::default(), Some(without_event(&error))),
        };
        // Of its copies one may be missing, but not all.
        let own = site.body == Body::Own || !works[definition];
        selected.push(Selected {
            id: selected.len() as u32,
            definition,
            site,
            fields,
            given_name: spec.name.clone(),
            plan,
            left_out,
            named: own && (!spec.is_glob() || matches!(spec.place, Place::FileOffset(_))),
        });
    }
    Ok(selected)
}

/// What [`Reader::fields`] says, but for the event's text.
fn without_event(error: &anyhow::Error) -> String {
    let parts: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
    parts.join(": ")
}

/// Whether an event's fields are the same at all functions of an object.
fn is_alike(spec: &EventSpec) -> bool {
    let depends = |argument: &FetchArg| match argument.fetch.base {
        Base::Variable(_) | Base::AllArguments => true,
        // Which of them are on the stack depends on the place in the function.
        Base::Argument(number) => Gpr::of_argument(number).is_none(),
        _ => false,
    };
    !spec.arguments.iter().any(depends)
}

/// Probes to be written.
#[derive(Debug)]
pub struct Probes {
    /// Each with the indices of the events that it serves: an address has one
    /// probe, whatever the number of events there.
    pub probes: Vec<(Probe, Vec<usize>)>,
    /// Events whose bytes overlap those of another one's probe, which stays.
    pub overlapping: Vec<(usize, usize)>,
}

/// The probes for what can be probed; `works` tells what the probe of each event does.
pub fn probes(selected: &[Selected], works: Vec<Vec<Work>>) -> Probes {
    let mut by_address: BTreeMap<u64, (Probe, Vec<usize>)> = BTreeMap::new();
    for (index, (event, work)) in selected.iter().zip(works).enumerate() {
        let (Ok(plan), None) = (&event.plan, &event.left_out) else {
            continue;
        };
        let entry = by_address.entry(plan.shape.site).or_insert_with(|| {
            let probe = Probe {
                shape: plan.shape.clone(),
                work: Vec::new(),
                near: event.site.object.range(),
                before: plan.before.clone(),
                stand_in: plan.breakpoint,
            };
            (probe, Vec::new())
        });
        entry.0.work.extend(work);
        entry.1.push(index);
    }
    let mut result = Probes {
        probes: Vec::new(),
        overlapping: Vec::new(),
    };
    for (probe, events) in by_address.into_values() {
        match result.probes.last() {
            Some((last, others)) if last.shape.covered.end > probe.shape.covered.start => {
                let other = others[0];
                result
                    .overlapping
                    .extend(events.iter().map(|event| (*event, other)));
            }
            _ => result.probes.push((probe, events)),
        }
    }
    result
}

/// Objects and planner of a process or of a file.
pub fn subject(pid: Option<u32>, path: Option<&Path>) -> anyhow::Result<(Objects, Planner)> {
    match (pid, path) {
        (Some(pid), None) => {
            let process = Process::open(pid)?;
            process.preflight()?;
            Ok((
                Objects::of_process(&process)?,
                Planner::of_process(&process),
            ))
        }
        (None, Some(path)) => Ok((Objects::offline(path)?, Planner::offline())),
        (Some(_), Some(path)) => {
            bail!("give either -p PID or a file, not both: {}", path.display())
        }
        (None, None) => bail!("give a process with -p PID, or a file"),
    }
}

/// An error for events that the user named and that cannot be probed.
pub fn refuse_named(selected: &[Selected]) -> anyhow::Result<()> {
    for event in selected.iter().filter(|e| e.named) {
        if let Err(refused) = &event.plan {
            bail!("{}", refusal(event, refused));
        }
    }
    if let Some(event) = selected.first()
        && let Err(refused) = &event.plan
        && selected.iter().all(|e| e.refused().is_some())
    {
        bail!(
            "none of {} can be probed; for example: {}",
            units::counted(selected.len() as u64, "function", "functions"),
            refusal(event, refused)
        );
    }
    Ok(())
}

/// Why an event cannot be probed, for a person. An offset that was miscounted is
/// answered with those that are right, in the way it was given.
fn refusal(event: &Selected, refused: &Refused) -> String {
    let Some((_, Refusal::NotABoundary { site, instruction })) = refused.refusals.first() else {
        return format!(
            "{} cannot be probed: {refused}; `capriole check` shows the site",
            event.name()
        );
    };
    let at = |address: u64| {
        let from_start = address.wrapping_sub(event.site.extent.start);
        match (&event.site.symbol, from_start) {
            (Some(symbol), 0) => symbol.clone(),
            (Some(symbol), offset) => format!("{symbol}+{offset:#x}"),
            (None, _) => {
                let offset = event
                    .site
                    .file_offset
                    .wrapping_add(address.wrapping_sub(*site));
                format!("{}:{offset:#x}", event.site.object.name())
            }
        }
    };
    format!(
        "no instruction starts at {}: it is in the middle of the one at {}; the next starts at {}",
        event.name(),
        at(instruction.start),
        at(instruction.end)
    )
}

/// A path that exists, or what the user may have meant.
pub fn existing(path: &Path) -> anyhow::Result<PathBuf> {
    if path.exists() {
        return Ok(path.to_owned());
    }
    bail!(
        "{}: no such file (a process is given with -p PID)",
        path.display()
    )
}
