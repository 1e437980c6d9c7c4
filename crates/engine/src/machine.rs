//! Facts about the machine.

use crate::error::{Code, Error, Result, err};
use capriole_proc::files;
use capriole_text::units;

/// Returns the number of CPUs that the kernel may ever use: `cpu_id` is below this.
pub fn possible_cpus() -> u32 {
    files::read_pseudo_text("/sys/devices/system/cpu/possible")
        .ok()
        .and_then(|s| s.trim().rsplit(['-', ',']).next()?.parse::<u32>().ok())
        .map_or_else(
            || std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            |n| n + 1,
        )
}

/// Checks that a buffer of this many bytes may be filled: that the machine has so much memory.
///
/// # Errors
/// It has less; the message gives both sizes.
pub fn check_buffer(bytes: u64) -> Result<()> {
    let info = rustix::system::sysinfo();
    let memory = (info.totalram as u64).saturating_mul(info.mem_unit.into());
    match bytes <= memory {
        true => Ok(()),
        false => Err(err!(
            Limit,
            "a buffer of {} is more than the memory of this machine, {}",
            units::bytes(bytes),
            units::bytes(memory)
        )),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_not_larger_than_the_memory() {
        assert!(check_buffer(64 << 20).is_ok());
        let error = check_buffer(1 << 50).unwrap_err();
        assert_eq!(error.code(), Code::Limit);
    }
}
