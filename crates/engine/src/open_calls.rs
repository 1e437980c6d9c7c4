//! Functions whose calls are open: they are on the stacks of threads.
//!
//! A call that began before its probes were in is not seen at its entry, and a function that runs as long as the
//! program is then "never hit". This tells why. Stacks are unwound by the rules by which the program itself finds
//! callers; where there is no rule, nothing is said of what comes further up.

use capriole_insn::Extent;
use capriole_object::frame_rules::{Cfa, FrameRule, RuleStart, SavedRbp};
use capriole_object::{Object, Objects};
use capriole_patch::detach::Stood;
use capriole_proc::maps::containing;
use capriole_proc::process::Process;
use capriole_ring::numbers::chain;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Most bytes of a stack that are read, and most frames of it that are followed.
const MOST: u64 = 1 << 20;
const FRAMES: usize = 256;

/// Returns the indices of those functions in which threads were that stood there.
#[must_use]
pub fn on_stacks(process: &Process, stood: &[Stood], functions: &[Extent]) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let (Ok(maps), Ok(objects)) = (process.maps(), Objects::of_process(process)) else {
        return found;
    };
    let mut rules = Rules {
        objects: &objects,
        known: HashMap::new(),
    };
    for at in stood {
        let Some(mapping) = containing(&maps, at.sp) else {
            continue;
        };
        let mut bytes = vec![0; (mapping.end - at.sp).min(MOST) as usize];
        let read = process.read_memory(at.sp, &mut bytes).unwrap_or(0);
        bytes.truncate(read);
        let stack = Stack {
            start: at.sp,
            bytes,
        };
        for address in stack.chain(at, |address| rules.at(address)) {
            let inside = functions.iter().enumerate();
            let inside = inside.filter(|(_, function)| function.contains(address));
            found.extend(inside.map(|(index, _)| index));
        }
    }
    found
}

/// The rules of the files that a process has mapped.
struct Rules<'o> {
    objects: &'o Objects,
    known: HashMap<*const Object, Vec<RuleStart>>,
}

impl Rules<'_> {
    fn at(&mut self, address: u64) -> FrameRule {
        let Some(object) = self.objects.containing(address) else {
            return FrameRule::Unknown;
        };
        let rules = self.known.entry(Arc::as_ptr(object));
        let rules = rules.or_insert_with(|| object.file().frame_rules());
        let link = object.link(address);
        let before = rules.partition_point(|rule| rule.address <= link);
        let rule = before.checked_sub(1).map(|at| rules[at].rule);
        rule.unwrap_or(FrameRule::Unknown)
    }
}

/// A copy of a thread's stack, from its stack pointer up.
struct Stack {
    start: u64,
    bytes: Vec<u8>,
}

impl Stack {
    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.start)?).ok()?;
        let bytes = self.bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Returns an address in each function on the stack, from the innermost on: where the thread stands, and in the
    /// calls of the others.
    fn chain(&self, at: &Stood, mut rule: impl FnMut(u64) -> FrameRule) -> Vec<u64> {
        let (mut sp, mut rbp) = (at.sp, Some(at.rbp));
        let mut inside = vec![at.pc];
        let mut exact = true;
        while inside.len() < FRAMES {
            let address = inside[inside.len() - 1];
            let rule = match std::mem::replace(&mut exact, false) {
                true => rule(address),
                false => rule(address).returned_to(),
            };
            let next = match rule {
                FrameRule::Unknown | FrameRule::Outermost | FrameRule::Called => None,
                FrameRule::Signal => {
                    exact = true;
                    rbp = self.word(sp.wrapping_add(chain::SIGNAL_RBP));
                    let pc = self.word(sp.wrapping_add(chain::SIGNAL_RIP));
                    let before = self.word(sp.wrapping_add(chain::SIGNAL_RSP));
                    pc.zip(before)
                }
                FrameRule::Frame { cfa, rbp: saved } => self
                    .cfa(cfa, address, sp, rbp)
                    // A stack that does not lead up is none.
                    .filter(|cfa| *cfa > sp)
                    .and_then(|cfa| {
                        rbp = match saved {
                            SavedRbp::Unchanged => rbp,
                            SavedRbp::BelowCfa(below) => {
                                cfa.checked_sub(below.into()).and_then(|at| self.word(at))
                            }
                            SavedRbp::AtRbp => rbp.and_then(|rbp| self.word(rbp)),
                            SavedRbp::Unknown => None,
                        };
                        // A call may be the last instruction of its function.
                        let back = self.word(cfa.checked_sub(8)?).filter(|back| *back != 0)?;
                        Some((back - 1, cfa))
                    }),
            };
            let Some((address, above)) = next else { break };
            inside.push(address);
            sp = above;
        }
        inside
    }

    fn cfa(&self, cfa: Cfa, address: u64, sp: u64, rbp: Option<u64>) -> Option<u64> {
        match cfa {
            Cfa::Rsp(distance) => sp.checked_add(distance.into()),
            Cfa::Rbp(distance) => rbp?.checked_add(distance.into()),
            Cfa::Saved(distance) => self.word(rbp?.checked_sub(distance.into())?),
            Cfa::Plt => sp.checked_add(if address & 15 >= 11 { 16 } else { 8 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(words: &[u64]) -> Stack {
        Stack {
            start: 0x1000,
            bytes: words.iter().flat_map(|word| word.to_le_bytes()).collect(),
        }
    }

    #[test]
    fn frames_are_followed_and_what_lies_between_is_not() {
        // 0x10: sub $16,%rsp; 0x20: push %rbp; mov %rsp,%rbp; 0x30: the outermost. 0x99 was left there.
        let stack = stack(&[0x99, 0, 0x21, 0x99, 0x1030, 0x31, 0x99, 0x99]);
        let rule = |address| match address {
            0x10..0x20 => FrameRule::Frame {
                cfa: Cfa::Rsp(24),
                rbp: SavedRbp::Unchanged,
            },
            0x20..0x30 => FrameRule::Frame {
                cfa: Cfa::Rbp(16),
                rbp: SavedRbp::BelowCfa(16),
            },
            0x30..0x40 => FrameRule::Outermost,
            _ => FrameRule::Unknown,
        };
        let at = Stood {
            pc: 0x10,
            sp: 0x1000,
            rbp: 0x1020,
        };
        assert_eq!(stack.chain(&at, rule), [0x10, 0x20, 0x30]);
        // One that leads down, and one that cannot be read.
        let at = Stood {
            pc: 0x20,
            sp: 0x1000,
            rbp: 0xf00,
        };
        assert_eq!(stack.chain(&at, rule), [0x20]);
        let at = Stood {
            pc: 0x20,
            sp: 0x1000,
            rbp: 0x1030,
        };
        assert_eq!(stack.chain(&at, rule), [0x20, 0x98]);
        // The register may have any value.
        let at = Stood {
            pc: 0x20,
            sp: 0x1000,
            rbp: u64::MAX,
        };
        assert_eq!(stack.chain(&at, rule), [0x20]);
    }
}
