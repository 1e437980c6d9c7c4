//! Changes required for a shape and its detour: bytes to write, memory to map, breakpoints
//! to forward.

use capriole_codegen::detour::{Chain, Compiler};
use capriole_insn::Extent;
use capriole_tactic::site::{Shape, StubTo, Tactic};

/// Everything that has to be done for a probe, and the information needed to follow a run.
#[derive(Clone, Debug, Default)]
pub struct Patch {
    /// Writes to the text, in this order.
    pub writes: Vec<(u64, Vec<u8>)>,
    /// Bytes of the text that must not change.
    pub relies_on: Vec<(u64, Vec<u8>)>,
    /// Code that has to be mapped at this address.
    pub stubs: Vec<(u64, Vec<u8>)>,
    /// Breakpoints and the addresses where their handler continues.
    pub traps: Vec<(u64, u64)>,
    /// Addresses of instructions that were replaced.
    pub patched: Vec<u64>,
    /// Copies, and their original instructions.
    pub copies: Vec<(u64, u64)>,
}

/// Returns `jmp rel32` from one address to another, if it reaches.
fn jump(from: u64, to: u64) -> Option<Vec<u8>> {
    let distance = i32::try_from(to.wrapping_sub(from + 5) as i64).ok()?;
    let mut bytes = vec![0xe9];
    bytes.extend(distance.to_le_bytes());
    Some(bytes)
}

/// Returns the patch that leads from the site of `shape` to `detour`. Copies of evicted
/// instructions are added to the image of `compiler`, which compiled the detour. `None` if
/// something is out of reach.
pub fn patch(shape: &Shape, detour: &Chain, compiler: &mut Compiler) -> Option<Patch> {
    let site = shape.covered.start;
    let copies = || detour.parts.iter().flat_map(|part| &part.copies);
    let mut patch = Patch {
        patched: vec![site],
        copies: copies().map(|&(old, new)| (new, old)).collect(),
        ..Patch::default()
    };
    let Some(placed) = &shape.placed else {
        if shape.tactic == Tactic::Int3 {
            patch.writes.push((site, vec![0xcc]));
            patch.traps.push((site, detour.entry()));
        } else {
            patch.writes.push((site, jump(site, detour.entry())?));
        }
        return Some(patch);
    };
    for write in &placed.writes {
        assert_eq!(write.before.len(), write.after.len());
        patch.writes.push((write.address, write.after.clone()));
    }
    patch.relies_on = placed.relies_on.clone();
    let mut evicted = Vec::new();
    for instruction in &placed.evicted {
        let copy = compiler.copy_out(instruction).ok()?.entry;
        patch.patched.push(instruction.ip());
        patch.copies.push((copy, instruction.ip()));
        evicted.push(copy);
    }
    for stub in &placed.stubs {
        let to = match stub.to {
            StubTo::Detour => detour.entry(),
            StubTo::Evicted(index) => evicted[index],
        };
        let bytes = stub.bytes(to)?;
        assert!(bytes.len() as u64 <= stub.size);
        patch.stubs.push((stub.address, bytes));
    }
    for &trap in &placed.traps {
        let copy = detour.goes_on(trap).expect("a trap without a copy");
        patch.traps.push((trap, copy));
        patch.patched.push(trap);
    }
    Some(patch)
}

impl Patch {
    /// Ranges of generated code outside the arena, in the library's text and in stubs.
    pub fn generated(&self) -> impl Iterator<Item = Extent> {
        self.writes
            .iter()
            .chain(&self.stubs)
            .map(|(address, bytes)| Extent::new(*address, address + bytes.len() as u64))
    }
}
