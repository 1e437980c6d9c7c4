//! Writing the sites, in several rounds if threads occupy some of them.
//!
//! ```text
//! before     55 48 89 e5 41 57      a thread is at, or will return to, the 48
//! stand-in   cc 48 89 e5 41 57      the breakpoint leads to the same detour
//! jump       e9 xx xx xx xx 57      once no thread is inside any more
//! ```

use super::code::{Code, Made, Traps};
use super::{Attached, Probe, Site, SiteError, SiteState, breakpoints_allowed};
use crate::counter::ReferenceCounter;
use crate::detach::{Installed, is_pending, sigtrap_pending};
use crate::guards::Guarded;
use crate::ledger;
use crate::ledger::FAULTS;
use crate::patch::{Batch, Change, Found};
use crate::session::{Agent, SessionMemory};
use capriole_host::error::TargetError;
use capriole_host::memory::RemoteMemory;
use capriole_host::stacks;
use capriole_host::steps::step;
use capriole_host::threads::{Stopped, StoppedThread};
use capriole_host::tracer;
use capriole_proc::maps::Mapping;
use capriole_proc::process::Seccomp;
use capriole_tactic::site::Shape;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

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

/// A probe that is being written, and its state.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) shape: Shape,
    stand_in: bool,
    counters: Vec<ReferenceCounter>,
    /// Index of the site whose jump is part of this one's jump; `Some(None)` if that site is
    /// missing.
    pub(super) builds_on: Option<Option<usize>>,
    pub(super) made: Result<Made, SiteError>,
    pub(super) state: SiteState,
}

/// The probes of an attach.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) entries: Vec<Entry>,
    /// Indices of the sites still to be written, ascending.
    pub(super) waiting: Vec<usize>,
    pub(super) code: Code,
    /// True if threads blocked or ignored SIGTRAP when stand-ins were needed.
    traps_refused: bool,
    /// The guards among the entries; no site may be written without them.
    pub(super) guarded: Guarded,
}

/// Returns [`Entry::builds_on`] for each probe. Computed before the process is stopped.
fn neighbours(probes: &[Probe]) -> Vec<Option<Option<usize>>> {
    let mut writes = HashMap::new();
    for (index, probe) in probes.iter().enumerate() {
        for write in probe.shape.placed.iter().flat_map(|placed| &placed.writes) {
            writes.insert(write.address, (index, &write.after));
        }
    }
    let builds_on = |probe: &Probe| {
        let (at, bytes) = probe.shape.placed.as_ref()?.builds_on.as_ref()?;
        let found = writes.get(at).filter(|(_, after)| after.starts_with(bytes));
        Some(found.map(|(index, _)| *index))
    };
    probes.iter().map(builds_on).collect()
}

impl Round {
    pub(super) fn new(probes: &[Probe], mut code: Code, guarded: Guarded) -> Round {
        let made = std::mem::take(&mut code.made);
        let neighbours = neighbours(probes);
        let entries: Vec<Entry> = made
            .into_iter()
            .zip(probes)
            .zip(neighbours)
            .map(|((made, probe), builds_on)| Entry {
                shape: probe.shape.clone(),
                stand_in: probe.stand_in,
                counters: probe.counters.clone(),
                builds_on,
                made,
                state: SiteState::Waiting,
            })
            .collect();
        let waiting = (0..entries.len()).filter(|i| entries[*i].made.is_ok());
        Round {
            waiting: waiting.collect(),
            entries,
            code,
            traps_refused: false,
            guarded,
        }
    }

    /// True if a breakpoint could stand in for a jump now.
    pub(super) fn wants_stand_ins(&self) -> bool {
        !self.traps_refused
            && self.waiting.iter().any(|index| {
                let entry = &self.entries[*index];
                entry.stand_in && entry.state == SiteState::Waiting
            })
    }

    pub(super) fn outcomes(&self) -> Vec<Result<Site, SiteError>> {
        let outcome = |entry: &Entry| {
            let made = entry.made.as_ref().map_err(Clone::clone)?;
            Ok(Site {
                address: entry.shape.covered.start,
                detour: made.detour.entry(),
                detour_size: made.detour.size(),
                tactic: entry.shape.tactic,
                state: entry.state,
            })
        };
        self.entries[..self.guarded.asked]
            .iter()
            .map(outcome)
            .collect()
    }

    /// Drops sites whose bytes are not as expected.
    fn verify(&mut self, batch: &mut Batch<'_>) {
        let entries = &mut self.entries;
        self.waiting.retain(|index| {
            let entry = &mut entries[*index];
            let Ok(made) = &entry.made else { return false };
            let stands_in = entry.state == SiteState::StandIn;
            let expected = match stands_in {
                true => Found::Between,
                false => Found::Before,
            };
            let mut relied = entry.shape.placed.iter().flat_map(|p| &p.relies_on);
            let is_as_expected = made.changes.iter().all(|c| batch.inspect(c) == expected)
                && relied.all(|(at, bytes)| batch.holds(*at, bytes));
            // An installed stand-in is in the journal and leads to its detour.
            if !is_as_expected && !stands_in {
                entry.made = Err(SiteError::Modified);
            }
            is_as_expected
        });
    }

    /// Drops sites that build on dropped ones.
    fn verify_neighbours(&mut self) {
        let entries = &self.entries;
        let missing = |index: &usize| {
            let reason = match entries[*index].builds_on? {
                Some(on) => match &entries[on].made {
                    Ok(_) => return None,
                    Err(error) => error.to_string(),
                },
                None => "it was not asked for".to_owned(),
            };
            Some((*index, SiteError::Neighbour(reason)))
        };
        let missing: Vec<_> = self.waiting.iter().filter_map(missing).collect();
        for (index, error) in missing {
            self.entries[index].made = Err(error);
            self.waiting.retain(|waiting| *waiting != index);
        }
    }

    /// Returns the occupied sites, and the threads that can be moved from inside a site to the
    /// copies of its instructions: (index of the thread, new address, site).
    fn occupied(
        &self,
        stopped: &Stopped,
        remote: &RemoteMemory,
        maps: &[Mapping],
    ) -> (BTreeSet<usize>, Vec<(usize, u64, usize)>) {
        let entries = &self.entries;
        let ranges = self
            .waiting
            .iter()
            .filter_map(|index| Some((entries[*index].shape.occupiable()?, *index)));
        let mut ranges: Vec<(Range<u64>, usize)> = ranges.collect();
        ranges.sort_by_key(|(range, _)| range.start);
        let find = |address: u64| -> Option<usize> {
            let at = ranges.partition_point(|(range, _)| range.end <= address);
            ranges
                .get(at)
                .filter(|(range, _)| range.contains(&address))
                .map(|(_, index)| *index)
        };
        let mut occupied = BTreeSet::new();
        if !ranges.is_empty() {
            // Any word counts: it may be a return address, the program counter of a signal frame or
            // of a preempted goroutine, or equal such an address by chance.
            stacks::scan(stopped, remote, maps, |word| {
                if let Some(index) = find(word.value)
                    && entries[index].shape.excludes_returns()
                {
                    occupied.insert(index);
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
        let mut moves = Vec::new();
        for (at, thread) in stopped.threads().iter().enumerate() {
            let rip = thread.registers.rip;
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
            // The thread may have hit the breakpoint that stands in here: the SIGTRAP handler expects to
            // find that thread where it was.
            let stands_in = entry.state == SiteState::StandIn;
            let about_to_trap = stands_in
                && rip == entry.shape.covered.start + 1
                && (thread.signal == libc::SIGTRAP || sigtrap_pending(thread.tid));
            let copy = made.detour.goes_on(rip);
            match copy.or(entry.shape.past_nops()) {
                Some(new) if !about_to_trap => moves.push((at, new, index)),
                _ => {
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
        stopped: &mut Stopped,
        remote: &RemoteMemory,
        maps: &[Mapping],
        memory: &SessionMemory,
        installed: &mut Installed,
        policy: Occupied,
    ) -> Result<bool, TargetError> {
        let pid = stopped.pid;
        let mut batch = Batch::new(pid, remote);
        self.verify(&mut batch);
        self.verify_neighbours();
        let (mut occupied, moves) = self.occupied(stopped, remote, maps);
        // A site that builds on another site's jump waits for that jump.
        let waits = |index: &usize| {
            let on = self.entries[*index].builds_on??;
            let ready = self.entries[on].state == SiteState::Final
                || self.waiting.binary_search(&on).is_ok() && !occupied.contains(&on);
            (!ready).then_some(*index)
        };
        let waits: Vec<usize> = self.waiting.iter().filter_map(waits).collect();
        occupied.extend(waits);
        let is_turn = |index: &&usize| {
            let guards_only = policy == Occupied::GuardsOnly;
            !occupied.contains(index) && (!guards_only || self.guarded.guards.contains(index))
        };
        let (ready, later): (Vec<usize>, Vec<usize>) = self.waiting.iter().partition(is_turn);
        let entries = &self.entries;
        let stands =
            |i: &usize| entries[*i].state == SiteState::Final || ready.binary_search(i).is_ok();
        if !self.guarded.guards.iter().all(stands) {
            return Ok(false);
        }
        let stand_ins: Vec<usize> = later
            .iter()
            .copied()
            .filter(|index| {
                let entry = &self.entries[*index];
                policy == Occupied::StandIn && entry.stand_in && entry.state == SiteState::Waiting
            })
            .collect();
        let written = ready.iter().chain(&stand_ins).map(|i| &self.entries[*i]);
        let new = written.filter(|entry| entry.state == SiteState::Waiting);
        let new = new.filter_map(|entry| entry.made.as_ref().ok());
        let new: Vec<Change> = new.flat_map(|made| &made.changes).copied().collect();
        // Write all entries at once: every thread is stopped meanwhile.
        let journal: Vec<ledger::Entry> = new.iter().copied().map(ledger::Entry::Change).collect();
        memory
            .ledger
            .append(remote, installed.journalled(), &journal)?;
        installed.changes.extend(new);
        step("journal written");
        // Threads first: a copy in a detour behaves like the original with or without the jump in
        // place, but the middle of a written jump is not code.
        for (at, new, index) in moves {
            if ready.binary_search(&index).is_ok() {
                stopped.move_to(at, new)?;
                step("thread moved");
            }
        }
        let changes = |index: &usize| {
            let made = self.entries[*index].made.as_ref();
            made.map_or(&[][..], |made| &made.changes)
        };
        let last = ready.iter().flat_map(changes).map(|c| c.phase).max();
        let phases = (0..=last.unwrap_or(0)).map(|phase| (false, phase));
        for rank in std::iter::once((true, 0)).chain(phases) {
            let all = ready.iter().flat_map(changes);
            for change in all.filter(|c| (c.guard, c.phase) == rank) {
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
        if installed.references.is_empty() && policy != Occupied::GuardsOnly {
            self.raise(pid, remote, maps, memory, installed)?;
        }
        for index in ready {
            self.entries[index].state = SiteState::Final;
        }
        for index in stand_ins {
            self.entries[index].state = SiteState::StandIn;
        }
        self.waiting = later;
        Ok(true)
    }

    /// Increments the reference counters of probes, so that the program reaches code where probes
    /// are, or will soon be.
    fn raise(
        &self,
        pid: i32,
        remote: &RemoteMemory,
        maps: &[Mapping],
        memory: &SessionMemory,
        installed: &mut Installed,
    ) -> Result<(), TargetError> {
        let probed = self.entries.iter().filter(|entry| entry.made.is_ok());
        let wanted: BTreeSet<u64> = probed
            .flat_map(|e| &e.counters)
            .map(|c| c.address)
            .collect();
        for reference in &self.code.references {
            if !wanted.contains(&reference.counter.address) {
                continue;
            }
            let entry = ledger::Entry::Reference(*reference);
            memory
                .ledger
                .append(remote, installed.journalled(), &[entry])?;
            installed.references.push(*reference);
            step("journal of a reference counter written");
            reference.raise(pid, remote, maps)?;
        }
        Ok(())
    }

    /// True if a thread may have passed a guard that is not yet written: it is between the guard
    /// and the system call, or has just made the call.
    fn is_passing_guards(&self, stopped: &Stopped) -> bool {
        const CALLS: [i64; 2] = [libc::SYS_prctl, libc::SYS_seccomp];
        // Maximum distance from a guard to its system call, bytes.
        const NEAR: u64 = 64;
        let filters = self.guarded.filters.iter().map(|i| &self.entries[*i]);
        let waiting = filters.filter(|entry| entry.state == SiteState::Waiting);
        let starts: Vec<u64> = waiting.map(|entry| entry.shape.covered.start).collect();
        let passes = |thread: &StoppedThread| {
            let (rip, call) = (thread.registers.rip, thread.registers.orig_rax as i64);
            let is_near = |start: &u64| rip > *start && rip - start < NEAR;
            CALLS.contains(&call) || call < 0 && starts.iter().any(is_near)
        };
        !starts.is_empty() && stopped.threads().iter().any(passes)
    }

    /// Returns all breakpoints in use, and those that may have to stand in.
    fn traps(&self) -> Traps {
        let mut traps = Traps::default();
        for entry in &self.entries {
            let Ok(made) = &entry.made else { continue };
            if entry.state == SiteState::Waiting && entry.stand_in {
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
    /// Stops the process and writes the waiting sites, see [`Round::write`].
    pub(super) fn write(&mut self, policy: Occupied) -> Result<bool, TargetError> {
        let pid = self.process.pid() as i32;
        let remote = RemoteMemory::open(pid)?;
        let mut stopped = Stopped::all(pid)?;
        if self.outcomes.is_empty() {
            // A thread may have passed the guards since it was checked.
            let has_changed = |thread: &StoppedThread| {
                let status = self.process.thread_status(thread.tid as u32);
                status.is_ok_and(|status| match status.seccomp {
                    Seccomp::Off => false,
                    Seccomp::Strict => true,
                    _ => !self.filtered,
                })
            };
            let changed = stopped.threads().iter().any(has_changed);
            if changed || self.round.is_passing_guards(&stopped) {
                return Err(TargetError::Filtering { pid });
            }
        }
        let maps = self.process.maps()?;
        let written = self.round.write(
            &mut stopped,
            &remote,
            &maps,
            &self.memory,
            &mut self.installed,
            policy,
        )?;
        self.watched = None;
        self.standstill.all += stopped.resume();
        Ok(written)
    }

    /// Puts breakpoints at occupied sites; these lead to the same detours.
    pub(super) fn stand_in(&mut self) -> Result<(), TargetError> {
        let pid = self.process.pid() as i32;
        if breakpoints_allowed(&self.process).is_err() {
            self.round.traps_refused = true;
            return Ok(());
        }
        let remote = RemoteMemory::open(pid)?;
        let traps = self.round.traps();
        self.round.code.replace_traps(pid, &remote, &traps)?;
        if !self.installed.handles_traps() {
            let agent = Agent::hire(&self.process, &remote)?;
            traps.install(&agent, &remote, &self.memory, &self.round.code)?;
            self.standstill.one += agent.dismiss();
            self.installed.actions = self.memory.ledger.header(&remote)?.actions();
        }
        self.write(Occupied::StandIn)?;
        Ok(())
    }

    /// True if some sites are not yet in their final state because a thread was inside the bytes
    /// that change.
    pub fn has_waiting(&self) -> bool {
        !self.round.waiting.is_empty()
    }

    /// Stops the process once more and writes the jumps of those waiting sites that no thread is
    /// inside any more. Returns the number of sites still waiting, and updates
    /// [`outcomes`](Self::outcomes).
    ///
    /// # Errors
    /// The errors of attaching; sites already written stay as they are.
    pub fn optimise(&mut self) -> Result<usize, TargetError> {
        if self.has_waiting() && self.is_mapped() && !self.is_restored() {
            tracer::check_filters(&self.process)?;
            tracer::apart(|| self.write(Occupied::Wait))?;
            self.outcomes = self.round.outcomes();
        }
        Ok(self.round.waiting.len())
    }
}
