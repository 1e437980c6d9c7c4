//! Facts about the machine.

/// CPUs that the kernel may ever use: `cpu_id` is below this.
pub fn possible_cpus() -> u32 {
    std::fs::read_to_string("/sys/devices/system/cpu/possible")
        .ok()
        .and_then(|s| s.trim().rsplit(['-', ',']).next()?.parse::<u32>().ok())
        .map_or_else(
            || std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            |n| n + 1,
        )
}

/// Lets this thread run before others where that is permitted (root), or does
/// nothing. A program that keeps all processors busy would else have us wait for
/// our turn while it stands still, and while its buffer is full.
pub fn hurry() {
    let _ = rustix::process::setpriority_process(None, -20);
}
