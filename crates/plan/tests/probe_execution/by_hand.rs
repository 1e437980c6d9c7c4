//! Probes that reach their detour in ways that prescribe addresses, made here by
//! hand and by the simplest means: jumps whose distance shares bytes with what
//! follows (LiteInst, PLDI 2017; E9Patch, PLDI 2020).

use capriole_insn::relocate::relocatable;
use capriole_insn::{Code, Extent};
use capriole_plan::site::{JUMP, Shape};
use iced_x86::{FlowControl, Instruction};

use crate::patch::{Placed, Stub, StubTo, Write};
use crate::support::random::Random;

/// A way that [`make`] knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `jmp` over one short instruction; the rest of its distance is what follows.
    Punned,
    /// The same, but what follows was replaced before by another jump.
    Evicted,
    /// A jump over several instructions into which others jump: where they arrive
    /// stands a breakpoint.
    Trapped,
}

impl Way {
    pub const ALL: [Self; 3] = [Self::Punned, Self::Evicted, Self::Trapped];
}

/// Changes the shape to go that way, if the code at its site allows it. `text` is
/// what stands in memory.
pub fn make(
    way: Way,
    shape: &mut Shape,
    code: &Code<'_>,
    function: Extent,
    text: impl Fn(Extent) -> Vec<u8>,
    random: &mut Random,
) -> Option<Placed> {
    let first = *shape.displaced.first()?;
    let mut jump = vec![0xe9];
    jump.extend((0..4).map(|_| random.next() as u8));
    match way {
        Way::Punned => {
            let own = own_bytes(&first)?;
            let end = shape.site + JUMP;
            jump[own..].copy_from_slice(&text(Extent::new(first.next_ip(), end)));
            only(shape, first);
            Some(placed(shape.site, jump, own))
        }
        Way::Evicted => {
            let own = own_bytes(&first)?;
            let next = code.instruction_at(first.next_ip(), function.end)?;
            if next.len() < JUMP as usize || relocatable(&next).is_err() {
                return None;
            }
            let mut other = vec![0xe9];
            other.extend((0..4).map(|_| random.next() as u8));
            jump[own..].copy_from_slice(&other[..JUMP as usize - own]);
            only(shape, first);
            let mut placed = placed(shape.site, jump, own);
            placed.stubs.push(Stub {
                address: target(next.ip(), &other),
                to: StubTo::Evicted,
            });
            placed.evicted = Some(next);
            // Before the site's jump reads its bytes.
            placed.writes.insert(
                0,
                Write {
                    address: next.ip(),
                    after: other,
                },
            );
            Some(placed)
        }
        Way::Trapped => {
            let displaced = region(shape.site, code, function)?;
            let traps: Vec<u64> = displaced[1..].iter().map(Instruction::ip).collect();
            for trap in &traps {
                jump[(trap - shape.site) as usize] = 0xcc;
            }
            let end = displaced[displaced.len() - 1].next_ip();
            shape.covered = Extent::new(shape.site, end);
            shape.resume = end;
            shape.displaced = displaced;
            let mut placed = placed(shape.site, jump, JUMP as usize);
            placed.traps = traps;
            Some(placed)
        }
    }
}

/// The bytes that a jump may take of an instruction shorter than it.
fn own_bytes(first: &Instruction) -> Option<usize> {
    (first.len() < JUMP as usize && relocatable(first).is_ok()).then(|| first.len())
}

fn only(shape: &mut Shape, first: Instruction) {
    shape.covered = Extent::new(first.ip(), first.next_ip());
    shape.resume = first.next_ip();
    shape.displaced = vec![first];
}

fn target(from: u64, jump: &[u8]) -> u64 {
    let distance = i32::from_le_bytes([jump[1], jump[2], jump[3], jump[4]]);
    from.wrapping_add(JUMP)
        .wrapping_add_signed(i64::from(distance))
}

/// A jump at the site of which only the first bytes are written.
fn placed(site: u64, jump: Vec<u8>, own: usize) -> Placed {
    Placed {
        stubs: vec![Stub {
            address: target(site, &jump),
            to: StubTo::Detour,
        }],
        writes: vec![Write {
            address: site,
            after: jump[..own].to_vec(),
        }],
        evicted: None,
        traps: Vec::new(),
    }
}

/// The instructions under a jump, two at least, of which only the last may call or
/// leave.
fn region(site: u64, code: &Code<'_>, function: Extent) -> Option<Vec<Instruction>> {
    let mut displaced: Vec<Instruction> = Vec::new();
    let mut at = site;
    while at < site + JUMP {
        if displaced.last().is_some_and(|last| {
            !matches!(
                last.flow_control(),
                FlowControl::Next | FlowControl::ConditionalBranch
            )
        }) {
            return None;
        }
        let instruction = code.instruction_at(at, function.end)?;
        relocatable(&instruction).ok()?;
        at = instruction.next_ip();
        displaced.push(instruction);
    }
    (displaced.len() > 1).then_some(displaced)
}
