//! The tactics one by one: the instructions that each covers at a site, or why it cannot be
//! used.

use capriole_insn::conventions::Convention;
use capriole_insn::decode::{is_nop, is_padding};
use capriole_insn::relocate::relocatable;
use capriole_insn::{Extent, Live, Resolution, live_among};

use super::{Placed, Refusal, SiteInput};
use crate::arch::instruction::{
    Instruction, ends_flow, is_breakpoint, is_call, is_landmark, xray_sled,
};
use crate::arch::jump::{BREAKPOINT, JUMP};

/// Maximum distance in bytes from a jump to a later site that it serves. All instructions in
/// between run in the detour instead, and no thread may be between them when they change.
const LEAD: u64 = 32;

/// Instructions that one tactic covers and displaces.
pub(crate) struct Cover {
    pub(crate) covered: Extent,
    pub(crate) resume: u64,
    pub(crate) displaced: Vec<Instruction>,
    pub(crate) placed: Option<Placed>,
}

impl Cover {
    /// Creates the cover of a tactic whose jump can lead to any address.
    fn free(covered: Extent, resume: u64, displaced: Vec<Instruction>) -> Self {
        Self {
            covered,
            resume,
            displaced,
            placed: None,
        }
    }
}

/// The tactics at one site.
pub(crate) struct Ladder<'a> {
    pub(crate) input: &'a SiteInput<'a>,
    /// The address of the instruction to patch: after the `endbr64`, if there is one.
    pub(crate) site: u64,
    /// The instruction there.
    pub(crate) first: Instruction,
}

impl<'a> Ladder<'a> {
    /// Checks that the site is an instruction that may be patched at all.
    pub(crate) fn new(input: &'a SiteInput<'a>) -> Result<Self, Refusal> {
        // A caller that enters here jumps over bytes that must not change.
        let start = input.flow.extent().start;
        let behind = (input.site == start).then(|| Convention::behind(*input.code, start));
        let wanted = Self::instruction(input, behind.flatten().unwrap_or(input.site))?;
        let first = if is_landmark(&wanted) {
            Self::instruction(input, wanted.next_ip())?
        } else {
            wanted
        };
        if is_breakpoint(&first) {
            return Err(Refusal::BreakpointPresent { at: first.ip() });
        }
        Ok(Self {
            input,
            site: first.ip(),
            first,
        })
    }

    /// Returns the instruction at an address, if it may be patched.
    pub(crate) fn instruction(input: &SiteInput<'_>, site: u64) -> Result<Instruction, Refusal> {
        let flow = input.flow;
        let function = flow.extent();
        if !function.contains(site) {
            return Err(Refusal::OutsideFunction { site, function });
        }
        if !flow.is_boundary(site) {
            return Err(match (flow.instruction_around(site), flow.undecodable()) {
                (Some(instruction), _) => Refusal::NotABoundary { site, instruction },
                (None, Some(at)) => Refusal::Undecodable { at },
                (None, None) => Refusal::OutsideFunction { site, function },
            });
        }
        // Linear decoding found an instruction here. It is certain only if control flow reaches it.
        if !flow.is_straight_from_start(site) {
            if let Some(at) = flow.overlap() {
                return Err(Refusal::OverlappingCode { at });
            }
            if !flow.is_reached(site) && !flow.has_unresolved_indirect_jump() {
                return Err(Refusal::NotReached { site });
            }
        }
        if let Some(range) = input.forbidden.iter().find(|range| range.contains(site)) {
            return Err(Refusal::Forbidden { range: *range });
        }
        input
            .code
            .instruction_at(site, function.end)
            .ok_or(Refusal::Undecodable { at: site })
    }

    /// Refuses if anything may lead into `covered` past its first byte, or if some of its bytes
    /// must not change.
    pub(crate) fn nothing_inside(&self, covered: Extent) -> Result<(), Refusal> {
        let inside = Extent::new(covered.start + 1, covered.end);
        let target = self
            .input
            .targets
            .any_in(inside)
            .or_else(|| self.input.flow.any_jump_into(inside));
        if let Some(at) = target {
            return Err(Refusal::BranchTarget { at });
        }
        // The kernel, or a debugger, may write a breakpoint there while the jump is in place.
        if let Some(at) = self.input.targets.marker_in(inside) {
            return Err(Refusal::MarkerInside { at });
        }
        match self.input.forbidden.iter().find(|f| f.overlaps(&covered)) {
            Some(range) => Err(Refusal::Forbidden { range: *range }),
            None => Ok(()),
        }
    }

    /// Refuses if a thread could get between the covered instructions in a way
    /// that the set of targets does not show.
    pub(crate) fn flow_is_known(&self) -> Result<(), Refusal> {
        let (flow, targets) = (self.input.flow, self.input.targets);
        if self.input.go {
            return Err(Refusal::GoPreemption);
        }
        if let Some(at) = flow.undecodable() {
            return Err(Refusal::Undecodable { at });
        }
        if let Some(at) = flow.overlap() {
            return Err(Refusal::OverlappingCode { at });
        }
        if let Some(why) = targets.incomplete() {
            return Err(Refusal::TargetsUnknown(why));
        }
        if let Some(at) = flow.unresolved_indirect_jump(targets.pointers_known()) {
            return Err(Refusal::UnresolvedIndirectJump { at });
        }
        for jump in flow.indirect_jumps() {
            let idiom = Extent::new(jump.idiom.start + 1, jump.idiom.end);
            if matches!(jump.resolution, Resolution::Table { .. })
                && targets.any_in(idiom).is_some()
            {
                return Err(Refusal::UnresolvedIndirectJump { at: jump.address });
            }
        }
        let function = flow.extent();
        let inside = Extent::new(function.start + 1, function.end);
        match targets.suspect_in(inside) {
            Some(at) => Err(Refusal::UnresolvedPartJump { at }),
            None => Ok(()),
        }
    }

    pub(crate) fn displaceable(&self, instruction: &Instruction) -> Result<(), Refusal> {
        relocatable(instruction)?;
        if self.input.shadow_stack && is_call(instruction) {
            return Err(Refusal::ShadowStack {
                at: instruction.ip(),
            });
        }
        Ok(())
    }

    pub(crate) fn reserved(&self) -> Result<Cover, Refusal> {
        let function = self.input.flow.extent();
        let nothing_displaced = |end| Cover::free(Extent::new(self.site, end), end, Vec::new());
        if let Some(end) = xray_sled(self.input.code, self.site, function.end) {
            self.nothing_inside(Extent::new(self.site, end))?;
            return Ok(nothing_displaced(end));
        }
        let mut end = self.site;
        let mut count = 0;
        while end < self.site + JUMP {
            match self.input.code.instruction_at(end, function.end) {
                Some(nop) if is_nop(&nop) => end = nop.next_ip(),
                _ => break,
            }
            count += 1;
        }
        let bytes = end - self.site;
        if bytes == 0 {
            return Err(Refusal::NoReservedBytes);
        }
        if bytes < JUMP {
            return Err(Refusal::NopsTooShort { bytes });
        }
        if count > 1 && !self.is_at_start() {
            // No compiler puts a label between the nops it reserves at the
            // start of a function; elsewhere they could be anything.
            self.flow_is_known()?;
        } else if count > 1 && self.input.go {
            return Err(Refusal::GoPreemption);
        }
        self.nothing_inside(Extent::new(self.site, end))?;
        Ok(nothing_displaced(end))
    }

    pub(crate) fn one_instruction(&self) -> Result<Cover, Refusal> {
        let covered = Extent::new(self.site, self.first.next_ip());
        if covered.len() < JUMP {
            return Err(Refusal::ShortInstruction {
                bytes: covered.len(),
            });
        }
        self.displaceable(&self.first)?;
        self.nothing_inside(covered)?;
        Ok(Cover::free(covered, covered.end, vec![self.first]))
    }

    pub(crate) fn region(&self) -> Result<Cover, Refusal> {
        let own = self.region_from(self.site);
        own.or_else(|refusal| self.led_region().ok_or(refusal))
    }

    /// Finds a jump that also covers instructions before the site, as few as possible. It is as
    /// safe as any other region: nothing may lead into it past its first byte, so any thread that
    /// reaches the site has passed that byte, and the detour does the work between the copies.
    ///
    /// ```text
    ///                 site
    /// 48 83 c4 08 │ c3 │ 55 …      add $8,%rsp; ret │ the next function
    /// e9 xx xx xx   xx │ 55 …      the detour adds, does the work, and returns
    /// ```
    fn led_region(&self) -> Option<Cover> {
        self.flow_is_known().ok()?;
        let mut from = self.site;
        loop {
            let before = self.input.flow.instruction_around(from.checked_sub(1)?)?;
            if before.end != from || self.site - before.start > LEAD {
                return None;
            }
            from = before.start;
            let first = Self::instruction(self.input, from).ok()?;
            if ends_flow(&first) || is_call(&first) || is_landmark(&first) {
                return None;
            }
            if let Ok(cover) = self.region_from(from) {
                return Some(cover);
            }
        }
    }

    /// Covers several instructions with a jump at `from`, at least up to and including the site's.
    pub(crate) fn region_from(&self, from: u64) -> Result<Cover, Refusal> {
        let function = self.input.flow.extent();
        if self.site.wrapping_sub(from) > LEAD {
            return Err(Refusal::OtherLength {
                bytes: self.site.wrapping_sub(from),
            });
        }
        // A single instruction that never continues, at the end of the function, is followed by
        // nothing that a jump could lead to.
        let is_last =
            from == self.site && ends_flow(&self.first) && self.first.next_ip() == function.end;
        if !is_last {
            self.flow_is_known()?;
        }
        let mut displaced = Vec::new();
        let mut end = from;
        let mut goes_on = true;
        while goes_on && (end < from + JUMP || end <= self.site) {
            if end >= function.end {
                return Err(Refusal::EndsTooSoon { at: end });
            }
            let instruction = self
                .input
                .code
                .instruction_at(end, function.end)
                .ok_or(Refusal::Undecodable { at: end })?;
            self.displaceable(&instruction)?;
            end = instruction.next_ip();
            if is_call(&instruction) && (end < from + JUMP || end <= self.site) {
                return Err(Refusal::CallInside {
                    at: instruction.ip(),
                });
            }
            goes_on = !ends_flow(&instruction);
            displaced.push(instruction);
        }
        if end <= self.site {
            return Err(Refusal::EndsTooSoon { at: end });
        }
        let resume = end;
        if end < from + JUMP {
            end = self.padding(from, end)?;
        }
        let covered = Extent::new(from, end);
        self.nothing_inside(covered)?;
        Ok(Cover::free(covered, resume, displaced))
    }

    /// Like [`reserved`](Self::reserved), for a jump within one nop.
    pub(crate) fn reserved_in_one(&self) -> Result<Cover, Refusal> {
        let cover = self.reserved()?;
        match cover.covered.end > self.first.next_ip() {
            true => Err(Refusal::NopsTooShort {
                bytes: self.first.len() as u64,
            }),
            false => Ok(cover),
        }
    }

    /// Returns the end of the padding at `at` that the jump at `from` needs.
    fn padding(&self, from: u64, at: u64) -> Result<u64, Refusal> {
        let limit = self.input.padding_end.max(self.input.flow.extent().end);
        let mut end = at;
        while end < from + JUMP {
            match self.input.code.instruction_at(end, limit) {
                // No jump may lead to the first byte either, as it is covered.
                Some(padding) if is_padding(&padding) => end = padding.next_ip(),
                _ => return Err(Refusal::EndsTooSoon { at }),
            }
        }
        Ok(end)
    }

    pub(crate) fn int3(&self) -> Result<Cover, Refusal> {
        self.displaceable(&self.first)?;
        self.input.int3?;
        let covered = Extent::new(self.site, self.site + BREAKPOINT);
        Ok(Cover::free(covered, self.first.next_ip(), vec![self.first]))
    }

    /// See [`SiteInput`] and `Shape::live`.
    pub(crate) fn live(&self) -> Live {
        let markers = self.input.targets.markers();
        live_among(self.input.code, &self.function(), self.site, markers)
    }

    /// See [`SiteInput`] and `Shape::function`.
    pub(crate) fn function(&self) -> Extent {
        self.input.flow.extent()
    }

    /// True if the site is the function's start, or right after the `endbr64` there.
    fn is_at_start(&self) -> bool {
        let start = self.input.flow.extent().start;
        let code = self.input.code;
        self.site == start
            || code
                .instruction_at(start, self.site)
                .is_some_and(|i| is_landmark(&i) && i.next_ip() == self.site)
    }

    /// See [`SiteInput`] and `Shape::at_entry`.
    pub(crate) fn at_entry(&self) -> bool {
        let (flow, targets) = (self.input.flow, self.input.targets);
        let start = flow.extent().start;
        // Code that is jumped to and never called may be the cold part of another function, entered
        // with that function's red zone live.
        let entered_by_jump = |address| targets.jumped(address) && !targets.called(address);
        self.is_at_start()
            && !self.input.split_part
            && !flow.is_jumped_to(start)
            && !flow.is_jumped_to(self.site)
            && !flow.has_unresolved_indirect_jump()
            && !entered_by_jump(start)
            && (self.site == start || !entered_by_jump(self.site))
    }
}
