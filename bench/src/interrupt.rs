//! SIGINT, SIGTERM and SIGHUP while probes are armed: a signal is noted and takes effect only after
//! the probes are removed.

use core::sync::atomic::{AtomicI32, Ordering};

/// Signals that request termination.
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Last signal received, 0 for none. Written by the handler, read by the measuring thread; nothing
/// else is published with it.
static CAME: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: i32) {
    CAME.store(signal, Ordering::Relaxed);
}

/// True if a signal arrived since [`Interrupts::hold`]; waiting for a program then stops.
pub(crate) fn came() -> bool {
    // A unit test raises a signal in the process that it shares with all other tests; ignore it.
    !cfg!(test) && CAME.load(Ordering::Relaxed) != 0
}

/// Owner of the installed handlers; dropping it restores the former ones.
pub(crate) struct Interrupts {
    former: Vec<(i32, libc::sigaction)>,
}

impl Interrupts {
    /// Installs the handlers. A signal that is ignored (as under `nohup`) stays ignored.
    pub(crate) fn hold() -> Interrupts {
        CAME.store(0, Ordering::Relaxed);
        let mut former = Vec::new();
        for signal in SIGNALS {
            // SAFETY: all zero bytes are a valid `sigaction`: no handler, no flags.
            let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
            action.sa_sigaction = note as extern "C" fn(i32) as usize;
            action.sa_flags = libc::SA_RESTART;
            if let Some(old) = exchange(signal, Some(&action)) {
                if old.sa_sigaction == libc::SIG_IGN {
                    exchange(signal, Some(&old));
                } else {
                    former.push((signal, old));
                }
            }
        }
        Interrupts { former }
    }

    /// Returns the signal received, if any.
    pub(crate) fn pending(&self) -> Option<i32> {
        Some(CAME.load(Ordering::Relaxed)).filter(|&signal| signal != 0)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for (signal, action) in &self.former {
            exchange(*signal, Some(action));
        }
    }
}

/// Sets a signal's action and returns the former one; `None` if the kernel refuses.
fn exchange(signal: i32, action: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    // SAFETY: all zero bytes are a valid `sigaction`.
    let mut old: libc::sigaction = unsafe { core::mem::zeroed() };
    let new = action.map_or(core::ptr::null(), |action| &raw const *action);
    // SAFETY: both point to a `sigaction` or are null; the handler only stores to an
    // atomic, which is async-signal-safe.
    let result = unsafe { libc::sigaction(signal, new, &mut old) };
    (result == 0).then_some(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_noted_and_the_former_action_returns() {
        let before = exchange(libc::SIGTERM, None).expect("SIGTERM has an action");
        let interrupts = Interrupts::hold();
        assert_eq!(interrupts.pending(), None);
        // SAFETY: the handler just installed takes it.
        unsafe { libc::raise(libc::SIGTERM) };
        assert_eq!(interrupts.pending(), Some(libc::SIGTERM));
        drop(interrupts);
        let after = exchange(libc::SIGTERM, None).expect("SIGTERM has an action");
        assert_eq!(before.sa_sigaction, after.sa_sigaction);
    }
}
