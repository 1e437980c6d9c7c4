//! Names of fields that the engine adds to the events of calls.

/// Field that pairs a call's entry with its exit: the stack pointer.
pub const STACK: &str = "_sp";
/// Field with the goroutine; only Go functions have it.
pub const GOROUTINE: &str = "_g";
/// Field with the function's return value.
pub const RESULT: &str = "ret";
/// Field with the duration of a call, in nanoseconds.
pub const LATENCY: &str = "ns";

/// Field of an exit with the duration of the call, in ticks of the time stamp counter, where its
/// entry is not recorded.
pub const DURATION: &str = "_duration";

/// Field of an exit that exists only if the call's entry was recorded.
pub const SINCE: &str = "_since";
