//! The signal frame through which a thread returns to what it was doing before it made a call for
//! us: `struct rt_sigframe` with the XSAVE area that the processor's manual describes.

use super::gadgets::{Gadgets, Sigreturn};
use super::registers::{Registers, wants_restart};
use crate::host::TargetMemory;

/// Bytes of the part of `struct ucontext` that `rt_sigreturn` reads.
const UCONTEXT_SIZE: usize = 304;
const UC_FLAGS: u64 = 1 | 2 | 4; // UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
const XSAVE_SW_BYTES: usize = 464;
const XSAVE_BV: usize = 512;
const LEGACY_AND_HEADER: usize = 576;

/// Value of the flags of `uc_stack` in our frames and in no others.
const OUR_STACK_FLAGS: u32 = 0x7fff_ffff;

/// True if the thread is returning from a call that we made it issue, on its own: its tracer
/// was killed, and it has not run since, or not far.
pub(crate) fn is_orphan(
    registers: &Registers,
    memory: &dyn TargetMemory,
    gadgets: impl FnOnce() -> Option<Gadgets>,
) -> bool {
    // The frame's context lies within ten words of the stack pointer.
    let Ok(stack) = memory.read_some(registers.rsp, 14 * 8) else {
        return false;
    };
    let words = stack.as_chunks().0.iter();
    let words: Vec<u64> = words.map(|word| u64::from_le_bytes(*word)).collect();
    let is_context = |w: &[u64]| w[0] == UC_FLAGS && w[1] == 0 && w[3] as u32 == OUR_STACK_FLAGS;
    if !words.windows(4).any(is_context) {
        return false;
    }
    // Such a context may be left over from an earlier frame, in memory that no function has
    // overwritten yet. The code that returns through the frame is a few dozen bytes.
    let Some((syscall, back)) = gadgets().and_then(|g| g.chain) else {
        return false;
    };
    let back = match back {
        Sigreturn::Restorer(address) | Sigreturn::PopRax(address) => address,
    };
    [syscall.address, back]
        .into_iter()
        .any(|from| (from..from + 64).contains(&registers.rip))
}

/// Returns the components in use of an XSAVE area, one bit each (XSTATE_BV).
fn features(xstate: &[u8]) -> u64 {
    let word = xstate[XSAVE_BV..].first_chunk();
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

/// Size in bytes of an XSAVE area that holds every component in use.
fn xstate_used(xstate: &[u8]) -> usize {
    let bv = features(xstate);
    let component = |i: u32| {
        let leaf = std::arch::x86_64::__cpuid_count(0xd, i);
        (leaf.ebx + leaf.eax) as usize
    };
    let used = (2..63)
        .filter(|i| bv >> i & 1 == 1)
        .map(component)
        .max()
        .unwrap_or(0);
    used.max(LEGACY_AND_HEADER).min(xstate.len())
}

/// Builds a signal frame that restores a thread to `registers`.
pub(crate) fn signal_frame(
    registers: &Registers,
    mask: u64,
    xstate: &[u8],
    gadgets: &Gadgets,
    place: u64,
) -> Option<Vec<u8>> {
    let (syscall, back) = gadgets.chain?;
    let mut frame = vec![0u8; syscall.pops * 8];
    match back {
        Sigreturn::Restorer(address) => frame.extend(address.to_le_bytes()),
        Sigreturn::PopRax(address) => {
            for word in [address, libc::SYS_rt_sigreturn as u64, syscall.address] {
                frame.extend(word.to_le_bytes());
            }
        }
    }
    let context = frame.len();
    let fpstate = (place as usize + context + UCONTEXT_SIZE).next_multiple_of(64) - place as usize;
    let used = xstate_used(xstate);
    frame.resize(fpstate + used + 4, 0);

    let mut r = *registers;
    if wants_restart(&r) {
        r.rip -= 2;
        r.rax = r.orig_rax;
    }
    let segments = (r.cs & 0xffff) | (r.ss & 0xffff) << 48;
    // struct sigcontext_64
    let machine = [
        r.r8,
        r.r9,
        r.r10,
        r.r11,
        r.r12,
        r.r13,
        r.r14,
        r.r15,
        r.rdi,
        r.rsi,
        r.rbp,
        r.rbx,
        r.rdx,
        r.rax,
        r.rcx,
        r.rsp,
        r.rip,
        r.eflags,
        segments,
        0,
        0,
        0,
        0,
        place + fpstate as u64,
    ];
    let mut put = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
    put(context, &UC_FLAGS.to_le_bytes());
    // uc_stack: the flags are invalid, so the alternate stack stays as it is
    // (rt_sigreturn ignores the error).
    put(context + 24, &OUR_STACK_FLAGS.to_le_bytes());
    for (i, word) in machine.iter().enumerate() {
        put(context + 40 + i * 8, &word.to_le_bytes());
    }
    put(context + 296, &mask.to_le_bytes());

    put(fpstate, &xstate[..used]);
    let features = features(xstate) | 3;
    let sw = fpstate + XSAVE_SW_BYTES;
    put(sw, &FP_XSTATE_MAGIC1.to_le_bytes());
    put(sw + 4, &(used as u32 + 4).to_le_bytes());
    put(sw + 8, &features.to_le_bytes());
    put(sw + 16, &(used as u32).to_le_bytes());
    put(sw + 20, &[0; 28]);
    put(fpstate + used, &FP_XSTATE_MAGIC2.to_le_bytes());
    Some(frame)
}

/// Upper bound of the frame's size for a thread with this state, bytes.
pub(crate) fn frame_size(xstate: &[u8]) -> u64 {
    (10 * 8 + UCONTEXT_SIZE + 64 + xstate_used(xstate) + 4) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86_64::gadgets::SyscallReturn;

    #[test]
    fn an_interrupted_call_is_started_again_by_the_frame() {
        let mut registers = crate::ptrace::requests::no_registers();
        registers.rip = 0x1002;
        registers.rax = -512i64 as u64;
        registers.orig_rax = 35;
        let gadgets = Gadgets {
            syscall: 1,
            chain: Some((
                SyscallReturn {
                    address: 1,
                    pops: 2,
                },
                Sigreturn::Restorer(0x77),
            )),
        };
        let frame = signal_frame(&registers, 5, &[0; 2696], &gadgets, 0x10000).expect("frame");
        let word = |at: usize| u64::from_le_bytes(frame[at..at + 8].try_into().expect("8"));
        assert_eq!(word(16), 0x77);
        let machine = 24 + 40;
        assert_eq!(word(machine + 13 * 8), 35, "rax");
        assert_eq!(word(machine + 16 * 8), 0x1000, "rip");
        assert_eq!(word(24 + 296), 5, "mask");
        let fpstate = word(machine + 23 * 8);
        assert_eq!(fpstate % 64, 0);
        let sw = (fpstate - 0x10000) as usize + XSAVE_SW_BYTES;
        assert_eq!(frame[sw..sw + 4], FP_XSTATE_MAGIC1.to_le_bytes());
        let size = u32::from_le_bytes(frame[sw + 16..sw + 20].try_into().expect("4")) as usize;
        assert_eq!(frame[frame.len() - 4..], FP_XSTATE_MAGIC2.to_le_bytes());
        assert_eq!((fpstate - 0x10000) as usize + size + 4, frame.len());
    }
}
