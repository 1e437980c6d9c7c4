//! What a shape and its detour change: bytes to write, memory to map, breakpoints
//! to forward.

use capriole_insn::{Extent, relocate};
use capriole_plan::detour::Detour;
use capriole_plan::site::{Shape, Tactic};
use iced_x86::Instruction;

/// Bytes of the text that change.
#[derive(Clone, Debug)]
pub struct Write {
    pub address: u64,
    pub after: Vec<u8>,
}

/// Where a stub leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StubTo {
    Detour,
    Evicted,
}

/// A jump at a prescribed address.
#[derive(Clone, Copy, Debug)]
pub struct Stub {
    pub address: u64,
    pub to: StubTo,
}

/// What a tactic prescribes that does not simply jump to its detour.
#[derive(Clone, Debug)]
pub struct Placed {
    /// In this order.
    pub writes: Vec<Write>,
    /// Memory has to be mapped there, with a jump each.
    pub stubs: Vec<Stub>,
    /// An instruction beside the site that runs out of line.
    pub evicted: Option<Instruction>,
    /// Addresses of covered instructions whose first byte is now a breakpoint.
    pub traps: Vec<u64>,
}

/// What the shape prescribes.
pub fn placed(_: &Shape) -> Option<Placed> {
    None
}

/// All that has to be done for a probe, and what has to be known to follow it.
#[derive(Clone, Debug, Default)]
pub struct Patch {
    /// Bytes of the text.
    pub writes: Vec<(u64, Vec<u8>)>,
    /// Code anywhere else.
    pub stubs: Vec<(u64, Vec<u8>)>,
    /// Breakpoints and where their handler goes.
    pub traps: Vec<(u64, u64)>,
    /// Addresses of instructions that were replaced.
    pub patched: Vec<u64>,
    /// Copies, and what they are copies of.
    pub copies: Vec<(u64, u64)>,
    /// The copy of the evicted instruction, for the arena.
    pub evicted: Option<(u64, Vec<u8>)>,
}

/// `jmp rel32` from one address to another, if it reaches.
fn jump(from: u64, to: u64) -> Option<Vec<u8>> {
    let distance = i32::try_from(to.wrapping_sub(from + 5) as i64).ok()?;
    let mut bytes = vec![0xe9];
    bytes.extend(distance.to_le_bytes());
    Some(bytes)
}

/// What leads from the site of `shape` to `detour`. The copy of an evicted
/// instruction stands at `room`. `None` if something is out of reach.
pub fn patch(shape: &Shape, placed: Option<&Placed>, detour: &Detour, room: u64) -> Option<Patch> {
    let site = shape.covered.start;
    let mut patch = Patch {
        patched: vec![site],
        copies: detour.copies.iter().map(|&(old, new)| (new, old)).collect(),
        ..Patch::default()
    };
    let Some(placed) = placed else {
        if shape.tactic == Tactic::Int3 {
            patch.writes.push((site, vec![0xcc]));
            patch.traps.push((site, detour.entry));
        } else {
            patch.writes.push((site, jump(site, detour.entry)?));
        }
        return Some(patch);
    };
    for write in &placed.writes {
        patch.writes.push((write.address, write.after.clone()));
    }
    if let Some(evicted) = &placed.evicted {
        let copy = relocate(&[*evicted], room).ok()?;
        let mut bytes = copy.bytes;
        if copy.falls_through {
            bytes.extend(jump(room + bytes.len() as u64, evicted.next_ip())?);
        }
        patch.patched.push(evicted.ip());
        patch.copies.push((room, evicted.ip()));
        patch.evicted = Some((room, bytes));
    }
    for stub in &placed.stubs {
        let to = match stub.to {
            StubTo::Detour => detour.entry,
            StubTo::Evicted => room,
        };
        patch.stubs.push((stub.address, jump(stub.address, to)?));
    }
    for &trap in &placed.traps {
        let copy = detour.copies.iter().find(|(old, _)| *old == trap);
        let (_, copy) = copy.expect("a trap without a copy");
        patch.traps.push((trap, *copy));
        patch.patched.push(trap);
    }
    Some(patch)
}

impl Patch {
    /// Where code stands that is not the library's, beside the arena.
    pub fn generated(&self) -> impl Iterator<Item = Extent> {
        self.writes
            .iter()
            .chain(&self.stubs)
            .map(|(address, bytes)| Extent::new(*address, address + bytes.len() as u64))
    }
}
