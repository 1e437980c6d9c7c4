//! Signals of a test's child process, handled on a separate stack.

use crate::support::sandbox::EXIT;
use std::sync::atomic::{AtomicU64, Ordering};

/// Handles `signal` on a separate stack, because the sandbox's is small.
pub fn handle(signal: libc::c_int, handler: usize, flags: libc::c_int) {
    let stack = Box::leak(vec![0u8; 1 << 16].into_boxed_slice());
    let stack = libc::stack_t {
        ss_sp: stack.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: stack.len(),
    };
    // SAFETY: the stack is leaked, so it stays.
    unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) };
    // SAFETY: zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_ONSTACK | flags;
    // SAFETY: the handlers below only change the state that the kernel saved for them.
    unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
}

/// Address of the breakpoint at which single stepping starts.
static FROM: AtomicU64 = AtomicU64::new(0);

/// From the breakpoint at `from` on, every instruction raises a signal, until the sandbox's own
/// code is reached.
pub fn step_from(from: u64) {
    FROM.store(from, Ordering::Relaxed);
    handle(libc::SIGTRAP, step as *const () as usize, libc::SA_SIGINFO);
}

extern "C" fn step(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    const TRAP_FLAG: i64 = 0x100;
    // SAFETY: the kernel passes it to the handler.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let rip = registers[libc::REG_RIP as usize] as u64;
    let flags = &mut registers[libc::REG_EFL as usize];
    if rip == FROM.load(Ordering::Relaxed) + 1 {
        *flags |= TRAP_FLAG;
    } else if rip == EXIT {
        *flags &= !TRAP_FLAG;
    }
}
