//! Named steps of an attach or detach at which a test kills or stops the tracer.
//!
//! Between any two of them the tracer may be killed by SIGKILL and the program must run on; the
//! test "the tracer killed at each step" sets `CAPRIOLE_DIE_AT=n` to kill it at the n-th one. With
//! `CAPRIOLE_STOP_AT=n` it stops there, until SIGCONT. Only builds with debug assertions check for
//! either.

#[cfg(debug_assertions)]
mod armed {
    use rustix::process::Signal;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A step, what is done there in a message, and the signal that does it.
    type Fatal = (u64, &'static str, Signal);

    static FATAL: OnceLock<Option<Fatal>> = OnceLock::new();
    /// Number of steps so far; it publishes no other data.
    static STEPS: AtomicU64 = AtomicU64::new(0);

    pub fn taken() -> u64 {
        STEPS.load(Ordering::Relaxed)
    }

    pub fn step(name: &str) {
        let Some((at, what, signal)) = FATAL.get_or_init(fatal) else {
            return;
        };
        if STEPS.fetch_add(1, Ordering::Relaxed) + 1 == *at {
            eprintln!("capriole: {what} at step {at}, {name}");
            let _ = rustix::process::kill_process(rustix::process::getpid(), *signal);
        }
    }

    fn fatal() -> Option<Fatal> {
        let number = |name: &str| std::env::var(name).ok()?.parse().ok();
        let dies = number("CAPRIOLE_DIE_AT").map(|at| (at, "dies", Signal::KILL));
        dies.or_else(|| number("CAPRIOLE_STOP_AT").map(|at| (at, "stops", Signal::STOP)))
    }
}

/// Returns the number of steps so far, in a build with debug assertions if one was chosen in the
/// environment; otherwise 0.
#[must_use]
pub fn taken() -> u64 {
    #[cfg(debug_assertions)]
    return armed::taken();
    #[cfg(not(debug_assertions))]
    return 0;
}

/// Marks the step called `name` as reached.
#[inline]
pub fn step(name: &str) {
    #[cfg(debug_assertions)]
    armed::step(name);
    let _ = name;
}
