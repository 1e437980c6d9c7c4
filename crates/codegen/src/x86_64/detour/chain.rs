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

    /// Returns the address at which a thread continues that has executed everything of the region
    /// before the instruction at `address`, which must not be the first: the instruction's copy,
    /// or, if it is a point, its work.
    #[must_use]
    pub fn goes_on(&self, address: u64) -> Option<u64> {
        let found = self.parts.iter().enumerate().find_map(|(index, part)| {
            let at = part.copies.iter().position(|(old, _)| *old == address)?;
            Some((index, at))
        });
        let (index, at) = found?;
        let part = &self.parts[index];
        match (index, at) {
            (1.., 0) => Some(part.entry),
            _ => Some(part.copies[at].1),
        }
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
        let index = |point: &Point<'_>| {
            let found = displaced.iter().position(|i| i.ip() == point.site);
            found.unwrap_or(0)
        };
        let (mut parts, mut end, mut next) = (Vec::new(), displaced.len(), resume);
        // In reverse order, so that the successor's address is known.
        for point in points.iter().rev() {
            let start = index(point);
            let part = self.compile(&Request {
                work: point.work,
                displaced: &displaced[start..end],
                resume: next,
                red_zone: point.red_zone,
                live: point.live,
            })?;
            (end, next) = (start, part.entry);
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
        }
        parts.reverse();
        Ok(Chain { parts })
    }
}
