//! Named steps of an attach or detach at which a test kills the tracer.
//!
//! Between any two of them the tracer may be killed by SIGKILL and the program must run on; the
//! test "the tracer killed at each step" sets `CAPRIOLE_DIE_AT=n` to kill it at the n-th one.
//! Only builds with debug assertions check for it.

#[cfg(debug_assertions)]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static DIE_AT: OnceLock<Option<u64>> = OnceLock::new();
    /// Number of steps so far; it publishes no other data.
    static STEPS: AtomicU64 = AtomicU64::new(0);

    pub fn taken() -> u64 {
        STEPS.load(Ordering::Relaxed)
    }

    pub fn step(name: &str) {
        let die_at = DIE_AT.get_or_init(|| std::env::var("CAPRIOLE_DIE_AT").ok()?.parse().ok());
        let Some(die_at) = die_at else { return };
        if STEPS.fetch_add(1, Ordering::Relaxed) + 1 == *die_at {
            eprintln!("capriole: dies at step {die_at}, {name}");
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        }
    }
}

/// Returns the number of steps so far, in a build with debug assertions if `CAPRIOLE_DIE_AT` is set;
/// otherwise 0.
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
