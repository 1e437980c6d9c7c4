//! Probes that are added, disarmed and armed while a session lives.
//!
//! ```text
//! plan       which place gets which entry, see `places`
//! prepare    a ledger and arenas with room, the detours, stubs; the tables of breakpoints and copies.
//!            One thread at a time is stopped; nothing leads to the new code yet
//! stop all   check the bytes and the program counters, lower counters, take bytes out,
//!            journal, write bytes, raise counters; resume
//! later      sites that were occupied, see [`Attached::optimise`]
//! ```
//!
//! Why this is as safe as an attach:
//!
//! - New code goes to memory that no thread has executed: new arenas, or behind the code of arenas.
//!   No arena, stub or table is freed or changed before everything is detached, so a thread that is
//!   in a detour of a probe that was disarmed or replaced goes on in it. What its work writes to in
//!   session memory is there as well, and is used for something else only when [`Attached::are_over`]
//!   has shown that nobody does that work any more.
//! - A site that has no patch is written as by an attach, with the same checks in the same stop.
//! - A site that has one gets another of the same shape. The old jump is overwritten by the new one
//!   in one copy; nobody is inside, as its bytes were never the program's own meanwhile. So there is
//!   no moment at which a call is missed, and none at which the tracer may not die: either jump leads
//!   to a detour that is there. (A jump across two pages needs several copies: there the program's
//!   own bytes are put back first, behind a breakpoint.) Where the bytes of the jump are prescribed
//!   they stay as they are, so that jumps which share them never see others, and only the stubs that
//!   they lead to are changed.
//! - A jump that others build on is disarmed together with them.
//! - The journal has the program's own bytes before a new jump is written. Disarming leaves the entry
//!   there, and arming again needs no other, as both are the same bytes.
//! - Guards are neither disarmed nor replaced, and no probe may use their bytes.
//!
//! A child that the program forks has the probes as they are at the fork. Disarming takes them out of
//! it as well, except those whose place other probes still use; probes that are added or armed later
//! are not in it.

use super::beside::take_back;
use super::code::{self, Facts, Made};
use super::places::Place;
use super::round::{Entry, Occupied, Part};
use super::running::Way;
use super::{
    Attached, Point, Probe, SiteError, SiteState, make_no_calls, mind_slow_memory, stub_addresses,
};
use crate::actions;
use crate::guards::uses_of;
use crate::patch::Batch;
use crate::recover;
use crate::recover::sharing;
use crate::session::Agent;
use crate::stubs::Stubs;
use capriole_codegen::work::Work;
use capriole_host::error::TargetError;
use capriole_host::host::TargetMemory;
use capriole_host::steps::step;
use capriole_ledger::{FAULTS, Identity, MAX_ARENAS, MAX_ENTRIES, MAX_STUBS};
use capriole_ring::layout::{State, own};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Room for later additions in a further arena, bytes at least.
const SPARE: u64 = 64 << 10;
/// Number of journal entries in the first extension of the ledger, at least; each further one has
/// twice as many.
const FIRST_ENTRIES: usize = 1024;
/// Limit of that doubling.
const MOST_DOUBLINGS: usize = 8;

/// A switch of a place to one of its entries.
struct Arrival {
    place: usize,
    entry: usize,
    /// The place's current entry before.
    before: Option<usize>,
}

impl Attached {
    /// Adds probes to the session. Returns their numbers, for [`outcome`](Self::outcome); those that
    /// can be written are armed. They may be at sites that already have probes of the session: the
    /// work of all of them is then done, in the order of their numbers, and no hit is missed
    /// meanwhile.
    ///
    /// The plans have to be made for the program's own bytes, as those of an attach, and together
    /// with each other. What the work needs in session memory (tables, frames of open calls) and in
    /// the program (guards of unwinders) is that of the attach.
    ///
    /// # Errors
    /// The errors of attaching, and [`TargetError::NothingAttached`] if the session has been detached.
    /// The probes in place stay as they are; the new ones have numbers, and no site.
    pub fn add(&mut self, probes: Vec<Probe>) -> Result<Range<usize>, TargetError> {
        self.check_living()?;
        self.look_before_addition(&probes);
        self.host
            .clone()
            .apart(|| self.add_living(probes, Way::Paused))
    }

    /// Takes probes out of the program, and keeps their detours. A call that has entered a detour
    /// before is still recorded, even if its thread only gets a processor later. Probes whose jumps
    /// build on theirs are taken out with them. Returns the numbers of all probes that were taken out. Unknown
    /// numbers, and those of probes that are not armed, or are a part of a guard, are skipped.
    ///
    /// # Errors
    /// The errors of stopping the program; nothing has changed then.
    pub fn disarm(&mut self, probes: &[usize]) -> Result<Vec<usize>, TargetError> {
        self.check_living()?;
        self.look_before_change(probes);
        self.forget_taken_out(probes);
        let wanted = self.to_disarm(probes);
        let mut armed: Vec<usize> = wanted.keys().copied().collect();
        self.host
            .clone()
            .apart(|| self.change(wanted, &BTreeSet::new(), Way::Paused))?;
        armed.retain(|probe| !self.is_armed(*probe));
        Ok(armed)
    }

    /// Writes probes that were disarmed, with all checks of an attach. A site that a thread occupies
    /// is written [later](Self::optimise). Returns those that cannot be written now, with the
    /// reasons. Unknown numbers, and those of armed probes, are skipped.
    ///
    /// # Errors
    /// The errors of stopping the program; nothing has changed then.
    pub fn arm(&mut self, probes: &[usize]) -> Result<Vec<(usize, SiteError)>, TargetError> {
        self.check_living()?;
        self.look_before_change(probes);
        let wanted = self.to_arm(probes);
        self.host
            .clone()
            .apart(|| self.change(wanted, &BTreeSet::new(), Way::Paused))
    }

    pub(super) fn check_living(&self) -> Result<(), TargetError> {
        self.host.check_stops()?;
        self.check_mapped()
    }

    /// Refuses a session that somebody else has detached, or that exec has ended.
    pub(super) fn check_mapped(&self) -> Result<(), TargetError> {
        let pid = self.process().pid() as i32;
        match self.is_mapped() && !self.is_restored() {
            true => Ok(()),
            false => Err(TargetError::NothingAttached { pid }),
        }
    }

    /// Stops one thread, for system calls and for writing into the session's memory. A process has
    /// one tracer at a time: as long as we have that thread, no `capriole detach` can stop all of
    /// them and unmap the memory, where the program could then map something else.
    pub(super) fn hire(&self, remote: &dyn TargetMemory) -> Result<Agent, TargetError> {
        let agent = Agent::hire(&*self.host, remote)?;
        match self.begun {
            true => self.check_mapped().map(|()| agent),
            false => Ok(agent),
        }
    }

    /// True if a probe is armed: it is in the program, or waits.
    pub(super) fn is_armed(&self, probe: usize) -> bool {
        let round = &self.round;
        let Some(asked) = round.asked.probes.get(probe) else {
            return false;
        };
        let place = asked.place.as_ref().ok();
        let current = place.and_then(|place| round.asked.places[*place].current);
        let entry = current.map(|current| &round.entries[current]);
        let is_in = |entry: &Entry| entry.made.is_ok() && entry.state != SiteState::TakenOut;
        asked.armed && entry.is_some_and(is_in)
    }

    /// Returns those of some probes that can be armed, for [`change`](Self::change).
    pub(super) fn to_arm(&self, probes: &[usize]) -> BTreeMap<usize, bool> {
        let known = probes.iter().filter(|probe| **probe < self.probes());
        let disarmed = known.filter(|probe| !self.is_armed(**probe));
        disarmed.map(|probe| (*probe, true)).collect()
    }

    /// Returns those of some probes that can be disarmed, and the armed ones whose jumps build on
    /// theirs, for [`change`](Self::change).
    pub(super) fn to_disarm(&self, probes: &[usize]) -> BTreeMap<usize, bool> {
        let armed = probes.iter().filter(|probe| self.is_armed(**probe));
        let is_guard = |probe: &usize| {
            let place = self.round.asked.probes[*probe].place.as_ref();
            place.is_ok_and(|place| self.round.asked.places[*place].guard)
        };
        let armed = armed.filter(|probe| !is_guard(probe));
        let mut wanted = armed.map(|probe| (*probe, false)).collect();
        self.take_dependents(&mut wanted);
        wanted
    }

    /// Makes probes that were taken out, because another tool or the program has changed their sites, count as
    /// disarmed: else they would come back with another probe at the same place.
    pub(super) fn forget_taken_out(&mut self, probes: &[usize]) {
        for probe in probes {
            if !self.is_armed(*probe)
                && let Some(asked) = self.round.asked.probes.get_mut(*probe)
            {
                asked.armed = false;
            }
        }
    }

    pub(super) fn add_living(
        &mut self,
        probes: Vec<Probe>,
        way: Way<'_>,
    ) -> Result<Range<usize>, TargetError> {
        let first = self.round.asked.probes.len();
        let before = self.round.asked.places.len();
        let guards = self.round.guarded.guards.iter();
        let guards = guards.flat_map(|index| uses_of(&self.round.entries[*index].shape));
        let guards: Vec<Range<u64>> = guards.collect();
        for probe in probes {
            let place = match self.refusal(&probe) {
                Some(error) => Err(error),
                None => {
                    let round = &mut self.round;
                    round.asked.place(&probe, &guards, &round.entries, before)
                }
            };
            self.round.asked.add(probe, place);
        }
        let all = first..self.round.asked.probes.len();
        let mut stale = self.round.asked.keep_what_is_read(first);
        self.refuse_readers(first, &mut stale);
        let placed = all
            .clone()
            .filter(|i| self.round.asked.probes[*i].place.is_ok());
        let wanted = placed.map(|probe| (probe, true)).collect();
        let changed = self.change(wanted, &stale, way);
        let failed = match &changed {
            Ok(failed) => failed.clone(),
            Err(_) => all
                .clone()
                .map(|probe| (probe, SiteError::Interrupted))
                .collect(),
        };
        for (probe, error) in failed {
            let asked = &mut self.round.asked.probes[probe];
            if probe >= first && asked.place.is_ok() {
                asked.place = Err(error);
                asked.armed = false;
            }
        }
        changed.map(|_| all)
    }

    /// Returns the reason why a probe cannot be added to this session, wherever it is.
    fn refusal(&self, probe: &Probe) -> Option<SiteError> {
        let enters = |work: &Work| matches!(work, Work::Enter { .. });
        if probe.follows() && self.installed.returns.is_none() {
            return Some(SiteError::Unprepared("what calls that are followed need"));
        }
        if probe.works().any(enters) && self.memory.geometry.frames == 0 {
            return Some(SiteError::Unprepared("room for open calls"));
        }
        if probe.works().any(Work::finds_callers) && !self.round.code.has_unwinding() {
            return Some(SiteError::Unprepared("what finding callers needs"));
        }
        if self.filtered && probe.works().any(Work::may_call) {
            return Some(SiteError::Filtered);
        }
        // A guard's detour may overwrite a register that its function does not need any more.
        let guards = self
            .round
            .guarded
            .guards
            .iter()
            .map(|i| &self.round.entries[*i].shape);
        let clobbers = |point: &Point| {
            let read = point.reads();
            guards.clone().any(|guard| {
                let inside = guard.function.start..guard.function.end;
                inside.contains(&point.site) && guard.live.gprs | read != guard.live.gprs
            })
        };
        probe
            .points
            .iter()
            .any(clobbers)
            .then_some(SiteError::Guarded)
    }

    /// Refuses those of the new probes that read registers which other probes of their functions
    /// overwrite, and which these cannot keep, as their detours cannot be replaced.
    fn refuse_readers(&mut self, first: usize, stale: &mut BTreeSet<usize>) {
        let asked = &mut self.round.asked;
        let fixed: Vec<usize> = stale
            .iter()
            .copied()
            .filter(|place| asked.places[*place].guard || !asked.can_switch(*place))
            .collect();
        for place in fixed {
            stale.remove(&place);
            let function = asked.model(place).shape.function;
            for new in &mut asked.probes[first..] {
                let reads = |point: &Point| point.function == function && !point.reads().is_empty();
                if new.place.is_ok() && new.probe.points.iter().any(reads) {
                    new.place = Err(SiteError::Shared);
                }
            }
        }
    }

    /// Arms (`true`) and disarms (`false`) probes, and has the `stale` places written anew; while the
    /// program runs, if that is wanted and possible for all of them. Returns the probes that could
    /// not be armed.
    pub(super) fn change(
        &mut self,
        mut wanted: BTreeMap<usize, bool>,
        stale: &BTreeSet<usize>,
        way: Way<'_>,
    ) -> Result<Vec<(usize, SiteError)>, TargetError> {
        let mut failed = Vec::new();
        wanted.retain(|probe, _| {
            let asked = &self.round.asked;
            let error = match &asked.probes[*probe].place {
                Ok(place) if asked.places[*place].guard => SiteError::Guarded,
                Ok(_) => return true,
                Err(error) => error.clone(),
            };
            failed.push((*probe, error));
            false
        });
        self.take_dependents(&mut wanted);
        let (mut arriving, leaving) = self.plan(&mut wanted, stale, &mut failed)?;
        if let Way::Prepared = way {
            // The places that have nothing yet show what they are going to have.
            for arrival in &arriving {
                let current = &mut self.round.asked.places[arrival.place].current;
                current.get_or_insert(arrival.entry);
            }
            return Ok(failed);
        }
        self.refuse_breakpoints(&mut arriving);
        if arriving.is_empty() && leaving.is_empty() {
            failed.extend(self.settle());
            return Ok(failed);
        }
        let touched = arriving.iter().map(|arrival| arrival.place);
        let intent = self.round.intent(touched.chain(leaving.iter().copied()));
        for arrival in &mut arriving {
            self.round.enter(arrival);
        }
        let out: Vec<usize> = leaving
            .iter()
            .filter_map(|place| self.round.leave(*place))
            .collect();
        self.round.leaving = out.clone();
        let needs_trap = arriving
            .iter()
            .any(|arrival| self.round.needs_trap(arrival));
        let entries: Vec<usize> = arriving.iter().map(|arrival| arrival.entry).collect();
        let running = match way {
            Way::Running(running) if self.can_write_running(&entries, &out) => Some(running),
            Way::Running(_) | Way::Paused | Way::Prepared => None,
        };
        let written = match running {
            Some(running) => self
                .cover(&entries)
                .and_then(|()| self.write_running(running, &entries, &out)),
            None => self.write_change(needs_trap.then_some(&entries)),
        };
        if let Err(error) = written {
            // Usually the program could not be stopped, and nothing has changed.
            self.round.forget(intent);
            return Err(error);
        }
        for (probe, armed) in &wanted {
            self.round.asked.probes[*probe].armed = *armed;
        }
        for arrival in &arriving {
            let Err(error) = &self.round.entries[arrival.entry].made else {
                continue;
            };
            self.round.failed.push((arrival.entry, error.clone()));
            self.round.asked.places[arrival.place].current = arrival.before;
        }
        failed.extend(self.settle());
        if self.round.wants_stand_ins() {
            self.stand_in()?;
            failed.extend(self.settle());
        }
        if running.is_none() {
            self.take_out_of_children(&out);
        }
        Ok(failed)
    }

    /// Has the breakpoints of some entries handled if that is needed, and writes the change.
    fn write_change(&mut self, trapping: Option<&Vec<usize>>) -> Result<(), TargetError> {
        if let Some(entries) = trapping {
            let remote = self.host.memory()?;
            self.handle_traps(&remote, entries)?;
        }
        self.write(Occupied::Wait).map(|_| ())
    }

    /// Adds the probes whose jumps build on those of places that are going to be empty.
    fn take_dependents(&self, wanted: &mut BTreeMap<usize, bool>) {
        let round = &self.round;
        let builds = round.building();
        let builds = builds.filter_map(|(entry, base)| Some((entry.place?, base.place?)));
        let builds: BTreeSet<(usize, usize)> = builds.collect();
        loop {
            let known = wanted.len();
            for (place, base) in &builds {
                let is_touched = |m: &usize| wanted.get(m) == Some(&false);
                let members = &round.asked.places[*base].members;
                if members.iter().any(is_touched) && self.after(*base, wanted).is_empty() {
                    for member in self.after(*place, wanted) {
                        wanted.insert(member, false);
                    }
                }
            }
            if wanted.len() == known {
                return;
            }
        }
    }

    /// Returns the probes of a place that are to be armed.
    fn after(&self, place: usize, wanted: &BTreeMap<usize, bool>) -> Vec<usize> {
        let asked = &self.round.asked;
        let members = asked.places[place].members.iter().copied();
        let is_in = |probe: &usize| {
            let probed = &asked.probes[*probe];
            probed.place.is_ok() && wanted.get(probe).copied().unwrap_or(probed.armed)
        };
        members.filter(is_in).collect()
    }

    /// Finds or makes the entries that places are to be switched to. Returns the switches, and the
    /// places that are to be empty.
    fn plan(
        &mut self,
        wanted: &mut BTreeMap<usize, bool>,
        stale: &BTreeSet<usize>,
        failed: &mut Vec<(usize, SiteError)>,
    ) -> Result<(Vec<Arrival>, Vec<usize>), TargetError> {
        let asked = &self.round.asked;
        let places = wanted
            .keys()
            .filter_map(|p| asked.probes[*p].place.clone().ok());
        let places: BTreeSet<usize> = places.chain(stale.iter().copied()).collect();
        let (mut arriving, mut leaving) = (Vec::new(), Vec::new());
        let (mut fresh, mut unions) = (Vec::new(), Vec::new());
        for place in places {
            let members = self.after(place, wanted);
            let Place {
                variants, current, ..
            } = &self.round.asked.places[place];
            let before = *current;
            if members.is_empty() {
                leaving.push(place);
                continue;
            }
            let union = self.round.asked.union(place, &members);
            let fits = |entry: &&usize| {
                let entry = &self.round.entries[**entry];
                entry.members == members && entry.made.is_ok() && entry.keeps(&union)
            };
            if let Some(&entry) = variants.iter().find(fits) {
                let now = &self.round.entries[entry];
                if before != Some(entry) || !now.is_in() {
                    arriving.push(Arrival {
                        place,
                        entry,
                        before,
                    });
                }
            } else if variants.is_empty() || self.round.asked.can_switch(place) {
                fresh.push((place, members, before));
                unions.push(union);
            } else {
                for member in members {
                    if wanted.remove(&member) == Some(true) {
                        failed.push((member, SiteError::Shared));
                    }
                }
            }
        }
        if fresh.is_empty() {
            return Ok((arriving, leaving));
        }
        let places: Vec<usize> = fresh.iter().map(|(place, ..)| *place).collect();
        let (made, part) = self.prepare(&unions, &places)?;
        let first = self.round.entries.len();
        for (((place, members, before), union), made) in fresh.into_iter().zip(&unions).zip(made) {
            let entry = self.round.entries.len();
            if let Err(error) = made {
                for member in members {
                    if wanted.get(&member) == Some(&true) {
                        wanted.remove(&member);
                        failed.push((member, error.clone()));
                    }
                }
                continue;
            }
            self.round.entries.push(Entry {
                part,
                place: Some(place),
                members,
                ..Entry::new(union, made)
            });
            self.round.asked.places[place].variants.push(entry);
            arriving.push(Arrival {
                place,
                entry,
                before,
            });
        }
        self.round.find_neighbours(first);
        Ok((arriving, leaving))
    }

    /// Drops switches to entries that need a breakpoint, if none may be used now.
    fn refuse_breakpoints(&mut self, arriving: &mut Vec<Arrival>) {
        let needs = |arrival: &Arrival| self.round.needs_trap(arrival);
        if !arriving.iter().any(needs) {
            return;
        }
        let Err(reason) = self.check_breakpoints() else {
            return;
        };
        let refused = arriving.iter().filter(|arrival| needs(arrival));
        let refused: Vec<_> = refused
            .map(|arrival| {
                let tactic = self.round.entries[arrival.entry].shape.tactic;
                (arrival.entry, SiteError::no_breakpoint(tactic, reason))
            })
            .collect();
        arriving.retain(|arrival| !needs(arrival));
        self.round.failed.extend(refused);
    }

    /// Marks the probes that the last write has refused as not armed; returns them with the reasons.
    pub(super) fn settle(&mut self) -> Vec<(usize, SiteError)> {
        let mut refused = Vec::new();
        let round = &mut self.round;
        for (entry, error) in std::mem::take(&mut round.failed) {
            let Some(place) = round.entries[entry].place else {
                continue;
            };
            let now = round.asked.places[place]
                .current
                .map(|now| &round.entries[now]);
            let now = now.filter(|now| now.is_in());
            for member in &round.entries[entry].members {
                let is_in = now.is_some_and(|now| now.made.is_ok() && now.members.contains(member));
                if !is_in {
                    round.asked.probes[*member].armed = false;
                    refused.push((*member, error.clone()));
                }
            }
        }
        refused
    }

    /// Takes entries out of the forked children, too. A child that cannot be stopped now keeps them
    /// until the session ends.
    fn take_out_of_children(&self, entries: &[usize]) {
        if entries.is_empty() {
            return;
        }
        for child in sharing(&self.memory_at(), self.process().pid()) {
            let pid = child.pid() as i32;
            let host = self.host.other(&child);
            if let (Ok(remote), Ok(_stopped)) = (host.memory(), host.stop()) {
                let mut batch = Batch::new(pid, &remote);
                let changes = entries.iter().flat_map(|i| self.round.changes_at(*i));
                let _ = take_back(&mut batch, changes);
            }
        }
    }

    /// Compiles further probes, at these places, and puts everything into the program but the bytes
    /// that lead there. Returns their code, and the number of the ledger with room for their changes.
    fn prepare(
        &mut self,
        probes: &[Probe],
        places: &[usize],
    ) -> Result<(Vec<Result<Made, SiteError>>, usize), TargetError> {
        let remote = self.host.memory()?;
        let agent = self.hire(&remote)?;
        let made = self.prepare_by(&agent, &remote, probes, places);
        self.standstill.one += agent.dismiss();
        made
    }

    /// Does the work of [`prepare`](Self::prepare) with a thread of the program.
    fn prepare_by(
        &mut self,
        agent: &Agent,
        remote: &dyn TargetMemory,
        probes: &[Probe],
        places: &[usize],
    ) -> Result<(Vec<Result<Made, SiteError>>, usize), TargetError> {
        let pid = self.process().pid() as i32;
        let calls = probes.iter().any(|probe| probe.works().any(Work::may_call));
        if calls && !self.has_filters && !self.unguarded && !self.filtered {
            make_no_calls(pid, remote, &self.memory)?;
            self.unguarded = true;
        }
        if calls {
            mind_slow_memory(self.process(), remote, &self.memory, false)?;
        }
        let writes = |probe: &Probe| probe.writes() + probe.counters.len();
        let part = self.make_part(agent, remote, probes.iter().map(writes).sum())?;
        let stubs = stub_addresses(probes);
        let clusters = code::clusters(probes, &[], self.round.code.unwound);
        let mut images = Vec::new();
        for cluster in &clusters {
            let image = match self.round.code.with_room(&cluster.near, cluster.room()) {
                Some(image) => image,
                None => self.open_arena(agent, remote, &cluster.near, cluster.room(), &stubs)?,
            };
            images.push(image);
        }
        let facts = Facts {
            memory: &self.memory,
            survey: &self.survey,
            clock: self.clock,
            region: self.installed.returns,
            has_routines: self.host.routines().is_some(),
        };
        let at = (&clusters[..], &images[..]);
        let code = &mut self.round.code;
        let mut made = code.compile_more(pid, remote, probes, at, &facts)?;
        self.map_more_stubs(agent, remote, &mut made, places)?;
        if self.handles_faults() || self.round.code.unwound {
            let new = made.iter().zip(probes);
            let new = new.filter_map(|(made, probe)| Some((made.as_ref().ok()?, probe)));
            let copies = self.round.code.new_copies(new);
            let room = self.round.code.new_copies_room(copies.len());
            self.make_room(agent, remote, room)?;
            self.round.code.add_copies(pid, remote, &copies)?;
        }
        step("additions prepared");
        Ok((made, part))
    }

    /// True if the resident's handlers of faults stand before the program's own, or will once it sets
    /// some.
    fn handles_faults(&self) -> bool {
        let mut actions = self.installed.actions.iter();
        actions.any(|action| FAULTS.contains(&action.signal))
    }

    /// Returns the resident's handler of a signal that a fault raises, and the program's own handler that
    /// it stands before and calls. `None` if it stands before none, or puts itself before each handler
    /// that the program sets.
    #[must_use]
    pub fn fault_handler(&self, signal: i32) -> Option<(u64, u64)> {
        let mut actions = self.installed.actions.iter();
        let action = actions.find(|action| action.signal == signal)?;
        let (pid, own) = (self.process().pid() as i32, self.memory.own());
        let remote = self.host.memory().ok()?;
        // It does so by system calls.
        let may_call = |word| word == 0;
        if remote
            .read_u32(own + own::NO_CALLS as u64)
            .is_ok_and(may_call)
        {
            return None;
        }
        let newest = actions::newest(pid, &remote, Some(own), action).ok()?;
        actions::is_preceded(&newest).then_some((action.handler, newest[0]))
    }

    /// Maps the stubs of probes at new places; drops the probes for whose stubs there is no room. At
    /// other places the stubs are those of the entries there, see `lead_stubs`.
    fn map_more_stubs(
        &mut self,
        agent: &Agent,
        remote: &dyn TargetMemory,
        made: &mut [Result<Made, SiteError>],
        places: &[usize],
    ) -> Result<(), TargetError> {
        let pid = self.process().pid() as i32;
        let is_new = |place: &usize| self.round.asked.places[*place].variants.is_empty();
        let new: Vec<bool> = places.iter().map(is_new).collect();
        let own = made.iter().zip(&new).filter(|(_, is_new)| **is_new);
        let stubs = own.filter_map(|(made, _)| made.as_ref().ok());
        let stubs: Vec<(u64, Vec<u8>)> = stubs.flat_map(|m| m.stubs().iter().cloned()).collect();
        if stubs.is_empty() {
            return Ok(());
        }
        let stubs = Stubs::of(&stubs);
        let room = self.round.code.rows_room(pid, stubs.rows.len());
        let room = room.filter(|_| !self.filtered);
        let batch = room.map(|table| self.round.code.batch(table));
        let part = self.round.parts.last_mut().ok_or(no_ledger(pid))?;
        part.stubs += 1;
        let taken = agent.map_stubs(remote, &part.ledger, part.stubs - 1, &stubs, batch)?;
        let mut inodes = Vec::new();
        for part in &self.round.parts {
            inodes.extend(part.ledger.header(remote)?.stubs());
        }
        self.installed.stubs = recover::stubs_in(&self.process().maps()?, &inodes);
        for (made, is_new) in made.iter_mut().zip(new) {
            if is_new && made.as_ref().is_ok_and(|made| made.is_in(&taken)) {
                *made = Err(SiteError::StubTaken);
            }
        }
        Ok(())
    }

    /// Makes sure that the last ledger is an extension with room for so many further journal entries,
    /// an arena and stubs, and promises it that many entries; returns its number.
    fn make_part(
        &mut self,
        agent: &Agent,
        remote: &dyn TargetMemory,
        entries: usize,
    ) -> Result<usize, TargetError> {
        let pid = self.process().pid() as i32;
        let parts = &mut self.round.parts;
        let promised: usize = parts.iter().map(|part| part.promised).sum();
        if promised + entries > MAX_ENTRIES as usize {
            return Err(TargetError::TooMany {
                pid,
                most: MAX_ENTRIES,
            });
        }
        let number = parts.len();
        if let Some(last) = parts.last_mut().filter(|_| number > 1) {
            // Another arena may be needed for the tables.
            let has_room = last.promised + entries <= last.ledger.room()
                && last.stubs < MAX_STUBS
                && last.arenas + 2 < MAX_ARENAS;
            if has_room {
                last.promised += entries;
                return Ok(number - 1);
            }
        }
        let least = FIRST_ENTRIES << (number - 1).min(MOST_DOUBLINGS);
        let room = entries.max(least).min(MAX_ENTRIES as usize - promised);
        let identity = Identity {
            kind: self.kind(),
            target: (self.process().pid(), self.process().start_time()),
            owner: recover::own_identity(),
        };
        let memory = self.installed.memory.ok_or(no_ledger(pid))?;
        let base = &self.memory.ledger;
        let ledger = agent.create_extension(
            self.process(),
            remote,
            base,
            &memory,
            &identity,
            room as u32,
        )?;
        ledger.note_state(remote, State::Armed)?;
        self.installed.extensions.push(ledger);
        self.round.parts.push(Part {
            ledger,
            len: 0,
            promised: entries,
            stubs: 0,
            arenas: 0,
        });
        step("extension of the ledger ready");
        Ok(number)
    }

    /// Maps a further arena with at least `size` free bytes, and some to spare; returns the number of
    /// its image.
    fn open_arena(
        &mut self,
        agent: &Agent,
        remote: &dyn TargetMemory,
        near: &Range<u64>,
        size: u64,
        avoid: &[u64],
    ) -> Result<usize, TargetError> {
        let pid = self.process().pid() as i32;
        self.make_part(agent, remote, 0)?;
        let host = self.host.clone();
        let part = self.round.parts.last_mut().ok_or(no_ledger(pid))?;
        let own = capriole_resident::size() as u64;
        let page = capriole_proc::maps::PAGE_SIZE;
        let create = |len: u64| {
            agent.create_arena(
                host.process(),
                remote,
                &part.ledger,
                part.arenas,
                near.clone(),
                len.next_multiple_of(page),
                avoid,
            )
        };
        let arena = match create(own + 2 * size + SPARE) {
            Err(TargetError::NoSpace { .. }) => create(own + size)?,
            arena => arena?,
        };
        part.arenas += 1;
        self.installed.arenas.push(arena);
        let facts = Facts {
            memory: &self.memory,
            survey: &self.survey,
            clock: self.clock,
            region: self.installed.returns,
            has_routines: self.host.routines().is_some(),
        };
        self.round
            .code
            .open(pid, remote, arena, near.clone(), &facts)
    }

    /// Makes sure that some arena has room for a table of `size` bytes.
    pub(super) fn make_room(
        &mut self,
        agent: &Agent,
        remote: &dyn TargetMemory,
        size: u64,
    ) -> Result<(), TargetError> {
        if !self.round.code.has_room(size) {
            let near = self.round.code.near();
            self.open_arena(agent, remote, &near, size, &[])?;
        }
        Ok(())
    }
}

impl super::round::Round {
    /// True if a switch needs a breakpoint, even for a moment.
    fn needs_trap(&self, arrival: &Arrival) -> bool {
        let made = self.entries[arrival.entry].made.as_ref();
        made.is_ok_and(Made::needs_trap)
    }

    /// Has the next write switch a place to an entry.
    fn enter(&mut self, arrival: &mut Arrival) {
        let Arrival {
            place,
            entry,
            before,
        } = *arrival;
        let mut from = before.filter(|before| self.entries[*before].is_written());
        if let Some(pending) = before.filter(|before| self.waiting.contains(before)) {
            from = from.or(self.withdraw(pending));
        }
        self.asked.places[place].current = Some(entry);
        if from == Some(entry) {
            return; // it has been there all the time
        }
        // What is in the program stays there if this entry cannot be written.
        arrival.before = from.or(before);
        self.entries[entry].from = from;
        // It may have been held when it was in the program before. Over a jump it is a jump at once: a
        // breakpoint there would have bytes behind it that are neither the program's nor its own.
        self.entries[entry].held = from.is_some_and(|from| {
            let from = &self.entries[from];
            from.state == SiteState::StandIn && from.held
        });
        self.entries[entry].state = SiteState::Waiting;
        self.waiting.insert(entry);
    }

    /// Empties a place; returns the entry to be taken out, if there is one in the program.
    fn leave(&mut self, place: usize) -> Option<usize> {
        let current = self.asked.places[place].current?;
        // A stand-in is written, and waits.
        let written = Some(current).filter(|c| self.entries[*c].is_written());
        let from = self.withdraw(current);
        if let (None, Some(from)) = (written, from) {
            self.asked.places[place].current = Some(from);
        }
        written.or(from)
    }

    /// Takes an entry from those that wait; returns the entry that it would have replaced.
    fn withdraw(&mut self, entry: usize) -> Option<usize> {
        self.waiting.remove(&entry);
        if self.entries[entry].state == SiteState::Waiting {
            self.entries[entry].state = SiteState::Disarmed;
        }
        self.entries[entry].from.take()
    }

    /// Returns what [`enter`](Self::enter) and [`leave`](Self::leave) change at some places.
    fn intent(&self, places: impl Iterator<Item = usize>) -> Intent {
        let places: Vec<usize> = places.collect();
        let of = |place: &usize| &self.asked.places[*place];
        let entries = places.iter().flat_map(|place| &of(place).variants);
        let state = |entry: &usize| {
            let Entry { state, from, .. } = &self.entries[*entry];
            (*entry, *state, *from)
        };
        Intent {
            entries: entries.map(state).collect(),
            places: places
                .iter()
                .map(|place| (*place, of(place).current))
                .collect(),
            waiting: self.waiting.clone(),
        }
    }

    /// Forgets a change that was not written.
    fn forget(&mut self, intent: Intent) {
        for (entry, state, from) in intent.entries {
            self.entries[entry].state = state;
            self.entries[entry].from = from;
        }
        for (place, current) in intent.places {
            self.asked.places[place].current = current;
        }
        self.waiting = intent.waiting;
        self.leaving.clear();
        self.failed.clear();
    }
}

/// State of some places before a change.
struct Intent {
    entries: Vec<(usize, SiteState, Option<usize>)>,
    places: Vec<(usize, Option<usize>)>,
    waiting: BTreeSet<usize>,
}

fn no_ledger(pid: i32) -> TargetError {
    let what = "it has no ledger";
    TargetError::Damaged { pid, what }
}
