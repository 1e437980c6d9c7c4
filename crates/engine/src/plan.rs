//! The pipeline from events to probes in a process: [`Planned`] before the process is touched,
//! [`Probed`] once the probes are in.

use crate::advice::{Advice, Message, Words};
use crate::aggregate::{Keys, Maps, Own};
use crate::error::{Code, Context, Error, Result, err};
use crate::machine::possible_cpus;
use crate::options;
use crate::options::ProbeOptions;
use crate::record::Recorder;
use crate::session::sites::Pace;
use crate::unwinding::Callers;
use capriole_codegen::runtime::ClockReading;
use capriole_codegen::work::Work;
use capriole_host::ending::Ending;
use capriole_host::ptrace;
use capriole_host::{Host, TargetError, signals};
use capriole_ledger::Kind;
use capriole_ledger::remains::TracePlace;
use capriole_object::Objects;
use capriole_patch::attach::{Attached, How, NewSession, Running, SiteState, attach_as};
use capriole_patch::detach::Detached;
use capriole_patch::guards::Guards;
use capriole_patch::recover::remove_own;
use capriole_planner::guards;
use capriole_planner::planner::Planner;
use capriole_planner::unwinders;
use capriole_proc::process::Process;
use capriole_resident::unwinding::Module;
use capriole_ring::layout::Geometry;
use capriole_select::event::Event;
use capriole_select::message;
use capriole_select::select::{self, Impossible, Mode, Probes, Selected};
use capriole_trace::clock::Clock;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Sites and plans for the user's events, before the program is touched.
pub struct Planned {
    /// Every site that the events select.
    pub selected: Vec<Selected>,
    /// For each site, why it has no probe.
    pub dropped: Vec<Option<Message>>,
    /// Events that select nothing that can be probed, with `--keep-going`.
    impossible: Vec<Impossible>,
    /// The room for tables, and the shared ones, with those of these events.
    pub(crate) maps: Maps,
    /// The tables of these events' own maps.
    pub own: Vec<Own>,
    /// The kind of the session that they are for.
    kind: Kind,
    /// True if some work needs packets, to record or to assemble values.
    fetches: bool,
    /// The code in which callers are found, and its rules; `None` if no work needs them.
    callers: Option<(Callers, Vec<Module>)>,
    probes: Probes,
    guards: Guards,
    clock: ClockReading,
}

/// The objects of a process, kept from one plan to the next. Each keeps what was read from its file
/// and found in its code: symbols, debug information, the targets of all branches. That takes much
/// longer than the rest of a plan.
#[derive(Debug, Default)]
pub struct Known(Option<Objects>);

impl Known {
    /// Returns the objects that a process has mapped now: those of the last call, if its mappings
    /// of files are the same.
    ///
    /// # Errors
    /// The memory map cannot be read.
    pub fn objects(&mut self, process: &Process) -> Result<&Objects> {
        let now = Objects::of_process(process)?;
        let kept = self.0.take().filter(|kept| kept.are_mapped_as(&now));
        Ok(self.0.insert(kept.unwrap_or(now)))
    }
}

/// Events to be probed, and the options for them.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The events.
    pub events: &'a [Event],
    /// How sites are probed.
    pub options: &'a ProbeOptions,
    /// How events are selected.
    pub mode: Mode,
    /// True if the program's own messages are recorded as well.
    pub messages: bool,
    /// Room for keys in each new table.
    pub keys: Keys,
    /// True if calls of events that are counted or timed at their exits are counted at the entry, too.
    pub entries: bool,
    /// Indices of events that are probed by breakpoints, whatever else is possible.
    pub breakpoints: Option<&'a BTreeSet<usize>>,
    /// Clock that shows durations in maps in ns, and converts times that durations are compared
    /// with; needed only for [`Event::is_timed`].
    pub clock: Option<&'a Clock>,
}

impl Planned {
    /// Finds and plans the sites of events, and makes the work for the probe of each.
    ///
    /// # Errors
    /// An event is not found, or was named and cannot be probed; with
    /// [`ProbeOptions::keep_going`], only if none can be probed. Or there is not enough room for the
    /// tables.
    pub fn new(process: &Process, request: &Request<'_>) -> Result<Planned> {
        Planned::with(&mut Known::default(), process, request)
    }

    /// Like [`Planned::new`], for one of several plans of a process: `known` keeps what was found in
    /// its files.
    ///
    /// # Errors
    /// Those of [`Planned::new`].
    pub fn with(known: &mut Known, process: &Process, request: &Request<'_>) -> Result<Planned> {
        let objects = known.objects(process)?;
        let kind = Kind::Recorder;
        Planned::of(objects, process, request, (kind, true), Maps::default())
    }

    /// Does the work of [`Planned::new`] for a session of this kind, with these objects of the process,
    /// and these maps of the session. Probes that are added to a session need no guards (`guarded`): they have those of
    /// its attach.
    pub(crate) fn of(
        objects: &Objects,
        process: &Process,
        request: &Request<'_>,
        (kind, guarded): (Kind, bool),
        mut maps: Maps,
    ) -> Result<Planned> {
        let Request { options, mode, .. } = *request;
        let planner = Planner::of_session(process, kind)
            .with_breakpoints(options.breakpoints)
            .with_trusted_addresses(options.trust_address)
            .with_one_instruction(options.one_instruction);
        let in_ticks = |event: &Event| {
            event.in_ticks(|time| match request.clock {
                Some(clock) => options::ticks(clock, time),
                None => Err(err!(Clock, "there is no clock for the durations of calls")),
            })
        };
        let events: Result<Vec<Event>> = request.events.iter().map(in_ticks).collect();
        let mut events = events?;
        if request.messages {
            let own = message::events(objects, &events);
            events.extend(own.into_iter().map(Event::from));
        }
        let (mut selected, impossible) = match options.keep_going {
            true => select::select_possible(objects, &planner, &events, mode)?,
            false => {
                let selected = select::select(objects, &planner, &events, mode);
                (selected?, Vec::new())
            }
        };
        if options.keep_going {
            select::keep_going(&mut selected);
        }
        for event in &mut selected {
            let chosen = request.breakpoints;
            let chosen = chosen.is_some_and(|chosen| chosen.contains(&event.definition));
            if options.only_breakpoints || chosen {
                event.fate.by_breakpoint();
            }
        }
        select::refuse_named(&selected)?;
        maps.entries = request.entries;
        let own = maps.make(
            &events[..request.events.len()],
            &selected,
            request.keys,
            request.clock,
        )?;
        let found = maps.works(&selected, &own);
        let mut works = Vec::with_capacity(found.len());
        for (event, work) in selected.iter_mut().zip(found) {
            works.push(match work {
                Err(error) if options.keep_going => {
                    event.fate.leave_out(|| error.whole());
                    Vec::new()
                }
                work => work?,
            });
        }
        select::refuse_named(&selected)?;
        let plain = |work: &Work| matches!(work, Work::Count { .. });
        let fetches = !works.iter().flatten().all(plain);
        let callers = match works.iter().flatten().any(Work::finds_callers) {
            true => Some(Callers::of(objects, process)?),
            false => None,
        };
        let probes = select::probes(&selected, works);
        let mut guards = match guarded {
            true => guards::find(objects, &planner),
            false => Guards::default(),
        };
        if guarded && selected.iter().any(|event| event.part.is_followed()) {
            let message = Message::from("return addresses cannot be replaced");
            let unwinders = unwinders::find(objects, &planner)
                .context(message.advise(Advice::LeaveOutReturnStack))?;
            guards = guards.with_unwinders(unwinders, true);
        } else if guarded {
            guards = guards.with_unwinders(unwinders::find_some(objects, &planner), false);
        }
        let mut dropped: Vec<Option<Message>> = selected.iter().map(|e| e.fate.reason()).collect();
        for &(index, other) in &probes.overlapping {
            let other = selected[other].name();
            let reason = format!("its probe would overlap that of {other}; take one of the two");
            dropped[index] = Some(reason.into());
        }
        Ok(Planned {
            selected,
            dropped,
            impossible,
            maps,
            own,
            kind,
            fetches,
            callers,
            probes,
            guards,
            clock: options.clock()?,
        })
    }

    /// Returns the definitions of events with probes that can only be written while the program is
    /// stopped.
    pub(crate) fn written_in_stops(&self) -> BTreeSet<usize> {
        let probes = self.probes.probes.iter();
        let stops = probes.filter(|(probe, _)| !probe.is_written_running());
        let events = stops.flat_map(|(_, events)| events);
        events.map(|at| self.selected[*at].definition).collect()
    }

    /// Returns the sites that get a probe.
    pub fn kept(&self) -> impl Iterator<Item = &Selected> {
        let both = self.selected.iter().zip(&self.dropped);
        both.filter(|(_, d)| d.is_none()).map(|(event, _)| event)
    }

    /// Returns the geometry of session memory for these probes, by the size of the journal, with
    /// `buffer` bytes for records. Without a buffer there is room for values that are assembled, if
    /// any are.
    pub fn geometry(&self, buffer: u64) -> impl Fn(u32) -> Geometry + Send + use<> {
        let (cpus, room) = (possible_cpus(), self.maps.room.clone());
        let frames = select::frames(&self.selected);
        let scratch = buffer == 0 && self.fetches;
        move |journal| {
            let geometry = match scratch {
                true => Geometry::for_scratch(cpus, journal),
                false => Geometry::for_buffer(buffer, cpus, journal),
            };
            let geometry = geometry.with_tables(&room);
            match frames {
                Some((areas, words)) => geometry.with_frames(areas, words),
                None => geometry,
            }
        }
    }

    /// Inserts the probes, which record into this trace.
    ///
    /// # Errors
    /// No probe could be inserted, or the probe of a named event could not. No probe is left in the
    /// program then.
    pub fn attach(
        self,
        process: &Process,
        trace: Option<&TracePlace>,
        geometry: impl Fn(u32) -> Geometry + Send,
    ) -> Result<Probed> {
        self.attach_by(&ptrace::host(process), trace, geometry)
    }

    /// As [`Planned::attach`], of a process that is changed by this host.
    pub(crate) fn attach_by(
        mut self,
        host: &Arc<dyn Host>,
        trace: Option<&TracePlace>,
        geometry: impl Fn(u32) -> Geometry + Send,
    ) -> Result<Probed> {
        // Up to here a signal may end this process.
        signals::hold();
        let ending = Arc::new(Ending::of(host.process()));
        let (probes, events): (Vec<_>, Vec<_>) = self.probes.probes.into_iter().unzip();
        let (callers, rules) = self.callers.take().unzip();
        let session = NewSession {
            kind: self.kind,
            trace,
            callers: rules.as_deref().unwrap_or_default(),
        };
        let attached = attach_as(host, probes, &self.guards, self.clock, geometry, session)
            .map_err(|error| failed(&**host, self.kind, error))?;
        let mut probe_of = vec![None; self.selected.len()];
        for (number, events) in events.into_iter().enumerate() {
            for index in events {
                probe_of[index] = Some(number);
                if let Err(error) = attached.outcome(number) {
                    self.dropped[index] = Some(error.to_string().into());
                }
            }
        }
        if let Some(error) = missing(&self.selected, &self.dropped) {
            attached.detach()?;
            return Err(error);
        }
        Ok(Probed {
            selected: self.selected,
            dropped: self.dropped,
            impossible: self.impossible,
            own: self.own,
            probe_of,
            ending,
            callers,
            attached,
        })
    }

    /// Adds the probes to a session that is in the process already. It has the guards, and the
    /// reading of the clock, of its attach.
    ///
    /// # Errors
    /// No probe could be inserted, or the probe of a named event could not. None of them is in the
    /// program then, but some may have been for a moment.
    ///
    pub(crate) fn add_to(
        mut self,
        attached: &mut Attached,
        pace: Pace,
    ) -> Result<More, Box<NotAdded>> {
        signals::hold();
        let (probes, events): (Vec<_>, Vec<_>) = self.probes.probes.into_iter().unzip();
        let first = attached.probes();
        let added = match pace {
            Pace::Paused => attached.add(probes),
            Pace::Running(tid) => attached.add_running(probes, &Running { tid }),
            Pace::Later => attached.add_disarmed(probes),
        };
        let mut probe_of = vec![None; self.selected.len()];
        let numbers = first..attached.probes();
        let mut names = Vec::new();
        for (number, events) in numbers.clone().zip(events) {
            names.push(
                events
                    .first()
                    .map_or_else(String::new, |at| self.selected[*at].name()),
            );
            for index in events {
                probe_of[index] = Some(number);
                if let Err(error) = attached.outcome(number) {
                    self.dropped[index] = Some(error.to_string().into());
                }
            }
        }
        let more = More {
            probe_of,
            selected: self.selected,
            dropped: self.dropped,
            own: self.own,
            probes: numbers.collect(),
            names,
        };
        let error = match added {
            Err(error) => Some(error.into()),
            Ok(_) => missing(&more.selected, &more.dropped).map(|error| {
                let out = attached.disarm(&more.probes);
                out.err().map_or(error, Error::from)
            }),
        };
        match error {
            Some(error) => Err(Box::new(NotAdded { error, more })),
            None => Ok(more),
        }
    }
}

/// Returns an error if a named event has no probe, or none has one.
fn missing(selected: &[Selected], dropped: &[Option<Message>]) -> Option<Error> {
    let both = || selected.iter().zip(dropped);
    let named = both().find(|(e, d)| e.origin.is_named() && d.is_some());
    let mut asked = both().filter(|(event, _)| !event.origin.is_implied());
    let none = asked.all(|(_, dropped)| dropped.is_some());
    let (event, reason) = named.or(both().next().filter(|_| none))?;
    let reason = reason.clone()?;
    let message = Message::from(format!("{} cannot be probed: ", event.name()));
    Some(Error::new(Code::NotProbeable, message.then(reason)))
}

/// An addition that has failed.
pub(crate) struct NotAdded {
    /// The reason.
    pub error: Error,
    /// The probes. None is in the program.
    pub more: More,
}

/// Probes that were added to a session.
pub(crate) struct More {
    /// Every site that the events select.
    pub selected: Vec<Selected>,
    /// For each site, why it has no probe.
    pub dropped: Vec<Option<Message>>,
    /// The tables of the events' own maps.
    pub own: Vec<Own>,
    /// Numbers of the probes, ascending.
    pub probes: Vec<usize>,
    /// For each of them, the name of its first event.
    pub names: Vec<String>,
    /// For each site, the number of its probe.
    pub probe_of: Vec<Option<usize>>,
}

/// Converts the error of an attach, and removes what the attach left in the program.
fn failed(host: &dyn Host, kind: Kind, error: TargetError) -> Error {
    // Memory that was already mapped is useless now.
    if matches!(
        error,
        TargetError::NoSpace { .. } | TargetError::Refused { .. }
    ) {
        let _ = remove_own(host, kind);
    }
    error.into()
}

/// Number of attempts to stop a thread that does not stop, before the probes are left in the
/// program. Each attempt takes seconds.
const DETACH_TRIES: u32 = 3;
/// Pause between two of these attempts.
const DETACH_PAUSE: Duration = Duration::from_secs(1);
/// A process with its probes inserted.
pub struct Probed {
    /// Every site that the events select.
    pub selected: Vec<Selected>,
    /// For each site, why it has no probe.
    pub dropped: Vec<Option<Message>>,
    /// Events that select nothing that can be probed.
    pub impossible: Vec<Impossible>,
    /// The tables of the events' own maps.
    pub own: Vec<Own>,
    /// For each site, the number of its probe.
    pub(crate) probe_of: Vec<Option<usize>>,
    /// Watches for the end of the process, from before the attach.
    pub ending: Arc<Ending>,
    /// The code whose callers the program finds; `None` if no event needs them.
    pub(crate) callers: Option<Callers>,
    /// The inserted probes.
    pub attached: Attached,
}

impl Probed {
    /// Formats the sites as JSON, in the order of `selected`; advice in the reasons is put into
    /// `words`.
    pub fn sites_json(&self, words: Words) -> Vec<Value> {
        let disturbances = self.attached.disturbances();
        let disturbances: HashMap<usize, &How> =
            disturbances.iter().map(|d| (d.probe, &d.how)).collect();
        let site = |((event, dropped), probe): ((&Selected, &Option<Message>), &Option<usize>)| {
            let mut site = event.json(words);
            let outcome = probe.and_then(|number| self.attached.outcome(number).ok());
            site["state"] = match (dropped, outcome) {
                (None, Some(outcome)) => json!(outcome.state.name(outcome.tactic)),
                _ => json!("not probed"),
            };
            if let Some(reason) = dropped {
                site["reason"] = json!(reason.with(words));
            }
            if let Some(how) = probe.and_then(|number| disturbances.get(&number)) {
                site["reason"] = json!(how.to_string());
            }
            site
        };
        let both = self.selected.iter().zip(&self.dropped);
        let impossible = self.impossible.iter().map(|event| {
            json!({
                "event": event.event,
                "tactic": "none",
                "state": "not probed",
                "reason": event.reason.with(words),
            })
        });
        let sites = both.zip(&self.probe_of).map(site);
        sites.chain(impossible).collect()
    }

    /// Returns, for each probe, the name of its first event.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = vec![String::new(); self.attached.probes()];
        for (event, number) in self.selected.iter().zip(&self.probe_of) {
            let Some(name) = number.map(|number| &mut names[number]) else {
                continue;
            };
            if name.is_empty() {
                *name = event.name();
            }
        }
        names
    }

    /// Returns the number of events that lost their probes to other tools.
    pub fn taken_out(&self) -> usize {
        let outcome = |number: &usize| self.attached.outcome(*number);
        let is_out = |number: &usize| outcome(number).is_ok_and(|s| s.state == SiteState::TakenOut);
        let numbers = self.probe_of.iter().flatten();
        numbers.filter(|number| is_out(number)).count()
    }

    /// Formats how long the program was paused, for `--json`.
    pub fn standstill_json(&self, detached: &Detached) -> Value {
        let standstill = self.attached.standstill;
        json!({
            "attach": standstill.all.as_nanos() as u64,
            "attach_one_thread": standstill.one.as_nanos() as u64,
            "detach": detached.standstill.as_nanos() as u64,
        })
    }

    /// Removes the probes.
    ///
    /// # Errors
    /// The probes are still in the program; the error says why.
    pub fn detach(&self) -> Result<Detached, TargetError> {
        detach(&self.attached, Attached::detach)
    }

    /// Removes the probes as [`detach`](Self::detach) does; a recorder writes what session memory has to its trace
    /// while that memory is still in the program.
    ///
    /// # Errors
    /// See [`detach`](Self::detach).
    pub fn detach_and_flush(&self, recorder: &mut Recorder) -> Result<Detached, TargetError> {
        detach(&self.attached, |attached| {
            attached.detach_and_flush(&mut || recorder.flush())
        })
    }

    /// Returns the numbers of the probes that serve these events, ascending.
    pub(crate) fn probes(&self) -> Vec<usize> {
        let mut probes: Vec<usize> = self.probe_of.iter().flatten().copied().collect();
        probes.sort_unstable();
        probes.dedup();
        probes
    }

    /// Describes what is left in the program after an error.
    pub fn aftermath(&self) -> Message {
        if !self.attached.process().is_alive() {
            "the program has ended".into()
        } else if self.attached.is_mapped() {
            let pid = self.attached.process().pid();
            match self.attached.is_restored() {
                true => {
                    Message::from("its probes are out, but their memory is still in the program")
                        .advise(Advice::DetachUnmaps { pid })
                }
                false => Message::from("its probes are still in the program")
                    .advise(Advice::DetachTakesProbesOut { pid }),
            }
        } else {
            "the program goes on without probes".into()
        }
    }
}

/// Removes the probes of a session.
///
/// # Errors
/// The probes are still in the program; the error says why.
pub(crate) fn detach(
    attached: &Attached,
    mut detach: impl FnMut(&Attached) -> Result<Detached, TargetError>,
) -> Result<Detached, TargetError> {
    let mut tries = 0;
    loop {
        tries += 1;
        match detach(attached) {
            // The program ended during the detach: nothing is left to remove.
            Err(_) if attached.process().is_over() => return Ok(Detached::default()),
            // A parent in vfork can be stopped once its child has executed its program; and
            // `capriole detach` may be running as well.
            Err(TargetError::Unstoppable { .. } | TargetError::AlreadyTraced { .. })
                if tries < DETACH_TRIES =>
            {
                std::thread::sleep(DETACH_PAUSE);
            }
            result => return result,
        }
    }
}
