//! An event at one site.

use super::fate::Fate;
use super::part::{Origin, Part};
use super::places::condition;
use super::same_code::same_code;
use super::unrolled::is_in_unrolled_loop;
use crate::advice::{Message, Words};
use crate::fields::Fields;
use crate::{marker, slots};
use capriole_codegen::work::{Record, Work};
use capriole_event::{Action, ObjectRef, Place, Probe, automatic_name};
use capriole_insn::ExitKind;
use capriole_ledger::counter::ReferenceCounter;
use capriole_object::is_link;
use capriole_object::symbols::shown::ShownNames;
use capriole_planner::resolve::{Body, Site};
use capriole_tactic::site::{Refusal, Tactic};
use capriole_trace::{EventInfo, RefusalInfo, Role};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Length of `endbr64` in bytes.
const ENDBR: u64 = 4;

/// An event at one site: the data recorded there, and how the site is reached. An event at a
/// function's returns has several sites, in consecutive entries.
#[derive(Debug)]
pub struct Selected {
    /// Number of the event in the trace: the index of the first of its sites.
    pub id: u32,
    /// Index of the user's event that this belongs to, from 0 on.
    pub definition: usize,
    /// The probe.
    pub probe: Arc<Probe>,
    /// Source of the event.
    pub origin: Origin,
    /// Part in calls from entry to exit.
    pub part: Part,
    /// Link between the events of one function's entry and exits: the number of the first of them.
    pub call: Option<u32>,
    /// The site.
    pub site: Site,
    /// Fields of the probe's actions at the site.
    pub fields: Arc<Fields>,
    /// Reference counter that must be above zero for the program to reach the site.
    pub counter: Option<ReferenceCounter>,
    /// The plan of its probe, or why it has none.
    pub fate: Fate,
}

impl Selected {
    /// Returns the event's name: the given one, or the function's; at exits with a suffix for their
    /// kind.
    pub fn name(&self) -> String {
        match (self.given_name(), self.role()) {
            (Some(name), Role::TailCall) => format!("{name}__tail"),
            (Some(name), _) => name,
            (None, _) if self.site.marker.is_some() => self.marker_name(),
            (None, Role::Return) => format!("{}__return", self.function()),
            (None, Role::TailCall) => format!("{}__tail", self.function()),
            (None, _) => self.place(),
        }
    }

    /// Returns the name that the user gave; for an event at a place in a file, the name that the kernel
    /// would give it.
    fn given_name(&self) -> Option<String> {
        let probe = &self.probe;
        let is_event = |action: &Action| !matches!(action, Action::Call(_) | Action::Replace(_));
        let automatic = || match (&probe.place, &probe.object) {
            (Place::FileOffset(offset), ObjectRef::Path(path))
                if probe.actions.iter().all(is_event) =>
            {
                Some(automatic_name(probe.at, path, *offset))
            }
            _ => None,
        };
        probe.name.clone().or_else(automatic)
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
            format!("{}:{offset:#x}", self.object_name())
        })
    }

    /// Returns the function, with the offset if there is one, or the place in the file; for an
    /// inlined copy, the inlined function and its place.
    pub fn place(&self) -> String {
        let place = match (&self.site.symbol, self.offset()) {
            (Some(symbol), Some(0)) => symbol.clone(),
            (Some(symbol), Some(offset)) => format!("{symbol}+{offset:#x}"),
            (None, _) | (_, None) => {
                format!("{}:{:#x}", self.object_name(), self.site.file_offset)
            }
        };
        match &self.site.body {
            Body::Inlined { function } => format!("{function} (inlined in {place})"),
            Body::Own | Body::Clone => place,
        }
    }

    /// Returns the name of the object's file; if the event gave the object by a link to it, the
    /// link's: `java`. Of a library it is the soname, without the rest of the version: `libz.so.1`.
    pub fn object_name(&self) -> String {
        let own = self.site.object.name();
        match &self.probe.object {
            // `/proc/PID/exe` is a link, but no name.
            ObjectRef::Path(path) if !path.starts_with("/proc/") => {
                path.rsplit('/').next().unwrap_or(path).to_owned()
            }
            ObjectRef::Name(name) if name.contains(".so") && is_link(name, &own) => name.clone(),
            _ => match self.site.object.file().soname() {
                Some(soname) if is_link(soname, &own) => soname.to_owned(),
                _ => own,
            },
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

    /// Returns the role in call pairing: entry, return, tail call, or none.
    pub fn role(&self) -> Role {
        match (&self.part, self.call) {
            (Part::Exit { kind, .. }, _) => match kind {
                ExitKind::Return => Role::Return,
                ExitKind::TailCall => Role::TailCall,
            },
            (Part::Point | Part::Entry | Part::Begins { .. }, Some(_)) => Role::Entry,
            (Part::Point | Part::Entry | Part::Begins { .. }, None) => Role::Point,
        }
    }

    /// Returns a suffix that distinguishes several sites of an event: ` at main+0x12`.
    pub fn at_exit(&self, names: &ShownNames) -> String {
        if self.site.marker.is_some() {
            return format!(" at {}", names.get(&self.place()));
        }
        let leaving = self
            .site
            .leaving
            .as_ref()
            .filter(|_| self.part.is_probed_exit());
        match leaving.filter(|leaving| leaving.way.is_ok()) {
            Some(leaving) => {
                let condition = leaving.condition.map(|_| ", conditional");
                let place = names.get(&self.place());
                format!(" at {place}{}", condition.unwrap_or_default())
            }
            None => String::new(),
        }
    }

    /// Returns its place in the order of several events at one instruction: first exits of other
    /// functions (0), then a function's entry (1), then the exit of that same function (2), which
    /// may have no other instruction.
    pub(super) fn order_at_instruction(&self) -> u8 {
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

    /// Returns the name of the tactic: `reserved`, `jump`, `region`, `int3`, …, or `none`.
    pub fn tactic(&self) -> &'static str {
        let plan = self.fate.plan();
        plan.map_or("none", |plan| plan.shape.tactic.as_str())
    }

    /// Returns the reasons why other tactics were not used.
    pub fn refusals(&self) -> &[(Tactic, Refusal)] {
        match self.fate.plan() {
            Ok(plan) => &plan.shape.refusals,
            Err(refused) => &refused.refusals,
        }
    }

    /// Formats the site as JSON; advice in the reasons is put into `words`.
    pub fn json(&self, words: Words) -> Value {
        let refusals: Vec<Value> = self
            .refusals()
            .iter()
            .map(|(t, r)| json!({"tactic": t.as_str(), "reason": Message::from(*r).with(words)}))
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
            if is_in_unrolled_loop(&self.site) {
                site["unrolled"] = json!(true);
            }
        }
        let others = same_code(&self.site);
        if !others.is_empty() {
            site["same_code"] = json!(others);
        }
        match self.role() {
            Role::Point | Role::Entry => {}
            Role::Return => site["exit"] = json!("return"),
            Role::TailCall => site["exit"] = json!("tail call"),
        }
        if self.site.check > 0 {
            site["stack_check"] = json!(self.site.check);
        }
        if self.origin.is_implied() {
            site["implied"] = json!(true);
        }
        if self.part.is_followed() {
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
        if let Some(reason) = self.fate.left_out() {
            site["left_out"] = json!(reason.with(words));
        }
        site
    }

    /// Returns the work of its probe's first action: it records, or begins calls.
    pub fn record(&self) -> Work {
        if let Some(call) = self.begun_calls() {
            let nothing = || Work::Enter {
                call,
                kept: Vec::new(),
                filter: None,
            };
            let made = self.fields.fetch.enter(call);
            return made.unwrap_or_else(|_| nothing());
        }
        // This cannot fail: it was checked when the event was read.
        let made = self.fields.fetch.work(self.id);
        made.unwrap_or_else(|_| Record::new(self.id, Vec::new()).into())
    }

    /// Returns the number that marks the slots of the calls it begins; `None` unless it begins
    /// calls.
    pub fn begun_calls(&self) -> Option<u32> {
        match self.part {
            Part::Begins { area, .. } => Some(slots::number(self.site.function(), area)),
            Part::Point | Part::Entry | Part::Exit { .. } => None,
        }
    }

    /// True if it appears in the trace.
    pub(super) fn is_in_trace(&self) -> bool {
        match self.part {
            Part::Begins { whole, .. } => whole,
            Part::Point | Part::Entry | Part::Exit { .. } => true,
        }
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
            soname: self.site.object.file().soname().map(str::to_owned),
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
            role: self.role(),
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
