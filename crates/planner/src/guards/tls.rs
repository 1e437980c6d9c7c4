//! Detection of programs that set up thread pointers themselves.
//!
//! Detours find a thread's `struct rseq` and its id through the thread pointer, as the C
//! library has laid them out. Where a program creates threads with its own thread-local storage
//! (`clone` with `CLONE_SETTLS`), or changes the thread pointer (`wrfsbase`,
//! `arch_prctl(ARCH_SET_FS)`), the thread pointer may point to other data, or to none. Then
//! nothing at all is read through it.

use super::calls::{Calls, constant};
use super::{function_around, instructions};
use capriole_insn::{Code, Extent};
use capriole_object::Object;
use iced_x86::Instruction;
use std::collections::HashMap;
use std::slice;

/// `clone`, `clone3`, `arch_prctl` (asm/unistd_64.h).
const CLONE: u32 = 56;
const CLONE3: u32 = 435;
const ARCH_PRCTL: u32 = 158;
/// System calls that can set a thread pointer.
pub(super) const CALLS: [u32; 3] = [CLONE, CLONE3, ARCH_PRCTL];
/// `CLONE_VM | CLONE_SETTLS` (linux/sched.h).
const OWN_STORAGE: u32 = 0x8_0100;
/// `CLONE_PIDFD`, and the flags with one of which the kernel refuses it in `clone`: `CLONE_THREAD` and
/// `CLONE_PARENT_SETTID` (clone(2)).
const PIDFD: u32 = 0x1000;
const NO_PIDFD: u32 = 0x11_0000;
/// Maximum length of an instruction, bytes.
const LONGEST: u64 = 15;
/// The code of libcapriole, wherever it was linked into (`library/hit.S`).
const LIBRARY: &str = "capriole_text";
/// The signal bits in the flags of `clone`, and the highest signal.
const SIGNAL: u32 = 0xff;
const LAST_SIGNAL: u32 = 64;

/// True if an object that is not a C library changes thread pointers. Its system calls prove
/// nothing if the object contains a C library.
pub(super) fn changes_thread_pointer(object: &Object, calls: &Calls, has_c_library: bool) -> bool {
    let file = object.file();
    let Ok(texts) = file.text() else {
        return false;
    };
    if texts.iter().any(|text| writes_base(&text.bytes)) {
        return true;
    }
    if has_c_library {
        return false;
    }
    // Tasks that libcapriole makes have no storage of their own.
    let library = file.section(LIBRARY).unwrap_or_default();
    let library = object.run_time(library.start)..object.run_time(library.end);
    let own = |number| {
        let found = calls.with(slice::from_ref(&number));
        let mut found = found.filter(|call| !library.contains(&call.address));
        found.any(|call| call.number == Some(number))
    };
    let [arch_prctl, clone] = file.imports(["arch_prctl", "clone"]);
    arch_prctl
        || own(ARCH_PRCTL)
        || own(CLONE3)
        || (clone || own(CLONE))
            && texts
                .iter()
                .any(|text| has_flags(object, &text.bytes, text.address))
}

/// True if the bytes contain a `wrfsbase`: f3, perhaps a prefix, 0f ae /2 with a register operand.
fn writes_base(bytes: &[u8]) -> bool {
    memchr::memmem::find_iter(bytes, &[0x0f, 0xae]).any(|at| {
        let before = &bytes[at.saturating_sub(2)..at];
        let register = bytes.get(at + 2).is_some_and(|b| (0xd0..=0xd7).contains(b));
        register && matches!(before, [.., 0xf3] | [0xf3, 0x40..=0x4f])
    })
}

/// True if `clone` flags that give a thread its own storage are loaded into edx or edi. In large
/// objects some bytes look like that by chance: they count only as an instruction of their function,
/// or where no function is known.
fn has_flags(object: &Object, bytes: &[u8], link: u64) -> bool {
    let code = Code::new(bytes, object.run_time(link));
    let mut functions: HashMap<u64, Vec<Instruction>> = HashMap::new();
    let mut is_loaded = |at: usize, flags: u32| {
        let address = code.address + at as u64;
        let around = function_around(object, address).or_else(|| framed(object, address));
        let Some(extent) = around else {
            return true;
        };
        // The bytes may begin in its last instruction.
        let new = || instructions(&code, extent.start, extent.end + LONGEST).collect();
        let all = functions.entry(extent.start).or_insert_with(new);
        // The immediate is the end of the instruction.
        let end = address + 5;
        let next = all.partition_point(|instruction| instruction.next_ip() < end);
        let found = all.get(next);
        found.is_none_or(|i| i.next_ip() == end && constant(i).map(|n| n as u32) == Some(flags))
    };
    bytes.windows(5).enumerate().any(|(at, window)| {
        let flags = u32::from_le_bytes([window[1], window[2], window[3], window[4]]);
        matches!(window[0], 0xba | 0xbf | 0xc2 | 0xc7)
            && flags & OWN_STORAGE == OWN_STORAGE
            && flags & SIGNAL <= LAST_SIGNAL
            && (flags & PIDFD == 0 || flags & NO_PIDFD == 0)
            && is_loaded(at, flags)
    })
}

/// Returns the function without a symbol around an address, by its call frame information.
fn framed(object: &Object, address: u64) -> Option<Extent> {
    let link = object.link(address);
    let frames = object.file().frames().ok()?;
    let behind = frames.partition_point(|frame| frame.extent.start <= link);
    let extent = frames[..behind].last()?.extent;
    extent
        .contains(link)
        .then(|| object.run_time_extent(extent))
}
