//! Restartable sequences: code that the kernel aborts if the thread is interrupted in it; the
//! thread then continues at an abort handler (rseq(2), `<linux/rseq.h>`).
//!
//! A library that contains such sequences declares them for debuggers and tracers in the
//! section `__rseq_cs`, an array of `struct rseq_cs`; the section `__rseq_cs_ptr_array` holds
//! pointers to them.
//!
//! ```text
//! offset 0   u32 version (0)
//!        4   u32 flags
//!        8   u64 start_ip             first instruction
//!       16   u64 post_commit_offset   length in bytes
//!       24   u64 abort_ip             where the kernel continues; the four
//!                                     bytes before it are a signature
//! ```

use std::collections::HashMap;

use capriole_insn::Extent;

use super::ObjectProblem;
use super::elf::{Headers, Section};
use super::pointers::relative_relocations;
use super::source::Source;

const ENTRY: u64 = 32;
/// Size of the signature before the abort handler, bytes. The kernel checks the signature.
const SIGNATURE: u64 = 4;

/// One restartable sequence, in link addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RseqSection {
    /// The sequence itself, from its first instruction to the end of the instruction that commits.
    pub critical: Extent,
    /// Address of the abort handler.
    pub abort: u64,
}

impl RseqSection {
    /// Returns the bytes that must not be changed: the sequence, and the signature before the abort
    /// handler with the handler's first byte, which is a jump target.
    #[must_use]
    pub fn forbidden(&self) -> [Extent; 2] {
        [
            self.critical,
            Extent::new(
                self.abort.saturating_sub(SIGNATURE),
                self.abort.saturating_add(1),
            ),
        ]
    }
}

/// Reads all declared sequences. An entry outside the text is unused and is skipped.
pub(super) fn read(source: &Source, headers: &Headers) -> Result<Vec<RseqSection>, ObjectProblem> {
    let tables = |name: &'static str| {
        headers
            .sections
            .iter()
            .filter(move |s| s.name == name && s.in_file() && s.size > 0)
            .filter(|s| s.size <= source.len())
    };
    let mut addresses: Vec<u64> = tables("__rseq_cs")
        .flat_map(|section| (section.address..section.end()).step_by(ENTRY as usize))
        .collect();
    let pointers: Vec<&Section> = tables("__rseq_cs_ptr_array").collect();
    if addresses.is_empty() && pointers.is_empty() {
        return Ok(Vec::new());
    }
    let memory = Memory {
        source,
        headers,
        relocated: relative_relocations(source, headers)?.into_iter().collect(),
    };
    for section in pointers {
        addresses.extend(
            (section.address..section.end())
                .step_by(8)
                .filter_map(|at| memory.word(at)),
        );
    }
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses
        .into_iter()
        .filter_map(|address| memory.entry(address))
        .collect())
}

/// The object's data as loaded at bias 0.
struct Memory<'a> {
    source: &'a Source,
    headers: &'a Headers,
    relocated: HashMap<u64, u64>,
}

impl Memory<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        if let Some(&value) = self.relocated.get(&address) {
            return Some(value);
        }
        let bytes = self.source.read(self.headers.offset_of(address)?, 8).ok()?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    fn entry(&self, address: u64) -> Option<RseqSection> {
        let start = self.word(address.checked_add(8)?)?;
        let length = self.word(address.checked_add(16)?)?;
        let abort = self.word(address.checked_add(24)?)?;
        let critical = Extent::new(start, start.checked_add(length)?);
        let in_text = |at| self.headers.text_range(at).is_some();
        (in_text(start) && in_text(abort)).then_some(RseqSection { critical, abort })
    }
}
