//! Programs whose control group is frozen, as those of a paused container are: they are refused before
//! anything is changed, and nothing waits for them for ever.

use crate::programs::{Compiler, build};
use crate::target::*;
use crate::traces::{Background, recorder, scratch, summary, text};
use std::fs;
use std::path::PathBuf;

/// A control group of its own, of version 2. When the test ends it is thawed, and removed.
struct Group(PathBuf);

impl Group {
    /// `None`, with the reason printed, where none can be made.
    fn new() -> Option<Group> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let mount = mounts.lines().find_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let mount = place.split(' ').nth(4)?;
            kind.starts_with("cgroup2 ").then(|| PathBuf::from(mount))
        });
        let Some(mount) = mount else {
            println!("skipped: no control groups of version 2 are mounted");
            return None;
        };
        let thread = rustix::thread::gettid();
        let group = Group(mount.join(format!("capriole-test-{thread}")));
        if let Err(error) = fs::create_dir(&group.0) {
            println!("skipped: no control group can be made: {error}");
            return None;
        }
        if !group.0.join("cgroup.freeze").exists() {
            println!("skipped: control groups cannot be frozen (before Linux 5.2)");
            return None;
        }
        Some(group)
    }

    fn set(&self, file: &str, value: &str) {
        fs::write(self.0.join(file), value).expect("a file of the group");
    }

    fn take(&self, pid: u32) {
        self.set("cgroup.procs", &pid.to_string());
    }

    fn freeze(&self) {
        self.set("cgroup.freeze", "1");
        until("the group is frozen", || {
            let events = fs::read_to_string(self.0.join("cgroup.events"));
            events.expect("events").contains("frozen 1")
        });
    }

    fn thaw(&self) {
        self.set("cgroup.freeze", "0");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.freeze"), "0");
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        until("the group is empty", || fs::remove_dir(&self.0).is_ok());
    }
}

/// A program in a group, and how it looks.
fn started() -> Option<(Group, Running, Looks)> {
    let program = build(Compiler::Gcc, "hammer.c", &["-pthread"])?;
    let group = Group::new()?;
    let running = Running::start(&program, &["--threads", "2", "--pause", "2000"]);
    group.take(running.pid);
    let before = looks(&running.process()).without_mask();
    Some((group, running, before))
}

fn ends_as_it_was(mut running: Running, before: &Looks) {
    let process = running.process();
    until("it looks as before", || {
        looks(&process).without_mask() == *before
    });
    assert_text_is_the_files(&process, false);
    running.assert_alive();
    running.finish();
}

#[test]
fn one_that_is_frozen_is_refused() {
    let Some((group, running, before)) = started() else {
        return;
    };
    let pid = running.pid.to_string();
    group.freeze();
    let directory = scratch();
    let trace = directory.path().join("trace");
    let record = ["record", "-p", &pid, "-e", HAMMER[0], "-o", text(&trace)];
    let wanted = format!(
        ") is frozen with its control group, as a paused container is ({})",
        group.0.display()
    );
    for words in [&record[..], &["detach", &pid]] {
        let output = capriole(words);
        let said = told(&output);
        assert!(!output.status.success() && said.contains(&wanted), "{said}");
    }
    // Reading needs no thread of the program.
    let output = capriole(&["list", "-p", &pid]);
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(looks(&running.process()).without_mask(), before);
    group.thaw();
    let output = capriole(&[&record[..], &["--duration", "50ms"]].concat());
    assert!(output.status.success(), "{}", told(&output));
    ends_as_it_was(running, &before);
}

/// The recorder ends, and says what is left; the probes are out.
#[test]
fn one_that_is_frozen_while_it_is_recorded_does_not_hold_the_recorder() {
    let Some((group, running, before)) = started() else {
        return;
    };
    let pid = running.pid.to_string();
    let directory = scratch();
    let trace = directory.path().join("trace");
    let command = recorder(&trace, &["-p", &pid, "-e", HAMMER[0]]);
    let recording = Background::of(command, running.pid);
    recording.until_recorded();
    group.freeze();
    recording.signal(libc::SIGINT);
    let output = recording.output();
    let said = told(&output);
    // A thread may be frozen in a detour.
    let stays = output.status.success() && said.contains("some memory stays mapped");
    let held = "does not go on when it is let run: its control group is frozen";
    assert!(stays || said.contains(held), "{said}");
    assert!(said.contains(&format!("capriole detach {pid}")), "{said}");
    assert_text_is_the_files(&running.process(), true);
    let recorded = summary(&trace)["events"].as_u64();
    assert!(recorded > Some(0), "{said}");
    group.thaw();
    let output = capriole(&["detach", &pid]);
    assert!(output.status.success(), "{}", told(&output));
    ends_as_it_was(running, &before);
}
