//! Resolves the user's events to sites with plans.
//!
//! ```text
//!  resolve      events to sites
//!  read         the fields of each event at each site
//!  distinct     an event that was given twice stays once
//!  plan         how each site is reached
//!  number       sites to numbered events
//!  join         entries and exits of the same functions
//! ```

mod fate;
mod identified;
mod namesakes;
mod numbers;
mod pairing;
mod part;
mod places;
mod probes;
mod refusing;
mod same_code;
mod selected;
mod shown;
mod unrolled;

pub use fate::Fate;
pub use identified::identified;
pub use namesakes::left_out;
pub use pairing::keep_going;
pub use part::{Detected, Origin, Part};
pub use probes::{Probes, probes};
pub use refusing::refuse_named;
pub use same_code::shared_code;
pub use selected::{Selected, infos};
pub use shown::{hit_as, shown_names};
pub use unrolled::in_unrolled_loops;

use crate::advice::Message;
use crate::error::{Code, Context, Error, Result, err};
use crate::event::Event;
use crate::fields::{Fields, Reader};
use crate::returns::{self, Returns};
use crate::slots;
use crate::slots::Area;
use capriole_event::{Action, At, Place, Probe};
use capriole_insn::ExitKind;
use capriole_ledger::counter::ReferenceCounter;
use capriole_object::Objects;
use capriole_planner::planner::{Plan, Planner};
use capriole_planner::resolve::{Body, NotFollowed, Site, followed, resolve};
use capriole_tactic::site::Refused;
use numbers::Numbers;
use places::{at_one_place, has_same_fields, may_lack_fields, unseen, without_event};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// How events are selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mode {
    /// How returns are detected.
    pub returns: Returns,
    /// Number of the first event: 0, or behind those that the session has already.
    pub first_id: u32,
    /// Areas of slots for calls that other events of the session have, a bit each.
    pub areas: u32,
    /// Number of additions to the session so far: marks the calls of these events.
    pub addition: u32,
}

impl Mode {
    /// Selects the first events of a session.
    #[must_use]
    pub fn new(returns: Returns) -> Mode {
        Mode {
            returns,
            ..Mode::default()
        }
    }
}

/// A user's event without any site that can be probed.
#[derive(Debug)]
pub struct Impossible {
    /// Source text of the event.
    pub event: String,
    /// Reason why it cannot be probed.
    pub reason: Message,
}

/// Finds the sites of events and plans them.
///
/// # Errors
/// All events that cannot be found, or whose fields cannot be recorded. If an event is found but
/// cannot be probed, [`Selected::fate`] has the reasons; also if a field cannot be recorded in a
/// compiler-made copy of a function.
pub fn select(
    objects: &Objects,
    planner: &Planner,
    events: &[Event],
    mode: Mode,
) -> Result<Vec<Selected>> {
    let selected = select_without(objects, planner, events, &HashSet::new(), mode);
    selected.map_err(|unselected| match unselected {
        Unselected::Events(errors) => all_of(errors.into_iter().map(|(_, error)| error)),
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
    events: &[Event],
    mode: Mode,
) -> Result<(Vec<Selected>, Vec<Impossible>)> {
    let mut impossible: BTreeMap<usize, Error> = BTreeMap::new();
    let mut without = HashSet::new();
    loop {
        let errors = match select_without(objects, planner, events, &without, mode) {
            Ok(selected) => {
                let told = impossible.into_iter().map(|(at, error)| Impossible {
                    event: events[at].label().to_owned(),
                    reason: error.whole(),
                });
                return Ok((selected, told.collect()));
            }
            Err(Unselected::All(error)) => return Err(error),
            Err(Unselected::Events(errors)) => errors,
        };
        for (definition, error) in errors {
            impossible.insert(definition, error);
            without.insert(definition);
        }
        let mut asked = (0..events.len()).filter(|at| !events[*at].is_implied());
        if asked.all(|at| without.contains(&at)) {
            return Err(all_of(impossible.into_values()));
        }
    }
}

/// Combines the errors of several events into one.
fn all_of(errors: impl Iterator<Item = Error>) -> Error {
    let mut errors: Vec<Error> = errors.collect();
    let count = errors.len();
    if count == 1
        && let Some(only) = errors.pop()
    {
        return only;
    }
    let same = errors.windows(2).all(|two| two[0].code() == two[1].code());
    let code = errors.first().filter(|_| same).map(Error::code);
    let message = Message::from(format!("{count} events cannot be recorded:"));
    let message = errors
        .iter()
        .fold(message, |all, error| all.then("\n  ").then(error.whole()));
    Error::new(code.unwrap_or(Code::NotProbeable), message)
}

/// Reasons why not all events can be selected.
enum Unselected {
    /// Errors of parts of single events, each with the event's index in the list.
    Events(Vec<(usize, Error)>),
    /// An error that does not belong to a single event.
    All(Error),
}

/// Does the work of [`select`], without the events at these indices.
fn select_without(
    objects: &Objects,
    planner: &Planner,
    events: &[Event],
    without: &HashSet<usize>,
    mode: Mode,
) -> Result<Vec<Selected>, Unselected> {
    let mut selection = Selection::new(events, without, mode);
    let found = selection.resolve(objects);
    let areas = match selection.areas(&found, events.len()) {
        Ok(areas) => areas,
        Err(error) if selection.errors.is_empty() => return Err(Unselected::All(error)),
        Err(_) => return Err(selection.failed()),
    };
    let fields = selection.read_fields(&found, &areas);
    if selection.errors.is_empty() {
        selection.check_pairs(&found, &fields);
    }
    if !selection.errors.is_empty() {
        return Err(selection.failed());
    }
    let distinct = selection.distinct(found, fields);
    let planned = selection.plan(planner, distinct);
    let mut selected = selection.number(planned, &areas);
    if !selection.errors.is_empty() {
        return Err(selection.failed());
    }
    pairing::all_exits_or_none(&mut selected);
    pairing::join_calls(&mut selected);
    Ok(selected)
}

/// A part of a user's event, to be selected.
struct Wanted<'a> {
    /// Index of the user's event.
    definition: usize,
    probe: &'a Arc<Probe>,
    /// True if the event records whole calls at their exits.
    whole: bool,
}

impl Wanted<'_> {
    /// True if it begins calls, and records nothing.
    fn begins(&self) -> bool {
        matches!(self.probe.actions[..], [Action::Keep(_)])
    }
}

/// A site of a part.
struct Found {
    site: Site,
    /// Index of the part in [`Selection::wanted`].
    part: usize,
}

/// A site of a part, with its fields.
struct Readable {
    site: Site,
    part: usize,
    fields: Result<Arc<Fields>>,
}

/// A site of a part, with its fields and its plan.
struct Planned {
    site: Site,
    part: usize,
    fields: Result<Arc<Fields>>,
    plan: Result<Plan, Refused>,
}

/// The steps from events to sites with plans. Errors are collected, to report them all at once.
struct Selection<'a> {
    mode: Mode,
    /// The parts of all events that are selected.
    wanted: Vec<Wanted<'a>>,
    /// Number of parts that the user has asked for, selected or not.
    asked: usize,
    /// The first error of each part, by its index.
    errors: BTreeMap<usize, Error>,
    /// Reasons why the returns of functions cannot be followed, by part and function.
    not_followed: HashMap<(usize, u64), NotFollowed>,
}

impl<'a> Selection<'a> {
    fn new(events: &'a [Event], without: &HashSet<usize>, mode: Mode) -> Selection<'a> {
        let wanted = events.iter().enumerate();
        let wanted = wanted.filter(|(definition, _)| !without.contains(definition));
        let parts = wanted.flat_map(|(definition, event)| {
            event.probes().iter().map(move |probe| Wanted {
                definition,
                probe,
                whole: event.records_whole(),
            })
        });
        let asked = events.iter().flat_map(Event::probes);
        Selection {
            mode,
            asked: asked.filter(|probe| !probe.implied).count(),
            wanted: parts.collect(),
            errors: BTreeMap::new(),
            not_followed: HashMap::new(),
        }
    }

    /// Returns the error of each event that cannot be selected, with the event's index. The entry
    /// and the exits of calls usually fail for the same reason: the first one is enough.
    fn failed(self) -> Unselected {
        let mut errors: Vec<(usize, Error)> = Vec::new();
        for (part, error) in self.errors {
            let definition = self.wanted[part].definition;
            if errors.iter().all(|(other, _)| *other != definition) {
                errors.push((definition, error));
            }
        }
        Unselected::Events(errors)
    }

    /// True if the returns of an event are detected by the return address.
    fn is_followed(&self, probe: &Probe) -> bool {
        self.mode.returns == Returns::Stack && probe.at == At::Return
    }

    /// Finds the sites of all parts.
    fn resolve(&mut self, objects: &Objects) -> Vec<Found> {
        let mut found = Vec::new();
        for part in 0..self.wanted.len() {
            match self.resolve_one(objects, self.wanted[part].probe) {
                Err(error) => _ = self.errors.insert(part, error),
                Ok(sites) => {
                    for (site, refused) in sites {
                        if let Some(reason) = refused {
                            self.not_followed.insert((part, site.address), reason);
                        }
                        found.push(Found { site, part });
                    }
                }
            }
        }
        found
    }

    fn resolve_one(
        &self,
        objects: &Objects,
        probe: &Probe,
    ) -> Result<Vec<(Site, Option<NotFollowed>)>> {
        let sites = match self.is_followed(probe) {
            true => followed(objects, probe),
            false => {
                resolve(objects, probe).map(|sites| sites.into_iter().map(|s| (s, None)).collect())
            }
        };
        // A handler is for one place: in the loaded file, not where its code is mapped once more.
        let calls = |action: &Action| matches!(action, Action::Call(_) | Action::Replace(_));
        let is_one = probe.actions.iter().any(calls);
        let sites = sites.map(|mut sites| {
            sites.retain(|(site, _)| !is_one || !site.object.is_part());
            sites
        });
        sites.with_context(|| format!("event `{}`", probe.label))
    }

    /// Assigns each event the area of slots for the calls that it begins and ends.
    fn areas(&self, found: &[Found], events: usize) -> Result<Vec<Area>> {
        let mut functions: BTreeMap<usize, HashSet<u64>> = BTreeMap::new();
        for wanted in self.wanted.iter().filter(|wanted| wanted.begins()) {
            functions.insert(wanted.definition, HashSet::new());
        }
        for Found { site, part } in found {
            let wanted = &self.wanted[*part];
            if let (true, Some(own)) = (wanted.begins(), functions.get_mut(&wanted.definition)) {
                own.insert(site.function());
            }
        }
        let (definitions, functions): (Vec<usize>, Vec<_>) = functions.into_iter().unzip();
        let mut areas = vec![Area::default(); events];
        let Mode {
            areas: taken,
            addition,
            ..
        } = self.mode;
        // Calls that end at one return, because one has jumped to the other, are open together.
        let together = self.mode.returns == Returns::Stack;
        let own = slots::areas(&functions, together, taken, addition)?;
        for (definition, area) in definitions.into_iter().zip(own) {
            areas[definition] = area;
        }
        Ok(areas)
    }

    /// Returns the fields at each site, or why they cannot be recorded in code that the user did
    /// not name exactly. Errors in other code end the selection.
    fn read_fields(&mut self, found: &[Found], areas: &[Area]) -> Vec<Result<Arc<Fields>>> {
        let mut reader = Reader::default();
        let mut fields: Vec<Result<Arc<Fields>>> = Vec::new();
        let mut last: Option<&Found> = None;
        for this in found {
            let Found { site, part } = this;
            let Wanted {
                probe, definition, ..
            } = self.wanted[*part];
            let same = last
                .is_some_and(|last| last.part == *part && has_same_fields(probe, &last.site, site));
            let read = match (unseen(probe, site), same, fields.last()) {
                (Some(error), ..) => Err(error),
                (None, true, Some(Ok(before))) => Ok(before.clone()),
                _ => reader.fields(probe, site, areas[definition]).map(Arc::new),
            };
            match read {
                Err(error) if site.body == Body::Own && !may_lack_fields(probe, site) => {
                    let places = found.iter().filter(|other| other.part == *part).count();
                    let error = at_one_place(error, probe, site, places);
                    self.errors.entry(*part).or_insert(error);
                    last = None;
                }
                read => {
                    fields.push(read);
                    last = Some(this);
                }
            }
        }
        fields
    }

    /// Checks that the values which pair two events have the same sizes in both, at all sites.
    fn check_pairs(&mut self, found: &[Found], fields: &[Result<Arc<Fields>>]) {
        let mut known: HashMap<(usize, usize), u8> = HashMap::new();
        for (Found { part, .. }, fields) in found.iter().zip(fields) {
            let Wanted {
                probe, definition, ..
            } = self.wanted[*part];
            let (Some(pairing), Ok(fields)) = (&probe.pairing, fields) else {
                continue;
            };
            let widths = fields.fetch.word_widths().unwrap_or_default();
            for (number, (width, name)) in widths.iter().zip(&pairing.key).enumerate() {
                let bits = width.bits.map_or(8 * width.bytes, |(_, bits)| bits);
                let other = *known.entry((definition, number)).or_insert(bits);
                if other != bits {
                    let error = err!(
                        Field,
                        "event `{}`: `{name}` pairs the two events, and is a number of {other} bits in \
                         one place and of {bits} in another; give it the same type in both, as in \
                         {name}=VALUE:u32",
                        probe.label
                    );
                    self.errors.entry(*part).or_insert(error);
                }
            }
        }
    }

    /// Drops repeated events: two events may be identical, and such an event is recorded once,
    /// unless each has a name.
    fn distinct(&self, found: Vec<Found>, fields: Vec<Result<Arc<Fields>>>) -> Vec<Readable> {
        let mut seen = HashSet::new();
        let mut is_new = |site: &Site, probe: &Probe, fields: &Arc<Fields>| {
            // Each counting probe has a table, so duplicates stay.
            let several = self.asked > 1 && probe.actions == [Action::Record];
            let (body, leaving) = (site.body.clone(), site.leaving.clone());
            let marker = site.marker.as_ref().map(|marker| marker.full_name());
            let name = (probe.group.clone(), probe.name.clone());
            let event = (
                name,
                probe.of_calls,
                probe.reference_counter,
                fields.clone(),
            );
            !several || seen.insert((site.address, body, leaving, marker, event))
        };
        let all = found.into_iter().zip(fields);
        let all = all.map(|(Found { site, part }, fields)| Readable { site, part, fields });
        all.filter(|Readable { site, part, fields }| {
            let wanted = &self.wanted[*part];
            match fields {
                Ok(fields) if !wanted.begins() => is_new(site, wanted.probe, fields),
                _ => true,
            }
        })
        .collect()
    }

    /// Plans all sites.
    fn plan(&mut self, planner: &Planner, readable: Vec<Readable>) -> Vec<Planned> {
        let sites: Vec<&Site> = readable.iter().map(|readable| &readable.site).collect();
        let plans = planner.plan_all(&sites);
        let both = readable.into_iter().zip(plans);
        let planned = both.map(|(Readable { site, part, fields }, plan)| {
            if self.is_followed(self.wanted[part].probe) && plan.as_ref().is_ok_and(|p| !p.called) {
                let function = (part, site.address);
                self.not_followed
                    .entry(function)
                    .or_insert(NotFollowed::Loop);
            }
            Planned {
                site,
                part,
                fields,
                plan,
            }
        });
        planned.collect()
    }

    /// Makes a numbered event of each site.
    fn number(&mut self, planned: Vec<Planned>, areas: &[Area]) -> Vec<Selected> {
        let mut places = vec![Places::default(); self.wanted.len()];
        for site in &planned {
            let of_part = &mut places[site.part];
            of_part.all += 1;
            of_part.works |= self.works(site);
        }
        let mut numbers = Numbers::new(self.mode.first_id);
        let mut selected: Vec<Selected> = Vec::with_capacity(planned.len());
        for site in planned {
            let part = site.part;
            match self.selected(site, places[part], areas, &mut numbers) {
                Ok(event) => selected.push(event),
                Err(error) => _ = self.errors.entry(part).or_insert(error),
            }
        }
        selected
    }

    /// True if a part works at a site.
    fn works(&self, planned: &Planned) -> bool {
        let Planned {
            site,
            part,
            fields,
            plan,
        } = planned;
        let there = site.leaving.as_ref().is_none_or(|l| l.way.is_ok());
        let followed = !self.not_followed.contains_key(&(*part, site.address));
        there && fields.is_ok() && plan.is_ok() && followed
    }

    /// Makes the event at one site.
    ///
    /// # Errors
    /// It cannot be recorded there, and the user named it.
    fn selected(
        &self,
        planned: Planned,
        places: Places,
        areas: &[Area],
        numbers: &mut Numbers,
    ) -> Result<Selected> {
        let Planned {
            site,
            part: index,
            fields,
            plan,
        } = planned;
        let wanted = &self.wanted[index];
        let (probe, definition) = (wanted.probe, wanted.definition);
        let named = names_one(&probe.place);
        let no_exit = site.leaving.as_ref().and_then(|l| l.way.as_ref().err());
        let no_exit = no_exit.map(ToString::to_string);
        let not_followed = self.not_followed.get(&(index, site.address));
        if let (Some(reason), true) = (not_followed, named && site.body == Body::Own) {
            let message = Message::from(format!("event `{}`: ", probe.label));
            let message = message.then(returns::refusal(*reason));
            return Err(Error::new(Code::NoReturnStack, message));
        }
        let missing = no_exit.or(not_followed.map(ToString::to_string));
        let missing = missing.map(Message::from);
        let (fields, left_out) = match (fields, missing) {
            (fields, Some(missing)) => (fields.unwrap_or_default(), Some(missing)),
            (Ok(fields), None) => (fields, None),
            (Err(error), None) if !places.works && !probe.implied => {
                return Err(at_one_place(error, probe, &site, places.all));
            }
            (Err(error), None) => (Arc::default(), Some(without_event(&error))),
        };
        let part = self.part_of(wanted, &site, areas[definition]);
        let tail = site.leaving.as_ref().map(|leaving| &leaving.way);
        let tail = tail == Some(&Ok(ExitKind::TailCall));
        // One compiler-made copy may be missing, but not all; so may a tail call with nothing to
        // record.
        let own = site.body == Body::Own || !places.works;
        let own = own && (!tail || left_out.is_none());
        // For a marker at several places, one that works is enough; the others are reported.
        let own = own && (site.marker.is_none() || !places.works);
        // Of code that is mapped once more, one mapping that works is enough.
        let own = own && (!site.object.is_part() || !places.works);
        let (counter, left_out) = match counter(probe, &site) {
            Ok(counter) => (counter, left_out),
            Err(error) if site.marker.is_some() => {
                let reason = Message::from("its semaphore cannot be used: ");
                let reason = reason.then(error.messages().last().unwrap_or_default());
                (None, left_out.or(Some(reason)))
            }
            Err(error) => return Err(error),
        };
        let mut fate = Fate::from(plan);
        if let Some(reason) = left_out {
            fate.leave_out(|| reason);
        }
        Ok(Selected {
            id: numbers.of(index, &site, &fields),
            definition,
            probe: Arc::clone(probe),
            origin: match probe.implied {
                true => Origin::Implied,
                false => Origin::User {
                    named: own && named,
                },
            },
            part,
            call: None,
            site,
            fields,
            counter,
            fate,
        })
    }

    /// Returns the part in calls that an event has at a site.
    fn part_of(&self, wanted: &Wanted<'_>, site: &Site, area: Area) -> Part {
        let probe = wanted.probe;
        match &site.leaving {
            Some(leaving) => Part::Exit {
                // Without a way, the event is left out.
                kind: leaving.way.clone().unwrap_or(ExitKind::Return),
                detected: match self.is_followed(probe) {
                    true => Detected::ByReturnAddress,
                    false => Detected::Here,
                },
                of_calls: probe.of_calls,
            },
            None if wanted.begins() => Part::Begins {
                area,
                whole: wanted.whole,
            },
            None if probe.of_calls => Part::Entry,
            None => Part::Point,
        }
    }
}

/// The sites of a part.
#[derive(Debug, Clone, Copy, Default)]
struct Places {
    /// Number of all sites.
    all: usize,
    /// True if the part works at some of them.
    works: bool,
}

/// True if this is one place or one marker, rather than a pattern.
fn names_one(place: &Place) -> bool {
    match place {
        Place::FileOffset(_) => true,
        Place::Static { provider, name, .. } => ![provider, name]
            .iter()
            .any(|part| part.contains(['*', '?', '['])),
        Place::Symbol { .. } | Place::Line { .. } => !place.is_glob(),
    }
}

/// Returns the reference counter in the event's definition, or the semaphore of its marker.
fn counter(probe: &Probe, site: &Site) -> Result<Option<ReferenceCounter>> {
    // The marker in the loaded file has it.
    if site.object.is_part() {
        return Ok(None);
    }
    let of = |offset| ReferenceCounter::of(&site.object, offset);
    let semaphore = site.marker.as_ref().and_then(|marker| marker.semaphore);
    let semaphore = semaphore.map(|link| {
        let offset = site.object.file().file_offset(link);
        offset.ok_or_else(|| {
            err!(
                Marker,
                "its address {link:#x} is not one of data in the file"
            )
        })
    });
    let offset = semaphore.transpose()?.or(probe.reference_counter);
    let counter = offset.map(of).transpose();
    counter.with_context(|| format!("event `{}`", probe.label))
}

/// Returns the room for open calls, if any are followed: number of areas, and words per call.
pub fn frames(selected: &[Selected]) -> Option<(u32, u32)> {
    let begun = selected.iter().filter_map(|event| match event.part {
        Part::Begins { area, .. } => Some((area.number + 1, event.fields.fetch.recorded as u32)),
        Part::Point | Part::Entry | Part::Exit { .. } => None,
    });
    begun.reduce(|(areas, words), (area, own)| (areas.max(area), words.max(own)))
}

/// Returns the areas of slots that the events' calls have, a bit each.
#[must_use]
pub fn areas(selected: &[Selected]) -> u32 {
    let begun = selected.iter().map(|event| match event.part {
        Part::Begins { area, .. } => 1 << area.number,
        Part::Point | Part::Entry | Part::Exit { .. } => 0,
    });
    begun.fold(0, |all, area| all | area)
}
