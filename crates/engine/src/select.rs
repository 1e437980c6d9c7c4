//! Resolves the user's events to sites with plans.

use crate::error::{Context, Error, Result, bail, err};
use crate::fields::{Fields, Purpose, Reader, is_untyped_result};
use crate::returns::{self, Returns};
use crate::{marker, names, slots};
use capriole_codegen::detour::{Record, Work};
use capriole_event::{At, Base, EventSpec, FetchArg, Gpr, ObjectRef, Place, automatic_name};
use capriole_insn::ExitKind;
use capriole_object::Objects;
use capriole_patch::attach::{Point, Probe};
use capriole_patch::counter::ReferenceCounter;
use capriole_planner::planner::{Plan, Planner};
use capriole_planner::resolve::{Body, NotFollowed, ResolveError, Site, followed, resolve};
use capriole_proc::process::Process;
use capriole_proc::translator;
use capriole_tactic::site::{Refusal, Refused, Tactic};
use capriole_text::units;
use capriole_trace::{EventInfo, FieldInfo, RefusalInfo, Role, TextFormat};
use iced_x86::ConditionCode;
use serde_json::{Value, json};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Length of `endbr64` in bytes.
const ENDBR: u64 = 4;

/// An event at one site: the data recorded there, and how the site is reached. An event at a
/// function's returns has several sites, in consecutive entries.
#[derive(Debug)]
pub struct Selected {
    /// Number of the event in the trace: the index of the first of its sites.
    pub id: u32,
    /// Role in call pairing: entry, return, tail call, or none.
    pub role: Role,
    /// Link between the events of one function's entry and exits: the number of the first of them.
    pub call: Option<u32>,
    /// Index of the user's event that this belongs to, from 0 on.
    pub definition: usize,
    /// Source text of the user's event.
    pub text: String,
    /// True if the user's event covers calls from entry to exit.
    pub of_calls: bool,
    /// True if it only begins calls, for the event at the exits.
    pub keeps: bool,
    /// True if the event at the exits records whole calls.
    pub whole: bool,
    /// Area of the slots for calls that it begins or ends.
    pub area: u32,
    /// The site.
    pub site: Site,
    /// True if the site is the entry of a function whose return address is replaced there, and the
    /// event happens when it returns.
    pub followed: bool,
    /// Fields that it records.
    pub fields: Arc<Fields>,
    /// Name given by the user.
    pub given_name: Option<String>,
    /// Reference counter that must be above zero for the program to reach the site.
    pub counter: Option<ReferenceCounter>,
    /// The plan, or why there is none.
    pub plan: Result<Plan, Refused>,
    /// Reason why it has no probe although it could have one: a field is not available in this copy
    /// of the function, or not all of the function's exits can have a probe.
    pub left_out: Option<String>,
    /// True if the user named this very function, rather than a pattern.
    pub named: bool,
    /// True if it was added without an event of the user's; then it is no error if it is missing.
    pub implied: bool,
}

impl Selected {
    /// Returns the event's name: the given one, or the function's; at exits with a suffix for their
    /// kind.
    pub fn name(&self) -> String {
        match (&self.given_name, self.role) {
            (Some(name), Role::TailCall) => format!("{name}__tail"),
            (Some(name), _) => name.clone(),
            (None, _) if self.site.marker.is_some() => self.marker_name(),
            (None, Role::Return) => format!("{}__return", self.function()),
            (None, Role::TailCall) => format!("{}__tail", self.function()),
            (None, _) => self.place(),
        }
    }

    /// Returns `PROVIDER:NAME` of a marker.
    fn marker_name(&self) -> String {
        let marker = self.site.marker.as_ref();
        marker.map_or_else(|| self.place(), |marker| marker.full_name())
    }

    /// Returns the function, or the place in the file where it begins.
    pub fn function(&self) -> String {
        let Some(leaving) = &self.site.leaving else {
            return self.place();
        };
        self.site.symbol.clone().unwrap_or_else(|| {
            let object = &self.site.object;
            let entry = object.link(leaving.function);
            let offset = object.file().file_offset(entry).unwrap_or(entry);
            format!("{}:{offset:#x}", object.name())
        })
    }

    /// Returns the function, with the offset if there is one, or the place in the file; for an
    /// inlined copy, the inlined function and its place.
    pub fn place(&self) -> String {
        let place = match (&self.site.symbol, self.offset()) {
            (Some(symbol), Some(0)) => symbol.clone(),
            (Some(symbol), Some(offset)) => format!("{symbol}+{offset:#x}"),
            (None, _) | (_, None) => {
                format!("{}:{:#x}", self.site.object.name(), self.site.file_offset)
            }
        };
        match &self.site.body {
            Body::Inlined { function } => format!("{function} (inlined in {place})"),
            Body::Own | Body::Clone => place,
        }
    }

    /// Returns the offset in bytes from the function's entry; `None` in a separate part of the
    /// function.
    fn offset(&self) -> Option<u64> {
        match &self.site.leaving {
            Some(leaving) if leaving.function != self.site.extent.start => None,
            _ => Some(self.site.offset - self.site.check),
        }
    }

    /// True if control leaves the function at the site.
    pub fn is_exit(&self) -> bool {
        matches!(self.role, Role::Return | Role::TailCall)
    }

    /// Returns a suffix that distinguishes several sites of an event: ` at main+0x12`.
    pub fn at_exit(&self) -> String {
        if self.site.marker.is_some() {
            return format!(" at {}", self.place());
        }
        let leaving = self
            .site
            .leaving
            .as_ref()
            .filter(|_| self.is_exit() && !self.followed);
        match leaving.filter(|leaving| leaving.way.is_ok()) {
            Some(leaving) => {
                let condition = leaving.condition.map(|_| ", conditional");
                format!(" at {}{}", self.place(), condition.unwrap_or_default())
            }
            None => String::new(),
        }
    }

    /// Returns its place in the order of several events at one instruction: first exits of other
    /// functions (0), then a function's entry (1), then the exit of that same function (2), which
    /// may have no other instruction.
    fn order_at_instruction(&self) -> u8 {
        let leaves = self.site.leaving.as_ref().map(|leaving| leaving.function);
        match leaves {
            // A site behind `endbr64` is also at the function's beginning.
            Some(function) if self.site.address.wrapping_sub(function) > ENDBR => 0,
            None => 1,
            Some(_) => 2,
        }
    }

    /// Returns the noun for these events, singular and plural: function, marker, or place.
    pub fn nouns<'a>(all: impl Iterator<Item = &'a Selected>) -> (&'static str, &'static str) {
        let (mut markers, mut functions) = (false, false);
        for event in all {
            markers |= event.site.marker.is_some();
            functions |= event.site.marker.is_none();
        }
        match (markers, functions) {
            (true, false) => ("marker", "markers"),
            (true, true) => ("place", "places"),
            (false, _) => ("function", "functions"),
        }
    }

    /// Returns the identity under which it is counted: the marker, at whatever place; the function
    /// that ends there; or else the place.
    pub fn subject(&self) -> (u64, Option<String>) {
        match &self.site.marker {
            Some(marker) => (0, Some(marker.full_name())),
            None => (self.place_of_call(), None),
        }
    }

    /// Returns the function that ends there, or else the place.
    pub fn place_of_call(&self) -> u64 {
        self.site.function()
    }

    /// Returns the reason why it has no probe, if it has none.
    pub fn refused(&self) -> Option<String> {
        let refused = self.plan.as_ref().err().map(ToString::to_string);
        self.left_out.clone().or(refused)
    }

    /// Returns the name of the tactic: `reserved`, `jump`, `region`, `int3`, …, or `none`.
    pub fn tactic(&self) -> &'static str {
        self.plan
            .as_ref()
            .map_or("none", |plan| plan.shape.tactic.as_str())
    }

    /// Returns the reasons why other tactics were not used.
    pub fn refusals(&self) -> &[(Tactic, Refusal)] {
        match &self.plan {
            Ok(plan) => &plan.shape.refusals,
            Err(refused) => &refused.refusals,
        }
    }

    /// Formats the site for `--json`.
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
        match self.role {
            Role::Point | Role::Entry => {}
            Role::Return => site["exit"] = json!("return"),
            Role::TailCall => site["exit"] = json!("tail call"),
        }
        if self.site.check > 0 {
            site["stack_check"] = json!(self.site.check);
        }
        if self.implied {
            site["implied"] = json!(true);
        }
        if self.followed {
            site["return"] = json!("stack");
        }
        if let Some(marker) = &self.site.marker {
            site["marker"] = marker::json(marker);
        }
        if let Some(counter) = &self.counter {
            site["reference_counter"] = json!({
                "offset": format!("{:#x}", counter.offset),
                "address": format!("{:#x}", counter.address),
            });
        }
        if let Some(condition) = condition(&self.site) {
            site["condition"] = json!(format!("{condition:?}"));
        }
        if let Some(reason) = &self.left_out {
            site["left_out"] = json!(reason);
        }
        site
    }

    /// Returns the work of its probe for recording.
    pub fn record(&self) -> Work {
        if self.keeps {
            let nothing = || Work::Enter {
                call: self.call(),
                kept: Vec::new(),
                filter: None,
            };
            let made = self.fields.fetch.enter(self.call());
            return made.unwrap_or_else(|_| nothing());
        }
        // This cannot fail: it was checked when the event was read.
        let made = self.fields.fetch.work(self.id);
        made.unwrap_or_else(|_| Record::new(self.id, Vec::new()).into())
    }

    /// Returns the number that marks the slots of the calls it begins.
    pub fn call(&self) -> u32 {
        slots::number(self.site.function(), self.area)
    }

    /// True if it appears in the trace.
    fn is_in_trace(&self) -> bool {
        !self.keeps || self.whole
    }

    /// Returns the work of the probes of these events for recording.
    pub fn record_all(selected: &[Selected]) -> Vec<Vec<Work>> {
        selected.iter().map(|event| vec![event.record()]).collect()
    }

    /// Describes the event for the trace.
    pub fn info(&self) -> EventInfo {
        let build_id = self.site.object.file().build_id();
        EventInfo {
            id: self.id,
            name: self.name(),
            symbol: self.site.symbol.clone(),
            symbol_offset: self.offset().unwrap_or(0) + self.site.check,
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
            role: self.role,
            call: self.call,
            format: self.fields.format.clone(),
        }
    }
}

/// Describes the events of `sites` for the trace, each once.
pub fn infos<'a>(sites: impl Iterator<Item = &'a Selected>) -> Vec<EventInfo> {
    let mut infos: Vec<EventInfo> = Vec::new();
    let mut known: HashMap<u32, usize> = HashMap::new();
    for site in sites.filter(|site| site.is_in_trace()) {
        match known.entry(site.id) {
            Entry::Vacant(new) => {
                new.insert(infos.len());
                infos.push(site.info());
            }
            Entry::Occupied(first) => {
                let tactics = &mut infos[*first.get()].tactic;
                if !tactics.split(", ").any(|tactic| tactic == site.tactic()) {
                    *tactics = format!("{tactics}, {}", site.tactic());
                }
            }
        }
    }
    // The event whose number links a call's events may not be in the trace; use the first one that
    // is.
    let mut calls: HashMap<u32, u32> = HashMap::new();
    for info in &mut infos {
        if let Some(call) = &mut info.call {
            let there = known.contains_key(call);
            let first = *calls.entry(*call).or_insert(info.id);
            *call = if there { *call } else { first };
        }
    }
    infos
}

/// Combines the errors of several events into one.
fn all_of(mut errors: BTreeMap<usize, Error>) -> Error {
    let count = errors.len();
    if count == 1
        && let Some((_, only)) = errors.pop_first()
    {
        return only;
    }
    let lines: String = errors
        .into_values()
        .map(|error| format!("\n  {}", error.full()))
        .collect();
    err!(NotProbeable, "{count} events cannot be recorded:{lines}")
}

/// A user's event without any site that can be probed.
#[derive(Debug)]
pub struct Impossible {
    /// Source text of the event.
    pub event: String,
    /// Reason why it cannot be probed.
    pub reason: String,
}

/// Reasons why not all events can be selected.
enum Unselected {
    /// Errors of single events, by their indices in the list.
    Events(BTreeMap<usize, Error>),
    /// An error that does not belong to a single event.
    All(Error),
}

/// How events are selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mode {
    /// Use of the events' hits.
    pub purpose: Purpose,
    /// How returns are detected.
    pub returns: Returns,
    /// Number of the first event: 0, or behind those that the session has already.
    pub first_id: u32,
    /// First area of slots for calls, likewise.
    pub first_area: u32,
}

impl Mode {
    /// Selects the first events of a session.
    #[must_use]
    pub fn new(purpose: Purpose, returns: Returns) -> Mode {
        Mode {
            purpose,
            returns,
            ..Mode::default()
        }
    }
}

/// Finds the sites of events and plans them.
///
/// # Errors
/// All events that cannot be found, or whose fields cannot be recorded. If an event is found but
/// cannot be probed, [`Selected::plan`] has the reasons; if a field cannot be recorded in a
/// compiler-made copy of a function, [`Selected::left_out`] has them.
pub fn select(
    objects: &Objects,
    planner: &Planner,
    events: &[EventSpec],
    mode: Mode,
) -> Result<Vec<Selected>> {
    let nothing = HashSet::new();
    let selected = select_without(objects, planner, events, &nothing, mode);
    selected.map_err(|unselected| match unselected {
        Unselected::Events(errors) => all_of(errors),
        Unselected::All(error) => error,
    })
}

/// Selects the events that can be found and recorded, and returns the others separately.
///
/// # Errors
/// No event can be found and recorded.
pub fn select_possible(
    objects: &Objects,
    planner: &Planner,
    events: &[EventSpec],
    mode: Mode,
) -> Result<(Vec<Selected>, Vec<Impossible>)> {
    let mut impossible: BTreeMap<usize, Error> = BTreeMap::new();
    let mut without = HashSet::new();
    loop {
        let selected = select_without(objects, planner, events, &without, mode);
        let errors = match selected {
            Ok(selected) => {
                let told = impossible.into_iter().map(|(at, error)| Impossible {
                    event: events[at].text.clone(),
                    reason: error.full(),
                });
                return Ok((selected, told.collect()));
            }
            Err(Unselected::All(error)) => return Err(error),
            Err(Unselected::Events(errors)) => errors,
        };
        for (at, error) in errors {
            let parts = parts(events, at);
            // The reason of one part is enough.
            if without.is_disjoint(&parts.clone().collect()) {
                impossible.insert(at, error);
            }
            without.extend(parts);
        }
        let mut asked = (0..events.len()).filter(|at| !events[*at].implied);
        if asked.all(|at| without.contains(&at)) {
            return Err(all_of(impossible));
        }
    }
}

/// Returns the indices of all events made from the same event of the user's: the entry of calls
/// comes right before their exits.
fn parts(events: &[EventSpec], at: usize) -> std::ops::RangeInclusive<usize> {
    let joined = |first: usize| {
        events.get(first + 1).is_some_and(|next| {
            let entry = &events[first];
            entry.of_calls && entry.at == At::Entry && entry.text == next.text
        })
    };
    let first = (0..at).rev().take_while(|before| joined(*before)).last();
    let last = (at..events.len()).find(|last| !joined(*last));
    first.unwrap_or(at)..=last.unwrap_or(at)
}

/// Does the work of [`select`], without the events at these indices.
fn select_without(
    objects: &Objects,
    planner: &Planner,
    events: &[EventSpec],
    without: &HashSet<usize>,
    mode: Mode,
) -> Result<Vec<Selected>, Unselected> {
    let mut found: Vec<(Site, usize)> = Vec::new();
    // Reasons by definition and function.
    let mut not_followed: HashMap<(usize, u64), NotFollowed> = HashMap::new();
    let by_stack = |spec: &EventSpec| mode.returns == Returns::Stack && spec.at == At::Return;
    // Collect the first error of each event, to report them all at once.
    let mut errors: BTreeMap<usize, Error> = BTreeMap::new();
    let wanted = events.iter().enumerate();
    for (definition, spec) in wanted.filter(|(at, _)| !without.contains(at)) {
        let whole = spec.arguments.iter().any(|a| a.name == names::DURATION);
        if mode.returns == Returns::Stack && (whole || spec.keeps.is_some_and(|words| words > 0)) {
            let error = err!(
                NotProbeable,
                "event `{}`: values at the entry and shortest times need probes at a function's \
                 exits; leave --return=stack out",
                spec.text
            );
            errors.insert(definition, error);
            continue;
        }
        let sites = match by_stack(spec) {
            true => followed(objects, spec),
            false => {
                resolve(objects, spec).map(|sites| sites.into_iter().map(|s| (s, None)).collect())
            }
        };
        match sites.with_context(|| format!("event `{}`", spec.text)) {
            Err(error) => _ = errors.insert(definition, error),
            Ok(sites) => {
                for (site, refused) in sites {
                    if let Some(reason) = refused {
                        not_followed.insert((definition, site.address), reason);
                    }
                    found.push((site, definition));
                }
            }
        }
    }
    let areas = match areas(events, &found, mode.first_area) {
        Ok(areas) => areas,
        Err(error) if errors.is_empty() => return Err(Unselected::All(error)),
        Err(_) => return Err(Unselected::Events(errors)),
    };
    let mut reader = Reader::new(mode.purpose);
    let mut fields: Vec<Result<Arc<Fields>, Error>> = Vec::new();
    let mut last: Option<(&EventSpec, &Site)> = None;
    for (site, definition) in &found {
        let spec = &events[*definition];
        // Fields depend on the site only if they need debug information or addresses.
        let same = last.is_some_and(|(other, before)| {
            std::ptr::eq(other, spec)
                && Arc::ptr_eq(&before.object, &site.object)
                && site.marker.is_none()
                && leaves(before) == leaves(site)
                && condition(before) == condition(site)
                && before.body == Body::Own
                && site.body == Body::Own
                && is_alike(spec, site)
        });
        let read = match (same, fields.last()) {
            (true, Some(Ok(before))) => Ok(before.clone()),
            _ => reader.fields(spec, site, areas[*definition]).map(Arc::new),
        };
        // A missing field is an error only in code that the user named exactly: not in a copy that
        // the compiler made, not in another function that a glob matches, whose return type may not
        // fit, and not at a marker, which may be another one or have other arguments at each place.
        let other = match leaves(site) {
            // For assembly in a Go program, the registers of the arguments are unknown.
            None => site.marker.is_some() || spec.is_glob() && site.object.file().is_go(),
            Some(kind) => kind == ExitKind::TailCall || spec.is_glob(),
        };
        match (&site.body, read) {
            (Body::Own, Err(error)) if !other => {
                let places = found.iter().filter(|(_, of)| of == definition).count();
                let error = at_one_place(error, spec, site, places);
                errors.entry(*definition).or_insert(error);
                last = None;
            }
            (_, read) => {
                fields.push(read);
                last = Some((spec, site));
            }
        }
    }
    drop(reader);
    if !errors.is_empty() {
        return Err(Unselected::Events(errors));
    }
    // Two events may be identical; record such an event once, unless each has a name.
    let mut seen = HashSet::new();
    // Counting has a table for each definition, so it keeps duplicates.
    let asked = events.iter().filter(|spec| !spec.implied).count();
    let several = asked > 1 && mode.purpose == Purpose::Record;
    let mut is_new = |site: &Site, spec: &EventSpec, fields: &Arc<Fields>| {
        let (body, leaving) = (site.body.clone(), site.leaving.clone());
        let marker = site.marker.as_ref().map(|marker| marker.full_name());
        let name = (spec.group.clone(), spec.name.clone());
        let event = (name, spec.of_calls, spec.reference_counter, fields.clone());
        !several || seen.insert((site.address, body, leaving, marker, event))
    };
    let all = found.into_iter().zip(fields);
    let distinct: Vec<_> = all
        .filter(|((site, definition), fields)| match fields {
            Ok(_) if events[*definition].keeps.is_some() => true,
            Ok(fields) => is_new(site, &events[*definition], fields),
            Err(_) => true,
        })
        .collect();
    let mut of_each = vec![0; events.len()];
    for ((_, definition), _) in &distinct {
        of_each[*definition] += 1;
    }
    let sites: Vec<&Site> = distinct.iter().map(|((site, _), _)| site).collect();
    let plans = planner.plan_all(&sites);
    for (((site, definition), _), plan) in distinct.iter().zip(&plans) {
        if by_stack(&events[*definition]) && plan.as_ref().is_ok_and(|p| !p.called) {
            let function = (*definition, site.address);
            not_followed.entry(function).or_insert(NotFollowed::Loop);
        }
    }
    // For each event: true if it works at some site.
    let mut works = vec![false; events.len()];
    for (((site, definition), fields), plan) in distinct.iter().zip(&plans) {
        let there = site.leaving.as_ref().is_none_or(|l| l.way.is_ok());
        let refused = not_followed.get(&(*definition, site.address));
        works[*definition] |= there && fields.is_ok() && plan.is_ok() && refused.is_none();
    }
    let mut selected: Vec<Selected> = Vec::with_capacity(plans.len());
    let mut ids: HashMap<(usize, u64, ExitKind), u32> = HashMap::new();
    let mut marker_ids: HashMap<(usize, String, Layout), u32> = HashMap::new();
    for (((site, definition), fields), plan) in distinct.into_iter().zip(plans) {
        let spec = &events[definition];
        let role = match &site.leaving {
            None => Role::Point,
            Some(leaving) => match leaving.way {
                Ok(ExitKind::Return) | Err(_) => Role::Return,
                Ok(ExitKind::TailCall) => Role::TailCall,
            },
        };
        let missing = site.leaving.as_ref().and_then(|l| l.way.as_ref().err());
        let missing = missing.map(ToString::to_string);
        let refused = not_followed.get(&(definition, site.address));
        let named = names_one(spec);
        if let (Some(reason), true) = (refused, named && site.body == Body::Own) {
            let error = err!(
                NotProbeable,
                "event `{}`: {}",
                spec.text,
                returns::refusal(*reason)
            );
            errors.entry(definition).or_insert(error);
            continue;
        }
        let missing = missing.or(refused.map(ToString::to_string));
        let (fields, left_out) = match (fields, missing) {
            (fields, Some(missing)) => (fields.unwrap_or_default(), Some(missing)),
            (Ok(fields), None) => (fields, None),
            (Err(error), None) if !works[definition] && !spec.implied => {
                let error = at_one_place(error, spec, &site, of_each[definition]);
                errors.entry(definition).or_insert(error);
                continue;
            }
            (Err(error), None) => (Arc::default(), Some(without_event(&error))),
        };
        // One compiler-made copy may be missing, but not all; so may a tail call with nothing to
        // record.
        let own = site.body == Body::Own || !works[definition];
        let own = own && (role != Role::TailCall || left_out.is_none());
        // For a marker at several places, one that works is enough; the others are reported.
        let own = own && (site.marker.is_none() || !works[definition]);
        let next = mode.first_id + selected.len() as u32;
        let id = match (&site.leaving, leaves(&site), &site.marker) {
            (Some(leaving), Some(kind), _) => *ids
                .entry((definition, leaving.function, kind))
                .or_insert(next),
            (_, _, Some(marker)) => *marker_ids
                .entry((definition, marker.full_name(), layout(&fields, &site)))
                .or_insert(next),
            _ => next,
        };
        let (counter, left_out) = match counter(spec, &site) {
            Ok(counter) => (counter, left_out),
            Err(error) if site.marker.is_some() => {
                let reason = format!(
                    "its semaphore cannot be used: {}",
                    error.messages().last().unwrap_or_default()
                );
                (None, left_out.or(Some(reason)))
            }
            Err(error) => {
                errors.entry(definition).or_insert(error);
                continue;
            }
        };
        selected.push(Selected {
            id,
            role,
            call: None,
            definition,
            text: spec.text.clone(),
            of_calls: spec.of_calls,
            followed: by_stack(spec),
            keeps: spec.keeps.is_some(),
            whole: events.get(definition + 1).is_some_and(|exit| {
                spec.keeps.is_some() && exit.arguments.iter().any(|a| a.name == names::DURATION)
            }),
            area: areas[definition],
            site,
            fields,
            given_name: given_name(spec),
            counter,
            plan,
            left_out,
            named: own && names_one(spec) && !spec.implied,
            implied: spec.implied,
        });
    }
    if !errors.is_empty() {
        return Err(Unselected::Events(errors));
    }
    all_exits_or_none(&mut selected);
    join_calls(&mut selected);
    Ok(selected)
}

/// Returns the name that the user gave an event; for a place in a file, the name that the kernel
/// would give it.
fn given_name(spec: &EventSpec) -> Option<String> {
    let automatic = || match (&spec.place, &spec.object) {
        (Place::FileOffset(offset), ObjectRef::Path(path)) => {
            Some(automatic_name(spec.at, path, *offset))
        }
        _ => None,
    };
    spec.name.clone().or_else(automatic)
}

/// True if an event names one place or one marker, rather than a pattern.
fn names_one(spec: &EventSpec) -> bool {
    match &spec.place {
        Place::FileOffset(_) => true,
        Place::Static { provider, name, .. } => ![provider, name]
            .iter()
            .any(|part| part.contains(['*', '?', '['])),
        Place::Symbol { .. } | Place::Line { .. } => !spec.is_glob(),
    }
}

/// Returns the reference counter in the event's definition, or the semaphore of its marker.
pub fn counter(spec: &EventSpec, site: &Site) -> Result<Option<ReferenceCounter>> {
    let of = |offset| ReferenceCounter::of(&site.object, offset);
    let semaphore = site.marker.as_ref().and_then(|marker| marker.semaphore);
    let semaphore = semaphore.map(|link| {
        let offset = site.object.file().file_offset(link);
        offset.with_context(|| format!("its address {link:#x} is not one of data in the file"))
    });
    let offset = semaphore.transpose()?.or(spec.reference_counter);
    let counter = offset.map(of).transpose();
    counter.with_context(|| format!("event `{}`", spec.text))
}

/// Layout of an event's records, its text format, whether it can fault, and the address if it has
/// to be known (for call stacks): places of a marker for which all this is equal are one event.
type Layout = (Vec<FieldInfo>, Option<TextFormat>, bool, Option<u64>);

fn layout(fields: &Fields, site: &Site) -> Layout {
    let stack = fields.infos.iter().any(|i| i.field_type.is_call_stack());
    (
        fields.infos.clone(),
        fields.format.clone(),
        fields.fetch.can_fault(),
        stack.then_some(site.address),
    )
}

/// Assigns each definition the area of slots for calls that it begins or ends.
fn areas(events: &[EventSpec], found: &[(Site, usize)], first: u32) -> Result<Vec<u32>> {
    // An entry and the exits that follow it share an area.
    let entries: Vec<usize> = (0..events.len())
        .filter(|at| events[*at].keeps.is_some())
        .collect();
    let mut functions = vec![HashSet::new(); entries.len()];
    for (site, definition) in found {
        if let Ok(at) = entries.binary_search(definition) {
            functions[at].insert(site.function());
        }
    }
    let mut areas = vec![0; events.len()];
    for (entry, area) in entries.iter().zip(slots::areas(&functions, first)?) {
        for part in areas.iter_mut().skip(*entry).take(2) {
            *part = area;
        }
    }
    Ok(areas)
}

/// Returns the room for open calls, if any are followed: number of areas, and words per call.
pub fn frames(selected: &[Selected]) -> Option<(u32, u32)> {
    let entries = || selected.iter().filter(|event| event.keeps);
    let areas = entries().map(|event| event.area + 1).max()?;
    let words = entries().map(|event| event.fields.fetch.recorded as u32);
    Some((areas, words.max().unwrap_or(0)))
}

/// Returns how control leaves the function at a site, if it does.
fn leaves(site: &Site) -> Option<ExitKind> {
    site.leaving.as_ref()?.way.clone().ok()
}

/// Returns the condition on the flags under which control leaves there, if there is one.
fn condition(site: &Site) -> Option<ConditionCode> {
    site.leaving.as_ref()?.condition
}

/// Leaves out all exits of a function if one cannot be probed: otherwise some calls would never
/// end. (A named exit is an error, reported later.)
fn all_exits_or_none(selected: &mut [Selected]) {
    let function =
        |event: &Selected| Some((event.definition, event.site.leaving.as_ref()?.function));
    let mut missing: HashMap<(usize, u64), String> = HashMap::new();
    for event in selected.iter() {
        if let (Some(function), Err(refused)) = (function(event), &event.plan)
            && !event.named
            && event.left_out.is_none()
        {
            let reason = || format!("its exit at {} cannot be probed: {refused}", event.place());
            missing.entry(function).or_insert_with(reason);
        }
    }
    for event in selected {
        if let Some(reason) = function(event).and_then(|function| missing.get(&function)) {
            event.left_out.get_or_insert_with(|| reason.clone());
        }
    }
}

/// Links the events of each function's entry and exits. At each of them, takes the first event
/// that was written for calls, or else the first event.
fn join_calls(selected: &mut [Selected]) {
    let mut by_purpose: Vec<&mut Selected> = selected.iter_mut().collect();
    by_purpose.sort_by_key(|event| !event.of_calls);
    // For each function with probed exits, the first definition of them and its event.
    let mut exits: HashMap<u64, (usize, u32)> = HashMap::new();
    for event in by_purpose.iter().filter(|event| event.left_out.is_none()) {
        if let (Some(leaving), true) = (&event.site.leaving, event.is_exit()) {
            let first = (event.definition, event.id);
            exits.entry(leaving.function).or_insert(first);
        }
    }
    let mut entries: HashMap<u64, u32> = HashMap::new();
    for event in &mut by_purpose {
        let own = event.site.leaving.is_none()
            && event.site.body == Body::Own
            && event.site.marker.is_none();
        let address = event.site.function();
        if own
            && event.left_out.is_none()
            && event.site.is_entry()
            && event.is_in_trace()
            && exits.contains_key(&address)
            && !entries.contains_key(&address)
        {
            entries.insert(address, event.id);
            event.role = Role::Entry;
            event.call = Some(event.id);
        }
    }
    for event in selected.iter_mut().filter(|event| event.left_out.is_none()) {
        if let Some(leaving) = &event.site.leaving
            && let Some((definition, first)) = exits.get(&leaving.function)
            && *definition == event.definition
        {
            let entry = entries.get(&leaving.function);
            event.call = Some(*entry.unwrap_or(first));
        }
    }
}

/// Formats an error of [`Reader::fields`] without the event's text.
fn without_event(error: &Error) -> String {
    let parts: Vec<String> = error.messages().skip(1).collect();
    parts.join(": ")
}

/// Adds to an error that it concerns only one of the event's places: an inlined copy may lack a
/// variable that another copy has.
fn at_one_place(error: Error, spec: &EventSpec, site: &Site, places: usize) -> Error {
    let by_name =
        |argument: &FetchArg| matches!(argument.fetch.base, Base::Variable(_) | Base::AllArguments);
    // An error about a marker already names the marker and its arguments.
    if places < 2 || site.marker.is_some() || !spec.arguments.iter().any(by_name) {
        return error;
    }
    err!(
        NotProbeable,
        "{}; that is so at :{:#x}, one of {places} places: `capriole list --args` of the event \
         without fields shows what each has",
        error.full(),
        site.file_offset,
    )
}

/// True if an event's fields are the same at every function of a site's object.
fn is_alike(spec: &EventSpec, site: &Site) -> bool {
    // Functions of a Go program differ in the registers of their arguments.
    let go = site.object.file().is_go();
    let depends = |argument: &FetchArg| match argument.fetch.base {
        Base::Variable(_) | Base::AllArguments => true,
        // Depends on the function whose call it is.
        Base::Entry(_) | Base::Latency => true,
        Base::Retval => go || is_untyped_result(argument), // its type
        Base::Register(_) => go && argument.name == names::GOROUTINE,
        // Arguments on the stack depend on the place in the function.
        Base::Argument(number) => go || Gpr::of_argument(number).is_none(),
        Base::Vector(_)
        | Base::StackPointer
        | Base::StackWord(_)
        | Base::CallStack(_)
        | Base::Comm
        | Base::Immediate(_)
        | Base::Text(_)
        | Base::Address(_)
        | Base::FileOffset(_) => false,
    };
    !spec.arguments.iter().any(depends)
}

/// Probes to be inserted.
#[derive(Debug)]
pub struct Probes {
    /// Each probe with the indices of the events that it serves. All events at an address share one
    /// probe, as do several addresses covered by one jump.
    pub probes: Vec<(Probe, Vec<usize>)>,
    /// Events whose bytes overlap another event's probe, each with that other event, whose probe
    /// stays.
    pub overlapping: Vec<(usize, usize)>,
}

/// Builds the probes for all sites that can be probed; `works` has the work for each event.
pub fn probes(selected: &[Selected], works: Vec<Vec<Work>>) -> Probes {
    let mut by_address: BTreeMap<(u64, u64), (Probe, Vec<usize>)> = BTreeMap::new();
    let mut all: Vec<_> = selected.iter().zip(works).enumerate().collect();
    all.sort_by_key(|(_, (event, _))| event.order_at_instruction());
    for (index, (event, work)) in all {
        let (Ok(plan), None) = (&event.plan, &event.left_out) else {
            continue;
        };
        // Several sites under one jump cover the same bytes.
        let covered = plan.shape.covered;
        let (probe, events) = by_address
            .entry((covered.start, covered.end))
            .or_insert_with(|| {
                let near = event.site.object.range();
                (Probe::new(plan.clone(), near), Vec::new())
            });
        let (work, returns) = part(event, work);
        let point = probe.point(&Point::of(&plan.shape));
        point.work.extend(work);
        point.returns.extend(returns);
        probe.counters.extend(event.counter);
        events.push(index);
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

/// Splits the work of an event into the part at the site and the part at the function's return.
fn part(event: &Selected, work: Vec<Work>) -> (Vec<Work>, Vec<Work>) {
    match event.followed {
        true => (Vec::new(), work),
        false => (work, Vec::new()),
    }
}

/// Returns the file of the first event, if it is given by its path.
pub fn file_of(events: &[EventSpec]) -> Option<PathBuf> {
    match &events.first()?.object {
        ObjectRef::Path(path) => Some(PathBuf::from(path)),
        ObjectRef::Main | ObjectRef::Name(_) => None,
    }
}

/// Opens the objects of a process or of a file, and creates its planner.
pub fn subject(pid: Option<u32>, path: Option<&Path>) -> Result<(Objects, Planner)> {
    match (pid, path) {
        (Some(pid), None) => {
            let process = Process::open(pid)?;
            process.preflight()?;
            translator::refuse(&process)?;
            Ok((
                Objects::of_process(&process)?,
                Planner::of_process(&process),
            ))
        }
        (None, Some(path)) => Ok((Objects::offline(path)?, Planner::offline())),
        (Some(_), Some(path)) => {
            bail!(
                NotProbeable,
                "give either -p PID or a file, not both: {}",
                path.display()
            )
        }
        (None, None) => bail!(NotProbeable, "give a process with -p PID, or a file"),
    }
}

/// Treats all events as matches of a pattern: sites that cannot be probed are left out.
pub fn keep_going(selected: &mut [Selected]) {
    for event in selected.iter_mut() {
        event.named = false;
    }
    all_exits_or_none(selected);
    // An entry whose exits are left out no longer begins calls.
    for event in selected
        .iter_mut()
        .filter(|event| event.role == Role::Entry)
    {
        (event.role, event.call) = (Role::Point, None);
    }
    join_calls(selected);
}

/// Returns an error if events that the user named cannot be probed: [`crate::Code::Misplaced`] if other load
/// addresses could make a difference for all of them.
pub fn refuse_named(selected: &[Selected]) -> Result<()> {
    let named = selected.iter().filter(|e| e.named && e.left_out.is_none());
    let refused = named.filter_map(|event| Some((event, event.plan.as_ref().err()?)));
    let (misplaced, impossible): (Vec<_>, Vec<_>) =
        refused.partition(|(_, refused)| depends_on_addresses(refused));
    if let Some((event, refused)) = impossible.first() {
        bail!(NotProbeable, "{}", refusal(event, refused));
    }
    if let Some((event, refused)) = misplaced.first() {
        bail!(Misplaced, "{}", refusal(event, refused));
    }
    let asked = || selected.iter().filter(|event| !event.implied);
    if let Some(event) = asked().next()
        && asked().all(|event| event.refused().is_some())
    {
        let example = match (&event.left_out, &event.plan) {
            (None, Err(refused)) => refusal(event, refused),
            (reason, _) => {
                let reason = reason.as_deref().unwrap_or_default();
                format!("{}: {reason}", event.function())
            }
        };
        let functions: HashSet<u32> = asked().map(|event| event.id).collect();
        let (one, several) = Selected::nouns(asked());
        bail!(
            NotProbeable,
            "none of {} can be probed; for example: {example}",
            units::counted(functions.len() as u64, one, several),
        );
    }
    Ok(())
}

/// True if the site might be probed if the program were loaded elsewhere: fixed bytes of a jump led
/// to an address that was not free, or to one that another probe uses.
fn depends_on_addresses(refused: &Refused) -> bool {
    let depends =
        |refusal: &Refusal| matches!(refusal, Refusal::NoStubAddress | Refusal::BytesInUse { .. });
    refused.refusals.iter().any(|(_, refusal)| depends(refusal))
}

/// Formats the reason why an event cannot be probed. For an offset inside an instruction, shows the
/// nearest valid ones, in the notation that the user chose.
fn refusal(event: &Selected, refused: &Refused) -> String {
    if event.is_exit() && !event.followed {
        let function = event.function();
        let reason = format!("its exit at {} has no probe: {refused}", event.place());
        return match event.of_calls {
            true => ResolveError::NoCalls { function, reason }.to_string(),
            false => ResolveError::NoExits { function, reason }.to_string(),
        };
    }
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

/// Returns the path if it exists, else an error with a hint at what the user may have meant.
pub fn existing(path: &Path) -> Result<PathBuf> {
    if path.exists() {
        return Ok(path.to_owned());
    }
    bail!(
        NotProbeable,
        "{}: no such file (a process is given with -p PID)",
        path.display()
    )
}
