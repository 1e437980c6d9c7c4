//! Traits of handlers, for `enum traits` of `library/internal.h`.

use crate::reads::{Reader, reader};
use crate::uses::{Uses, uses, uses_itself};
use capriole_proc::process::Process;
use std::collections::BTreeMap;

/// Kind of an argument probe's handlers in a message: the function with the prototype, and the
/// library's function that calls it.
pub const ARGUMENTS: u64 = 1;
/// Kind of a return probe's handlers in a message: at the entry, at the return, and the library's
/// functions that call them.
pub const RETURN: u64 = 2;

const CHANGES_VECTORS: u64 = 1;
const ONLY_READS: u64 = 2;
const RETURN_ONLY_READS: u64 = 4;
const SIMPLY: u64 = 8;
const RETURN_SIMPLY: u64 = 16;

/// Analysis of the handlers of one request, many of which are often the same.
pub struct Analysis<'a> {
    process: Option<&'a Process>,
    uses: BTreeMap<u64, Uses>,
    readers: BTreeMap<u64, Option<Reader>>,
    /// Functions of the library's, and whether they leave vector registers and control flags alone.
    plain: BTreeMap<u64, bool>,
}

impl<'a> Analysis<'a> {
    /// Begins an analysis in a process; without one nothing is known of any handler.
    pub fn new(process: Option<&'a Process>) -> Self {
        Analysis {
            process,
            uses: BTreeMap::from([(0, Uses::NOTHING)]),
            readers: BTreeMap::from([(0, Some(Reader { simple: true }))]),
            plain: BTreeMap::new(),
        }
    }

    /// Returns the traits of a pre-handler and other handlers of a probe. 0 is no handler.
    pub fn handlers(&mut self, pre: u64, others: &[u64]) -> u64 {
        let vectors = self.uses(pre).vectors || others.iter().any(|&at| self.uses(at).vectors);
        let reader = self.reader(pre).filter(|_| pre != 0);
        traits(vectors, reader, ONLY_READS, SIMPLY)
    }

    /// Returns the traits of a handler with the prototype of the probed function, which gets no
    /// registers, and is called by a function of the library's that only reads them.
    pub fn arguments(&mut self, handler: u64, caller: u64) -> u64 {
        let uses = self.uses(handler);
        let plain = self.is_plain(caller) && !uses.control_flags;
        let reader = plain.then_some(Reader { simple: false });
        traits(uses.vectors, reader, ONLY_READS, SIMPLY)
    }

    /// Returns the traits of a return probe's handlers. The library's functions that call them
    /// read registers, and leave a stack pointer and an instruction pointer in memory that a
    /// routine for handlers that only read does not load.
    pub fn of_return(&mut self, [entry, handler, entered, left]: [u64; 4]) -> u64 {
        let vectors = self.uses(entry).vectors || self.uses(handler).vectors;
        let [entered, left] = [entered, left].map(|at| self.is_plain(at));
        let entry = self.reader(entry).filter(|_| entered);
        let handler = self.reader(handler).filter(|_| left);
        traits(vectors, entry, ONLY_READS, SIMPLY)
            | traits(vectors, handler, RETURN_ONLY_READS, RETURN_SIMPLY)
    }

    fn uses(&mut self, address: u64) -> Uses {
        let process = self.process;
        *self
            .uses
            .entry(address)
            .or_insert_with(|| process.map_or(Uses::ALL, |process| uses(process, address)))
    }

    /// Returns a handler if it only reads registers, and uses nothing else that a routine would
    /// have to take care of.
    fn reader(&mut self, address: u64) -> Option<Reader> {
        if self.uses(address) != Uses::NOTHING {
            return None;
        }
        let process = self.process;
        *self.readers.entry(address).or_insert_with(|| {
            let process = process?;
            reader(address, |at, bytes| {
                process.read_memory(at, bytes).unwrap_or(0)
            })
        })
    }

    /// True if a function of the library's leaves vector registers and control flags alone.
    fn is_plain(&mut self, address: u64) -> bool {
        let process = self.process;
        *self.plain.entry(address).or_insert_with(|| {
            process.is_some_and(|process| uses_itself(process, address) == Uses::NOTHING)
        })
    }
}

/// Returns the traits of a handler, if it only reads registers and none of the probe's changes
/// vector registers.
fn traits(vectors: bool, reader: Option<Reader>, reads: u64, simply: u64) -> u64 {
    match reader {
        _ if vectors => CHANGES_VECTORS,
        Some(Reader { simple: true }) => reads | simply,
        Some(Reader { simple: false }) => reads,
        None => 0,
    }
}
