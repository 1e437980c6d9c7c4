//! Counting: from definitions to probes that update tables.

use super::table::AggregateTable;
use crate::advice::Message;
use crate::calls;
use crate::definitions::{InFile, in_file};
use crate::entry::with_entry;
use crate::error::{Context, Result, err};
use crate::event::Event;
use crate::fields::{Fields, Purpose};
use crate::machine;
use crate::options::{ProbeOptions, clock};
use crate::plan::{Planned, Probed, Request};
use crate::returns::Returns;
use crate::select::{self, Mode, Selected};
use capriole_codegen::work::Work;
use capriole_event::EventSpec;
use capriole_proc::process::Process;
use capriole_ring::layout::Geometry;
use capriole_ring::tables::Tables;
use capriole_trace::clock::Clock;
use std::path::PathBuf;

/// Parses events, and those of definition files.
///
/// # Errors
/// An event cannot be parsed.
pub fn definitions(events: &[String], files: &[PathBuf]) -> Result<Vec<Event>> {
    let mut definitions = Vec::new();
    for text in events {
        definitions.push(match calls::latency(text)? {
            Some(timed) => timed.into(),
            None => with_entry(EventSpec::parse(text)?),
        });
    }
    for file in files {
        let InFile { events, latencies } = in_file(file)?;
        let mut all: Vec<(usize, Event)> = Vec::new();
        for (line, text) in latencies {
            let timed = calls::latency(&text);
            let timed = timed.with_context(|| format!("{}: line {line}", file.display()))?;
            all.extend(timed.map(|timed| (line, timed.into())));
        }
        let others = events.into_iter();
        all.extend(others.map(|(line, spec)| (line, with_entry(spec))));
        all.sort_by_key(|(line, _)| *line);
        definitions.extend(all.into_iter().map(|(_, event)| event));
    }
    Ok(definitions)
}

/// Attaches counting probes; returns them with the table of each event, if it has one.
///
/// # Errors
/// As [`Planned::new`] and [`Planned::attach`], or there is not enough room for the tables.
pub fn attach(
    process: &Process,
    events: &[Event],
    options: &ProbeOptions,
    returns: Returns,
    keys: u32,
) -> Result<(Probed, Vec<Option<AggregateTable>>)> {
    let clock = match events.iter().any(Event::is_timed) {
        true => Some(clock()?),
        false => None,
    };
    let mut all = Tables::default();
    let mut kept = Vec::new();
    let mut fetches = false;
    let request = Request {
        events,
        options,
        mode: Mode::new(Purpose::Count, returns),
        messages: false,
    };
    let planned = Planned::new(process, &request, |selected| {
        kept = tables(events, selected, keys, clock.as_ref(), &mut all)?;
        let works = works(selected, &kept);
        let plain = |work: &Work| matches!(work, Work::Count { .. });
        fetches = !works.iter().flatten().flatten().all(plain);
        Ok(works)
    })?;
    // Fetched values are assembled in packets; without fetches no packets are needed.
    let cpus = machine::possible_cpus();
    let frames = select::frames(&planned.selected);
    let probed = planned.attach(process, None, |journal| {
        let geometry = match fetches {
            true => Geometry::for_scratch(cpus, journal),
            false => Geometry::for_buffer(0, cpus, journal),
        };
        let geometry = geometry.with_tables(&all);
        match frames {
            Some((areas, words)) => geometry.with_frames(areas, words),
            None => geometry,
        }
    })?;
    Ok((probed, kept))
}

/// Makes the table of each event; `None` for one without a site.
///
/// # Errors
/// There is not enough room.
pub fn tables(
    events: &[Event],
    selected: &[Selected],
    keys: u32,
    clock: Option<&Clock>,
    tables: &mut Tables,
) -> Result<Vec<Option<AggregateTable>>> {
    let mut all = Vec::new();
    for (definition, event) in events.iter().enumerate() {
        let own = selected.iter().filter(|e| e.definition == definition);
        // Calls are counted where they end.
        let sites = own.filter(|e| !e.part.begins_calls());
        // An event without a site was left out.
        let Some(first) = sites.clone().map(|e| e.id).min() else {
            all.push(None);
            continue;
        };
        let last = sites.clone().map(|e| e.id).max().unwrap_or(first);
        let usable = sites.filter(|e| e.fate.left_out().is_none());
        let fields: Vec<&Fields> = usable.map(|e| &*e.fields).collect();
        let made = AggregateTable::new(event.spec(), &fields, first..last + 1, keys, tables)?;
        all.push(Some(match clock.filter(|_| event.is_timed()) {
            Some(clock) => made.timed(clock.clone()),
            None => made,
        }));
    }
    Ok(all)
}

/// Returns the work of each site's probe, with the tables of [`tables`].
pub fn works(selected: &[Selected], kept: &[Option<AggregateTable>]) -> Vec<Result<Vec<Work>>> {
    let work = |event: &Selected| {
        if event.fate.left_out().is_some() {
            return Ok(Vec::new());
        }
        let works = match (event.begun_calls(), &kept[event.definition]) {
            (Some(call), _) => enter(&event.fields, call),
            (None, Some(kept)) => kept.work(event.id, &event.fields),
            (None, None) => Ok(Vec::new()),
        };
        works.with_context(|| format!("event `{}`", event.text))
    };
    selected.iter().map(work).collect()
}

/// Returns for each of the user's events the numbers of its own events that are counted and have a
/// probe, ascending.
pub(crate) fn counted(
    events: usize,
    selected: &[Selected],
    dropped: &[Option<Message>],
) -> Vec<Vec<usize>> {
    let mut counted = vec![Vec::new(); events];
    // Calls are counted where they end. An event may have several sites.
    for (event, dropped) in selected.iter().zip(dropped) {
        if dropped.is_none() && !event.part.begins_calls() {
            counted[event.definition].push(event.id as usize);
        }
    }
    for events in &mut counted {
        events.sort_unstable();
        events.dedup();
    }
    counted
}

/// Returns the work that begins calls at their entry; `call` marks their slots.
fn enter(fields: &Fields, call: u32) -> Result<Vec<Work>> {
    let work = fields.fetch.enter(call);
    Ok(vec![work.map_err(|error| err!(Field, "{error}"))?])
}
