//! The region of followed calls: private memory of the program that holds the replaced return
//! addresses, and through which the functions return.
//!
//! ```text
//! 0          header, a writable page: the address of two counters
//! 0x1000     code, a page: run at entries and at returns (returns.S)
//! 0x2000     stubs, 16 bytes for each slot: where a followed call returns to
//! 0x202000   slots, 64 bytes each
//! ```
//!
//! Code and stubs are readable and executable, the rest is readable and writable. The memory is
//! private: a forked child has its own copy, which fits its own copy of the stacks. And it
//! stays mapped when everything else is removed, because a return address may have been copied
//! to a place where it cannot be found.
//!
//! A *slot* stands for one open call: the place of the return address on the stack, the
//! original address, and the work to do. The return address on the stack is replaced by that of
//! the slot's *stub* (push the slot's offset, jump to common code). So the return address
//! identifies the slot by itself: nothing has to be found when a function returns, whatever the
//! stack pointer (`ret imm16`), the stack or the thread. A single trampoline with a search by
//! stack pointer could not do that, and would have nowhere to go if the search failed; the
//! price is 2 MiB of stubs.
//!
//! A slot is claimed by one compare-and-swap; the search for a free one begins at a home that
//! depends on the place on the stack, and covers 64 slots. If none is free, the call is not
//! followed, and counted. There is no thread-local state and no lock. If a slot for the same
//! place exists, its call is gone (an exception, `longjmp`), because one place cannot hold two
//! open calls. That does not hold where stacks are copied away and back; such programs are
//! refused (`unwinders` in the crate `planner`).
//!
//! A tail call is recognised at an entry by the address of a stub on top of the stack. The
//! function's work is added to that slot, for up to five functions, and done innermost first
//! when the last of them returns.
//!
//! The work at a return is a detour as any other, compiled for a displaced `ret`: the common
//! code restores the original address in its place, frees the slot, and jumps to the detour
//! with registers, flags and stack as at that `ret`. The detour continues by an indirect jump,
//! since the function's own `ret` has used the processor's prediction.
//!
//! A child of `vfork` shares memory and stack with its parent, which waits; its frames are
//! below the parent's, so its calls have slots of their own.

use capriole_ring::layout::returns::{SLOT_SIZE, SLOTS, STUB_SIZE};

static CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/returns.bin"));

/// Byte offset of the code; the header is before it.
pub const CODE_OFFSET: u64 = 0x1000;
/// Byte offset of the stubs.
pub const STUBS_OFFSET: u64 = 0x2000;
/// Byte offset of the slots.
pub const SLOTS_OFFSET: u64 = STUBS_OFFSET + SLOTS * STUB_SIZE;
/// Bytes of a region.
pub const SIZE: u64 = SLOTS_OFFSET + SLOTS * SLOT_SIZE;
/// Byte offset, in the header, of the address of the counters: u64 calls that were missed,
/// u64 calls that were abandoned.
pub const COUNTERS: u64 = 8;

/// Offset in the code of the first of the words that hold the offsets of the entries.
const HEAD: usize = 8;

/// Addresses in a region that was placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entries {
    /// Called at the entry of a function that is to be followed.
    pub follow: u64,
    /// Called instead where something of the entry is kept by the place of the return address: a call
    /// that is entered by a jump while an older one of its function is to return there takes the
    /// older one's place.
    pub follow_once: u64,
    /// Called when libgcc's unwinder looks up an address in its tables.
    pub find_fde: u64,
    /// Target of the stubs.
    pub returned: u64,
}

fn head(index: usize) -> u32 {
    let at = HEAD + index * 4;
    u32::from_le_bytes([CODE[at], CODE[at + 1], CODE[at + 2], CODE[at + 3]])
}

/// The entries of the region at `base`.
#[must_use]
pub fn entries(base: u64) -> Entries {
    let at = |index| base + u64::from(head(index));
    Entries {
        follow: at(0),
        find_fde: at(1),
        returned: at(2),
        follow_once: at(3),
    }
}

/// Returns code and stubs, which start at [`CODE_OFFSET`] of a region; they do not depend on its
/// address.
#[must_use]
pub fn code() -> Vec<u8> {
    let size = (SLOTS_OFFSET - CODE_OFFSET) as usize;
    let mut bytes = Vec::with_capacity(size);
    bytes.extend_from_slice(CODE);
    const INT3: u8 = 0xcc;
    bytes.resize((STUBS_OFFSET - CODE_OFFSET) as usize, INT3);
    let returned = u64::from(head(2));
    for slot in 0..SLOTS {
        // push $offset; jmp returned
        let behind = STUBS_OFFSET + slot * STUB_SIZE + 10;
        let mut stub = [INT3; STUB_SIZE as usize];
        stub[0] = 0x68;
        stub[1..5].copy_from_slice(&((slot * SLOT_SIZE) as u32).to_le_bytes());
        stub[5] = 0xe9;
        stub[6..10].copy_from_slice(&(returned.wrapping_sub(behind) as u32).to_le_bytes());
        bytes.extend_from_slice(&stub);
    }
    bytes
}

/// Returns the address of a slot's stub in the region at `base`.
#[must_use]
pub fn stub(base: u64, slot: u64) -> u64 {
    base + STUBS_OFFSET + slot * STUB_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;
    use capriole_ring::layout::returns::{MAGIC, MOST_CALLS, WORKS};

    #[test]
    fn a_slot_holds_its_works() {
        assert_eq!(WORKS as u64 + 8 * MOST_CALLS, SLOT_SIZE);
    }

    #[test]
    fn the_code_fits_its_page_and_has_its_head() {
        assert_eq!(CODE[..8], MAGIC.to_le_bytes());
        assert!(CODE.len() <= (STUBS_OFFSET - CODE_OFFSET) as usize);
        let entries = entries(0x10_0000);
        let code = 0x10_0000 + CODE_OFFSET..0x10_0000 + STUBS_OFFSET;
        for entry in [
            entries.follow,
            entries.find_fde,
            entries.returned,
            entries.follow_once,
        ] {
            assert!(code.contains(&entry), "{entry:#x}");
        }
        assert_eq!(SLOTS_OFFSET, 0x202000);
    }

    #[test]
    fn each_stub_leads_to_the_code_with_its_slot() {
        let base = 0x7000_0000;
        let bytes = code();
        assert_eq!(bytes.len() as u64, SLOTS_OFFSET - CODE_OFFSET);
        for slot in [0, 1, 77, SLOTS - 1] {
            let at = (stub(base, slot) - base - CODE_OFFSET) as usize;
            let word = |at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().expect("4"));
            assert_eq!((bytes[at], bytes[at + 5]), (0x68, 0xe9));
            assert_eq!(i64::from(word(at + 1)), (slot * SLOT_SIZE) as i64);
            let behind = stub(base, slot) + 10;
            let to = behind.wrapping_add_signed(i64::from(word(at + 6)));
            assert_eq!(to, entries(base).returned);
        }
    }
}
