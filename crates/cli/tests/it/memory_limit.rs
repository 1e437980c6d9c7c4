//! A program whose control group has little memory left: the buffer is not charged to it.

use crate::programs::{Compiler, build};
use crate::target::{Running, assert_no_session, assert_text_is_the_files, until};
use crate::traces::{Background, scratch};
use std::fs;
use std::path::PathBuf;

/// Limit of the group, bytes: less than the buffer, more than the program and its code need.
const LIMIT: u64 = 16 << 20;

/// A control group with a limit for memory. Removed when the test ends.
struct Group(PathBuf);

impl Group {
    /// `None`, with the reason printed, where none can be made.
    fn new() -> Option<Group> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let thread = rustix::thread::gettid();
        let groups = mounts.lines().filter_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let mount = PathBuf::from(place.split(' ').nth(4)?);
            let file = match kind.split(' ').next()? {
                "cgroup2" => "memory.max",
                "cgroup" if kind.ends_with(",memory") => "memory.limit_in_bytes",
                _ => return None,
            };
            Some((mount.join(format!("capriole-test-{thread}")), file))
        });
        for (path, file) in groups {
            if fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Group(path);
            if fs::write(group.0.join(file), LIMIT.to_string()).is_ok() {
                return Some(group);
            }
        }
        println!("skipped: no control group with a limit for memory can be made");
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        until("the group is empty", || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn the_buffer_is_not_charged_to_a_program_with_a_limit() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &["-pthread"]) else {
        return;
    };
    let Some(group) = Group::new() else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let mut running = Running::start(&program, &["--threads", "2"]);
    let procs = group.0.join("cgroup.procs");
    fs::write(procs, running.pid.to_string()).expect("it moves");
    let recorder = Background::attach(&trace, running.pid, &[":work a=$arg1 stack"]);
    // Nobody empties the buffer meanwhile.
    recorder.signal(libc::SIGSTOP);
    let process = running.process();
    until(
        "the program has touched more than its group may have",
        || {
            running.assert_alive();
            let status = fs::read_to_string(process.proc_path("status")).unwrap_or_default();
            let shared = status.lines().find_map(|l| l.strip_prefix("RssShmem:"));
            let shared = shared.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
            shared.is_some_and(|kib| kib << 10 > LIMIT * 2)
        },
    );
    recorder.signal(libc::SIGCONT);
    recorder.end();
    assert_text_is_the_files(&process, true);
    assert_no_session(&process);
    running.finish();
    drop(group);
}
