//! Waiting for what other threads and processes do, however long they stand still.

use std::time::{Duration, Instant};

/// Only what hangs takes so long.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until something is so. Fails with `what` if it never is.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
