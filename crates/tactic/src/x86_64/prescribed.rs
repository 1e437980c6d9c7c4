//! Tactics whose jumps can lead to certain addresses only.
//!
//! ```text
//! pun       48 8b 07 │ c3          mov (%rdi),%rax; ret
//!           e9 xx xx │ c3          the displacement's last byte is the `ret`
//!
//! evict     5b │ 48 8b 45 f8       pop %rbx; mov -8(%rbp),%rax
//!           5b │ e9 xx xx xx       first the neighbour, to a copy of itself,
//!           e9 │ e9 xx xx xx       then the site: its displacement is xxxxxxe9
//!
//! evict     31 c0 │ …  48 c7 45 f8 00 00 00 00
//!           31 c0 │ …  e9 yy e9 xx xx xx xx 00     two jumps in the neighbour,
//!           eb +n │ …  e9 yy e9 xx xx xx xx 00     the second one for us
//! ```
//!
//! Every changed instruction still begins at its old address, with a jump: any code that leads
//! there, known or not, reaches that jump. No address inside an instruction can be in use, so
//! threads need not be moved and no saved address matters.
//!
//! The detour also executes the instructions that share bytes with the jump, and continues
//! behind them, since processors are slow to come back into such bytes.
//!
//! If the shared bytes belong to another site's jump, that jump gets a stub, so its
//! displacement can be chosen, and with it this one's
//! ([`choose_before`](crate::site::choose_before)). The other site is written in an earlier phase and
//! restored in a later one; if it waits, so does this one.

mod cells;

use std::ops::Range;

use capriole_insn::Extent;
use capriole_insn::decode::is_nop;
use iced_x86::FlowControl;

use self::cells::{Cells, Jump, TRIES};
use super::instruction::{Instruction, ends_flow, is_breakpoint, is_call, is_landmark};
use super::jump::JUMP;
use crate::place::{Placer, Slot};
use crate::site::ladder::{Cover, Ladder};
use crate::site::{Placed, Refusal, Stub, StubTo};

/// `jmp rel8`.
const SHORT_JUMP: u8 = 0xeb;
const INT3: u8 = 0xcc;
/// Prefixes that have no effect on a jump (Intel SDM vol. 2, 2.1.1 and 2.2.1): segment
/// overrides, and REX, which must directly precede the opcode.
const SEGMENTS: [u8; 4] = [0x2e, 0x3e, 0x26, 0x36];
const REX: Range<u8> = 0x40..0x50;
/// Maximum number of adjacent neighbours evicted for one site.
const CHAIN: usize = 3;
/// Maximum number of addresses tried for a chain of jumps.
const CHAIN_TRIES: usize = 2000;
const PAGE: u64 = 4096;

fn bytes_of(instruction: &Instruction) -> Range<u64> {
    instruction.ip()..instruction.next_ip()
}

impl Ladder<'_> {
    fn cells(&self, own: Vec<Range<u64>>) -> Cells<'_> {
        Cells::new(self.input.code, own)
    }

    /// Refuses if the instruction cannot be replaced by a jump of the same length.
    fn replaceable(&self, instruction: &Instruction, placer: &Placer) -> Result<(), Refusal> {
        self.displaceable(instruction)?;
        let bytes = bytes_of(instruction);
        self.nothing_inside(Extent::new(bytes.start, bytes.end))?;
        match bytes.clone().find(|at| placer.is_used(*at..*at + 1)) {
            Some(at) => Err(Refusal::BytesInUse { at }),
            None => Ok(()),
        }
    }

    /// Returns the cover that displaces only the site's instruction.
    fn alone(&self, placed: Placed) -> Cover {
        let bytes = bytes_of(&self.first);
        Cover {
            covered: Extent::new(bytes.start, bytes.end),
            resume: bytes.end,
            displaced: vec![self.first],
            placed: Some(placed),
        }
    }

    pub(crate) fn punned(&self, placer: &mut Placer) -> Result<Cover, Refusal> {
        let bytes = self.first.len() as u64;
        if !(2..JUMP).contains(&bytes) {
            return Err(Refusal::OtherLength { bytes });
        }
        self.pun(placer)
    }

    pub(crate) fn punned_byte(&self, placer: &mut Placer) -> Result<Cover, Refusal> {
        let bytes = self.first.len() as u64;
        if bytes != 1 {
            return Err(Refusal::OtherLength { bytes });
        }
        self.pun(placer)
    }

    fn pun(&self, placer: &mut Placer) -> Result<Cover, Refusal> {
        self.replaceable(&self.first, placer)?;
        let own = bytes_of(&self.first);
        let mut refusal = Refusal::NoStubAddress;
        for jump in Jump::forms(self.site, own.end - own.start) {
            let mut cells = self.cells(vec![own.clone()]);
            match cells.lead(&jump, placer) {
                Ok(stub) => {
                    let stubs = [(stub, StubTo::Detour)];
                    let placed = cells.place(placer, &[own], &stubs, Vec::new(), Vec::new())?;
                    let mut cover = self.alone(placed);
                    self.go_on_behind(jump.end(), &mut cover, placer);
                    return Ok(cover);
                }
                Err(why) => refusal = why,
            }
        }
        Err(refusal)
    }

    /// Has the detour also run the instructions that share bytes with the jump, if they can be
    /// copied. Then the program does not return to bytes that were just decoded as another
    /// instruction, which costs processors several nanoseconds. Threads that get there from
    /// elsewhere run the originals.
    fn go_on_behind(&self, end: u64, cover: &mut Cover, placer: &Placer) {
        let (flow, code) = (self.input.flow, self.input.code);
        let mut last = self.first;
        while cover.resume < end && runs_on(&last) {
            let at = cover.resume;
            let known = code.instruction_at(at, flow.extent().end);
            let Some(next) = known.filter(|_| flow.is_boundary(at)) else {
                return;
            };
            let bytes = bytes_of(&next);
            let extent = Extent::new(bytes.start, bytes.end);
            let stays = is_breakpoint(&next)
                || is_landmark(&next)
                || self.displaceable(&next).is_err()
                || leads_into(&next, self.site..bytes.end)
                || bytes.clone().any(|at| placer.is_taken(at))
                || self.input.forbidden.iter().any(|f| f.overlaps(&extent));
            if stays {
                return;
            }
            // The copied bytes must match memory.
            if let Some((start, known)) = cover.placed.as_mut().and_then(|p| p.relies_on.last_mut())
            {
                let more = Extent::new(*start + known.len() as u64, bytes.end);
                known.extend(code.get(more).unwrap_or_default());
            }
            cover.displaced.push(next);
            cover.resume = bytes.end;
            last = next;
        }
    }

    /// Finds a jump whose displacement bytes, from `neighbour` on, are the jump of another site at
    /// that address. That other jump may lead anywhere: it is given a stub, so that its
    /// displacement can be chosen.
    ///
    /// ```text
    /// c3 │ 55 48 89 e5 41 57       ret │ push; mov; push, another site
    /// c3 │ e9 xx xx xx yy 57       first the neighbour, to its stub at .. + yyxxxxxx
    /// e9 │ e9 xx xx xx yy 57       then the site, to its stub at .. + xxxxxxe9
    /// ```
    ///
    /// Each of the two instructions still begins at its old address, with a jump. The neighbour's
    /// part is returned along with the site's own.
    ///
    /// The jump is at `from`. If that is before the site, it covers all instructions up to the
    /// neighbour: a region without enough room.
    pub(crate) fn before(
        &self,
        from: u64,
        neighbour: u64,
        placer: &mut Placer,
    ) -> Result<(Cover, Placed), Refusal> {
        let displaced = self.up_to(from, neighbour, placer)?;
        let last = displaced.last().unwrap_or(&self.first);
        let end = last.next_ip();
        let other = neighbour..neighbour + JUMP;
        if !(end..from + JUMP).contains(&neighbour) {
            return Err(Refusal::NoNeighbour);
        }
        let room = from..self.room(last, placer).end.min(neighbour);
        let mut refusal = Refusal::NoStubAddress;
        for jump in Jump::forms(from, end - from) {
            if jump.end() <= neighbour {
                continue;
            }
            let mut cells = self.cells(vec![room.clone(), other.clone()]);
            let [stub, others] = match cells.lead_both([&jump, &Jump::plain(neighbour)], placer) {
                Ok(slots) => slots,
                Err(why) => {
                    refusal = why;
                    continue;
                }
            };
            let placed = |own: &Range<u64>, slot: Slot, relied: Vec<u64>| {
                Ok::<Placed, Refusal>(Placed {
                    writes: cells.write(own.clone()).into_iter().collect(),
                    relies_on: cells.relied(own.clone().chain(relied))?,
                    stubs: vec![Stub {
                        address: slot.address,
                        size: slot.size,
                        to: StubTo::Detour,
                    }],
                    evicted: Vec::new(),
                    builds_on: None,
                    traps: Vec::new(),
                })
            };
            let theirs = placed(&other, others, Vec::new())?;
            let first = theirs.writes.first().ok_or(Refusal::NoNeighbour)?;
            let mut shared = first.after.clone();
            shared.truncate((jump.end() - neighbour) as usize);
            let ours = Placed {
                builds_on: Some((neighbour, shared)),
                ..placed(&room, stub, cells.shared.clone())?
            };
            placer.claim(room);
            placer.claim(other);
            placer.pin(cells.shared.iter().copied());
            placer.reserve_stub(stub);
            placer.reserve_stub(others);
            let cover = Cover {
                covered: Extent::new(from, end),
                resume: end,
                displaced,
                placed: Some(ours),
            };
            return Ok((cover, theirs));
        }
        Err(refusal)
    }

    /// Returns the site's instruction or, if `from` is before it, all instructions from there up to
    /// `end`, which must include the site's. They can be replaced by a jump as if they were one.
    fn up_to(&self, from: u64, end: u64, placer: &Placer) -> Result<Vec<Instruction>, Refusal> {
        if from == self.site {
            self.replaceable(&self.first, placer)?;
            return Ok(vec![self.first]);
        }
        self.flow_is_known()?;
        let function = self.input.flow.extent();
        let mut displaced: Vec<Instruction> = Vec::new();
        let mut at = from;
        while at < end && displaced.last().is_none_or(runs_on) {
            let known = self.input.code.instruction_at(at, function.end);
            let instruction = known.ok_or(Refusal::EndsTooSoon { at })?;
            self.displaceable(&instruction)?;
            if is_call(&instruction) {
                return Err(Refusal::CallInside { at });
            }
            let mut bytes = bytes_of(&instruction);
            at = bytes.end;
            if let Some(at) = bytes.find(|at| placer.is_used(*at..*at + 1)) {
                return Err(Refusal::BytesInUse { at });
            }
            displaced.push(instruction);
        }
        if !displaced.iter().any(|i| i.ip() == self.site) {
            return Err(Refusal::EndsTooSoon { at });
        }
        self.nothing_inside(Extent::new(from, at))?;
        Ok(displaced)
    }

    pub(crate) fn evicted(&self, placer: &mut Placer) -> Result<Cover, Refusal> {
        let bytes = self.first.len() as u64;
        if bytes >= JUMP {
            return Err(Refusal::OtherLength { bytes });
        }
        self.replaceable(&self.first, placer)?;
        // First try only the unused bytes right after the site, then evict one neighbour as well.
        for count in 0..=1 {
            if let Ok(cover) = self.evict_successors(count, placer) {
                return Ok(cover);
            }
        }
        if let Ok(cover) = self.use_a_hole(placer) {
            return Ok(cover);
        }
        if let Ok(cover) = self.evict_nearby(placer) {
            return Ok(cover);
        }
        for count in 2..=CHAIN {
            if let Ok(cover) = self.evict_successors(count, placer) {
                return Ok(cover);
            }
        }
        Err(Refusal::NoNeighbour)
    }

    /// Returns an instruction that may be evicted: one that is certainly an instruction, that no
    /// other probe uses, and that is not the site.
    fn neighbour(&self, at: u64, placer: &Placer) -> Result<Instruction, Refusal> {
        let flow = self.input.flow;
        let function = flow.extent();
        let found = match self.input.next {
            Some(next) if next.contains(at) => self.straight_in(next, at),
            _ => {
                let is_known = flow.is_boundary(at)
                    && at != self.site
                    && (flow.is_straight_from_start(at)
                        || flow.is_reached(at) && flow.overlap().is_none());
                let found = self.input.code.instruction_at(at, function.end);
                found.filter(|_| is_known)
            }
        };
        let instruction = found.ok_or(Refusal::NoNeighbour)?;
        if is_breakpoint(&instruction) || is_landmark(&instruction) {
            return Err(Refusal::NoNeighbour);
        }
        self.replaceable(&instruction, placer)?;
        Ok(instruction)
    }

    /// Returns the instruction at `at` in another function, if control reaches it from that
    /// function's start without a jump.
    fn straight_in(&self, function: Extent, at: u64) -> Option<Instruction> {
        let mut found = self
            .input
            .code
            .instruction_at(function.start, function.end)?;
        while found.ip() < at && runs_on(&found) {
            found = self
                .input
                .code
                .instruction_at(found.next_ip(), function.end)?;
        }
        (found.ip() == at).then_some(found)
    }

    /// Returns the bytes that may change at `instruction`: its own, and the unused ones after it if
    /// it never continues.
    fn room(&self, instruction: &Instruction, placer: &Placer) -> Range<u64> {
        let mut room = bytes_of(instruction);
        if !ends_flow(instruction) {
            return room;
        }
        let (flow, code) = (self.input.flow, self.input.code);
        let function = flow.extent();
        let mut end = room.end;
        if end < function.end && self.flow_is_known().is_ok() {
            // Unused nops between the function's blocks.
            let unused = |at: u64| {
                let nop = code.instruction_at(at, function.end)?;
                let is_unused = is_nop(&nop) && flow.is_boundary(at) && !flow.is_reached(at);
                is_unused.then(|| nop.next_ip())
            };
            while let Some(next) = unused(end) {
                end = next;
            }
        }
        if end == function.end {
            end = end.max(self.input.padding_end);
        }
        let padding = Extent::new(room.end, end);
        if !padding.is_empty() && self.is_unused(padding) {
            let free = (padding.start..padding.end).take(JUMP as usize + 2);
            room.end += free.take_while(|at| !placer.is_used(*at..at + 1)).count() as u64;
        }
        room
    }

    /// Evicts the instructions that follow: their first bytes, which displacements share, become
    /// the first bytes of jumps to copies of them.
    fn evict_successors(&self, count: usize, placer: &mut Placer) -> Result<Cover, Refusal> {
        let mut own = vec![self.room(&self.first, placer)];
        let mut neighbours = Vec::new();
        let mut at = own[0].end;
        for _ in 0..count {
            let successor = self.neighbour(at, placer)?;
            let room = self.room(&successor, placer);
            at = room.end;
            own.push(room);
            neighbours.push(successor);
        }
        let mut forms = vec![Jump::forms(self.site, self.first.len() as u64).collect()];
        forms.extend(own[1..].iter().map(successor_forms));
        let mut tries = CHAIN_TRIES;
        let cells = self.cells(own.clone());
        let (cells, slots) =
            chain(&cells, &forms, placer, &mut tries).ok_or(Refusal::NoNeighbour)?;
        let to = |index: usize| match index.checked_sub(1) {
            None => StubTo::Detour,
            Some(neighbour) => StubTo::Evicted(neighbour),
        };
        let stubs: Vec<(Slot, StubTo)> = slots
            .into_iter()
            .enumerate()
            .map(|(index, slot)| (slot, to(index)))
            .collect();
        let order: Vec<Range<u64>> = own.into_iter().rev().collect();
        let placed = cells.place(placer, &order, &stubs, neighbours.clone(), Vec::new())?;
        let mut cover = self.alone(placed);
        // Run copies of the successors in the detour, to avoid the jumps that replace them.
        let mut last = self.first;
        for successor in neighbours {
            if !runs_on(&last) || leads_into(&successor, self.site..successor.next_ip()) {
                break;
            }
            cover.displaced.push(successor);
            cover.resume = successor.next_ip();
            last = successor;
        }
        Ok(cover)
    }

    /// Returns the addresses that a short jump from the site can lead to.
    fn short_reach(&self) -> Range<u64> {
        let end = self.site + 2;
        if self.first.len() > 1 {
            return end.saturating_sub(128)..end + 128;
        }
        match self.input.code.byte(self.site + 1) {
            Some(byte) => {
                let target = end.wrapping_add(byte as i8 as u64);
                target..target + 1
            }
            None => 0..0,
        }
    }

    /// Turns the site into a short jump to `landing`, where another jump continues.
    fn with_landing(
        &self,
        cells: &mut Cells<'_>,
        landing: u64,
        placer: &Placer,
    ) -> Result<(), Refusal> {
        let displacement = landing.wrapping_sub(self.site + 2) as u8;
        let taken = |at: u64| placer.is_taken(at) && !cells.is_own(at);
        if taken(self.site + 1) {
            return Err(Refusal::BytesInUse { at: self.site + 1 });
        }
        match cells.set(self.site, SHORT_JUMP) && cells.set(self.site + 1, displacement) {
            true => Ok(()),
            false => Err(Refusal::NoNeighbour),
        }
    }

    /// Returns ranges in reach of a short jump that are never executed: after the function, or
    /// between its blocks.
    fn holes(&self) -> Vec<Range<u64>> {
        let (flow, code) = (self.input.flow, self.input.code);
        let function = flow.extent();
        let reach = self.short_reach();
        let mut holes = Vec::new();
        let limit = self.input.padding_end.max(function.end);
        let last = flow
            .boundaries()
            .filter(|at| *at < function.end)
            .last()
            .and_then(|at| code.instruction_at(at, function.end));
        if last.is_some_and(|last| ends_flow(&last)) && limit > function.end {
            holes.push(function.end..limit);
        }
        if self.flow_is_known().is_ok() {
            let mut before: Option<Instruction> = None;
            let from = reach.start.saturating_sub(32).max(function.start);
            for at in flow.boundaries().skip_while(|at| *at < from) {
                if at >= reach.end {
                    break;
                }
                let Some(instruction) = code.instruction_at(at, function.end) else {
                    break;
                };
                if is_nop(&instruction) && !flow.is_reached(at) {
                    match holes.last_mut() {
                        Some(hole) if hole.end == at => hole.end = instruction.next_ip(),
                        _ if before.is_some_and(|b| ends_flow(&b)) => {
                            holes.push(bytes_of(&instruction));
                        }
                        _ => {}
                    }
                }
                before = Some(instruction);
            }
        }
        holes.retain(|hole| self.is_unused(Extent::new(hole.start, hole.end)));
        holes
    }

    /// True if nothing is known to lead to the padding.
    fn is_unused(&self, padding: Extent) -> bool {
        self.input.targets.any_in(padding).is_none()
            && self.input.flow.any_jump_into(padding).is_none()
            && !self.input.forbidden.iter().any(|f| f.overlaps(&padding))
    }

    fn use_a_hole(&self, placer: &mut Placer) -> Result<Cover, Refusal> {
        let own = bytes_of(&self.first);
        let reach = self.short_reach();
        for hole in self.holes() {
            for landing in hole.start.max(reach.start)..hole.end.min(reach.end) {
                let jump = Jump::plain(landing);
                let room = landing..hole.end.min(jump.end());
                if placer.is_used(room.clone()) {
                    continue;
                }
                let mut cells = self.cells(vec![own.clone(), room.clone()]);
                if self.with_landing(&mut cells, landing, placer).is_err() {
                    continue;
                }
                let Ok(stub) = cells.lead(&jump, placer) else {
                    continue;
                };
                let stubs = [(stub, StubTo::Detour)];
                let placed = cells.place(placer, &[room, own], &stubs, Vec::new(), Vec::new())?;
                return Ok(self.alone(placed));
            }
        }
        Err(Refusal::NoNeighbour)
    }

    /// Evicts an instruction in reach of a short jump. It is replaced by two jumps: one to a copy
    /// of it, and one past its first byte, for the site.
    fn evict_nearby(&self, placer: &mut Placer) -> Result<Cover, Refusal> {
        let own = bytes_of(&self.first);
        let reach = self.short_reach();
        let from = reach.start.saturating_sub(16);
        let near = self.input.flow.boundaries();
        let near = near.skip_while(|at| *at < from);
        for at in near.take_while(|at| *at < reach.end) {
            let Ok(victim) = self.neighbour(at, placer) else {
                continue;
            };
            let room = bytes_of(&victim);
            if room.start < own.start && room.start + JUMP > own.start {
                // Its jump would share bytes with the site's jump, and those change later.
                continue;
            }
            for landing in (room.start + 1).max(reach.start)..room.end.min(reach.end) {
                let mut cells = self.cells(vec![own.clone(), room.clone()]);
                if self.with_landing(&mut cells, landing, placer).is_err() {
                    continue;
                }
                let (ours, away) = (Jump::plain(landing), Jump::plain(room.start));
                let Ok([stub, copy]) = cells.lead_both([&ours, &away], placer) else {
                    continue;
                };
                let stubs = [(stub, StubTo::Detour), (copy, StubTo::Evicted(0))];
                let order = [room, own];
                let placed = cells.place(placer, &order, &stubs, vec![victim], Vec::new())?;
                return Ok(self.alone(placed));
            }
        }
        Err(Refusal::NoNeighbour)
    }

    /// Plans a jump over several instructions, all but the first starting with a breakpoint.
    pub(crate) fn trapped(&self, placer: &mut Placer) -> Result<Cover, Refusal> {
        self.input.int3?;
        let function = self.input.flow.extent();
        let end = self.site + JUMP;
        if self.site / PAGE != (end - 1) / PAGE {
            // If written in two pieces, an instruction executed in between would be half old and
            // half new.
            let at = (end - 1) / PAGE * PAGE;
            return Err(Refusal::PageBoundary { at });
        }
        let mut displaced: Vec<Instruction> = Vec::new();
        let mut at = self.site;
        while at < end {
            let instruction = match at == self.site {
                true => self.first,
                false => {
                    let found = self.input.code.instruction_at(at, function.end);
                    found
                        .filter(|_| self.input.flow.is_boundary(at))
                        .ok_or(Refusal::EndsTooSoon { at })?
                }
            };
            if is_breakpoint(&instruction) {
                return Err(Refusal::BreakpointPresent { at });
            }
            self.replaceable(&instruction, placer)?;
            if is_call(&instruction) && instruction.next_ip() < end {
                return Err(Refusal::CallInside { at });
            }
            displaced.push(instruction);
            at = instruction.next_ip();
        }
        let covered = Extent::new(self.site, at);
        let own = self.site..end;
        let mut cells = self.cells(vec![own.clone()]);
        let traps: Vec<u64> = displaced[1..].iter().map(Instruction::ip).collect();
        let jump = Jump::plain(self.site);
        if !traps.iter().all(|at| cells.set(*at, INT3)) {
            return Err(Refusal::NoStubAddress);
        }
        let stub = cells.lead(&jump, placer)?;
        placer.claim(covered.start..covered.end);
        let stubs = [(stub, StubTo::Detour)];
        let placed = cells.place(placer, &[own], &stubs, Vec::new(), traps)?;
        Ok(Cover {
            covered,
            resume: covered.end,
            displaced,
            placed: Some(placed),
        })
    }
}

/// True if control continues past the instruction, other than by the return from a call.
fn runs_on(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Next | FlowControl::ConditionalBranch
    )
}

/// True if the instruction is a jump into `block`. A thread might stay in looping copies for a
/// long time.
fn leads_into(instruction: &Instruction, block: Range<u64>) -> bool {
    let is_jump = matches!(
        instruction.flow_control(),
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
    );
    is_jump && block.contains(&instruction.near_branch_target())
}

/// Directs a jump at each of several adjacent places to a stub. `forms` lists the jumps
/// possible at each; a later jump determines bytes of those before it.
fn chain<'a>(
    cells: &Cells<'a>,
    forms: &[Vec<Jump>],
    placer: &mut Placer,
    tries: &mut usize,
) -> Option<(Cells<'a>, Vec<Slot>)> {
    let (last, before) = forms.split_last()?;
    for jump in last {
        let mut cells = cells.clone();
        if !cells.set_opcode(jump) {
            continue;
        }
        let Ok(mask) = cells.mask(jump, placer) else {
            continue;
        };
        // The site's own jump must still have a possible target.
        let leads = |first: &Jump| {
            cells
                .mask(first, placer)
                .is_ok_and(|mask| !placer.candidates(first.end(), mask, 1).is_empty())
        };
        if !before.first().is_none_or(|first| first.iter().any(leads)) {
            continue;
        }
        let limit = match before.len() {
            0 => 1,
            1 => TRIES,
            _ => 8,
        };
        for slot in placer.candidates(jump.end(), mask, limit) {
            *tries = tries.checked_sub(1)?;
            let mut tried = cells.clone();
            if !tried.set_target(jump, slot.address) {
                continue;
            }
            if before.is_empty() {
                return Some((tried, vec![slot]));
            }
            placer.reserve_stub(slot);
            let found = chain(&tried, before, placer, tries);
            placer.release_stub(slot);
            if let Some((cells, mut slots)) = found {
                slots.push(slot);
                return Some((cells, slots));
            }
        }
    }
    None
}

/// Returns the jumps possible at the start of a neighbour: its first bytes determine where the
/// site's own jump can lead.
fn successor_forms(room: &Range<u64>) -> Vec<Jump> {
    let (at, len) = (room.start, room.end - room.start);
    let mut forms = vec![Jump::plain(at)];
    if len >= 2 {
        let prefixes = SEGMENTS.into_iter().chain(REX);
        forms.extend(prefixes.map(|prefix| Jump::with(at, &[prefix])));
    }
    if len >= 3 {
        let firsts = SEGMENTS.into_iter();
        forms.extend(firsts.map(|first| Jump::with(at, &[first, 0x48])));
    }
    forms
}
