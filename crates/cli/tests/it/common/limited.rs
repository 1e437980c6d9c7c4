//! Runs a command with limited memory and time.

use super::target::{self, HANGS, told};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

/// Limit on a command's data, in bytes: many times what it needs.
const ENOUGH: u64 = 2 << 30;

/// Runs `capriole` and returns its output. The command must end by itself and without a panic.
pub fn ended(words: &[&str]) -> Output {
    let mut command = target::command(words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let limit = || Rlimit {
        current: Some(ENOUGH),
        maximum: Some(ENOUGH),
    };
    // SAFETY: only a system call is made between fork and exec.
    unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Data, limit())?)) };
    let mut child = command.spawn().expect("capriole starts");
    let started = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if started.elapsed() > HANGS {
            child.kill().expect("it is killed");
            panic!("{words:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().expect("a child");
    let said = told(&output);
    assert_eq!(output.status.signal(), None, "{words:?} {said}");
    assert!(!said.contains("panicked"), "{words:?} {said}");
    output
}
