//! Threads whose system calls the kernel passes back to their program as a SIGSYS: syscall user dispatch
//! (`prctl(PR_SET_SYSCALL_USER_DISPATCH)`), with which Wine and interposers of system calls work.
//!
//! A call that such a thread makes for us would arrive at the program's handler, and one that is made while
//! its signals are blocked, as they are then, even sets the handler back to the default action. So it makes
//! one only where the kernel lets it pass: from code that may always make calls, or while the program
//! itself has allowed all of them, as it does for the calls in which its threads sleep. The byte that says
//! so belongs to the thread, which is stopped.

use crate::host::TargetMemory;
use crate::ptrace::requests::{self, UserDispatch};
use crate::x86_64::gadgets::{Gadgets, Sigreturn};
use capriole_proc::process::{Process, SignalSet};

/// Value of the selector while all calls are allowed.
const ALLOW: u8 = 0;

/// Returns how a stopped thread's system calls are redirected; `None` if they are not, or the kernel
/// cannot say.
fn redirection(tid: i32) -> Option<UserDispatch> {
    let dispatch = requests::user_dispatch(tid).ok()?;
    (dispatch.mode != 0).then_some(dispatch)
}

/// True if the system calls of a stopped thread are redirected, now or at another time. Where the kernel
/// cannot say (before Linux 6.4), those of programs are that look as if.
pub(super) fn may_be(process: &Process, tid: i32) -> bool {
    match requests::user_dispatch(tid) {
        Ok(dispatch) => dispatch.mode != 0,
        Err(_) => process
            .status()
            .is_ok_and(|status| looks_as_if(status.caught)),
    }
}

/// True if a program that handles these signals may have its system calls redirected: they arrive as
/// SIGSYS, for which hardly any other program has a handler. Go's runtime has one for every signal.
fn looks_as_if(caught: SignalSet) -> bool {
    let mut standard = 1..32;
    caught.contains(libc::SIGSYS)
        && !(standard.all(|signal| is_uncatchable(signal) || caught.contains(signal)))
}

fn is_uncatchable(signal: i32) -> bool {
    [libc::SIGKILL, libc::SIGSTOP].contains(&signal)
}

/// True if the system calls of a stopped thread are never redirected, whatever code makes them.
pub(super) fn is_never(tid: i32) -> bool {
    redirection(tid).is_none()
}

/// True if the kernel executes the system calls that a stopped thread makes by these instructions.
pub(super) fn permits(tid: i32, gadgets: &Gadgets, memory: &dyn TargetMemory) -> bool {
    redirection(tid).is_none_or(|dispatch| passes(&dispatch, gadgets, memory))
}

fn passes(dispatch: &UserDispatch, gadgets: &Gadgets, memory: &dyn TargetMemory) -> bool {
    let is_inside = |address: u64| address.wrapping_sub(dispatch.start) < dispatch.len;
    // The kernel compares the address behind the instruction.
    let inside = |call: u64| is_inside(call) && is_inside(call + 2);
    let of_chain = gadgets.chain.is_none_or(|(syscall, back)| {
        inside(syscall.address)
            && match back {
                Sigreturn::Restorer(address) => inside(address + RESTORER_CALL),
                Sigreturn::PopRax(_) => inside(gadgets.syscall),
            }
    });
    let is_allowed = || {
        let mut selector = [0];
        let read = memory.read(dispatch.selector, &mut selector);
        dispatch.selector != 0 && read.is_ok() && selector[0] == ALLOW
    };
    (inside(gadgets.syscall) && of_chain) || is_allowed()
}

/// Distance of the `syscall` from the start of the C library's restorer, `mov $15, %rax; syscall`.
const RESTORER_CALL: u64 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_that_mean_it_handle_sigsys() {
        let of = |signals: &[i32]| SignalSet(signals.iter().fold(0, |set, s| set | 1 << (s - 1)));
        assert!(!looks_as_if(of(&[])));
        assert!(!looks_as_if(of(&[libc::SIGSEGV, libc::SIGBUS])));
        assert!(looks_as_if(of(&[libc::SIGSYS])));
        assert!(looks_as_if(of(&[libc::SIGSEGV, libc::SIGSYS])));
        let all: Vec<i32> = (1..65).filter(|s| !is_uncatchable(*s)).collect();
        assert!(!looks_as_if(of(&all)), "Go");
    }
}
