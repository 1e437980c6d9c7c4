//! Finding out that nobody does the work of some probes any more.
//!
//! A probe that was disarmed may still be at work: a thread was in its detour, or was interrupted
//! there by a signal, and goes on later; a child that was forked earlier has the probe still; a call
//! whose return address was replaced has not returned. What the work writes to (a table) may be used
//! for something else only when none of this is possible:
//!
//! - the program's own bytes, or those of a jump to another detour, are where the probe was. Bytes
//!   that another tool has written there do not count: it may put ours back;
//! - while all threads are stopped, none is in generated code, no signal frame returns there, and no
//!   thread's `rseq_cs` points there: as before a detach unmaps it;
//! - no call is open whose return address was replaced.
//!
//! The same holds for each process that shares the session's memory. None of this can become untrue
//! later, as nothing but arming the probes leads to their detours; so the processes are examined one
//! after the other. A process that was forked meanwhile, maybe by one that was not examined yet,
//! makes the answer "no".

use super::Attached;
use super::round::Entry;
use crate::detach::{PATIENCE, leave, unreferenced};
use crate::patch::Batch;
use crate::recover::sharing;
use capriole_host::Host;
use capriole_host::error::TargetError;
use capriole_ledger::change::Found;
use capriole_proc::process::Process;
use std::collections::BTreeSet;

impl Attached {
    /// True if it is certain that no thread does the work of these probes any more, in the program
    /// and in the children that it has forked, as long as the probes stay disarmed. If they are
    /// armed, if a thread stays in generated code, or if a process cannot be stopped now, returns
    /// false.
    ///
    /// # Errors
    /// The program cannot be stopped or examined.
    pub fn are_over(&mut self, probes: &[usize]) -> Result<bool, TargetError> {
        let asked = &self.round.asked.probes;
        let known = probes.iter().filter_map(|probe| asked.get(*probe));
        let placed = known.filter(|asked| asked.place.is_ok());
        if placed.clone().any(|asked| asked.armed) {
            return Ok(false);
        }
        let places: BTreeSet<usize> = placed.filter_map(|a| a.place.clone().ok()).collect();
        if places.is_empty() {
            return Ok(true);
        }
        self.check_living()?;
        self.host
            .clone()
            .apart(|| self.are_over_everywhere(probes, &places))
    }

    fn are_over_everywhere(
        &mut self,
        probes: &[usize],
        places: &BTreeSet<usize>,
    ) -> Result<bool, TargetError> {
        let children = || sharing(&self.memory_at(), self.process().pid());
        let first = children();
        if !self.is_over_in(&*self.host, probes, places)? {
            return Ok(false);
        }
        for child in &first {
            match self.is_over_in(&*self.host.other(child), probes, places) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(_) if child.is_over() => {}
                Err(_) => return Ok(false),
            }
        }
        let is_known = |process: &Process| first.iter().any(|p| p.pid() == process.pid());
        Ok(children().iter().all(is_known))
    }

    /// Examines one process.
    fn is_over_in(
        &self,
        host: &dyn Host,
        probes: &[usize],
        places: &BTreeSet<usize>,
    ) -> Result<bool, TargetError> {
        let process = host.process();
        let pid = host.pid();
        let remote = host.memory()?;
        // Search now; while threads are stopped, only the result is checked.
        host.prepare(&remote);
        let mut stopped = match host.stop() {
            Err(TargetError::Unstoppable { .. }) => return Ok(false),
            stopped => stopped?,
        };
        let own = process.pid() == self.process().pid();
        let mut batch = Batch::new(pid, &remote);
        if !places
            .iter()
            .all(|p| self.leads_away(&mut batch, probes, *p, own))
        {
            return Ok(false);
        }
        if let Some(region) = self.installed.returns
            && region.has_open(pid, &remote)?
        {
            return Ok(false);
        }
        match leave(&mut *stopped, &self.installed, PATIENCE) {
            Ok(true) => unreferenced(&*stopped, &remote, process, &self.installed),
            Ok(false) | Err(TargetError::Unstoppable { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// True if the bytes at a place lead to no detour with work of these probes. `own`: in the
    /// program itself, not in a child.
    fn leads_away(&self, batch: &mut Batch<'_>, probes: &[usize], place: usize, own: bool) -> bool {
        let place = &self.round.asked.places[place];
        let entry = |index: &usize| &self.round.entries[*index];
        let works = |entry: &Entry| entry.members.iter().any(|member| probes.contains(member));
        let (old, others): (Vec<&Entry>, Vec<&Entry>) =
            place.variants.iter().map(entry).partition(|e| works(e));
        let now = place.current.map(|current| entry(&current));
        let now = now.filter(|now| now.is_written());
        if now.is_some_and(works) {
            return false;
        }
        old.iter().flat_map(|old| old.changes()).all(|change| {
            // Where the bytes are prescribed, and for breakpoints, they are the same for all
            // detours of a place. In the program they lead to the one that is in use now.
            let leads_elsewhere = |batch: &mut Batch<'_>| {
                let changes = others.iter().flat_map(|other| other.changes());
                let mut here = changes.filter(|other| {
                    let told_apart = other.after != change.after || own && now.is_some();
                    other.address == change.address && told_apart
                });
                here.any(|other| batch.inspect(other) == Found::After)
            };
            batch.inspect(change) == Found::Before || leads_elsewhere(batch)
        })
    }
}
