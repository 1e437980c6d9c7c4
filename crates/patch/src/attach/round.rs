//! Writing the sites, in several rounds if threads occupy some of them.
//!
//! ```text
//! before     55 48 89 e5 41 57      a thread is at, or will return to, the 48
//! stand-in   cc 48 89 e5 41 57      the breakpoint leads to the same detour
//! jump       e9 xx xx xx xx 57      once no thread is inside any more
//! ```
//!
//! While sites are written, a thread to which a fault is about to be delivered stays where it
//! is. A site whose first instruction a signal frame points to waits until that handler has
//! returned. A signal frame on an alternate stack that no thread is on is left over from a
//! handler that has returned (Go's signal stacks are full of them), and does not count.

use super::code::{Code, Made, Traps};
use super::places::{Asked, AskedProbe};
use super::{Attached, Probe, Site, SiteError, SiteState};
use crate::cover::{self, Ready};
use crate::detach::sigtrap_pending;
use crate::guards::Guarded;
use crate::installed::Installed;
use crate::other::{Other, Owner};
use crate::patch::Batch;
use crate::recover::Kept;
use crate::session::{Agent, write};
use capriole_host::error::TargetError;
use capriole_host::host::{StoppedThread, StoppedThreads, TargetMemory};
use capriole_host::stacks;
use capriole_host::steps::step;
use capriole_host::survey::is_pending;
use capriole_insn::liveness::RegSet;
use capriole_ledger as ledger;
use capriole_ledger::change::{Change, Found};
use capriole_ledger::counter::{Reference, ReferenceCounter};
use capriole_ledger::{FAULTS, Kind, Ledger};
use capriole_proc::maps::{Mapping, as_made};
use capriole_proc::process::Seccomp;
use capriole_tactic::site::Shape;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::time::Duration;

/// Time for which the program runs between two stops in which pages are covered.
const BETWEEN_STOPS: Duration = Duration::from_millis(1);

/// Policy for a site whose bytes are occupied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Occupied {
    /// Leave the site as it is.
    Wait,
    /// Put a breakpoint at its first byte.
    StandIn,
    /// Leave this site and all others except guards as they are.
    GuardsOnly,
}

/// A compiled patch of a site, and its state. A site whose probes were added one after the other,
/// or are armed one without the other, has several, of which one at most is written at a time.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) shape: Shape,
    pub(super) stand_in: bool,
    pub(super) counters: Vec<ReferenceCounter>,
    /// Index of the site whose jump is part of this one's jump; `Some(None)` if that site is
    /// missing.
    pub(super) builds_on: Option<Option<usize>>,
    pub(super) made: Result<Made, SiteError>,
    pub(super) state: SiteState,
    /// Number of the ledger whose journal has room for its changes.
    pub(super) part: usize,
    /// True while its breakpoint is not to be replaced by the jump.
    pub(super) held: bool,
    /// True once its changes are in the journal.
    pub(super) journalled: bool,
    /// Entry of the same site that this one replaces when it is written.
    pub(super) from: Option<usize>,
    /// Its place; `None` for a guard.
    pub(super) place: Option<usize>,
    /// The requested probes whose work it does.
    pub(super) members: Vec<usize>,
    /// Registers that it keeps at each of its points.
    pub(super) kept: Vec<(u64, RegSet)>,
}

impl Entry {
    /// Makes the entry of a compiled probe, not to be written yet.
    pub(super) fn new(probe: &Probe, made: Result<Made, SiteError>) -> Entry {
        Entry {
            shape: probe.shape.clone(),
            stand_in: probe.stand_in,
            counters: probe.counters.clone(),
            builds_on: None,
            made,
            state: SiteState::Disarmed,
            part: 0,
            held: false,
            journalled: false,
            from: None,
            place: None,
            members: Vec::new(),
            kept: probe.points.iter().map(|p| (p.site, p.live.gprs)).collect(),
        }
    }

    /// Returns its changes; none if it was refused.
    pub(super) fn changes(&self) -> &[Change] {
        let made = self.made.as_ref();
        made.map_or(&[], |made| &made.changes)
    }

    /// True if it is in the program, or waits for that.
    pub(super) fn is_in(&self) -> bool {
        self.is_written() || self.state == SiteState::Waiting
    }

    /// True if its bytes, or a breakpoint that stands in for them, are in the program.
    pub(super) fn is_written(&self) -> bool {
        matches!(self.state, SiteState::Final | SiteState::StandIn)
    }
}

/// A ledger of the session.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) ledger: Ledger,
    /// Number of journal entries.
    pub(super) len: usize,
    /// Number of journal entries that are there or will be.
    pub(super) promised: usize,
    /// Number of memfds that stubs were mapped from.
    pub(super) stubs: usize,
    /// Number of arenas.
    pub(super) arenas: usize,
}

/// A reference counter of some probes.
#[derive(Debug)]
struct Counted {
    reference: Reference,
    journalled: bool,
    raised: bool,
}

/// The probes of a session.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) entries: Vec<Entry>,
    /// Indices of the sites still to be written.
    pub(super) waiting: BTreeSet<usize>,
    /// Indices of written entries that the next write takes out.
    pub(super) leaving: Vec<usize>,
    /// Entries that the last write could not arm again.
    pub(super) failed: Vec<(usize, SiteError)>,
    pub(super) code: Code,
    /// The session's ledgers; the first is that of the attach.
    pub(super) parts: Vec<Part>,
    /// The requested probes, in the order of the outcomes, and their places.
    pub(super) asked: Asked,
    counted: Vec<Counted>,
    /// True if threads blocked or ignored SIGTRAP when stand-ins were needed.
    pub(super) traps_refused: bool,
    /// The guards among the entries; no site may be written without them.
    pub(super) guarded: Guarded,
    neighbours: Neighbours,
    /// Changes of earlier sessions whose code the program may still call.
    pub(super) kept: Kept,
}

/// Returns an error if the other session claims bytes of a change.
pub(super) fn claimed(other: Option<&Other>, change: &Change) -> Option<SiteError> {
    let other = other.filter(|other| other.claims_any(change.claim()));
    other.map(|other| SiteError::Claimed(other.owner))
}

/// Returns an error if code of an earlier session of a program that probes itself may go on in a change.
pub(super) fn in_use(kept: &Kept, change: &Change) -> Option<SiteError> {
    let owner = Owner {
        kind: Kind::Library,
        tracer: None,
    };
    kept.goes_on_in(change).then_some(SiteError::Claimed(owner))
}

/// The entries whose jumps others may build on, and those that do.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    /// The last entry that writes at an address, and the bytes.
    writes: HashMap<u64, (usize, Vec<u8>)>,
    /// Entries that build on others.
    building: Vec<usize>,
}

impl Neighbours {
    /// Sets [`Entry::builds_on`] of the entries from `first` on, which are new. Computed before the
    /// process is stopped.
    fn find(&mut self, entries: &mut [Entry], first: usize) {
        for (index, entry) in entries.iter().enumerate().skip(first) {
            for write in entry.shape.placed.iter().flat_map(|placed| &placed.writes) {
                self.writes
                    .insert(write.address, (index, write.after.clone()));
            }
        }
        for (index, entry) in entries.iter_mut().enumerate().skip(first) {
            let placed = entry.shape.placed.as_ref();
            entry.builds_on = placed.and_then(|placed| {
                let (at, bytes) = placed.builds_on.as_ref()?;
                let found = self.writes.get(at);
                let found = found.filter(|(_, after)| after.starts_with(bytes));
                Some(found.map(|(index, _)| *index))
            });
            if entry.builds_on.flatten().is_some() {
                self.building.push(index);
            }
        }
    }
}

impl Round {
    pub(super) fn new(
        probes: &[Probe],
        mut code: Code,
        guarded: Guarded,
        (ledger, arenas): (Ledger, usize),
        kept: Kept,
    ) -> Round {
        let made = std::mem::take(&mut code.made);
        let made = made.into_iter().zip(probes);
        let entries: Vec<Entry> = made
            .map(|(made, probe)| Entry {
                state: SiteState::Waiting,
                ..Entry::new(probe, made)
            })
            .collect();
        let waiting = (0..entries.len()).filter(|i| entries[*i].made.is_ok());
        let mut round = Round {
            waiting: waiting.collect(),
            leaving: Vec::new(),
            failed: Vec::new(),
            entries,
            code,
            // All room is promised to the probes of the attach.
            parts: vec![Part {
                ledger,
                len: 0,
                promised: ledger.room(),
                stubs: 1,
                arenas,
            }],
            asked: Asked::default(),
            counted: Vec::new(),
            traps_refused: false,
            guarded,
            neighbours: Neighbours::default(),
            kept,
        };
        round.find_neighbours(0);
        round
    }

    /// Finds out on which others the entries from `first` on build, which are new.
    pub(super) fn find_neighbours(&mut self, first: usize) {
        self.neighbours.find(&mut self.entries, first);
    }

    /// Returns the entries that build on others, and these.
    pub(super) fn building(&self) -> impl Iterator<Item = (&Entry, &Entry)> {
        let building = self.neighbours.building.iter();
        building.filter_map(|index| {
            let entry = &self.entries[*index];
            Some((entry, &self.entries[entry.builds_on.flatten()?]))
        })
    }

    /// Returns the entry that is at the site of `index` now, or will be next.
    pub(super) fn current(&self, index: usize) -> usize {
        let place = self.entries[index].place;
        let current = place.and_then(|place| self.asked.places[place].current);
        current.unwrap_or(index)
    }

    /// Returns the changes of all entries of the place of `index`: a forked child may still have an
    /// earlier one than the program.
    pub(super) fn changes_at(&self, index: usize) -> impl Iterator<Item = &Change> {
        let place = self.entries[index].place;
        let variants = place.map_or(&[][..], |place| &self.asked.places[place].variants);
        let others = variants
            .iter()
            .copied()
            .filter(move |other| *other != index);
        let all = others.chain([index]);
        all.flat_map(|index| self.entries[index].changes())
    }

    /// True if the jump of the site of `index` is in the program.
    fn has_jump(&self, index: usize) -> bool {
        let current = &self.entries[self.current(index)];
        let is_final = |entry: &Entry| entry.state == SiteState::Final;
        is_final(current)
            || current
                .from
                .is_some_and(|from| is_final(&self.entries[from]))
    }

    /// True if a breakpoint could stand in for a jump now.
    pub(super) fn wants_stand_ins(&self) -> bool {
        !self.traps_refused
            && self.waiting.iter().any(|index| {
                let entry = &self.entries[*index];
                entry.stand_in && entry.state == SiteState::Waiting
            })
    }

    /// Returns the outcome of a requested probe.
    fn outcome(&self, probe: &AskedProbe) -> Result<Site, SiteError> {
        let place = &self.asked.places[probe.place.clone()?];
        let entry = &self.entries[place.current.ok_or(SiteError::Occupied)?];
        let made = entry.made.as_ref().map_err(Clone::clone)?;
        Ok(Site {
            address: entry.shape.covered.start,
            detour: made.detour.entry(),
            detour_size: made.detour.size(),
            tactic: entry.shape.tactic,
            state: match probe.armed {
                true => entry.state,
                false => SiteState::Disarmed,
            },
        })
    }

    /// Notes why an entry was not written. One that was armed before can be armed again later.
    pub(super) fn fail(&mut self, index: usize, error: SiteError) {
        let entry = &mut self.entries[index];
        let from = entry.from.take();
        if entry.journalled || from.is_some() {
            entry.state = SiteState::Disarmed;
            // The entry that it would have replaced stays.
            if let (Some(from), Some(place)) = (from, entry.place) {
                self.asked.places[place].current = Some(from);
                let waits = self.entries[from].state == SiteState::StandIn;
                if waits {
                    self.waiting.insert(from);
                }
            }
            self.failed.push((index, error));
        } else {
            entry.made = Err(error);
        }
    }

    /// Drops sites whose bytes are not as expected.
    fn verify(&mut self, batch: &mut Batch<'_>) {
        let entries = &self.entries;
        let mut unexpected = Vec::new();
        let is_as_expected = |index: &usize| {
            let entry = &entries[*index];
            let Ok(made) = &entry.made else { return false };
            if entry.held {
                return true; // not written now
            }
            // An entry that is replaced has the same shape, so it changes the same bytes.
            let written = entry.from.map(|from| &entries[from]);
            let written = written.filter(|written| written.is_written());
            let before = written.unwrap_or(entry);
            let expected = match before.state {
                SiteState::Final => Found::After,
                SiteState::StandIn => Found::Between,
                SiteState::Waiting | SiteState::TakenOut | SiteState::Disarmed => Found::Before,
            };
            let changes = before.made.as_ref().map_or(&made.changes, |b| &b.changes);
            // A jump that is in place was written when these bytes were as they have to be.
            let relies = expected != Found::After;
            let mut relied = entry.shape.placed.iter().flat_map(|p| &p.relies_on);
            let is_as_expected = changes.iter().all(|c| batch.inspect(c) == expected)
                && (!relies || relied.all(|(at, bytes)| batch.holds(*at, bytes)));
            // An installed stand-in is in the journal and leads to its detour.
            if !is_as_expected && entry.state != SiteState::StandIn {
                unexpected.push(*index);
            }
            is_as_expected
        };
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(is_as_expected);
        self.waiting = waiting;
        for index in unexpected {
            let changes = self.entries[index].made.as_ref().map(|made| &made.changes);
            let is_mapped = |change: &Change| batch.is_mapped(change);
            let error = match changes.is_ok_and(|changes| changes.iter().all(is_mapped)) {
                true => SiteError::Modified,
                false => SiteError::Unmapped,
            };
            self.fail(index, error);
        }
    }

    /// Drops sites that are to be written where code of an earlier session may go on.
    fn verify_kept(&mut self) {
        let error = |index: &usize| {
            let mut changes = self.entries[*index].changes().iter();
            Some((
                *index,
                changes.find_map(|change| in_use(&self.kept, change))?,
            ))
        };
        let refused: Vec<(usize, SiteError)> = self.waiting.iter().filter_map(error).collect();
        for (index, error) in refused {
            self.fail(index, error);
            self.waiting.remove(&index);
        }
    }

    /// Drops sites that are to be written where the other session claims bytes.
    fn verify_claims(&mut self, other: &Other) {
        let mut claims = Vec::new();
        for index in &self.waiting {
            let entry = &self.entries[*index];
            // What is in the program was claimed before the other session could claim it.
            let is_in = entry.from.is_some() || entry.is_written();
            let mut errors = entry.changes().iter();
            let error = errors.find_map(|change| claimed(Some(other), change));
            if let (false, Some(error)) = (is_in, error) {
                claims.push((*index, error));
            }
        }
        for (index, error) in claims {
            self.fail(index, error);
            self.waiting.remove(&index);
        }
    }

    /// Drops sites that build on dropped ones.
    fn verify_neighbours(&mut self) {
        let entries = &self.entries;
        let missing = |index: &usize| {
            let reason = match entries[*index].builds_on? {
                Some(on) => match &entries[self.current(on)] {
                    Entry {
                        made: Err(error), ..
                    } => error.to_string(),
                    Entry {
                        state: SiteState::Disarmed,
                        ..
                    } => "it is disarmed".to_owned(),
                    Entry { .. } => return None,
                },
                None => "it was not asked for".to_owned(),
            };
            Some((*index, SiteError::Neighbour(reason)))
        };
        let missing: Vec<_> = self.waiting.iter().filter_map(missing).collect();
        for (index, error) in missing {
            self.fail(index, error);
            self.waiting.remove(&index);
        }
    }

    /// Returns the occupied sites, and the threads that can be moved from inside a site to the
    /// copies of its instructions: (index of the thread, new address, site).
    fn occupied(
        &self,
        stopped: &dyn StoppedThreads,
        remote: &dyn TargetMemory,
        maps: &[Mapping],
    ) -> (BTreeSet<usize>, Vec<(usize, u64, usize)>) {
        let entries = &self.entries;
        // Nobody is inside a jump that is in place, and the next one covers the same bytes.
        let has_jump = |index: &usize| {
            let from = entries[*index].from;
            from.is_some_and(|from| entries[from].state == SiteState::Final)
        };
        let ranges = self
            .waiting
            .iter()
            .filter(|index| !has_jump(index))
            .filter_map(|index| Some((entries[*index].shape.occupiable()?, *index)));
        let mut ranges: Vec<(Range<u64>, usize)> = ranges.collect();
        ranges.sort_by_key(|(range, _)| range.start);
        // Most words lead nowhere near: comparing with the ends shortens the pause.
        let start = ranges.first().map_or(0, |(range, _)| range.start);
        let end = ranges.last().map_or(0, |(range, _)| range.end);
        let find = |address: u64| -> Option<usize> {
            if address < start || address >= end {
                return None;
            }
            let at = ranges.partition_point(|(range, _)| range.end <= address);
            ranges
                .get(at)
                .filter(|(range, _)| range.contains(&address))
                .map(|(_, index)| *index)
        };
        let stands = |entry: &Entry| entry.state == SiteState::StandIn;
        let stands_in = |index: usize| {
            let entry = &entries[index];
            stands(entry) || entry.from.is_some_and(|from| stands(&entries[from]))
        };
        let behind_first = |index: usize| entries[index].shape.covered.start + 1;
        let mut occupied = BTreeSet::new();
        // Number of words that lead into a site.
        let mut words: HashMap<usize, i64> = HashMap::new();
        if !ranges.is_empty() {
            // Any word counts: it may be a return address, the program counter of a signal frame or
            // of a preempted goroutine, or equal such an address by chance.
            stacks::scan(stopped, remote, maps, |word| {
                if let Some(index) = find(word.value)
                    && entries[index].shape.excludes_returns()
                {
                    *words.entry(index).or_default() += 1;
                }
                // The handler of SIGTRAP has been called for the breakpoint that stands in at the site,
                // and will lead the thread from there to the detour.
                if let Some(rip) = word.saved_rip
                    && let Some(index) = find(rip)
                    && rip == behind_first(index)
                    && entries[index].shape.excludes_returns()
                    && stands_in(index)
                    && word.is_of_breakpoint(remote)
                {
                    *words.entry(index).or_default() -= 1;
                }
                // The first instruction has faulted, and the handler may step over it.
                if let Some(rip) = word.saved_rip
                    && let Some(index) = find(rip.wrapping_add(1))
                    && let Ok(signal) = remote.read_u32(word.signal_at())
                    && FAULTS.contains(&(signal as i32))
                {
                    occupied.insert(index);
                }
            });
        }
        let lead_in = words.into_iter().filter(|(_, count)| *count != 0);
        occupied.extend(lead_in.map(|(index, _)| index));
        let mut moves = Vec::new();
        for (at, thread) in stopped.threads().iter().enumerate() {
            let rip = thread.pc();
            let Some(index) = find(rip).or_else(|| find(rip.wrapping_add(1))) else {
                continue;
            };
            let entry = &entries[index];
            let Ok(made) = &entry.made else { continue };
            // A fault of an instruction there is about to be delivered to the program.
            if FAULTS.contains(&thread.signal) || is_pending(thread.tid, &FAULTS) {
                occupied.insert(index);
                continue;
            }
            if find(rip).is_none() {
                continue; // at the start
            }
            // The thread may have hit the breakpoint that stands in here. Its handler finds the site in
            // its table as long as the session is there, whatever is at the site by then, and leads the
            // thread to the detour: it is left where it is, and nothing is executed there any more.
            if stands_in(index) && rip == behind_first(index) {
                if stopped.has_hit_breakpoint(at) {
                    continue;
                }
                // A process has sent it the signal.
                if thread.signal == libc::SIGTRAP || sigtrap_pending(thread.tid) {
                    occupied.insert(index);
                    continue;
                }
            }
            let copy = made.detour.goes_on(rip);
            match copy.or(entry.shape.past_nops()) {
                Some(new) => moves.push((at, new, index)),
                None => {
                    occupied.insert(index);
                }
            }
        }
        (occupied, moves)
    }

    /// Writes the waiting sites while the process is stopped. Returns `false`, and writes nothing,
    /// if that would leave a guard out.
    fn write(
        &mut self,
        stopped: &mut dyn StoppedThreads,
        remote: &dyn TargetMemory,
        maps: &[Mapping],
        installed: &mut Installed,
        policy: Occupied,
    ) -> Result<bool, TargetError> {
        let pid = stopped.pid();
        let mut batch = Batch::new(pid, remote);
        // No thread of the program maps anything meanwhile, so no session can begin or end.
        let kind = installed.ledger.kind;
        let other = || Other::among(pid, maps, remote, kind);
        self.verify(&mut batch);
        self.verify_kept();
        if let Some(other) = other()? {
            self.verify_claims(&other);
        }
        self.verify_neighbours();
        let (mut occupied, moves) = self.occupied(stopped, remote, maps);
        // A site that builds on another site's jump waits for that jump.
        let waits = |index: &usize| {
            let on = self.entries[*index].builds_on??;
            let now = self.current(on);
            let ready =
                self.has_jump(on) || self.waiting.contains(&now) && !occupied.contains(&now);
            (!ready).then_some(*index)
        };
        let waits: Vec<usize> = self.waiting.iter().filter_map(waits).collect();
        occupied.extend(waits);
        let held = |index: &&usize| self.entries[**index].held;
        occupied.extend(self.waiting.iter().filter(held));
        let is_turn = |index: &&usize| {
            let guards_only = policy == Occupied::GuardsOnly;
            !occupied.contains(index) && (!guards_only || self.guarded.guards.contains(index))
        };
        let (mut ready, later): (Vec<usize>, Vec<usize>) = self.waiting.iter().partition(is_turn);
        let entries = &self.entries;
        let stands =
            |i: &usize| entries[*i].state == SiteState::Final || ready.binary_search(i).is_ok();
        if !self.guarded.guards.iter().all(stands) {
            return Ok(false);
        }
        let mut stand_ins: Vec<usize> = later
            .iter()
            .copied()
            .filter(|index| {
                let entry = &self.entries[*index];
                policy == Occupied::StandIn && entry.stand_in && entry.state == SiteState::Waiting
            })
            .collect();
        let mut arriving: Vec<usize> = ready.iter().chain(&stand_ins).copied().collect();
        self.lower(pid, remote, maps, &arriving)?;
        self.take_out(&mut batch)?;
        self.note_in_journal(remote, &arriving, installed)?;
        step("journal written");
        // A tracer that cannot stop threads writes breakpoints all the same.
        if let Some(other) = other()? {
            let waiting = self.waiting.len();
            self.verify_claims(&other);
            if self.waiting.len() != waiting {
                let is_left = |index: &usize| self.waiting.contains(index);
                ready.retain(is_left);
                stand_ins.retain(is_left);
                arriving.retain(is_left);
                let guards = self.guarded.guards.iter();
                let failed = |index: &usize| self.entries[*index].state == SiteState::Disarmed;
                if guards.copied().any(|index| failed(&index)) {
                    return Ok(false);
                }
            }
        }
        self.lead_stubs(pid, remote, &arriving)?;
        // Threads first: a copy in a detour behaves like the original with or without the jump in
        // place, but the middle of a written jump is not code.
        for (at, new, index) in moves {
            if ready.binary_search(&index).is_ok() {
                stopped.move_to(at, new)?;
                step("thread moved");
            }
        }
        let changes = |index: &usize| self.entries[*index].changes();
        let last = ready.iter().flat_map(changes).map(|c| c.phase).max();
        let phases = (0..=last.unwrap_or(0)).map(|phase| (false, phase));
        for rank in std::iter::once((true, 0)).chain(phases) {
            let all = ready
                .iter()
                .flat_map(|i| changes(i).iter().map(move |c| (*i, c)));
            for (index, change) in all.filter(|(_, c)| (c.guard, c.phase) == rank) {
                match self.replaced(index, change) {
                    // The bytes are prescribed: only where the stubs lead has changed.
                    Some(old) if old.after == change.after => continue,
                    // Half of one jump and half of the other would be bytes of neither: whoever takes
                    // the probes out after our death would leave them alone.
                    Some(old) if old.crosses_pages() => batch.revert(old)?,
                    _ => {}
                }
                batch.apply(change)?;
            }
            batch.write()?;
            step("sites of a phase written");
        }
        for change in stand_ins.iter().flat_map(changes) {
            batch.stand_in(change)?;
        }
        batch.write()?;
        step("all sites written");
        for index in &arriving {
            if let Some(from) = self.entries[*index].from.take() {
                self.entries[from].state = SiteState::Disarmed;
            }
        }
        for index in ready {
            self.entries[index].state = SiteState::Final;
        }
        for index in stand_ins {
            self.entries[index].state = SiteState::StandIn;
        }
        self.waiting = later.into_iter().collect();
        if policy != Occupied::GuardsOnly {
            self.raise(pid, remote, maps, installed)?;
        }
        Ok(true)
    }

    /// Writes the changes of entries that are not in the journal yet into it, those of one ledger at
    /// once: every thread may be stopped meanwhile.
    pub(super) fn note_in_journal(
        &mut self,
        remote: &dyn TargetMemory,
        entries: &[usize],
        installed: &mut Installed,
    ) -> Result<(), TargetError> {
        for number in 0..self.parts.len() {
            let own = entries.iter().map(|i| &self.entries[*i]);
            let own = own.filter(|entry| !entry.journalled && entry.part == number);
            let new: Vec<Change> = own.flat_map(Entry::changes).copied().collect();
            let journal: Vec<ledger::Entry> =
                new.iter().copied().map(ledger::Entry::Change).collect();
            let part = &mut self.parts[number];
            part.ledger.append(remote, part.len, &journal)?;
            part.len += journal.len();
            installed.changes.extend(new);
        }
        for index in entries {
            self.entries[*index].journalled = true;
        }
        Ok(())
    }

    /// Returns the change that is in the program where `change`, of entry `index`, is to be written.
    fn replaced(&self, index: usize, change: &Change) -> Option<&Change> {
        let from = &self.entries[self.entries[index].from?];
        let is_in = from.state == SiteState::Final;
        let mut changes = from.changes().iter().filter(|_| is_in);
        changes.find(|old| old.address == change.address)
    }

    /// Takes the [leaving](Self::leaving) entries out, as a detach does: the jumps that build on
    /// others first. The detours, the stubs and the tables of breakpoints stay, so a thread that is
    /// in a detour, or has hit a breakpoint, goes on as always; and no thread is inside the bytes
    /// that change, since a jump, a breakpoint or the start of an instruction is all that any thread
    /// could reach there. After each write the program runs correctly, and the journal leads back to
    /// its own bytes.
    fn take_out(&mut self, batch: &mut Batch<'_>) -> Result<(), TargetError> {
        let leaving = std::mem::take(&mut self.leaving);
        if leaving.is_empty() {
            return Ok(());
        }
        let entries = leaving.iter().map(|index| &self.entries[*index]);
        let changes: Vec<&Change> = entries.flat_map(Entry::changes).collect();
        let last = changes.iter().map(|c| c.phase).max().unwrap_or(0);
        for phase in (0..=last).rev() {
            for change in changes.iter().filter(|change| change.phase == phase) {
                match batch.inspect(change) {
                    Found::Before | Found::Foreign => {}
                    Found::After | Found::Between => batch.revert(change)?,
                    // Another tool has written there: see `beside`.
                    Found::Disturbed => drop(batch.take_back(change)),
                }
            }
            batch.write()?;
            step("probes of a phase disarmed");
        }
        for index in leaving {
            self.entries[index].state = SiteState::Disarmed;
        }
        Ok(())
    }

    /// Lets the stubs of entries lead to these entries' detours, where other entries of their sites
    /// have used the same stubs.
    ///
    /// A stub's address is prescribed by the program's bytes, so all entries of a site share it. It
    /// is a single jump, so no thread is inside it; one that is at its start takes the new way, which
    /// is as good as the old. It lies in one page ([`Asked::can_switch`]), so it is written as a whole
    /// or not at all; both ways lead to a detour that stays mapped.
    fn lead_stubs(
        &self,
        pid: i32,
        remote: &dyn TargetMemory,
        arriving: &[usize],
    ) -> Result<(), TargetError> {
        for index in arriving {
            let entry = &self.entries[*index];
            let has_others = |place: usize| self.asked.places[place].variants.len() > 1;
            let Ok(made) = &entry.made else { continue };
            if !entry.place.is_some_and(has_others) {
                continue;
            }
            for (address, bytes) in made.stubs() {
                write(pid, remote, *address, bytes)?;
                step("stub led to another detour");
            }
        }
        Ok(())
    }

    /// Returns the addresses of the reference counters of the probes that are written, or are going
    /// to be.
    fn wanted(&self, is_wanted: impl Fn(usize, &Entry) -> bool) -> BTreeSet<u64> {
        let entries = self.entries.iter().enumerate();
        let probed = entries.filter(|(index, entry)| {
            entry.made.is_ok() && entry.is_in() && is_wanted(*index, entry)
        });
        let counters = probed.flat_map(|(_, entry)| &entry.counters);
        counters.map(|counter| counter.address).collect()
    }

    /// Decrements the reference counters that no probe needs once the leaving ones are out, and the
    /// arriving ones have replaced others.
    fn lower(
        &mut self,
        pid: i32,
        remote: &dyn TargetMemory,
        maps: &[Mapping],
        arriving: &[usize],
    ) -> Result<(), TargetError> {
        if !self.counted.iter().any(|counted| counted.raised) {
            return Ok(());
        }
        let replaced: BTreeSet<usize> = arriving
            .iter()
            .filter_map(|index| self.entries[*index].from)
            .collect();
        let wanted =
            self.wanted(|index, _| !self.leaving.contains(&index) && !replaced.contains(&index));
        for counted in &mut self.counted {
            if counted.raised && !wanted.contains(&counted.reference.counter.address) {
                counted.reference.lower(pid, remote, maps)?;
                counted.raised = false;
            }
        }
        Ok(())
    }

    /// Increments the reference counters of probes, so that the program reaches code where probes
    /// are, or will soon be.
    fn raise(
        &mut self,
        pid: i32,
        remote: &dyn TargetMemory,
        maps: &[Mapping],
        installed: &mut Installed,
    ) -> Result<(), TargetError> {
        let known = self.counted.len();
        let new = self.code.references[known..].iter();
        self.counted.extend(new.map(|reference| Counted {
            reference: *reference,
            journalled: false,
            raised: false,
        }));
        if self.counted.is_empty() {
            return Ok(());
        }
        let wanted = self.wanted(|_, _| true);
        for counted in &mut self.counted {
            let reference = counted.reference;
            if counted.raised || !wanted.contains(&reference.counter.address) {
                continue;
            }
            if !counted.journalled {
                // The last part has room for the counters that came last.
                let entry = ledger::Entry::Reference(reference);
                let has_room = |part: &&mut Part| part.len < part.ledger.room();
                let mut parts = self.parts.iter_mut().rev();
                let part = parts.find(has_room).ok_or(TargetError::Damaged {
                    pid,
                    what: "the journal is full",
                })?;
                part.ledger.append(remote, part.len, &[entry])?;
                part.len += 1;
                installed.references.push(reference);
                counted.journalled = true;
                step("journal of a reference counter written");
            }
            counted.raised = true;
            reference.raise(pid, remote, maps)?;
        }
        Ok(())
    }

    /// True if a thread may have passed a guard that is not yet written: it is between the guard
    /// and the system call, or has just made the call.
    fn is_passing_guards(&self, stopped: &dyn StoppedThreads) -> bool {
        const CALLS: [i64; 2] = [libc::SYS_prctl, libc::SYS_seccomp];
        // Maximum distance from a guard to its system call, bytes.
        const NEAR: u64 = 64;
        let filters = self.guarded.filters.iter().map(|i| &self.entries[*i]);
        let waiting = filters.filter(|entry| entry.state == SiteState::Waiting);
        let starts: Vec<u64> = waiting.map(|entry| entry.shape.covered.start).collect();
        let passes = |thread: &StoppedThread| {
            let pc = thread.pc();
            let is_near = |start: &u64| pc > *start && pc - start < NEAR;
            match thread.system_call() {
                Some(number) => CALLS.contains(&number),
                None => starts.iter().any(is_near),
            }
        };
        !starts.is_empty() && stopped.threads().iter().any(passes)
    }

    /// Returns the breakpoints in use, and those that may have to stand in, of some entries.
    fn traps(&self, entries: impl Iterator<Item = usize>) -> Traps {
        let mut traps = Traps::default();
        for index in entries {
            let entry = &self.entries[index];
            let Ok(made) = &entry.made else { continue };
            // One entry of each site, also if it is disarmed: a thread may have hit its breakpoint.
            if self.current(index) != index {
                continue;
            }
            let is_in = matches!(
                entry.state,
                SiteState::Waiting | SiteState::StandIn | SiteState::Disarmed
            );
            if is_in && entry.stand_in {
                let address = entry.shape.covered.start;
                traps.add(address, made.detour.entry());
            }
            if made.needs_trap() {
                made.traps().for_each(|(at, to)| traps.add(at, to));
            }
        }
        traps
    }
}

impl Attached {
    /// Returns the number of requested probes. They are numbered from 0.
    #[must_use]
    pub fn probes(&self) -> usize {
        self.round.asked.probes.len()
    }

    /// Returns the outcome for a requested probe, by its number.
    ///
    /// # Errors
    /// The reason why it has no site.
    ///
    /// # Panics
    /// There is no probe with this number.
    pub fn outcome(&self, probe: usize) -> Result<Site, SiteError> {
        self.round.outcome(&self.round.asked.probes[probe])
    }

    /// Returns the outcomes for all requested probes.
    #[must_use]
    pub fn outcomes(&self) -> Vec<Result<Site, SiteError>> {
        (0..self.probes())
            .map(|probe| self.outcome(probe))
            .collect()
    }

    /// Covers the pages of waiting sites, stops the process and writes them, see [`Round::write`].
    pub(super) fn write(&mut self, policy: Occupied) -> Result<bool, TargetError> {
        let remote = self.host.memory()?;
        let waiting: Vec<usize> = self.round.waiting.iter().copied().collect();
        let mut covers = self.covers(&remote, &waiting)?;
        let written = self.write_covered(&remote, &mut covers, policy);
        self.after_covering(covers, &remote, written)
    }

    /// Unmaps what covers do not need any more, and returns `result`.
    fn after_covering<T>(
        &self,
        covers: Option<Ready>,
        remote: &dyn TargetMemory,
        result: Result<T, TargetError>,
    ) -> Result<T, TargetError> {
        if let Some(covers) = covers {
            let finished = covers.finish(&*self.host, remote, &self.memory.ledger);
            if result.is_ok() {
                finished?;
            }
        }
        result
    }

    fn write_covered(
        &mut self,
        remote: &dyn TargetMemory,
        covers: &mut Option<Ready>,
        policy: Occupied,
    ) -> Result<bool, TargetError> {
        let pid = self.process().pid() as i32;
        let (mut stopped, maps) = self.stop_covered(remote, covers)?;
        if !self.begun {
            // A thread may have passed the guards since it was checked.
            let has_changed = |thread: &StoppedThread| {
                let mode = self.process().seccomp(thread.tid as u32);
                mode.is_some_and(|mode| match mode {
                    Seccomp::Off => !self.filtered && self.host.may_redirect_calls(thread),
                    Seccomp::Strict => true,
                    _ => !self.filtered,
                })
            };
            let changed = stopped.threads().iter().any(has_changed);
            if changed || self.round.is_passing_guards(&*stopped) {
                return Err(TargetError::Filtering { pid });
            }
        } else {
            // Somebody else may have detached it since it was checked.
            self.check_mapped()?;
        }
        let written =
            self.round
                .write(&mut *stopped, remote, &maps, &mut self.installed, policy)?;
        self.watched = None;
        self.standstill.all += stopped.resume();
        Ok(written)
    }

    /// Stops the process, with the pages covered that are to be. Returns its mappings as well, as it has
    /// made them: they are read once in a stop.
    fn stop_covered(
        &mut self,
        remote: &dyn TargetMemory,
        covers: &mut Option<Ready>,
    ) -> Result<(Box<dyn StoppedThreads>, Vec<Mapping>), TargetError> {
        let ledger = self.memory.ledger;
        loop {
            let mut stopped = self.host.stop()?;
            if covers.is_some() {
                stopped.past_signals()?;
            }
            let maps = self.process().raw_maps()?;
            let session = (&ledger, &self.installed.arenas[..]);
            let put =
                |covers: &mut Ready| covers.put(&*self.host, &*stopped, remote, &maps, session);
            if !covers.as_mut().map_or(Ok(false), put)? {
                return Ok((stopped, as_made(maps)));
            }
            // Only so many in one stop.
            self.standstill.all += stopped.resume();
            std::thread::sleep(BETWEEN_STOPS);
        }
    }

    /// Covers the pages of some entries in a pause, if they are not covered yet: what is written to them
    /// next is written while threads run.
    pub(super) fn cover(&mut self, entries: &[usize]) -> Result<(), TargetError> {
        let remote = self.host.memory()?;
        let mut covers = self.covers(&remote, entries)?;
        if covers.is_none() {
            return Ok(());
        }
        let covered = self.stop_covered(&remote, &mut covers);
        let covered = covered.map(|(stopped, _)| self.standstill.all += stopped.resume());
        self.after_covering(covers, &remote, covered)
    }

    /// Prepares covers for the pages that some entries are in and no site was in before.
    fn covers(
        &mut self,
        remote: &dyn TargetMemory,
        entries: &[usize],
    ) -> Result<Option<Ready>, TargetError> {
        let changes = entries
            .iter()
            .flat_map(|index| self.round.entries[*index].changes());
        let pages: BTreeSet<u64> = changes.flat_map(Change::pages).collect();
        let mut new: BTreeSet<u64> = pages.difference(&self.covered).copied().collect();
        if new.len() < pages.len() {
            // A library may have been unloaded since, and loaded again.
            let maps = self.process().raw_maps()?;
            new = cover::uncovered(&maps, pages);
        }
        self.covered.extend(&new);
        if new.is_empty() || !self.host.can_stop() {
            return Ok(None);
        }
        let (ready, altered) = Ready::prepare(&*self.host, remote, &self.memory.ledger, &new)?;
        for index in entries {
            let entry = &self.round.entries[*index];
            let changes = entry.changes().iter();
            let mut pages = changes.flat_map(|change| change.pages());
            let is_open = entry.shape.tactic.is_wide() && pages.any(|page| altered.contains(&page));
            // Without a guard everything would be refused.
            if is_open && !self.round.guarded.guards.contains(index) {
                self.round.fail(*index, SiteError::Uncovered);
                self.round.waiting.remove(index);
            }
        }
        Ok(ready)
    }

    /// Has breakpoints handled at those sites of some entries that have one, or may get one.
    pub(super) fn handle_traps(
        &mut self,
        remote: &dyn TargetMemory,
        entries: &[usize],
    ) -> Result<(), TargetError> {
        let agent = self.hire(remote)?;
        self.handle_traps_by(&agent, remote, entries)?;
        self.standstill.one += agent.dismiss();
        Ok(())
    }

    /// Does the work of [`handle_traps`](Self::handle_traps) with a thread of the program.
    pub(super) fn handle_traps_by(
        &mut self,
        agent: &Agent,
        remote: &dyn TargetMemory,
        entries: &[usize],
    ) -> Result<(), TargetError> {
        let pid = self.process().pid() as i32;
        // Once there is a handler, its tables have those of all other entries.
        let traps = match self.installed.handles_traps() {
            true => self.round.traps(entries.iter().copied()),
            false => self.round.traps(0..self.round.entries.len()),
        };
        let room = self.round.code.traps_room(&traps);
        self.make_room(agent, remote, room)?;
        self.round.code.add_traps(pid, remote, &traps)?;
        if !self.installed.handles_traps() {
            traps.install(agent, remote, &self.memory, &self.round.code)?;
            self.installed.actions = self.memory.ledger.header(remote)?.actions();
        }
        Ok(())
    }

    /// Puts breakpoints at occupied sites; these lead to the same detours.
    pub(super) fn stand_in(&mut self) -> Result<(), TargetError> {
        if self.check_breakpoints().is_err() {
            self.round.traps_refused = true;
            return Ok(());
        }
        let remote = self.host.memory()?;
        let waiting: Vec<usize> = self.round.waiting.iter().copied().collect();
        self.handle_traps(&remote, &waiting)?;
        self.write(Occupied::StandIn)?;
        Ok(())
    }

    /// True if some sites are not yet in their final state because a thread was inside the bytes
    /// that change.
    pub fn has_waiting(&self) -> bool {
        let mut waiting = self.round.waiting.iter();
        waiting.any(|index| !self.round.entries[*index].held)
    }

    /// Stops the process once more and writes the jumps of those waiting sites that no thread is
    /// inside any more. Returns the number of sites still waiting or [held](super::Running).
    ///
    /// # Errors
    /// The errors of attaching; sites already written stay as they are.
    pub fn optimise(&mut self) -> Result<usize, TargetError> {
        if self.has_waiting() && self.is_mapped() && !self.is_restored() {
            self.host.check_stops()?;
            match self.host.clone().apart(|| self.write(Occupied::Wait)) {
                Ok(_) => drop(self.settle()),
                Err(TargetError::NothingAttached { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.round.waiting.len())
    }
}
