//! Detection of other tools that write to a probe's site while the probe is installed.
//!
//! The kernel writes a uprobe, and a debugger a breakpoint, to an instruction without checking
//! who has changed it before. A hit then executes the *file's* instruction, out of line, and
//! continues behind it:
//!
//! ```text
//! program        55 │ 48 89 e5 │ 41 57     push; mov; push
//! our jump       e9   xx xx xx   xx 57
//! a uprobe       cc   xx xx xx   xx 57     executes the push, continues at xx
//! taken back     cc   48 89 e5   41 57     executes the push, continues at the mov
//! uprobe removed 55   48 89 e5   41 57
//! ```
//!
//! If the jump lies within one instruction, that is harmless while the tool is there: the
//! kernel executes that whole instruction, and the bytes behind it were never changed. But when
//! the tool leaves, it restores one byte, and the rest of the jump would be executed as part of
//! that instruction. If the jump covers several instructions, the first hit executes the rest
//! of the jump. So the recorder checks the bytes of all sites now and then, and removes a probe
//! whose site another tool has changed. The check stops no thread.
//!
//! Why removing the probe is safe: all threads are stopped. Bytes that hold the probe's value
//! become the program's again; the other tool's stay (it may be about to change them, and
//! restores the file's when it leaves). No thread is inside the bytes unless that tool led it
//! there, to the start of an instruction, which then is one again; a thread in the detour
//! continues behind the jump, as always. The detour stays.
//!
//! The check runs ten times a second, or for 1 % of a processor's time, through `/proc/PID/mem`; after one
//! that found something, the next one comes in any case after a tenth of a second. The journal records for each site whether an `int3` at its first byte may
//! be ours; any other belongs to another tool and stays. A detach does the same.

use super::round::{Entry, Round};
use super::{Attached, Probe, SiteError, SiteState};
use crate::cover;
use crate::detach::one_at_each_place;
use crate::patch::Batch;
use crate::recover::sharing;
use capriole_codegen::work::Work;
use capriole_host::error::TargetError;
use capriole_host::host::TargetMemory;
use capriole_host::steps::step;
use capriole_ledger::change::{Change, Found, INT3};
use capriole_proc::maps::PAGE_SIZE;
use capriole_proc::process::Process;
use std::collections::BTreeSet;
use std::fmt;

/// Kind of change that another tool made to a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The site holds the tool's breakpoint.
    Breakpoint,
    /// The tool has been there, and has restored the file's bytes.
    Restored,
    /// The site holds other bytes, which are left alone.
    Replaced,
    /// The change is not at the probe itself, but at the instruction whose bytes form the end of
    /// its jump.
    Behind,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            How::Breakpoint => {
                "another tool has put a breakpoint (a uprobe, or a debugger's) where the probe was"
            }
            How::Restored => {
                "the program's own byte is back where the probe was: another tool (a uprobe, or a debugger) has come and gone, or the library was unloaded and loaded again"
            }
            How::Replaced => {
                "somebody else (another tool, a uprobe that the kernel has optimised) has written over the probe, or the library was unloaded"
            }
            How::Behind => {
                "another tool has changed the instruction behind the probe, whose bytes its jump shares"
            }
        })
    }
}

/// A probe that was removed because another tool changed its site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disturbance {
    /// Number of the probe, for [`Attached::outcome`].
    pub probe: usize,
    /// Changed address: the site, or bytes that its jump relies on.
    pub address: u64,
    /// Kind of change found.
    pub how: How,
}

/// A uprobe that another tool has registered, and that the program does not reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreached {
    /// Its address.
    pub address: u64,
    /// Number of the probe at the same place, if there is one.
    pub probe: Option<usize>,
}

/// Result of a check of the sites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beside {
    /// The probes that were removed, possibly none.
    TakenOut(Vec<Disturbance>),
    /// A probe that all others need was changed: a [guard](crate::guards), or one that answers
    /// an unwinder. Everything has to be taken out.
    Guard(How),
}

/// Bytes expected at an address.
#[derive(Debug)]
struct Expected {
    address: u64,
    bytes: Vec<u8>,
    /// Index of the entry that expects them.
    entry: usize,
}

/// Bytes expected at the sites, grouped by page.
#[derive(Debug)]
pub(super) struct Watched {
    memory: Box<dyn TargetMemory>,
    /// Expected bytes of each page, in ascending order of address.
    pages: Vec<Vec<Expected>>,
}

impl Watched {
    fn of(round: &Round, memory: Box<dyn TargetMemory>) -> Watched {
        let mut all = Vec::new();
        let changes = round.entries.iter().flat_map(Entry::changes);
        let ours: BTreeSet<u64> = changes
            .flat_map(|change| change.address..change.address + change.len as u64)
            .collect();
        for (index, entry) in round.entries.iter().enumerate() {
            let changes = entry.changes();
            let mut expect = |address, bytes: &[u8]| {
                all.push(Expected {
                    address,
                    bytes: bytes.to_vec(),
                    entry: index,
                });
            };
            match entry.state {
                SiteState::Waiting | SiteState::TakenOut | SiteState::Disarmed => {}
                SiteState::StandIn => changes.iter().for_each(|c| expect(c.address, &[INT3])),
                SiteState::Final => {
                    for change in changes {
                        expect(change.address, &change.after[..change.len]);
                    }
                    let placed = entry.shape.placed.iter();
                    for (address, bytes) in placed.flat_map(|placed| &placed.relies_on) {
                        // These bytes are as before the attach, except for those that we changed, which are
                        // expected above.
                        for (at, byte) in (*address..).zip(bytes) {
                            if !ours.contains(&at) {
                                expect(at, &[*byte]);
                            }
                        }
                    }
                }
            }
        }
        all.sort_by_key(|expected| expected.address);
        let mut pages: Vec<Vec<Expected>> = Vec::new();
        for expected in all {
            let page = expected.address / PAGE_SIZE;
            match pages.last_mut() {
                Some(last) if last[0].address / PAGE_SIZE == page => last.push(expected),
                _ => pages.push(vec![expected]),
            }
        }
        Watched { memory, pages }
    }

    /// Returns the probes whose sites hold other bytes. Memory that cannot be read is no longer
    /// mapped, and is skipped.
    fn changed(&self) -> BTreeSet<usize> {
        let mut changed = BTreeSet::new();
        for page in &self.pages {
            let start = page[0].address;
            let ends = page.iter().map(|e| e.address + e.bytes.len() as u64);
            let len = ends.max().unwrap_or(start) - start;
            let Ok(now) = self.memory.read_some(start, len as usize) else {
                continue;
            };
            for expected in page {
                let at = (expected.address - start) as usize;
                let now = now.get(at..at + expected.bytes.len());
                if now.is_some_and(|now| now != expected.bytes) {
                    changed.insert(expected.entry);
                }
            }
        }
        changed
    }
}

impl Round {
    /// Returns `probes` and all probes whose jumps build on theirs, the latter first.
    fn with_dependents(&self, probes: BTreeSet<usize>) -> Vec<usize> {
        let mut all: Vec<usize> = probes.into_iter().collect();
        let mut next = 0;
        while let Some(&on) = all.get(next) {
            let builds = |index: &usize| {
                let entry = &self.entries[*index];
                let base = entry.builds_on.flatten().map(|base| self.current(base));
                base == Some(self.current(on)) && entry.state != SiteState::Disarmed
            };
            let more: Vec<usize> = (0..self.entries.len()).filter(builds).collect();
            for index in more {
                // A probe that builds on another has to be removed before it.
                if !all.contains(&index) {
                    all.push(index);
                }
            }
            next += 1;
        }
        all.reverse();
        all
    }

    /// Returns the change found at a probe: (address, kind).
    fn how(&self, index: usize, batch: &mut Batch<'_>) -> (u64, How) {
        let entry = &self.entries[index];
        let (mut at, mut how) = (entry.shape.covered.start, How::Behind);
        for change in entry.changes() {
            let found = batch.inspect(change);
            let is_int3 = batch.holds(change.address, &[INT3]) && change.after[0] != INT3;
            let one = match found {
                Found::After => continue,
                _ if is_int3 => How::Breakpoint,
                Found::Foreign => How::Replaced,
                _ => How::Restored,
            };
            (at, how) = (change.address, one);
        }
        (at, how)
    }
}

/// Reverts changes of sites, a site's later changes first, except for bytes that other tools
/// have written there. Of changes at the same address, the one that is there is reverted.
pub(super) fn take_back<'c>(
    batch: &mut Batch<'_>,
    changes: impl Iterator<Item = &'c Change>,
) -> Result<(), TargetError> {
    let changes = one_at_each_place(batch, changes.collect());
    let mut changes: Vec<&Change> = changes.into_iter().map(|(change, _)| change).collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.phase));
    for change in changes {
        match batch.inspect(change) {
            Found::Before | Found::Foreign => {}
            // That breakpoint is ours: nothing would handle it any more.
            Found::Between => batch.revert(change)?,
            Found::After if change.crosses_pages() => batch.revert(change)?,
            Found::After | Found::Disturbed => drop(batch.take_back(change)),
        }
        batch.write()?;
        step("change taken back beside another tool");
    }
    Ok(())
}

impl Attached {
    /// Checks, without stopping the program, if another tool has changed a probe's site, and if so
    /// removes that probe, here and in forked children. Returns what was found since the last check; a change
    /// of probes finds some as well.
    ///
    /// # Errors
    /// The program cannot be stopped: a debugger may hold it. Nothing has changed then, and a later
    /// check finds the same.
    pub fn look(&mut self) -> Result<Beside, TargetError> {
        if self
            .watched
            .as_ref()
            .is_none_or(|w| !w.changed().is_empty())
        {
            self.host.check_stops()?;
            if let Beside::Guard(how) = self.host.clone().apart(|| self.look_again())? {
                return Ok(Beside::Guard(how));
            }
        }
        let told = std::mem::replace(&mut self.told, self.disturbances.len());
        Ok(Beside::TakenOut(self.disturbances[told..].to_vec()))
    }

    /// Checks the sites in some pages, before a change relies on what was written there: a library may have
    /// been unloaded, and loaded again at the same address, since the last check. Where the program cannot be
    /// stopped now, nothing changes; the write then refuses what it does not expect.
    pub(super) fn look_before(&mut self, pages: &BTreeSet<u64>) {
        let Ok(remote) = self.host.memory() else {
            return;
        };
        let mut batch = Batch::new(self.process().pid() as i32, &remote);
        let changed = self.round.entries.iter().any(|entry| {
            let mut near = entry.changes().iter();
            near.any(|change| {
                let is_near = change.pages().any(|page| pages.contains(&page));
                let is_as_written = |batch: &mut Batch<'_>| match entry.state {
                    SiteState::Final => batch.inspect(change) == Found::After,
                    SiteState::StandIn => batch.holds(change.address, &[INT3]),
                    SiteState::Waiting | SiteState::TakenOut | SiteState::Disarmed => true,
                };
                is_near && batch.is_mapped(change) && !is_as_written(&mut batch)
            })
        });
        if changed && self.host.check_stops().is_ok() {
            // A guard that was changed is found by the next look as well.
            let _ = self.host.clone().apart(|| self.look_again());
        }
    }

    /// Has the sites where probes are to be added [checked](Self::look_before).
    pub(super) fn look_before_addition(&mut self, probes: &[Probe]) {
        let covered = probes.iter().map(|probe| probe.shape.covered);
        let ends = covered.flat_map(|covered| [covered.start, covered.end]);
        let pages = ends
            .map(|address| address / PAGE_SIZE * PAGE_SIZE)
            .collect();
        self.look_before(&pages);
    }

    /// Has the sites of some probes [checked](Self::look_before).
    pub(super) fn look_before_change(&mut self, probes: &[usize]) {
        let entries = probes.iter().filter_map(|probe| self.entry_of(*probe));
        let entries = entries.map(|entry| &self.round.entries[entry]);
        let changes = entries.flat_map(Entry::changes);
        let pages = changes.flat_map(Change::pages).collect();
        self.look_before(&pages);
    }

    fn look_again(&mut self) -> Result<Beside, TargetError> {
        let nothing = Beside::TakenOut(Vec::new());
        if self.watched.is_none() {
            let memory = self.host.memory()?;
            self.watched = Some(Watched::of(&self.round, memory));
        }
        let changed = |watched: &Option<Watched>| {
            let changed = watched.as_ref().map(Watched::changed);
            changed.unwrap_or_default()
        };
        // After exec the process runs another program; `capriole detach` sets the restored mark.
        if changed(&self.watched).is_empty() || !self.is_mapped() || self.is_restored() {
            return Ok(nothing);
        }
        let pid = self.process().pid() as i32;
        let remote = self.host.memory()?;
        let stopped = self.host.stop()?;
        // Check again, now that no change by the program itself can be in progress.
        let probes = changed(&self.watched);
        if probes.is_empty() || !self.is_mapped() || self.is_restored() {
            self.standstill.all += stopped.resume();
            return Ok(nothing);
        }
        let all = self.round.with_dependents(probes);
        let mut batch = Batch::new(pid, &remote);
        let found: Vec<Disturbance> = all
            .iter()
            .map(|&probe| {
                let (address, how) = self.round.how(probe, &mut batch);
                Disturbance {
                    probe,
                    address,
                    how,
                }
            })
            .collect();
        let guards = &self.round.guarded.guards;
        if let Some(guard) = found.iter().find(|d| guards.contains(&d.probe)) {
            self.standstill.all += stopped.resume();
            return Ok(Beside::Guard(guard.how));
        }
        // One at a time: a probe that builds on another's jump is removed before it.
        for index in &all {
            take_back(&mut batch, self.round.entries[*index].changes().iter())?;
        }
        step("probes taken out beside another tool");
        self.standstill.all += stopped.resume();
        for child in sharing(&self.memory_at(), self.process().pid()) {
            let pid = child.pid() as i32;
            let host = self.host.other(&child);
            // A child that cannot be stopped now is restored when the recording ends.
            if let (Ok(remote), Ok(_stopped)) = (host.memory(), host.stop()) {
                let mut batch = Batch::new(pid, &remote);
                for index in &all {
                    let _ = take_back(&mut batch, self.round.changes_at(*index));
                }
            }
        }
        for index in &all {
            self.round.entries[*index].state = SiteState::TakenOut;
        }
        let is_gone = |entry: &Entry| entry.state == SiteState::TakenOut;
        let bases: Vec<(usize, usize)> = self
            .round
            .waiting
            .iter()
            .filter_map(|index| {
                let base = self.round.entries[*index].builds_on.flatten()?;
                Some((*index, self.round.current(base)))
            })
            .collect();
        let entries = &mut self.round.entries;
        self.round.waiting.retain(|index| {
            let on = bases.iter().find(|(waiting, _)| waiting == index);
            let on = on.map(|(_, base)| *base);
            let is_left = on.is_none_or(|on| !is_gone(&entries[on]));
            if !is_left {
                entries[*index].made = Err(SiteError::Modified);
            }
            is_left && !all.contains(index)
        });
        self.watched = None;
        // An entry does the work of one or more requested probes.
        let found = found.into_iter().flat_map(|disturbance| {
            let members = self.round.entries[disturbance.probe].members.iter();
            members.map(move |probe| Disturbance {
                probe: *probe,
                ..disturbance
            })
        });
        let found: Vec<Disturbance> = found.collect();
        self.disturbances.extend(&found);
        Ok(Beside::TakenOut(found))
    }

    /// True if a probe may read memory, or make another system call, in the program.
    #[must_use]
    pub fn may_call(&self) -> bool {
        let mut probes = self.round.asked.probes.iter();
        probes.any(|probe| probe.probe.works().any(Work::may_call))
    }

    /// Looks for memory whose pages may be long in coming, in one of the processes that share the session:
    /// fields that lie there are not read from then on, unless their page is in memory.
    ///
    /// # Errors
    /// The process is gone.
    pub fn mind_slow_memory(&self, process: &Process) -> Result<(), TargetError> {
        let memory = self.host.other(process).memory()?;
        super::mind_slow_memory(process, &memory, &self.memory, false)
    }

    /// Returns the uprobes of other tools that were registered since the last time, in pages that
    /// the probes are in: the program does not reach them as long as it is probed.
    pub fn unreached(&mut self) -> Vec<Unreached> {
        let (Ok(memory), Ok(maps)) = (self.host.memory(), self.process().raw_maps()) else {
            return Vec::new();
        };
        let now = cover::unreached(&maps, &memory, &self.installed.changes);
        let new: Vec<u64> = now.difference(&self.unreached).copied().collect();
        self.unreached.extend(&new);
        let probe = |address: u64| {
            let is_there = |probe: &usize| {
                let site = self.outcome(*probe);
                site.is_ok_and(|site| site.address == address)
            };
            (0..self.probes()).find(is_there)
        };
        new.into_iter()
            .map(|address| Unreached {
                address,
                probe: probe(address),
            })
            .collect()
    }

    /// Returns the number of uprobes of other tools that [`unreached`](Self::unreached) has found.
    #[must_use]
    pub fn all_unreached(&self) -> usize {
        self.unreached.len()
    }

    /// Returns the probes that were removed because other tools changed their sites.
    #[must_use]
    pub fn disturbances(&self) -> &[Disturbance] {
        &self.disturbances
    }
}
