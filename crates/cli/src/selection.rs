//! From what the user wrote to sites with plans.

use crate::units;
use anyhow::{Context, bail};
use capriole_event::{At, Base, EventSpec, FetchArg, FieldType, Gpr, Place};
use capriole_plan::detour::{Record, Work};
use capriole_plan::site::{Refusal, Refused, Tactic};
use capriole_target::attach::Probe;
use capriole_target::object::Objects;
use capriole_target::planner::{Plan, Planner};
use capriole_target::process::Process;
use capriole_target::resolve::{Site, resolve};
use capriole_trace::{EventInfo, FieldInfo, RefusalInfo};
use iced_x86::Register;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// What an event records: names and registers.
pub type Fields = Vec<(String, Register)>;

/// An event at one site: what will be recorded there, and how it is reached.
#[derive(Debug)]
pub struct Selected {
    /// The event's number in the trace.
    pub id: u32,
    /// Where.
    pub site: Site,
    /// Which registers, and their names.
    pub fields: Fields,
    /// How, or why not.
    pub plan: Result<Plan, Refused>,
    /// Whether the user named this very function, rather than a pattern.
    pub named: bool,
}

impl Selected {
    /// The event's name: the function, with the offset if there is one, or the
    /// place in the file.
    pub fn name(&self) -> String {
        match (&self.site.symbol, self.site.offset) {
            (Some(symbol), 0) => symbol.clone(),
            (Some(symbol), offset) => format!("{symbol}+{offset:#x}"),
            (None, _) => format!("{}:{:#x}", self.site.object.name(), self.site.file_offset),
        }
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
        json!({
            "event": self.name(),
            "object": self.site.object.path().to_string_lossy(),
            "symbol": self.site.symbol,
            "offset": format!("{:#x}", self.site.file_offset),
            "address": format!("{:#x}", self.site.address),
            "tactic": self.tactic(),
            "refusals": refusals,
        })
    }

    /// What its probe records.
    pub fn record(&self) -> Record {
        Record::new(self.id, self.fields.iter().map(|f| f.1).collect())
    }

    /// The event for the trace.
    pub fn info(&self) -> EventInfo {
        let build_id = self.site.object.file().build_id();
        let field = |(name, _): &(String, Register)| FieldInfo {
            name: name.clone(),
            field_type: FieldType::X64,
        };
        EventInfo {
            id: self.id,
            name: self.name(),
            symbol: self.site.symbol.clone(),
            symbol_offset: self.site.offset,
            object: self.site.object.path().to_string_lossy().into_owned(),
            build_id: build_id.map(|id| id.iter().map(|b| format!("{b:02x}")).collect()),
            offset: self.site.link_address,
            address: self.site.address,
            fields: self.fields.iter().map(field).collect(),
            faults: false,
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

/// The registers that an event records.
///
/// # Errors
/// The first part of the event that cannot be recorded yet.
fn fields(spec: &EventSpec) -> anyhow::Result<Fields> {
    let what = match spec {
        EventSpec { at: At::Return, .. } => "returns",
        EventSpec {
            place: Place::Line { .. },
            ..
        } => "lines of source",
        EventSpec {
            place: Place::Static { .. },
            ..
        } => "static markers",
        EventSpec {
            reference_counter: Some(_),
            ..
        } => "places with a reference counter",
        EventSpec {
            filter: Some(_), ..
        } => "filtered events",
        _ => {
            let fields = spec.arguments.iter();
            let fields: Fields = fields
                .map(|a| Ok((a.name.clone(), register(a)?)))
                .collect::<anyhow::Result<_>>()?;
            let different: HashSet<Register> = fields.iter().map(|f| f.1).collect();
            if different.len() > MAX_REGISTERS {
                bail!(
                    "event `{}`: more than {MAX_REGISTERS} registers cannot be recorded yet",
                    spec.text
                );
            }
            return Ok(fields);
        }
    };
    bail!("event `{}`: {what} cannot be recorded yet", spec.text)
}

/// The register that a field is, if it is one.
fn register(argument: &FetchArg) -> anyhow::Result<Register> {
    let plain = argument.fetch.derefs.is_empty() && argument.field_type.is_none();
    let gpr = match argument.fetch.base {
        Base::Register(gpr) if plain && gpr != Gpr::Rsp => Some(gpr),
        Base::Argument(number) if plain => Gpr::of_argument(number),
        _ => None,
    };
    let gpr = gpr.with_context(|| {
        format!(
            "field `{argument}` cannot be recorded yet; registers such as %di can, and $arg1 to \
             $arg6, without a type"
        )
    })?;
    Ok(REGISTERS[usize::from(gpr.encoding())])
}

/// As many different registers as a detour can record.
const MAX_REGISTERS: usize = 11;

/// The general registers in the order of their encodings.
const REGISTERS: [Register; 16] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RBX,
    Register::RSP,
    Register::RBP,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

/// Reads the events.
///
/// # Errors
/// The first that cannot be understood, with a mark where.
pub fn parse(events: &[String]) -> anyhow::Result<Vec<EventSpec>> {
    let parsed = events.iter().map(|text| EventSpec::parse(text));
    Ok(parsed.collect::<Result<_, _>>()?)
}

/// Finds the sites of events and plans them.
///
/// # Errors
/// An event that cannot be found. One that is found but cannot be
/// probed has its reasons in [`Selected::plan`].
pub fn select(
    objects: &Objects,
    planner: &Planner,
    events: &[EventSpec],
) -> anyhow::Result<Vec<Selected>> {
    let mut found: Vec<(Site, Fields, bool)> = Vec::new();
    // Two events may mean the same; one record of it will do.
    let mut known: HashSet<(u64, Fields)> = HashSet::new();
    for spec in events {
        let fields = fields(spec)?;
        let sites = resolve(objects, spec).with_context(|| format!("event `{}`", spec.text))?;
        let named = !spec.is_glob() || matches!(spec.place, Place::FileOffset(_));
        for site in sites {
            if events.len() == 1 || known.insert((site.address, fields.clone())) {
                found.push((site, fields.clone(), named));
            }
        }
    }
    let sites: Vec<&Site> = found.iter().map(|(site, ..)| site).collect();
    let plans = planner.plan_all(&sites);
    Ok(found
        .into_iter()
        .zip(plans)
        .enumerate()
        .map(|(id, ((site, fields, named), plan))| Selected {
            id: id as u32,
            site,
            fields,
            plan,
            named,
        })
        .collect())
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

/// The probes for what can be probed; `work` tells what an event's probe does.
pub fn probes(selected: &[Selected], work: impl Fn(&Selected) -> Work) -> Probes {
    let mut by_address: BTreeMap<u64, (Probe, Vec<usize>)> = BTreeMap::new();
    for (index, event) in selected.iter().enumerate() {
        let Ok(plan) = &event.plan else { continue };
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
        entry.0.work.push(work(event));
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
        && selected.iter().all(|e| e.plan.is_err())
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
