//! System calls made by a thread of the target, on our behalf.
//!
//! The danger is our own death: if the tracer is killed while a thread's registers are changed
//! for a system call, the thread runs with those registers. So before its registers change, a
//! signal frame with its whole state is written below its stack, and the call is made from a
//! `syscall; ret` found somewhere in the target, with the stack pointer at the frame. If the
//! tracer dies, the thread makes the call, returns into `rt_sigreturn`, and is where it was.
//!
//! ```text
//!        rsp ──▶  words popped behind the syscall
//!                 address of a restorer (mov $15,%rax; syscall)
//!                 struct ucontext: all general registers, signal mask
//!                 XSAVE area (64-byte aligned): vector and x87 state
//!      rsp-128 ▶  red zone, untouched
//!       stack ──▶ (the thread's own)
//! ```
//!
//! While the tracer lives that does not happen: the tracer stops the thread behind the call and
//! restores its registers. Until session memory exists the frame lies on the thread's stack,
//! afterwards in the session's scratch pages.

use crate::error::TargetError;
use crate::gadgets::{Gadgets, Sigreturn};
use crate::memory::RemoteMemory;
use crate::ptrace;
use crate::ptrace::{Event, Registers};
use crate::steps::step;
use crate::threads::Stopped;
use rustix::io::Errno;
use std::ops::Range;

/// Place of the signal frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FramePlace {
    /// In `len` bytes at `start` that are not used otherwise.
    Scratch {
        /// Address of the scratch memory, 64-byte aligned.
        start: u64,
        /// Size in bytes.
        len: u64,
    },
    /// Below the red zone of the thread's stack, not below `limit`.
    Stack {
        /// Lowest address of the stack's mapping.
        limit: u64,
    },
    /// No frame: there is no stack that is safe to write below (a goroutine's, for instance). If
    /// the tracer is killed in the microseconds of such a call the target is lost; at most one call
    /// is made this way, to get scratch memory.
    Nowhere,
}

/// Bytes of the part of `struct ucontext` that `rt_sigreturn` reads.
const UCONTEXT_SIZE: usize = 304;
const UC_FLAGS: u64 = 1 | 2 | 4; // UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
const XSAVE_SW_BYTES: usize = 464;
const XSAVE_BV: usize = 512;
const LEGACY_AND_HEADER: usize = 576;

/// The system calls that a thread of the program may be made to issue, each with its purpose.
/// None of them sleeps in a way that the kernel resumes by `restart_syscall`: such a call
/// records in the thread's `restart_block` how to resume, and overwrites the record of a sleep
/// of the program that our stop has interrupted. The program would then wake from *our* sleep.
pub const PERMITTED: [i64; 7] = [
    libc::SYS_mmap,         // session memory, code, open calls
    libc::SYS_munmap,       // the same at the end
    libc::SYS_madvise,      // of open calls
    libc::SYS_memfd_create, // session memory, stubs
    libc::SYS_close,        // their descriptors
    libc::SYS_rt_sigaction, // handlers of SIGTRAP and of faults
    libc::SYS_prctl,        // PR_GET_TSC
];
/// The call in which a batch waits for the tracer: it returns EINTR when it is interrupted.
pub const PATIENCE: i64 = libc::SYS_rt_sigtimedwait;

/// True if a thread may be made to issue this system call.
pub fn is_permitted(number: i64) -> bool {
    PERMITTED.contains(&number)
}

/// Value of the flags of `uc_stack` in our frames and in no others.
const OUR_STACK_FLAGS: u32 = 0x7fff_ffff;

/// True if the thread is returning from a call that we made it issue, on its own: its tracer
/// was killed, and it has not run since, or not far.
pub fn is_orphan(
    registers: &Registers,
    memory: &RemoteMemory,
    gadgets: impl FnOnce() -> Option<Gadgets>,
) -> bool {
    // The frame's context lies within ten words of the stack pointer.
    let Ok(stack) = memory.read_some(registers.rsp, 14 * 8) else {
        return false;
    };
    let words: Vec<u64> = stack
        .chunks_exact(8)
        .map(|w| w.iter().rev().fold(0, |word, b| word << 8 | u64::from(*b)))
        .collect();
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

/// True for the kernel's internal results that mean "start the call again".
fn wants_restart(registers: &Registers) -> bool {
    (registers.orig_rax as i64) >= 0 && matches!(registers.rax as i64, -516 | -514 | -513 | -512)
}

/// Size in bytes of an XSAVE area that holds every component in use.
fn xstate_used(xstate: &[u8]) -> usize {
    let mut bv = [0; 8];
    bv.copy_from_slice(&xstate[XSAVE_BV..XSAVE_BV + 8]);
    let bv = u64::from_le_bytes(bv);
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
fn signal_frame(
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
    let mut features = [0; 8];
    features.copy_from_slice(&xstate[XSAVE_BV..XSAVE_BV + 8]);
    let features = u64::from_le_bytes(features) | 3;
    let sw = fpstate + XSAVE_SW_BYTES;
    put(sw, &FP_XSTATE_MAGIC1.to_le_bytes());
    put(sw + 4, &(used as u32 + 4).to_le_bytes());
    put(sw + 8, &features.to_le_bytes());
    put(sw + 16, &(used as u32).to_le_bytes());
    put(sw + 20, &[0; 28]);
    put(fpstate + used, &FP_XSTATE_MAGIC2.to_le_bytes());
    Some(frame)
}

/// One thread of the target that makes system calls for us. Dropping it restores the thread's
/// registers.
#[derive(Debug)]
pub struct Injector<'a> {
    stopped: &'a Stopped,
    tid: i32,
    original: Registers,
    mask: u64,
    syscall: u64,
    stack: u64,
    /// The stack pointer with which a `ret` returns through the frame.
    home: u64,
    hijacked: bool,
}

impl<'a> Injector<'a> {
    /// Prepares thread `index` of `stopped`, which must not be about to receive a signal. Nothing
    /// changes in the thread yet, except memory below its stack.
    pub fn new(
        stopped: &'a Stopped,
        index: usize,
        memory: &RemoteMemory,
        gadgets: &Gadgets,
        place: FramePlace,
    ) -> Result<Injector<'a>, TargetError> {
        let thread = stopped.threads()[index];
        let tid = thread.tid;
        let fail = |what| move |errno| TargetError::ptrace(what, tid, errno);
        let mask = ptrace::signal_mask(tid).map_err(fail("read the signal mask of"))?;
        let mut injector = Injector {
            stopped,
            tid,
            original: thread.registers,
            mask,
            syscall: gadgets.syscall,
            stack: thread.registers.rsp,
            home: thread.registers.rsp,
            hijacked: false,
        };
        if place == FramePlace::Nowhere {
            return Ok(injector);
        }
        let xstate = ptrace::xstate(tid).map_err(fail("read the vector state of"))?;
        let at = match place {
            FramePlace::Scratch { start, .. } => start,
            FramePlace::Stack { .. } => (thread.registers.rsp - 128 - frame_size(&xstate)) & !63,
            FramePlace::Nowhere => 0,
        };
        let frame = signal_frame(&thread.registers, mask, &xstate, gadgets, at)
            .ok_or(TargetError::NoSyscall { pid: stopped.pid })?;
        let fits = match place {
            FramePlace::Scratch { start, len } => at + frame.len() as u64 <= start + len,
            FramePlace::Stack { limit } => at >= limit,
            FramePlace::Nowhere => true,
        };
        if !fits {
            return Err(TargetError::NoStack { tid });
        }
        memory
            .write(at, &frame)
            .map_err(|_| TargetError::NoStack { tid })?;
        injector.stack = at;
        injector.home = at + gadgets.chain.map_or(0, |(s, _)| s.pops as u64 * 8);
        injector.syscall = gadgets.chain.map_or(gadgets.syscall, |(s, _)| s.address);
        step("signal frame written");
        Ok(injector)
    }

    /// Makes one system call. `Ok(Err(errno))` is the call's own failure.
    ///
    /// # Errors
    /// The thread vanished meanwhile, or ptrace failed.
    ///
    /// # Panics
    /// Panics if `number` is not one of the [`PERMITTED`] calls.
    pub fn call(
        &mut self,
        number: i64,
        arguments: [u64; 6],
    ) -> Result<Result<u64, Errno>, TargetError> {
        assert!(
            is_permitted(number),
            "system call {number} is not permitted"
        );
        let tid = self.tid;
        let fail = |what| move |errno| TargetError::ptrace(what, tid, errno);
        let mut r = self.original;
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = arguments;
        r.rax = number as u64;
        r.orig_rax = u64::MAX; // not inside a call that might be restarted
        r.rip = self.syscall;
        r.rsp = self.stack;
        ptrace::set_registers(tid, &r).map_err(fail("set the registers of"))?;
        step("registers set for a call");
        if !self.hijacked {
            // Set this only after the registers: if we die in between, the frame restores a mask that
            // never changed.
            self.hijacked = true;
            ptrace::set_signal_mask(tid, u64::MAX).map_err(fail("block the signals of"))?;
            step("signals blocked");
        }
        ptrace::cont_to_syscall(tid, 0).map_err(fail("resume"))?;
        self.until(Event::Syscall, true)?;
        step("at the call's entry");
        // Stop behind the call inside signal processing, not at its exit: only there does the kernel
        // check again, once the thread's registers are restored, if an interrupted call of the
        // thread's own has to be restarted.
        ptrace::interrupt(tid).map_err(fail("interrupt"))?;
        ptrace::cont(tid, 0).map_err(fail("resume"))?;
        self.until(Event::Interrupted, false)?;
        step("behind the call");
        let result = ptrace::registers(tid)
            .map_err(fail("read the registers of"))?
            .rax;
        Ok(match result as i64 {
            error @ -4095..=-1 => Err(Errno::from_raw_os_error(-error as i32)),
            _ => Ok(result),
        })
    }

    /// Runs the thread from the start of `code` with these registers (r12: number of the call made
    /// there), until `is_done`. The code must wait there to be stopped by the tracer, and return
    /// through the frame by a `ret` if that does not happen.
    ///
    /// # Errors
    /// The thread vanished or ran into a fault, or ptrace failed.
    pub fn run(
        &mut self,
        code: Range<u64>,
        set: impl FnOnce(&mut Registers),
        is_done: impl Fn() -> bool,
    ) -> Result<(), TargetError> {
        let tid = self.tid;
        let pid = self.stopped.pid;
        let fail = |what| move |errno| TargetError::ptrace(what, tid, errno);
        let mut r = self.original;
        set(&mut r);
        r.orig_rax = u64::MAX;
        r.rip = code.start;
        assert!(
            is_permitted(r.r12 as i64),
            "system call {} is not permitted",
            r.r12
        );
        r.rsp = self.home;
        ptrace::set_registers(tid, &r).map_err(fail("set the registers of"))?;
        step("registers set for many calls");
        if !self.hijacked {
            self.hijacked = true;
            ptrace::set_signal_mask(tid, u64::MAX).map_err(fail("block the signals of"))?;
            step("signals blocked");
        }
        ptrace::cont(tid, 0).map_err(fail("resume"))?;
        step("many calls under way");
        let mut waited = 0;
        while !is_done() {
            match ptrace::wait(tid, false).map_err(fail("wait for"))? {
                None => {}
                Some(Event::Gone(_)) => return Err(TargetError::Vanished { pid }),
                Some(Event::Signal(_)) => return Err(TargetError::NoSyscall { pid }),
                Some(_) => ptrace::cont(tid, 0).map_err(fail("resume"))?,
            }
            if waited < 200 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
            waited += 1;
        }
        ptrace::interrupt(tid).map_err(fail("interrupt"))?;
        loop {
            match ptrace::wait(tid, true).map_err(fail("wait for"))? {
                Some(Event::Interrupted | Event::GroupStop) => break,
                // With its signals blocked it receives none: it has returned through the frame.
                Some(Event::Signal(signal)) => ptrace::cont(tid, signal).map_err(fail("resume"))?,
                Some(Event::Gone(_)) | None => return Err(TargetError::Vanished { pid }),
                Some(_) => ptrace::cont(tid, 0).map_err(fail("resume"))?,
            }
        }
        let here = ptrace::registers(tid)
            .map_err(fail("read the registers of"))?
            .rip;
        if !code.contains(&here) {
            // We did not run for longer than the thread waits. The frame has restored the thread's
            // registers and signal mask, and must not be restored again over what it did since.
            self.hijacked = false;
            return Err(TargetError::ThreadResumed { tid });
        }
        step("many calls made");
        Ok(())
    }

    /// Returns an address with 48 free bytes below the frame.
    pub fn below_frame(&self) -> u64 {
        self.stack - 48
    }

    fn until(&self, wanted: Event, to_syscall: bool) -> Result<(), TargetError> {
        loop {
            let event = ptrace::wait(self.tid, true)
                .map_err(|errno| TargetError::ptrace("wait", self.tid, errno))?;
            match event {
                Some(event) if event == wanted => return Ok(()),
                // SIGSTOP for the whole process: it will stay stopped when we leave.
                Some(Event::GroupStop) if wanted == Event::Interrupted => return Ok(()),
                // All signals are blocked, so this one is a fault caused by the call.
                Some(Event::Signal(_)) => {
                    return Err(TargetError::NoSyscall {
                        pid: self.stopped.pid,
                    });
                }
                Some(Event::Gone(_)) | None => {
                    return Err(TargetError::Vanished {
                        pid: self.stopped.pid,
                    });
                }
                Some(_) => {
                    let go = if to_syscall {
                        ptrace::cont_to_syscall
                    } else {
                        ptrace::cont
                    };
                    go(self.tid, 0).map_err(|e| TargetError::ptrace("resume", self.tid, e))?;
                }
            }
        }
    }

    /// Restores the thread's registers and signal mask.
    pub fn finish(mut self) -> Result<(), TargetError> {
        self.restore()
    }

    fn restore(&mut self) -> Result<(), TargetError> {
        if !std::mem::take(&mut self.hijacked) {
            return Ok(());
        }
        let tid = self.tid;
        // The mask first: if we die before the registers are restored, the frame returns the thread
        // to its own code, with this mask.
        ptrace::set_signal_mask(tid, self.mask)
            .map_err(|errno| TargetError::ptrace("restore the signals of", tid, errno))?;
        step("signals unblocked");
        ptrace::set_registers(tid, &self.original)
            .map_err(|errno| TargetError::ptrace("restore the registers of", tid, errno))?;
        step("registers restored");
        Ok(())
    }
}

impl Drop for Injector<'_> {
    fn drop(&mut self) {
        // Reached only after an error; the thread is then gone or untraceable.
        let _ = self.restore();
    }
}

/// Upper bound of the frame's size for a thread with this state, bytes.
pub fn frame_size(xstate: &[u8]) -> u64 {
    (10 * 8 + UCONTEXT_SIZE + 64 + xstate_used(xstate) + 4) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gadgets::SyscallReturn;

    #[test]
    fn an_interrupted_call_is_started_again_by_the_frame() {
        let mut registers = ptrace::no_registers();
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
