//! Chains of detours, for a region in which not only the first instruction has work to do.
//!
//! ```text
//! program                     detours
//! B: jmp ───────────────────▶ copies of B …                 nothing to do there
//!    …                        jmp ─▶ work of S
//! S: (covered)                       copies of S …
//! resume ◀─────────────────────────  jmp
//! ```
//!
//! Each is a [`Detour`] of its own that continues at the next one instead of in the program.

use super::{CompileError, Compiler, Detour, Request};
use crate::work::Work;
use capriole_insn::liveness::Live;
use iced_x86::Instruction;

/// An instruction of a region that has work to do before it runs.
#[derive(Debug, Clone, Copy)]
pub struct Point<'a> {
    /// Its address.
    pub site: u64,
    /// The work.
    pub work: &'a [Work],
    /// Work done after the instruction. It must not be empty only if the next instruction follows.
    pub after: &'a [Work],
    /// As in [`Request`].
    pub red_zone: bool,
    /// As in [`Request`].
    pub live: Live,
}

/// A chain of detours, each for a part of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The detours, in the order of the program's instructions; at least one. All but the first
    /// begin with the work of a point.
    pub parts: Vec<Detour>,
    /// For each part, true if it begins with work that comes after the instruction before.
    after: Vec<bool>,
}

impl Chain {
    /// Returns the address that the program's jump leads to.
    #[must_use]
    pub fn entry(&self) -> u64 {
        self.parts[0].entry
    }

    /// Returns the total size in bytes, counted as [`Detour::size`].
    #[must_use]
    pub fn size(&self) -> usize {
        self.parts.iter().map(|part| part.size).sum()
    }

    /// Returns the address of the copy of the instruction at `address`, if it was displaced; of
    /// bytes that were made to be overwritten, the address of the code behind the work.
    #[must_use]
    pub fn copy_of(&self, address: u64) -> Option<u64> {
        let copies = self.parts.iter().flat_map(|part| &part.copies);
        let mut own = copies.filter(|(old, _)| *old == address);
        let found = own.next().map(|(_, copy)| *copy);
        found.or_else(|| self.parts.first()?.back)
    }

    /// Returns the address at which a thread continues that has executed everything of the region
    /// before the instruction at `address`, which must not be the first: the instruction's copy,
    /// or, if it is a point, its work. Work that comes after the instruction before it is not for
    /// that thread, which has executed the original; the point's own work is left out with it.
    #[must_use]
    pub fn goes_on(&self, address: u64) -> Option<u64> {
        let found = self.parts.iter().enumerate().find_map(|(index, part)| {
            let at = part.copies.iter().position(|(old, _)| *old == address)?;
            Some((index, at))
        });
        let (index, at) = found?;
        let part = &self.parts[index];
        match (index, at) {
            (1.., 0) if !self.after[index] => Some(part.entry),
            _ => Some(part.copies[at].1),
        }
    }
}

/// Work between two instructions of a region.
struct Stage {
    work: Vec<Work>,
    red_zone: bool,
    live: Live,
    /// True if it begins with work that comes after the instruction before.
    after: bool,
}

impl Stage {
    /// Adds work that comes after this.
    fn and(&mut self, other: Stage) {
        self.work.extend(other.work);
        self.red_zone |= other.red_zone;
        self.live.gprs = self.live.gprs | other.live.gprs;
        self.live.flags |= other.live.flags;
    }
}

impl Compiler {
    /// Compiles the detours for `points` (ascending) of a region with the instructions `displaced`.
    /// Points that are not among these count as the region's start.
    ///
    /// # Errors
    /// As for a single detour.
    pub fn compile_chain(
        &mut self,
        points: &[Point<'_>],
        displaced: &[Instruction],
        resume: u64,
    ) -> Result<Chain, CompileError> {
        let mut stages: Vec<(usize, Stage)> = Vec::new();
        let stage = |stages: &mut Vec<(usize, Stage)>, start: usize, stage: Stage| match stages
            .last_mut()
        {
            Some((last, before)) if *last == start => before.and(stage),
            _ => stages.push((start, stage)),
        };
        for point in points {
            let found = displaced.iter().position(|i| i.ip() == point.site);
            let own = Stage {
                work: point.work.to_vec(),
                red_zone: point.red_zone,
                live: point.live,
                after: false,
            };
            stage(&mut stages, found.unwrap_or(0), own);
            if !point.after.is_empty() {
                let after = Stage {
                    work: point.after.to_vec(),
                    red_zone: true,
                    live: Live::ALL,
                    after: true,
                };
                stage(&mut stages, found.map_or(0, |at| at + 1), after);
            }
        }
        let (mut parts, mut end, mut next) = (Vec::new(), displaced.len(), resume);
        let mut after: Vec<bool> = stages.iter().map(|(_, stage)| stage.after).collect();
        // In reverse order, so that the successor's address is known.
        for (start, stage) in stages.iter().rev() {
            let part = self.compile(&Request {
                work: &stage.work,
                displaced: &displaced[*start..end],
                resume: next,
                red_zone: stage.red_zone,
                live: stage.live,
            })?;
            (end, next) = (*start, part.entry);
            parts.push(part);
        }
        if end > 0 || parts.is_empty() {
            parts.push(self.compile(&Request {
                work: &[],
                displaced: &displaced[..end],
                resume: next,
                red_zone: false,
                live: Live::ALL,
            })?);
            after.insert(0, false);
        }
        parts.reverse();
        Ok(Chain { parts, after })
    }
}
