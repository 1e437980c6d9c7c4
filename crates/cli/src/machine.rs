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
