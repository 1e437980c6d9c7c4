//! Probes that are put in and taken out while the program runs: by breakpoints.
//!
//! ```text
//! before     55 48 89 e5 41 57      push %rbp; mov %rsp,%rbp; push %r15
//! armed      cc 48 89 e5 41 57      one byte; the breakpoint leads to the detour
//! optimised  e9 xx xx xx xx 57      in a pause, see [`Attached::optimise`]
//!
//! disarmed from the jump:
//! 1          cc xx xx xx xx 57      then all processors synchronise
//! 2          cc 48 89 e5 41 57      then all processors synchronise
//! 3          55 48 89 e5 41 57
//! ```
//!
//! Why this is safe while threads execute these bytes:
//!
//! - A breakpoint is written as one byte at the start of an instruction. A processor fetches the old
//!   byte or the new one, whatever it has prefetched of the bytes behind; either is an instruction
//!   that begins there.
//! - The bytes behind are changed only while the breakpoint is there, and after every processor has
//!   executed a serialising instruction since it was written (`membarrier(2)` with
//!   `PRIVATE_EXPEDITED_SYNC_CORE`, issued by a thread of the program). So no processor executes the
//!   first byte of the jump together with bytes that are not the jump's: it either has executed the
//!   whole jump, or meets the breakpoint. (Intel SDM volume 3, 9.1.3 "Handling self- and
//!   cross-modifying code"; the Linux kernel's `text_poke_bp`.) No thread is in the middle of these
//!   bytes: they were a jump, and that no thread was inside before was proved in the pause in which
//!   the jump was written.
//! - The first byte is restored after all processors have synchronised once more.
//! - The breakpoint leads to the detour in each of these states, and still does so for a thread that
//!   has executed it but gets its signal only after the byte was restored: the table of breakpoints
//!   keeps the sites that were disarmed.
//! - We may die between any two of these writes: each state is a correct program, and the journal,
//!   which is written first, has all bytes ([`Found::Between`]).
//! - Nobody else takes the session out meanwhile, and unmaps what the breakpoint leads to: one thread
//!   of the program is held by ptrace, and a process has one tracer.

use super::{Attached, Probe, SiteState};
use crate::attach::SiteError;
use crate::attach::round::{claimed, in_use};
use crate::other::Other;
use crate::patch::Batch;
use crate::session::{Agent, write};
use capriole_host::error::TargetError;
use capriole_host::host::TargetMemory;
use capriole_host::steps::step;
use capriole_ledger::change::{Change, Found, INT3};
use capriole_proc::maps::PAGE_SIZE;
use capriole_tactic::site::Patch;
use std::collections::BTreeSet;
use std::ops::Range;

/// How a program is changed while its threads run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    /// The thread of the program that is stopped and makes system calls: best one that waits in a
    /// call, which can be stopped at once.
    pub tid: i32,
}

/// How a change gets into the program.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way<'a> {
    /// In a pause.
    Paused,
    /// Without a pause, where that is possible.
    Running(&'a Running),
    /// Not now: everything is made ready for [`Attached::arm`].
    Prepared,
}

impl Attached {
    /// Adds probes as [`add`](Self::add) does, and makes everything ready for them, but does not arm
    /// them.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_disarmed(&mut self, probes: Vec<Probe>) -> Result<Range<usize>, TargetError> {
        self.check_living()?;
        self.look_before_addition(&probes);
        let host = self.host.clone();
        host.apart(|| self.add_living(probes, Way::Prepared))
    }

    /// Adds probes as [`add`](Self::add) does, and puts them in as breakpoints without a pause where
    /// that is possible: the others as `add` does. Breakpoints stay until
    /// [`optimise_probes`](Self::optimise_probes).
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_running(
        &mut self,
        probes: Vec<Probe>,
        running: &Running,
    ) -> Result<Range<usize>, TargetError> {
        self.check_living()?;
        self.look_before_addition(&probes);
        let host = self.host.clone();
        host.apart(|| self.add_living(probes, Way::Running(running)))
    }

    /// Arms probes as [`arm`](Self::arm) does, as breakpoints without a pause where that is possible.
    ///
    /// # Errors
    /// As [`arm`](Self::arm).
    pub fn arm_running(
        &mut self,
        probes: &[usize],
        running: &Running,
    ) -> Result<Vec<(usize, SiteError)>, TargetError> {
        self.check_living()?;
        self.look_before_change(probes);
        let wanted = self.to_arm(probes);
        let host = self.host.clone();
        host.apart(|| self.change(wanted, &BTreeSet::new(), Way::Running(running)))
    }

    /// Disarms probes as [`disarm`](Self::disarm) does, without a pause where that is possible.
    /// Forked children keep them then.
    ///
    /// # Errors
    /// As [`disarm`](Self::disarm).
    pub fn disarm_running(
        &mut self,
        probes: &[usize],
        running: &Running,
    ) -> Result<Vec<usize>, TargetError> {
        self.check_living()?;
        self.look_before_change(probes);
        self.forget_taken_out(probes);
        let wanted = self.to_disarm(probes);
        let mut armed: Vec<usize> = wanted.keys().copied().collect();
        let host = self.host.clone();
        host.apart(|| self.change(wanted, &BTreeSet::new(), Way::Running(running)))?;
        armed.retain(|probe| !self.is_armed(*probe));
        Ok(armed)
    }

    /// Lets the breakpoints of probes be replaced by their jumps, in one pause. Those of sites that
    /// a thread occupies are replaced [later](Self::optimise). Returns the number of sites that are
    /// still to be replaced, of all probes.
    ///
    /// # Errors
    /// The errors of stopping the program; nothing has changed then.
    pub fn optimise_probes(&mut self, probes: &[usize]) -> Result<usize, TargetError> {
        for probe in probes {
            if let Some(entry) = self.entry_of(*probe) {
                self.round.entries[entry].held = false;
            }
        }
        match self.has_waiting() {
            true => self.optimise(),
            false => Ok(0),
        }
    }

    /// Returns the address of the copy of an instruction at a probe's site: code that does what the
    /// program did there before, and goes on behind it. It stays valid as long as the session.
    #[must_use]
    pub fn copy_of(&self, probe: usize, instruction: u64) -> Option<u64> {
        let entry = &self.round.entries[self.entry_of(probe)?];
        let made = entry.made.as_ref().ok()?;
        made.detour.copy_of(instruction)
    }

    /// True if the bytes of a probe are not in the program any more, or those of the program if it is
    /// not armed: its library was unmapped, or another tool has changed them.
    #[must_use]
    pub fn is_gone(&self, probe: usize) -> bool {
        let Some(entry) = self.entry_of(probe).map(|entry| &self.round.entries[entry]) else {
            return false;
        };
        let Ok(remote) = self.host.memory() else {
            return true;
        };
        let is_there = |change: &Change| match look(&remote, change) {
            Some(Found::After | Found::Between) => entry.is_written(),
            Some(Found::Before) => !entry.is_written(),
            _ => false,
        };
        !entry.changes().iter().all(is_there)
    }

    /// Returns, for each instruction of a probe's site behind the first, its address and the address
    /// at which a thread goes on there that comes from elsewhere: a jump may cover the instruction.
    /// They stay valid as long as the session.
    #[must_use]
    pub fn inside_of(&self, probe: usize) -> Vec<(u64, u64)> {
        let entry = self.entry_of(probe).map(|entry| &self.round.entries[entry]);
        let made = entry.and_then(|entry| Some((entry, entry.made.as_ref().ok()?)));
        let Some((entry, made)) = made else {
            return Vec::new();
        };
        let displaced = entry.shape.displaced.iter().skip(1);
        let displaced = displaced.map(iced_x86::Instruction::ip);
        displaced
            .filter_map(|address| Some((address, made.detour.goes_on(address)?)))
            .collect()
    }

    /// Returns the entry that a probe's place has now.
    pub(super) fn entry_of(&self, probe: usize) -> Option<usize> {
        let asked = self.round.asked.probes.get(probe)?;
        self.round.asked.places[asked.place.clone().ok()?].current
    }

    /// True if these entries can be written, and those taken out, while the program runs.
    pub(super) fn can_write_running(&self, arriving: &[usize], leaving: &[usize]) -> bool {
        let entry = |index: &usize| &self.round.entries[*index];
        let single = |index: &usize| {
            let entry = entry(index);
            entry.shape.placed.is_none() && entry.changes().len() == 1 && entry.counters.is_empty()
        };
        let arrives = |index: &usize| {
            let entry = entry(index);
            let by_breakpoint = entry.shape.tactic.patch() == Patch::Breakpoint;
            let empty = entry.from.is_none() && entry.state == SiteState::Waiting;
            single(index) && empty && (entry.stand_in || by_breakpoint)
        };
        let leaves = |index: &usize| {
            let entry = entry(index);
            let by_breakpoint = entry.shape.tactic.patch() == Patch::Breakpoint;
            let stands = entry.state == SiteState::StandIn || by_breakpoint;
            single(index) && (stands || entry.stand_in)
        };
        let jumps = leaving.iter().any(|index| {
            let entry = entry(index);
            entry.state == SiteState::Final && entry.shape.tactic.patch() == Patch::Jump
        });
        arriving.iter().all(arrives)
            && leaving.iter().all(leaves)
            && ((arriving.is_empty() && !jumps) || self.check_breakpoints().is_ok())
    }

    /// Writes entries as breakpoints, and takes others out, while the program runs.
    pub(super) fn write_running(
        &mut self,
        running: &Running,
        arriving: &[usize],
        leaving: &[usize],
    ) -> Result<(), TargetError> {
        let pid = self.process().pid() as i32;
        let remote = self.host.memory()?;
        let agent = self.hire_for(running, &remote)?;
        let jumps = self.jumps_among(leaving);
        for index in &jumps {
            // For the table of breakpoints, which has no sites with jumps.
            self.round.entries[*index].state = SiteState::StandIn;
        }
        self.know_traps(&agent, &remote, arriving.iter().chain(&jumps))?;
        self.watched = None;
        self.round.leaving.clear();
        self.jumps_to_breakpoints(&agent, &remote, &jumps)?;
        for index in leaving {
            let change = self.round.entries[*index].changes()[0];
            // Otherwise another tool is there, or the library is gone: see `beside`.
            if let Some(Found::After | Found::Between) = look(&remote, &change) {
                write(pid, &remote, change.address, &change.before[..1])?;
                step("breakpoint taken out while the program runs");
            }
            self.round.entries[*index].state = SiteState::Disarmed;
            self.round.waiting.remove(index);
        }
        let mut ready = Vec::new();
        let other = Other::find(self.process(), &remote, self.kind())?;
        // To read only: a page once for all of its sites.
        let mut pages = Batch::new(pid, &remote);
        for index in arriving {
            let change = self.round.entries[*index].changes()[0];
            let found = pages.inspect(&change);
            let refused = claimed(other.as_ref(), &change);
            let error = match refused.or_else(|| in_use(&self.round.kept, &change)) {
                Some(error) => error,
                None if matches!(found, Found::Before) => {
                    ready.push((*index, change));
                    continue;
                }
                None if pages.is_mapped(&change) => SiteError::Modified,
                None => SiteError::Unmapped,
            };
            self.round.fail(*index, error);
            self.round.waiting.remove(index);
        }
        let ready_entries: Vec<usize> = ready.iter().map(|(index, _)| *index).collect();
        self.round
            .note_in_journal(&remote, &ready_entries, &mut self.installed)?;
        step("journal of breakpoints written");
        // The other session may have claimed these bytes meanwhile, and will see our claims next.
        let other = Other::find(self.process(), &remote, self.kind())?;
        ready.retain(|(index, change)| {
            let Some(error) = claimed(other.as_ref(), change) else {
                return true;
            };
            self.round.fail(*index, error);
            self.round.waiting.remove(index);
            false
        });
        for (index, change) in &ready {
            write(pid, &remote, change.address, &[INT3])?;
            step("breakpoint written while the program runs");
            let entry = &mut self.round.entries[*index];
            if entry.shape.tactic.patch() == Patch::Breakpoint {
                entry.state = SiteState::Final;
                self.round.waiting.remove(index);
            } else {
                entry.state = SiteState::StandIn;
                entry.held = true;
            }
        }
        if !self.host.can_stop() {
            self.breakpoints_to_jumps(&agent, &remote, &ready_entries)?;
        }
        self.standstill.one += agent.dismiss();
        Ok(())
    }

    /// Puts jumps in the place of breakpoints that were just written, where a jump takes the place of
    /// one instruction. No thread need be stopped for these: none can be inside one instruction.
    fn breakpoints_to_jumps(
        &mut self,
        agent: &Agent,
        remote: &dyn TargetMemory,
        entries: &[usize],
    ) -> Result<(), TargetError> {
        let pid = self.process().pid() as i32;
        let is_jump = |index: &usize| {
            let entry = &self.round.entries[*index];
            entry.state == SiteState::StandIn && entry.shape.displaced.len() == 1
        };
        let jumps: Vec<usize> = entries.iter().copied().filter(is_jump).collect();
        let changes: Vec<Change> = jumps
            .iter()
            .map(|index| self.round.entries[*index].changes()[0])
            .collect();
        if changes.is_empty() {
            return Ok(());
        }
        agent.synchronise(remote, &self.memory.ledger)?;
        for change in &changes {
            write_behind(pid, remote, change, &change.after)?;
            step("bytes behind a breakpoint written while the program runs");
        }
        agent.synchronise(remote, &self.memory.ledger)?;
        for (index, change) in jumps.into_iter().zip(&changes) {
            write(pid, remote, change.address, &change.after[..1])?;
            step("jump completed while the program runs");
            let entry = &mut self.round.entries[index];
            entry.state = SiteState::Final;
            entry.held = false;
            self.round.waiting.remove(&index);
        }
        Ok(())
    }

    /// Stops the thread for changes while the others run; nobody else can detach the session then.
    fn hire_for(&self, running: &Running, remote: &dyn TargetMemory) -> Result<Agent, TargetError> {
        let agent = Agent::hire_one(&*self.host, running.tid, remote)?;
        self.check_mapped()?;
        Ok(agent)
    }

    /// Returns those of some entries whose jumps are in the program.
    fn jumps_among(&self, entries: &[usize]) -> Vec<usize> {
        let is_jump = |index: &usize| {
            let entry = &self.round.entries[*index];
            entry.state == SiteState::Final && entry.shape.tactic.patch() == Patch::Jump
        };
        entries.iter().copied().filter(is_jump).collect()
    }

    /// Puts breakpoints, which are in the table, in the place of jumps, and the program's own bytes
    /// behind them.
    fn jumps_to_breakpoints(
        &self,
        agent: &Agent,
        remote: &dyn TargetMemory,
        jumps: &[usize],
    ) -> Result<(), TargetError> {
        let pid = self.process().pid() as i32;
        let change = |index: &usize| self.round.entries[*index].changes()[0];
        let there = |change: &Change| look(remote, change) == Some(Found::After);
        let changes: Vec<Change> = jumps.iter().map(change).filter(there).collect();
        if changes.is_empty() {
            return Ok(());
        }
        for change in &changes {
            write(pid, remote, change.address, &[INT3])?;
            step("breakpoint over a jump written while the program runs");
        }
        agent.synchronise(remote, &self.memory.ledger)?;
        for change in &changes {
            write_behind(pid, remote, change, &change.before)?;
            step("bytes behind a breakpoint restored while the program runs");
        }
        agent.synchronise(remote, &self.memory.ledger)
    }

    /// Replaces the jumps of probes by breakpoints, which stay until
    /// [`optimise_probes`](Self::optimise_probes), without a pause and without a hit being missed.
    /// Jumps for which that is not possible stay.
    ///
    /// # Errors
    /// As [`arm`](Self::arm).
    pub fn hold_running(&mut self, probes: &[usize], running: &Running) -> Result<(), TargetError> {
        self.check_living()?;
        self.look_before_change(probes);
        let entries: Vec<usize> = probes.iter().filter_map(|p| self.entry_of(*p)).collect();
        for entry in &entries {
            self.round.entries[*entry].held = true;
        }
        let mut jumps = self.jumps_among(&entries);
        jumps.retain(|jump| self.can_write_running(&[], &[*jump]));
        if jumps.is_empty() {
            return Ok(());
        }
        let host = self.host.clone();
        host.apart(|| {
            let remote = host.memory()?;
            let agent = self.hire_for(running, &remote)?;
            for index in &jumps {
                self.round.entries[*index].state = SiteState::StandIn;
            }
            self.know_traps(&agent, &remote, jumps.iter())?;
            self.watched = None;
            self.jumps_to_breakpoints(&agent, &remote, &jumps)?;
            self.round.waiting.extend(&jumps);
            self.standstill.one += agent.dismiss();
            Ok(())
        })
    }

    /// Has the breakpoints of some entries handled.
    fn know_traps<'a>(
        &mut self,
        agent: &Agent,
        remote: &dyn TargetMemory,
        entries: impl Iterator<Item = &'a usize>,
    ) -> Result<(), TargetError> {
        let entries: Vec<usize> = entries.copied().collect();
        let is_known = |index: &usize| {
            let entry = &self.round.entries[*index];
            let to = self.round.code.leads_to(entry.shape.covered.start);
            let made = entry.made.as_ref();
            made.is_ok_and(|made| to == Some(made.detour.entry()))
        };
        match entries.iter().all(is_known) && self.installed.handles_traps() {
            true => Ok(()),
            false => self.handle_traps_by(agent, remote, &entries),
        }
    }
}

/// Writes the bytes of a change behind its first, a page at a time: one write is one copy.
fn write_behind(
    pid: i32,
    remote: &dyn TargetMemory,
    change: &Change,
    bytes: &[u8],
) -> Result<(), TargetError> {
    let mut at = 1;
    while at < change.len {
        let address = change.address + at as u64;
        let page = (PAGE_SIZE - address % PAGE_SIZE) as usize;
        let end = change.len.min(at + page);
        write(pid, remote, address, &bytes[at..end])?;
        at = end;
    }
    Ok(())
}

/// Returns the state of a change's bytes.
fn look(remote: &dyn TargetMemory, change: &Change) -> Option<Found> {
    let mut now = vec![0; change.len];
    remote.read(change.address, &mut now).ok()?;
    Some(change.judge(&now))
}
