//! The parts of a session, and the work on them.

use super::sites::Pace;
use super::traced::Traced;
use super::{Added, EventId, Happened, Options, Record};
use crate::aggregate::maps::{counted, updates};
use crate::aggregate::{AggregateTable, Group, Keys, Maps};
use crate::error::{Result, err};
use crate::machine::possible_cpus;
use crate::options;
use crate::plan::{Known, More, NotAdded, Planned, Probed, Request};
use crate::record::Summary;
use crate::watch::{Ended, Silent, Watch};
use capriole_event::{EventSpec, Probe};
use capriole_host::{Host, ptrace};
use capriole_ledger::Kind;
use capriole_patch::attach::{Attached, Running};
use capriole_proc::process::Process;
use capriole_ring::layout::{Geometry, frame};
use capriole_ring::tables::TableReader;
use capriole_ring::{Packet, Reader};
use capriole_select::calls;
use capriole_select::definitions;
use capriole_select::event::Event;
use capriole_select::select::{self, Mode, Selected};
use capriole_tactic::site::{Refusal, Tactic};
use capriole_trace::Role;
use capriole_trace::clock::{Clock, Converter};
use capriole_trace::live::{LiveDecoder, LiveRecord};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Room for the keys of all tables, bytes.
const DIRECTORIES: u64 = 16 << 20;
/// Areas of slots for open calls: so many events may follow calls of the same function.
const AREAS: u32 = 4;
/// Number of sessions that this process has opened. A plain count: it publishes no other data.
static SESSIONS: AtomicU64 = AtomicU64::new(0);
/// Changes a program that cannot be stopped: whichever thread waits for us makes the calls.
const VOLUNTEER: Running = Running { tid: 0 };
/// Interval at which the clock is synchronised.
const SYNC: Duration = Duration::from_secs(1);

/// An event's sites and probes.
#[derive(Debug)]
struct Addition {
    selected: Vec<Selected>,
    /// Number of its first site.
    first: u32,
    /// Numbers of its probes in `Attached`.
    probes: Vec<usize>,
    /// Tables of its definitions, each with the events that have a probe.
    kept: Vec<(AggregateTable, Vec<usize>)>,
    /// Areas of slots that its calls have, a bit each.
    areas: u32,
    life: Life,
}

/// An addition with the sites of its events.
pub(super) struct Inserted {
    pub(super) added: Added,
    pub(super) placed: Vec<Placed>,
}

/// A site of an event.
pub(super) struct Placed {
    /// Index of the event.
    pub(super) definition: usize,
    /// The instruction before which the work is done: behind an `endbr64`.
    pub(super) instruction: Option<u64>,
    /// The reasons why it is not reached in other ways.
    pub(super) refusals: Vec<(Tactic, Refusal)>,
    /// The reason why no breakpoint may be there, if there is one.
    pub(super) no_breakpoint: Option<Refusal>,
    /// True if the patch can only be written while the program is stopped.
    pub(super) in_stops: bool,
    /// Number of its probe in `Attached`; `None` if it has none.
    pub(super) probe: Option<usize>,
    /// The reason why it has none.
    pub(super) reason: Option<String>,
}

/// How far an event has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// It is in the session.
    Added,
    /// It was removed. A thread may still be in a detour of its probes.
    Removed,
    /// No thread can do its work any more. Its records may not have been read yet.
    Over,
}

/// How records of one site are shown.
#[derive(Debug)]
struct Shown {
    event: EventId,
    name: Arc<str>,
    happened: Happened,
    fields: Vec<Arc<str>>,
}

/// Parts of a session that exist once its first probes are in.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) attached: Attached,
    pub(super) reader: Reader,
    tables: TableReader,
    pub(super) watch: Watch,
    /// True once the last records were read: nothing is written any more.
    drained: bool,
}

impl Active {
    /// Passes the packets with new records to `sink`; `ended`: nothing is written any more.
    fn collect<E>(
        &mut self,
        ended: bool,
        sink: impl FnMut(Packet<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let result = match ended {
            false => self.reader.collect_committed(sink),
            // Packets that were not full are delivered whole each time they are collected so.
            true if self.drained => Ok(0),
            true => self.reader.collect(true, sink),
        };
        self.drained |= ended;
        result.map(drop)
    }
}

/// The parts of a session.
pub(super) struct Inner {
    /// Number of this session in this process.
    number: u64,
    /// Its kind.
    pub(super) kind: Kind,
    pub(super) process: Process,
    /// Host by which the process is changed.
    pub(super) host: Arc<dyn Host>,
    /// The program, if the session has started it.
    child: Option<Child>,
    pub(super) options: Options,
    pub(super) clock: Clock,
    synced: Instant,
    pub(super) known: Known,
    pub(super) active: Option<Active>,
    /// The events that are in the session, and those removed ones whose work may not be over. By
    /// their numbers.
    additions: BTreeMap<usize, Addition>,
    /// The numbers of those that were removed, and whose work may not be over.
    removed: BTreeSet<usize>,
    /// The numbers of those whose work is over, and whose last records are still to be read.
    over: Vec<usize>,
    /// Number of events that were ever added.
    added: usize,
    pub(super) decoder: LiveDecoder,
    shown: HashMap<u32, Shown>,
    /// The trace that is being written, and the outcome of one that has ended by itself.
    pub(super) trace: Option<Traced>,
    pub(super) traced: Option<Result<Summary>>,
    /// Records that were read before a trace was begun.
    pub(super) unread: Vec<Record>,
    /// The shared maps, and the room that is taken by the tables of all additions.
    maps: Maps,
    /// Areas of slots that are taken, a bit each.
    areas: u32,
    /// The events of the last addition that failed which could not be written.
    pub(super) left_out: BTreeSet<usize>,
    /// Number of the next site.
    next: u32,
    ended: Option<Ended>,
}

impl Inner {
    pub(super) fn of(process: Process, child: Option<Child>, options: Options) -> Result<Inner> {
        Inner::by(ptrace::host(&process), Kind::Recorder, child, options)
    }

    /// As [`Inner::of`], of a process that is changed by this host.
    pub(super) fn by(
        host: Arc<dyn Host>,
        kind: Kind,
        child: Option<Child>,
        options: Options,
    ) -> Result<Inner> {
        let process = host.process().clone();
        let clock = match options::clock() {
            Ok(clock) => clock,
            Err(error) => {
                end(child);
                return Err(error);
            }
        };
        Ok(Inner {
            number: SESSIONS.fetch_add(1, Ordering::Relaxed),
            kind,
            process,
            host,
            child,
            options,
            clock,
            synced: Instant::now(),
            known: Known::default(),
            active: None,
            additions: BTreeMap::new(),
            removed: BTreeSet::new(),
            over: Vec::new(),
            added: 0,
            decoder: LiveDecoder::new(),
            shown: HashMap::new(),
            trace: None,
            traced: None,
            unread: Vec::new(),
            maps: Maps::default(),
            areas: 0,
            left_out: BTreeSet::new(),
            next: 0,
            ended: None,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Number of events that are in the session.
    pub(super) fn events(&self) -> usize {
        let all = self.additions.values();
        all.filter(|addition| addition.life == Life::Added).count()
    }

    pub(super) fn ended(&self) -> Option<Ended> {
        self.ended
    }

    pub(super) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    /// Kills a program that was launched and has not run yet.
    pub(super) fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
        }
    }

    /// Waits until a program that was killed is gone.
    pub(super) fn bury(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
    }

    pub(super) fn add(&mut self, event: &str) -> Result<Added> {
        let event = match definitions::timed(event)? {
            Some(timed) => timed,
            None => EventSpec::parse(event)?.into(),
        };
        self.insert(&[event])
    }

    pub(super) fn add_calls(&mut self, event: &str, least: Option<Duration>) -> Result<Added> {
        let least = least.map(|time| options::ticks(&self.clock, time));
        let calls = calls::graph(event, least.transpose()?)?;
        self.insert(&[calls])
    }

    pub(super) fn add_probes(&mut self, probes: &[Probe]) -> Result<Added> {
        if probes.is_empty() {
            return Err(err!(Unsuitable, "no probe is given"));
        }
        probes.iter().try_for_each(Probe::check)?;
        let events: Vec<Event> = probes.iter().cloned().map(Event::from).collect();
        self.insert(&events)
    }

    /// Inserts events with their probes, in their final form where that is possible.
    fn insert(&mut self, events: &[Event]) -> Result<Added> {
        let pace = match self.host.can_stop() {
            true => Pace::Paused,
            false => {
                self.begin()?;
                Pace::Running(VOLUNTEER.tid)
            }
        };
        let inserted = match pace {
            Pace::Paused => self.plan_and_insert(events, pace, &BTreeSet::new())?,
            _ => self.insert_somehow(events, pace)?,
        };
        Ok(inserted.added)
    }

    /// Attaches to the program without any probe, unless that is done.
    pub(super) fn begin(&mut self) -> Result<()> {
        if self.active.is_none() {
            self.plan_and_insert(&[], Pace::Paused, &BTreeSet::new())?;
        }
        Ok(())
    }

    /// Returns an error if the session has ended.
    pub(super) fn check_running(&self) -> Result<()> {
        match self.ended {
            Some(ended) => Err(err!(Vanished, "the session has ended: {}", ended.as_str())),
            None => Ok(()),
        }
    }

    /// Plans events that are to be added. The events with the indices `breakpoints` get breakpoints.
    pub(super) fn plan(
        &mut self,
        events: &[Event],
        breakpoints: &BTreeSet<usize>,
    ) -> Result<Planned> {
        self.check_running()?;
        self.give_back();
        let request = Request {
            entries: false,
            events,
            options: &self.options.probes,
            mode: Mode {
                returns: self.options.returns,
                first_id: self.next,
                areas: self.areas,
                addition: self.added as u32,
            },
            messages: false,
            keys: Keys {
                room: self.options.keys,
                summary: 0,
            },
            breakpoints: Some(breakpoints),
            clock: Some(&self.clock),
        };
        let objects = self.known.objects(&self.process)?;
        let of = (self.kind, self.active.is_none());
        Planned::of(objects, &self.process, &request, of, self.maps.clone())
    }

    /// Plans events, and inserts their probes: by an attach, in a pause, if they are the first. The
    /// events with the indices `breakpoints` get breakpoints.
    pub(super) fn plan_and_insert(
        &mut self,
        events: &[Event],
        pace: Pace,
        breakpoints: &BTreeSet<usize>,
    ) -> Result<Inserted> {
        let planned = self.plan(events, breakpoints)?;
        let (first, number) = (self.next, self.added);
        if !self.host.can_stop() {
            let more = planned.written_in_stops();
            if !more.is_subset(breakpoints) {
                self.left_out = more;
                return Err(err!(NotProbeable, "the program cannot be stopped"));
            }
        }
        let maps = planned.maps.clone();
        let room = self.options.counters;
        if maps.room.counters() > room || maps.room.directories() > DIRECTORIES {
            return Err(err!(
                Limit,
                "the tables of this session are full: it has room for {room} counters and \
                 {DIRECTORIES} bytes of keys"
            ));
        }
        if let Some(trace) = &self.trace {
            trace.check(&select::infos(planned.kept()))?;
        }
        let areas = select::areas(&planned.selected);
        if areas >> AREAS != 0 {
            return Err(err!(
                Limit,
                "this session pairs entries and exits of at most {AREAS} events; remove some"
            ));
        }
        let id = EventId {
            session: self.number,
            at: number,
        };
        let (selected, dropped, own, probes, probe_of) = match &mut self.active {
            None => {
                let buffer = self.options.buffer;
                let mut probed = planned.attach_by(&self.host, None, |journal| Geometry {
                    counters: room,
                    directories: DIRECTORIES,
                    ..Geometry::for_buffer(buffer, possible_cpus(), journal)
                        .with_frames(AREAS, frame::MOST_WORDS)
                })?;
                let probes = probed.probes();
                let watch = Watch::new(&mut probed, None);
                let Probed {
                    selected,
                    dropped,
                    own,
                    probe_of,
                    attached,
                    ..
                } = probed;
                let memory = &attached.memory;
                self.active = Some(Active {
                    reader: Reader::new(memory.memory.clone(), memory.geometry),
                    tables: TableReader::new(memory.memory.clone(), memory.geometry),
                    watch,
                    drained: false,
                    attached,
                });
                (selected, dropped, own, probes, probe_of)
            }
            Some(active) => match planned.add_to(&mut active.attached, pace) {
                Ok(more) => {
                    active.watch.add_names(more.names);
                    let More {
                        selected,
                        dropped,
                        own,
                        probes,
                        probe_of,
                        ..
                    } = more;
                    (selected, dropped, own, probes, probe_of)
                }
                Err(failed) => {
                    let NotAdded { error, more } = *failed;
                    let both = more.selected.iter().zip(&more.dropped);
                    let left_out = both.filter(|(_, dropped)| dropped.is_some());
                    self.left_out = left_out.map(|(event, _)| event.definition).collect();
                    // Some of its probes may have been in for a moment, and have used its room.
                    active.watch.add_names(more.names);
                    self.take(Addition {
                        kept: counted(more.own, &more.selected, &more.dropped),
                        selected: more.selected,
                        first,
                        probes: more.probes,
                        areas: 0,
                        life: Life::Removed,
                    });
                    self.maps = maps;
                    return Err(error);
                }
            },
        };
        let both = || selected.iter().zip(&dropped);
        let with_probe = || both().filter(|(_, d)| d.is_none()).map(|(event, _)| event);
        let infos = select::infos(with_probe());
        if let Some(trace) = &mut self.trace {
            trace.add(&infos);
        }
        for info in infos {
            let happened = match info.role {
                Role::Point => Happened::Hit,
                Role::Entry => Happened::Entry,
                Role::Return => Happened::Return,
                Role::TailCall => Happened::TailCall,
            };
            let fields = info.fields.iter().map(|field| Arc::from(&*field.name));
            let shown = Shown {
                event: id,
                name: Arc::from(&*info.name),
                happened,
                fields: fields.collect(),
            };
            self.shown.insert(info.id, shown);
            self.decoder.add(info);
        }
        let kept = counted(own, &selected, &dropped);
        let placed = both().zip(&probe_of);
        let placed = placed.map(|((event, dropped), probe)| Placed {
            definition: event.definition,
            probe: probe.filter(|_| dropped.is_none()),
            instruction: event.fate.plan().ok().map(|plan| plan.shape.site),
            refusals: event.refusals().to_vec(),
            no_breakpoint: event
                .fate
                .plan()
                .ok()
                .and_then(|plan| plan.breakpoint.err()),
            in_stops: event
                .fate
                .plan()
                .is_ok_and(|plan| plan.shape.placed.is_some()),
            reason: dropped.as_ref().map(ToString::to_string),
        });
        let placed = placed.collect();
        let added = Added {
            id,
            sites: with_probe().count(),
            refused: both()
                .filter_map(|(event, reason)| Some((event.name(), reason.as_ref()?.to_string())))
                .collect(),
        };
        self.maps = maps;
        self.take(Addition {
            selected,
            first,
            probes,
            kept,
            areas,
            life: Life::Added,
        });
        Ok(Inserted { added, placed })
    }

    /// Keeps an addition, whose numbers and areas are then taken.
    fn take(&mut self, addition: Addition) {
        self.next = addition.first + addition.selected.len() as u32;
        self.areas |= addition.areas;
        if addition.life == Life::Removed {
            self.removed.insert(self.added);
        }
        self.additions.insert(self.added, addition);
        self.added += 1;
    }

    /// Gives the tables of removed events back, if no thread can count in them any more.
    ///
    /// A thread that was in a detour when its probe was taken out counts there later, even after
    /// minutes if it gets no processor. In a table of another event that would be a wrong count, and
    /// a key in the middle of other keys. So the room is used again only once
    /// [`Attached::are_over`] has shown, with all threads stopped, that none is there and nothing
    /// leads there; and before that it is made zero, as the next table expects it. If it cannot be
    /// shown now, the next addition tries again.
    fn give_back(&mut self) {
        let Some(active) = &mut self.active else {
            return;
        };
        let removed = self.removed.iter();
        let removed = removed.filter_map(|number| self.additions.get(number));
        let probes: Vec<usize> = removed.flat_map(|a| a.probes.iter().copied()).collect();
        if self.removed.is_empty() || !active.attached.are_over(&probes).unwrap_or(false) {
            return;
        }
        for number in std::mem::take(&mut self.removed) {
            if let Some(addition) = self.additions.get_mut(&number) {
                addition.life = Life::Over;
                self.over.push(number);
                for (table, _) in addition.kept.drain(..) {
                    self.maps.give_back(&table, &active.tables);
                }
            }
        }
        let added = self.additions.values().filter(|a| a.life == Life::Added);
        let sites: Vec<&Selected> = added.flat_map(|addition| &addition.selected).collect();
        let used = |name: &str| sites.iter().any(|site| updates(&site.probe, name));
        self.maps.keep_shared(used, &active.tables);
    }

    /// Returns an event that is still in the session.
    fn at(&self, event: EventId) -> Result<&Addition> {
        self.check_running()?;
        let own = self.own(event);
        own.filter(|addition| addition.life == Life::Added)
            .ok_or_else(|| {
                err!(
                    NotFound,
                    "the event is not in this session: it was removed, or belongs to another session"
                )
            })
    }

    fn own(&self, event: EventId) -> Option<&Addition> {
        let addition = self.additions.get(&event.at);
        addition.filter(|_| event.session == self.number)
    }

    pub(super) fn disable(&mut self, event: EventId) -> Result<()> {
        let probes = self.at(event)?.probes.clone();
        if let Some(active) = &mut self.active {
            match self.host.can_stop() {
                true => active.attached.disarm(&probes)?,
                false => active.attached.disarm_running(&probes, &VOLUNTEER)?,
            };
        }
        Ok(())
    }

    pub(super) fn enable(&mut self, event: EventId) -> Result<Vec<(String, String)>> {
        let probes = self.at(event)?.probes.clone();
        let Some(active) = &mut self.active else {
            return Ok(Vec::new());
        };
        let refused = match self.host.can_stop() {
            true => active.attached.arm(&probes)?,
            false => active.attached.arm_running(&probes, &VOLUNTEER)?,
        };
        let name = |probe: usize| active.watch.name(probe).to_owned();
        let refused = refused.into_iter();
        Ok(refused
            .map(|(probe, reason)| (name(probe), reason.to_string()))
            .collect())
    }

    /// Takes an event out for good. Its areas of slots are free at once: calls that it has left
    /// open, and those that a late thread still begins, are marked with the number of its addition,
    /// so no other event takes them for its own (see [`slots::number`](capriole_select::slots::number)).
    pub(super) fn remove(&mut self, event: EventId) -> Result<()> {
        self.disable(event)?;
        if let Some(addition) = self.additions.get_mut(&event.at) {
            addition.life = Life::Removed;
            self.removed.insert(event.at);
            self.areas &= !addition.areas;
        }
        Ok(())
    }

    pub(super) fn read(&mut self) -> Result<Vec<Record>> {
        let Some(active) = &mut self.active else {
            if self.ended.is_none() && self.process.is_over() {
                self.ended = Some(Ended::Exited);
            }
            self.end_trace_if_over();
            return Ok(std::mem::take(&mut self.unread));
        };
        if self.ended.is_none() {
            self.ended = active.watch.ended(&mut active.attached, &mut Silent);
            let notices = active.watch.notices(&mut Silent);
            if let Some(trace) = &mut self.trace {
                trace.warn(notices);
            }
            if matches!(self.ended, Some(Ended::NoClock | Ended::ThreadPointer)) {
                // A thread of the program waits for that, for some seconds.
                let _ = crate::plan::detach(&active.attached, Attached::detach);
            }
        }
        if self.synced.elapsed() >= SYNC {
            self.clock.sync()?;
            self.synced = Instant::now();
        }
        let mut records = std::mem::take(&mut self.unread);
        let ended = self.ended.is_some();
        if let Some(trace) = &mut self.trace {
            let recording = &mut trace.recording;
            let written = active.collect(ended, |packet| recording.write(&packet));
            trace.mind(written, active, &self.clock);
            self.end_trace_if_over();
            self.forget_over();
            return Ok(records);
        }
        let mut clock = Converter::new(&self.clock.model()?)?;
        let (shown, decoder) = (&self.shown, &mut self.decoder);
        let mut packet = |packet: Packet<'_>| {
            let cpu = packet.cpu;
            decoder.packet(packet.content, |record: LiveRecord<'_>| {
                let Some(known) = shown.get(&record.info.id) else {
                    return;
                };
                let values = record.fields().map(crate::value::Value::from);
                records.push(Record {
                    event: known.event,
                    name: Arc::clone(&known.name),
                    happened: known.happened,
                    time_ns: clock.monotonic_ns(record.tsc),
                    tid: record.tid,
                    cpu,
                    fields: known.fields.iter().cloned().zip(values).collect(),
                });
            });
            Ok::<(), Infallible>(())
        };
        let Ok(()) = active.collect(ended, &mut packet);
        self.forget_over();
        records.sort_by_key(|record| record.time_ns);
        Ok(records)
    }

    /// Forgets the events whose work is over: their last records were just read.
    fn forget_over(&mut self) {
        for number in self.over.drain(..) {
            let over = self.additions.remove(&number);
            for event in over.iter().flat_map(|addition| &addition.selected) {
                self.shown.remove(&event.id);
                self.decoder.remove(event.id);
            }
        }
    }

    pub(super) fn wait(&mut self, limit: Duration) {
        match &mut self.active {
            Some(active) => {
                let pause = active.watch.pause(&active.attached, limit);
                active.reader.wait(pause);
            }
            None => std::thread::sleep(limit),
        }
    }

    pub(super) fn rows(&self, event: EventId) -> Vec<Group> {
        let (Some(active), Some(addition)) = (&self.active, self.own(event)) else {
            return Vec::new();
        };
        let sites = (&*addition.selected, addition.first);
        let kept = addition.kept.iter();
        kept.map(|(kept, events)| kept.read(&active.tables, sites, events))
            .collect()
    }

    pub(super) fn map(&self, name: &str) -> Option<Group> {
        let active = self.active.as_ref()?;
        Some(self.maps.shared(name)?.read_shared(&active.tables))
    }

    pub(super) fn name(&self, site: usize) -> Option<Arc<str>> {
        let shown = self.shown.get(&u32::try_from(site).ok()?);
        shown.map(|shown| Arc::clone(&shown.name))
    }

    pub(super) fn lost(&self) -> u64 {
        let active = self.active.as_ref();
        active.map_or(0, |active| active.reader.lost())
    }

    pub(super) fn detach(&mut self) -> Result<Vec<Record>> {
        if let Some(active) = &self.active {
            crate::plan::detach(&active.attached, Attached::detach)?;
        }
        self.ended.get_or_insert(Ended::Requested);
        let records = self.read();
        self.end_trace_if_over();
        self.active = None;
        records
    }
}

/// Ends a program that was started.
fn end(child: Option<Child>) {
    if let Some(mut child) = child {
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.trace.is_some() {
            // Nobody is left who could be told.
            let _ = self.end_trace();
        }
        if let Some(active) = &self.active
            && active.attached.process().is_alive()
        {
            // Nobody is left who could be told.
            let _ = crate::plan::detach(&active.attached, Attached::detach);
        }
        // A program that has ended already must not stay as a zombie.
        self.exit_status();
    }
}
