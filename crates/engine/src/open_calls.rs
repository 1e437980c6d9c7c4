//! Functions whose calls are open: threads have a return address into them on their stacks.
//!
//! A call that began before its probes were in is not seen at its entry, and a function that runs as long as the
//! program is then "never hit". This tells why. Stacks are searched, not unwound, so that a function may be
//! named whose return address was left there by an earlier call.

use capriole_insn::Extent;
use capriole_proc::maps::containing;
use capriole_proc::process::Process;
use std::collections::BTreeSet;

/// Most bytes of a stack that are searched.
const MOST: u64 = 1 << 20;
/// True if the bytes before a return address can be those of a call.
fn follows_a_call(before: [u8; 7]) -> bool {
    const NEAR: u8 = 0xe8;
    // `call` of a register or memory, `ff /2`, has 2 to 7 bytes.
    let indirect = before
        .windows(2)
        .any(|two| two[0] == 0xff && two[1] >> 3 & 7 == 2);
    before[2] == NEAR || indirect
}

/// Returns the indices of those functions in which a thread was, of threads with these stack pointers and program
/// counters.
#[must_use]
pub fn on_stacks(
    process: &Process,
    threads: &[(u64, u64)],
    functions: &[Extent],
) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let Ok(maps) = process.maps() else {
        return found;
    };
    for &(sp, pc) in threads {
        let Some(stack) = containing(&maps, sp) else {
            continue;
        };
        let mut bytes = vec![0; (stack.end - sp).min(MOST) as usize];
        let read = process.read_memory(sp, &mut bytes).unwrap_or(0);
        bytes.truncate(read);
        let words = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word));
        let is_return = |address: u64| {
            let mut before = [0; 7];
            let read = process.read_memory(address - 7, &mut before);
            read.is_ok_and(|read| read == before.len()) && follows_a_call(before)
        };
        for (index, function) in functions.iter().enumerate() {
            // A call may be the last instruction of its function.
            let inside = |address: &u64| function.start < *address && *address <= function.end;
            let mut returns = words.clone().filter(inside);
            if function.contains(pc) || returns.any(is_return) {
                found.insert(index);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_recognised() {
        assert!(follows_a_call([0, 0, 0xe8, 1, 2, 3, 4]));
        assert!(follows_a_call([0, 0, 0, 0, 0, 0xff, 0xd0])); // call *%rax
        assert!(follows_a_call([0, 0xff, 0x15, 1, 2, 3, 4])); // call *x(%rip)
        assert!(!follows_a_call([0x90; 7]));
        assert!(!follows_a_call([0, 0xff, 0x25, 1, 2, 3, 4])); // jmp *x(%rip)
    }
}
