//! State that must be equal between a run of the original and one with the probe.

use capriole_insn::{Extent, Live};

use super::machine::{End, Outcome, Step};
use super::memory::Snapshot;
use super::vectors;

const AUXILIARY_CARRY: u64 = 0x10;
const ARITHMETIC: u64 = 0x8d5;
const NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// A run and the state that it left behind.
pub struct Run {
    pub outcome: Outcome,
    pub memory: Snapshot,
}

/// Registers and flags that may differ, because nothing reads them any more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loose {
    gprs: u16,
    flags: u64,
}

impl Loose {
    /// Registers and flags that a detour may change at a site where `live` is live.
    pub fn behind(live: &Live) -> Self {
        Self {
            gprs: !live.gprs.0,
            flags: if live.flags { 0 } else { ARITHMETIC },
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            gprs: self.gprs | other.gprs,
            flags: self.flags | other.flags,
        }
    }

    /// Compares registers; only those that still differ remain loose: once equal, a register
    /// can differ again only after the next arrival at the site.
    fn compare(&mut self, original: &Step, probed: &Step) -> Result<(), String> {
        let mut differ = 0;
        for (i, (a, b)) in original.gprs.iter().zip(&probed.gprs).enumerate() {
            if a == b {
                continue;
            }
            if self.gprs >> i & 1 == 0 {
                return Err(format!(
                    "before {:#x}: {} is {b:#x}, not {a:#x}",
                    original.address, NAMES[i]
                ));
            }
            differ |= 1 << i;
        }
        self.gprs = differ;
        let flags = original.flags ^ probed.flags;
        if flags & !self.flags != 0 {
            return Err(format!(
                "before {:#x}: flags are {:#x}, not {:#x}",
                original.address, probed.flags, original.flags
            ));
        }
        self.flags = flags;
        Ok(())
    }
}

/// Compares two stepped runs, instruction by instruction. Returns the registers and flags
/// that may differ at the end.
pub fn steps(original: &Outcome, probed: &Outcome, dead: Loose) -> Result<Loose, String> {
    let mut loose = Loose::default();
    let mut arrivals = original.arrivals.iter().zip(&probed.arrivals).peekable();
    for (i, (a, b)) in original.steps.iter().zip(&probed.steps).enumerate() {
        if let Some((x, y)) = arrivals.next_if(|(x, _)| x.after == i) {
            if y.after != i {
                return Err(format!("an arrival after {} steps, not {i}", y.after));
            }
            loose.compare(&x.step, &y.step)?;
            loose = loose.and(dead);
        }
        if a.address != b.address {
            return Err(format!(
                "step {i} is at {:#x}, not {:#x}",
                b.address, a.address
            ));
        }
        loose.compare(a, b)?;
    }
    // An arrival at the very end, whose instruction did not complete.
    for _ in arrivals {
        loose = loose.and(dead);
    }
    let counts = |o: &Outcome| (o.steps.len(), o.arrivals.len());
    if counts(original) != counts(probed) {
        return Err(format!(
            "(steps, arrivals) {:?}, not {:?}; end {:x?}, not {:x?}",
            counts(probed),
            counts(original),
            probed.end,
            original.end
        ));
    }
    Ok(loose)
}

/// Compares the final addresses and states of two runs. `locate` maps addresses in the
/// detour to the original ones; `unwritten` is memory whose contents may
/// differ.
pub fn ends(
    original: &Run,
    probed: &Run,
    mut loose: Loose,
    dead: Loose,
    unwritten: &[Extent],
    locate: impl Fn(u64) -> Option<u64>,
) -> Result<(), String> {
    let (a, b) = (&original.outcome, &probed.outcome);
    let end = match b.end {
        End::Fault {
            at,
            trap,
            error,
            address,
        } => End::Fault {
            at: locate(at).ok_or_else(|| format!("exception {trap} in generated code, {at:#x}"))?,
            trap,
            error,
            address,
        },
        end => end,
    };
    if end != a.end {
        return Err(format!("ended by {end:x?}, not {:x?}", a.end));
    }
    if matches!(end, End::Left(_)) {
        // The code there may read every register and flag, except a flag that no
        // instruction defines.
        loose.gprs = 0;
        loose.flags &= dead.flags & AUXILIARY_CARRY;
    }
    loose
        .compare(&a.last, &b.last)
        .map_err(|e| format!("at the end, {e}"))?;
    for ((name, x), (_, y)) in vectors::registers(&a.vectors)
        .iter()
        .zip(&vectors::registers(&b.vectors))
    {
        if x != y {
            return Err(format!("{name} are {y:02x?}, not {x:02x?}"));
        }
    }
    for (start, before) in &original.memory {
        let after = &probed.memory[start];
        if before == after {
            continue;
        }
        for (i, (x, y)) in before.iter().zip(after).enumerate() {
            let at = start + i as u64;
            if x != y && !unwritten.iter().any(|range| range.contains(at)) {
                return Err(format!("the byte at {at:#x} is {y:#x}, not {x:#x}"));
            }
        }
    }
    Ok(())
}
