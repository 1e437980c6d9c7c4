//! Waiting for events. A test never waits for a time: on a busy machine everything may take long, and
//! what follows must not depend on it.

use std::time::{Duration, Instant};

/// Limit of a wait: only a hang lasts this long, however busy the machine is.
pub const HANGS: Duration = Duration::from_secs(300);
/// Limit for a program that checks itself, which waits by itself for up to [`HANGS`]: earlier than the
/// runner of the tests would kill the test, which could not say then where the program stands.
pub const PATIENCE: Duration = Duration::from_secs(480);

/// Returns what is found, as soon as it is there.
///
/// # Panics
/// After [`HANGS`], with the name `what` of the event.
#[track_caller]
pub fn found<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    let mut nap = Duration::from_micros(200);
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(started.elapsed() < HANGS, "{what}: this never happens");
        std::thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_millis(10));
    }
}

/// Waits until something is so.
///
/// # Panics
/// After [`HANGS`], with the name `what` of the event.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    found(what, || is_so().then_some(()));
}

/// Returns what `/proc/PID/task/TID/NAME` contains for each thread that a process has now.
pub(crate) fn of_threads(pid: u32, name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join(name)).ok())
        .collect()
}

/// Waits until each thread of a process stands still, by SIGSTOP.
#[track_caller]
pub fn until_stopped(pid: u32) {
    let is_stopped = |stat: &String| {
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
        state.is_some_and(|state| state.starts_with('T'))
    };
    until("all threads are stopped", || {
        let threads = of_threads(pid, "stat");
        !threads.is_empty() && threads.iter().all(is_stopped)
    });
}

/// True if nobody traces a thread of a process.
#[must_use]
pub fn is_untraced(pid: u32) -> bool {
    let threads = of_threads(pid, "status");
    let is_free = |status: &String| status.contains("\nTracerPid:\t0\n");
    threads.iter().all(is_free)
}
