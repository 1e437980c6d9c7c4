//! Detection of programs that set up thread pointers themselves.
//!
//! Detours find a thread's `struct rseq` and its id through the thread pointer, as the C
//! library has laid them out. Where a program creates threads with its own thread-local storage
//! (`clone` with `CLONE_SETTLS`), or changes the thread pointer (`wrfsbase`,
//! `arch_prctl(ARCH_SET_FS)`), the thread pointer may point to other data, or to none. Then
//! nothing at all is read through it.

use super::calls::calls;
use capriole_object::Object;
use capriole_object::symbols::OtherSymbol;

/// `clone`, `clone3`, `arch_prctl` (asm/unistd_64.h).
const CLONE: u32 = 56;
const CLONE3: u32 = 435;
const ARCH_PRCTL: u32 = 158;
/// `CLONE_VM | CLONE_SETTLS` (linux/sched.h).
const OWN_STORAGE: u32 = 0x8_0100;
/// The code of libcapriole, wherever it was linked into (`library/hit.S`).
const LIBRARY: &str = "capriole_text";
/// The signal bits in the flags of `clone`, and the highest signal.
const SIGNAL: u32 = 0xff;
const LAST_SIGNAL: u32 = 64;

/// True if an object that is not a C library changes thread pointers. Its system calls prove
/// nothing if the object contains a C library.
pub(super) fn changes_thread_pointer(object: &Object, has_c_library: bool) -> bool {
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
    let imports = |name| matches!(file.other_symbol(name), Ok(Some(OtherSymbol::Imported)));
    // Tasks that libcapriole makes have no storage of their own.
    let library = file.section(LIBRARY).unwrap_or_default();
    let library = object.run_time(library.start)..object.run_time(library.end);
    let own = |number| {
        let found = calls(object, &[number]);
        let mut found = found.iter().filter(|call| !library.contains(&call.address));
        found.any(|call| call.number == Some(number))
    };
    imports("arch_prctl")
        || own(ARCH_PRCTL)
        || own(CLONE3)
        || (imports("clone") || own(CLONE)) && texts.iter().any(|text| has_flags(&text.bytes))
}

/// True if the bytes contain a `wrfsbase`: f3, perhaps a prefix, 0f ae /2 with a register operand.
fn writes_base(bytes: &[u8]) -> bool {
    memchr::memmem::find_iter(bytes, &[0x0f, 0xae]).any(|at| {
        let before = &bytes[at.saturating_sub(2)..at];
        let register = bytes.get(at + 2).is_some_and(|b| (0xd0..=0xd7).contains(b));
        register && matches!(before, [.., 0xf3] | [0xf3, 0x40..=0x4f])
    })
}

/// True if `clone` flags that give a thread its own storage are loaded into edx or edi.
fn has_flags(bytes: &[u8]) -> bool {
    bytes.windows(5).any(|window| {
        let flags = u32::from_le_bytes([window[1], window[2], window[3], window[4]]);
        matches!(window[0], 0xba | 0xbf | 0xc2 | 0xc7)
            && flags & OWN_STORAGE == OWN_STORAGE
            && flags & SIGNAL <= LAST_SIGNAL
    })
}
