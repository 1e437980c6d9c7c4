//! Everything that a session has in a process: the list from which it is removed.

use crate::returns::Region;
use crate::session;
use capriole_host::error::TargetError;
use capriole_host::host::Routines;
use capriole_ledger::change::Change;
use capriole_ledger::counter::Reference;
use capriole_ledger::{Action, Arena, Ledger, MemoryAt};
use capriole_proc::maps::Mapping;
use capriole_proc::process::Process;
use std::ops::Range;

/// Everything that a session has installed in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// The ledger, which records all of these and is unmapped last.
    pub ledger: Ledger,
    /// Further ledgers of the session, for the probes that were added to it.
    pub extensions: Vec<Ledger>,
    /// Mapping of session memory, as first made.
    pub(crate) memory: Option<MemoryAt>,
    /// Memory for detours.
    pub arenas: Vec<Arena>,
    /// The memory through which followed calls return.
    pub returns: Option<Region>,
    /// Address ranges of mapped stubs, ascending.
    pub stubs: Vec<Range<u64>>,
    /// The changes of the sites.
    pub changes: Vec<Change>,
    /// The reference counters that were incremented.
    pub(crate) references: Vec<Reference>,
    /// The replaced signal actions.
    pub actions: Vec<Action>,
    /// The program's own code that the detours call.
    pub(crate) routines: Option<Routines>,
    /// True if the memory has to stay when the probes are taken out: the program may have addresses in it.
    pub stays: bool,
}

impl Installed {
    /// Adds everything that an extension of the ledger lists.
    pub(crate) fn extend(&mut self, extension: Installed) {
        self.extensions.push(extension.ledger);
        self.extensions.extend(extension.extensions);
        self.arenas.extend(extension.arenas);
        self.stubs.extend(extension.stubs);
        self.changes.extend(extension.changes);
        self.references.extend(extension.references);
    }

    /// True if breakpoints are handled.
    pub(crate) fn handles_traps(&self) -> bool {
        self.actions
            .iter()
            .any(|action| action.signal == libc::SIGTRAP)
    }

    /// True if an address lies in generated code.
    pub(crate) fn holds(&self, address: u64) -> bool {
        let at = self.stubs.partition_point(|range| range.end <= address);
        self.stubs
            .get(at)
            .is_some_and(|range| range.start <= address)
            || self.arenas.iter().any(|arena| arena.contains(address))
            || self.returns.is_some_and(|region| region.holds(address))
    }

    /// Returns the range where session memory, which other processes may share, is mapped now.
    pub(crate) fn shared_in(&self, process: &Process) -> Result<Option<Range<u64>>, TargetError> {
        Ok(self.shared_among(&process.maps()?))
    }

    fn shared_among(&self, maps: &[Mapping]) -> Option<Range<u64>> {
        let memory = self.memory?;
        let is_it = |m: &&Mapping| m.start == memory.base && m.inode == memory.inode;
        let shared = maps.iter().filter(|m| session::is_session(m)).find(is_it)?;
        Some(shared.start..shared.end)
    }

    /// Returns the range of session memory followed by the slots for open calls, which are private
    /// to the process.
    pub(crate) fn memory_in(&self, process: &Process) -> Result<Option<Range<u64>>, TargetError> {
        let maps = process.maps()?;
        let (Some(memory), Some(shared)) = (self.memory, self.shared_among(&maps)) else {
            return Ok(None);
        };
        let end = memory.base.saturating_add(memory.size);
        // The kernel shows the slots as several mappings: a page of them is empty in a forked child.
        let own = |m: &&Mapping| m.inode == 0 && !m.perms.execute && !m.perms.shared;
        let next = |to, m: &Mapping| if m.start == to { m.end } else { to };
        let slots = maps.iter().filter(own).fold(shared.end, next);
        Ok(Some(
            shared.start..if slots >= end { end } else { shared.end },
        ))
    }

    /// Returns the phases of the changes, from 0.
    pub(crate) fn phases(&self) -> std::ops::RangeInclusive<u8> {
        0..=self.changes.iter().map(|c| c.phase).max().unwrap_or(0)
    }
}
