//! Facts about the machine.

use crate::error::{Code, Error, Result};

/// Returns the number of CPUs that the kernel may ever use: `cpu_id` is below this.
pub fn possible_cpus() -> u32 {
    std::fs::read_to_string("/sys/devices/system/cpu/possible")
        .ok()
        .and_then(|s| s.trim().rsplit(['-', ',']).next()?.parse::<u32>().ok())
        .map_or_else(
            || std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            |n| n + 1,
        )
}

/// Starts as many threads as planning uses, all at once, and ends them, since planning would fail
/// halfway without them.
///
/// # Errors
/// The threads cannot be started; the message names the limits to raise.
pub fn check_threads() -> Result<()> {
    let number = std::thread::available_parallelism().map_or(1, usize::from) + 1;
    let gate = std::sync::Mutex::new(());
    let closed = gate.lock();
    std::thread::scope(|scope| {
        let wait = || drop(gate.lock());
        let mut threads =
            (0..number).map(|_| std::thread::Builder::new().spawn_scoped(scope, wait));
        let started = threads.try_for_each(|thread| thread.map(drop));
        drop(closed);
        started
    })
    .map_err(|error| {
        let message = "cannot start threads; raise the limits of processes (ulimit -u) and memory \
                       (ulimit -d, -v)";
        Error::caused(Code::NoResources, message, error)
    })
}
