//! Maps: the tables that probes update, and the work that does it.

use super::table::{AggregateTable, Keys};
use crate::advice::Message;
use crate::error::{Context, Result, err};
use capriole_codegen::work::{Handler, Work};
use capriole_event::{Action, Aggregation, Map, Probe};
use capriole_ring::layout::MAX_COUNTERS;
use capriole_ring::tables::{TableReader, Tables};
use capriole_select::event::Event;
use capriole_select::fields::Fields;
use capriole_select::select::Selected;
use capriole_trace::clock::Clock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Room for the tables of a session, and the tables that its probes share.
#[derive(Debug, Clone, Default)]
pub struct Maps {
    /// Room that is taken by all tables.
    pub room: Tables,
    /// True if entries of calls are counted for events at their exits that begin calls there.
    pub(crate) entries: bool,
    shared: BTreeMap<String, Arc<AggregateTable>>,
}

/// The table of an action whose map is [`Map::Own`].
#[derive(Debug)]
pub struct Own {
    /// Index of the user's event.
    definition: usize,
    /// The table.
    pub table: AggregateTable,
    /// The table that counts the entries of the calls whose exits are in `table`, if there is one.
    pub entries: Option<AggregateTable>,
}

/// An update of a shared map: what it aggregates, and the fields at each site.
type Update<'a> = (&'a Aggregation, Vec<&'a Fields>);

impl Maps {
    /// Makes the tables of some events, each with this room for keys; none for an event without
    /// a site. `clock` shows durations in ns.
    ///
    /// # Errors
    /// There is not enough room, or probes that share a map differ in its keys or aggregates.
    pub(crate) fn make(
        &mut self,
        events: &[Event],
        selected: &[Selected],
        keys: Keys,
        clock: Option<&Clock>,
    ) -> Result<Vec<Own>> {
        if keys.summary == 0 {
            return self.make_tables(events, selected, keys, clock);
        }
        // Summaries share the counters that are left by the rows of all tables.
        let mut rows = self.clone();
        let without = Keys { summary: 0, ..keys };
        let own = rows.make_tables(events, selected, without, clock)?;
        let left = u64::from(MAX_COUNTERS.saturating_sub(rows.room.counters()));
        let tables = (own.len() + rows.shared.len()).max(1) as u64;
        let summary = keys.summary.min(left / tables);
        self.make_tables(events, selected, Keys { summary, ..keys }, clock)
    }

    fn make_tables(
        &mut self,
        events: &[Event],
        selected: &[Selected],
        keys: Keys,
        clock: Option<&Clock>,
    ) -> Result<Vec<Own>> {
        let mut all = Vec::new();
        let mut shared: BTreeMap<&str, Vec<Update<'_>>> = BTreeMap::new();
        let mut of_events: Vec<Vec<&Selected>> = vec![Vec::new(); events.len()];
        let mut entered: Vec<Vec<&Selected>> = vec![Vec::new(); events.len()];
        for site in selected {
            // Definitions behind those of the events are Capriole's own.
            if let Some(event) = events.get(site.definition) {
                if Arc::ptr_eq(&site.probe, event.probe()) {
                    of_events[site.definition].push(site);
                } else if self.entries && site.part.begins_calls() {
                    entered[site.definition].push(site);
                }
            }
        }
        for (definition, (event, sites)) in events.iter().zip(of_events).enumerate() {
            let probe = event.probe();
            // An event without a site was left out.
            let Some(first) = sites.iter().map(|e| e.id).min() else {
                continue;
            };
            let last = sites.iter().map(|e| e.id).max().unwrap_or(first);
            let usable = || sites.iter().filter(|e| e.fate.left_out().is_none());
            for (action, what) in probe.actions.iter().enumerate() {
                let Action::Update { map, aggregation } = what else {
                    continue;
                };
                let fields = usable().filter_map(|e| e.fields.all().nth(action));
                let fields: Vec<&Fields> = fields.collect();
                match map {
                    Map::Shared(name) => {
                        shared.entry(name).or_default().push((aggregation, fields));
                    }
                    Map::Own => {
                        let events = first..last + 1;
                        let room = &mut self.room;
                        let table =
                            AggregateTable::new(aggregation, &fields, events, keys, clock, room)?;
                        let table = table.of_intervals(probe.pairing.as_ref(), room)?;
                        all.push(Own {
                            definition,
                            table: table.of_action(action),
                            entries: self.count(&std::mem::take(&mut entered[definition]))?,
                        });
                    }
                }
            }
        }
        let first = selected.iter().map(|e| e.id).min().unwrap_or_default();
        for (name, updates) in shared {
            self.share(name, &updates, first, keys, clock)
                .with_context(|| format!("map `{name}`"))?;
        }
        Ok(all)
    }

    /// Makes a table that counts the hits of these sites; `None` without any.
    fn count(&mut self, sites: &[&Selected]) -> Result<Option<AggregateTable>> {
        let ids = || sites.iter().map(|event| event.id);
        let (Some(first), Some(last)) = (ids().min(), ids().max()) else {
            return Ok(None);
        };
        let plain = Aggregation::default();
        let (events, room) = (first..last + 1, &mut self.room);
        AggregateTable::new(&plain, &[], events, Keys::default(), None, room).map(Some)
    }

    /// Makes a shared map, unless it is there already. Its rows are those of site `tag`.
    fn share(
        &mut self,
        name: &str,
        updates: &[Update<'_>],
        tag: u32,
        keys: Keys,
        clock: Option<&Clock>,
    ) -> Result<()> {
        let fields: Vec<&Fields> = updates
            .iter()
            .flat_map(|(_, f)| f.iter().copied())
            .collect();
        let (Some((first, _)), false) = (updates.first(), fields.is_empty()) else {
            return Ok(());
        };
        if !self.shared.contains_key(name) {
            let events = tag..tag + 1;
            let made = AggregateTable::new(first, &fields, events, keys, clock, &mut self.room)?;
            self.shared
                .insert(name.to_owned(), Arc::new(made.shared(fields[0])));
        }
        let table = &self.shared[name];
        let fits = updates
            .iter()
            .all(|(aggregation, _)| table.is_of(aggregation));
        if !fits || !fields.iter().all(|fields| table.fits(fields)) {
            return Err(err!(
                Unsuitable,
                "the probes that update it differ in their keys, aggregates or types"
            ));
        }
        Ok(())
    }

    /// Returns the work of each site's probe; `own` has the tables that [`Maps::make`] has made.
    pub(crate) fn works(&self, selected: &[Selected], own: &[Own]) -> Vec<Result<Vec<Work>>> {
        let works = |event: &Selected| -> Result<Vec<Work>> {
            if event.fate.left_out().is_some() {
                return Ok(Vec::new());
            }
            let mut all = Vec::new();
            let actions = event.probe.actions.iter().zip(event.fields.all());
            for (index, (action, fields)) in actions.enumerate() {
                match action {
                    Action::Record => all.push(event.record()),
                    Action::Keep(_) => {
                        all.push(event.record());
                        let own = own.iter().find(|o| o.definition == event.definition);
                        if let Some(entries) = own.and_then(|own| own.entries.as_ref()) {
                            all.extend(entries.work(event.id, fields)?);
                        }
                    }
                    Action::Start => {
                        let mut own = own.iter();
                        if let Some(own) = own.find(|own| own.definition == event.definition) {
                            all.extend(own.table.start(event.id, fields)?);
                        }
                    }
                    Action::Call(call) => all.push(Work::Handler(Handler {
                        routine: call.routine,
                        with_flags: call.with_flags,
                        argument: call.argument,
                        after: call.after,
                    })),
                    Action::Replace(target) => all.push(Work::Replace(*target)),
                    Action::Update { map, .. } => {
                        if let Some(table) = self.table(map, event.definition, index, own) {
                            all.extend(table.work(event.id, fields)?);
                        }
                    }
                }
            }
            Ok(all)
        };
        let works = selected
            .iter()
            .map(|event| works(event).with_context(|| format!("event `{}`", event.probe.label)));
        works.collect()
    }

    fn table<'a>(
        &'a self,
        map: &Map,
        definition: usize,
        action: usize,
        own: &'a [Own],
    ) -> Option<&'a AggregateTable> {
        match map {
            Map::Shared(name) => self.shared.get(name).map(|table| &**table),
            Map::Own => {
                let mut own = own.iter();
                let own = own.find(|o| (o.definition, o.table.action()) == (definition, action));
                own.map(|own| &own.table)
            }
        }
    }

    /// Returns the shared table of this name.
    pub(crate) fn shared(&self, name: &str) -> Option<&AggregateTable> {
        self.shared.get(name).map(|table| &**table)
    }

    /// Gives the room of a table back, which is made empty; nobody counts in it any more.
    pub(crate) fn give_back(&mut self, table: &AggregateTable, reader: &TableReader) {
        reader.clear(table.table());
        self.room.remove(table.table());
        if let Some(intervals) = table.intervals() {
            reader.clear_intervals(intervals);
            self.room.remove_intervals(intervals);
        }
    }

    /// Gives the room of the shared tables back that are not `used`.
    pub(crate) fn keep_shared(&mut self, used: impl Fn(&str) -> bool, reader: &TableReader) {
        let unused: Vec<String> = self.shared.keys().filter(|n| !used(n)).cloned().collect();
        for table in unused
            .iter()
            .filter_map(|name| self.shared.remove(name))
            .collect::<Vec<_>>()
        {
            self.give_back(&table, reader);
        }
    }
}

/// True if a probe updates the shared map of this name.
pub(crate) fn updates(probe: &Probe, name: &str) -> bool {
    let is_it =
        |action: &Action| matches!(action, Action::Update { map: Map::Shared(n), .. } if n == name);
    probe.actions.iter().any(is_it)
}

/// Returns the tables that count the entries of calls, each with the numbers of the events at the
/// entries, ascending.
pub(crate) fn entered(own: &mut [Own], selected: &[Selected]) -> Vec<(AggregateTable, Vec<usize>)> {
    let mut all = Vec::new();
    for own in own {
        if let Some(entries) = own.entries.take() {
            let begins = selected
                .iter()
                .filter(|event| event.definition == own.definition && event.part.begins_calls());
            let mut events: Vec<usize> = begins.map(|event| event.id as usize).collect();
            events.sort_unstable();
            events.dedup();
            all.push((entries, events));
        }
    }
    all
}

/// Returns the tables, each with the numbers of the events that are counted in it and have a probe,
/// ascending.
pub(crate) fn counted(
    own: Vec<Own>,
    selected: &[Selected],
    dropped: &[Option<Message>],
) -> Vec<(AggregateTable, Vec<usize>)> {
    let with_events = |own: Own| {
        // Calls and intervals are counted where they end. An event may have several sites.
        let numbers = |wanted: &dyn Fn(&Selected) -> bool| {
            let both = selected.iter().zip(dropped);
            let found = both.filter(|(event, dropped)| {
                dropped.is_none() && event.definition == own.definition && wanted(event)
            });
            let mut events: Vec<usize> = found.map(|(event, _)| event.id as usize).collect();
            events.sort_unstable();
            events.dedup();
            events
        };
        let starts = numbers(&|event| event.probe.starts_intervals());
        let ends = numbers(&|event| !event.part.begins_calls() && !event.probe.starts_intervals());
        (own.table.started_by(starts), ends)
    };
    own.into_iter().map(with_events).collect()
}
