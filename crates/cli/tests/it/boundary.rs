//! Processes that need not trust each other share session memory: whatever one of them writes
//! there, or into its own ledger, changes no other.

use crate::programs::{Compiler, build};
use crate::target::*;
use crate::traces::until_recording;
use capriole_host::host::TargetMemory;
use capriole_host::memfd;
use capriole_host::ptrace;
use capriole_host::ptrace::memory::RemoteMemory;
use capriole_host::ptrace::requests;
use capriole_ledger::is_ledger;
use capriole_patch::recover::is_probed;
use capriole_patch::session::is_session;
use capriole_proc::process::Process;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Stdio};

const EVENT: &str = ":forger_work";

/// Killed when dropped.
struct Recorder(Child);

impl Recorder {
    fn kill(&mut self) {
        self.0.kill().expect("a child");
        self.0.wait().expect("a child");
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Recorded {
    running: Running,
    recorder: Recorder,
    before: Looks,
    directory: tempfile::TempDir,
}

impl Recorded {
    /// Starts a program whose children forge session memory, and its recorder. `None` without a
    /// compiler.
    fn start() -> Option<Recorded> {
        Recorded::with(EVENT)
    }

    fn with(event: &str) -> Option<Recorded> {
        let program = build(Compiler::Gcc, "forger.c", &[])?;
        let running = Running::start(&program, &[]);
        let process = running.process();
        let before = looks(&process);
        let directory = tempfile::tempdir().expect("a directory");
        let pid = running.pid.to_string();
        let mut command = command(&["record", "-p", &pid, "-e", event, "--buffer-size", "8M"]);
        command.arg("-o").arg(directory.path().join("trace"));
        let recorder = command.stderr(Stdio::piped()).spawn();
        let recorder = Recorder(recorder.expect("capriole starts"));
        until_recording(process.pid());
        Some(Recorded {
            running,
            recorder,
            before,
            directory,
        })
    }

    /// Makes the children forge, and waits until they are done.
    fn forge(&mut self) {
        for deed in ["forge", "damage"] {
            self.running.say(deed);
            let line = self.running.line();
            let forged = line.strip_prefix("forged ");
            let forged = forged.map(|n| n.parse::<u32>().expect("a number"));
            // It finds at least its own copy of the journal.
            assert!(line == "damaged" || forged > Some(0), "{line}");
        }
    }

    /// Makes a child that drops its privileges, and waits until it is detached. Returns its number.
    fn drop_a_child(&mut self) -> u32 {
        self.running.say("drop");
        let line = self.running.line();
        let pid = line.strip_prefix("dropped ").expect("a child");
        let child = Process::open(pid.parse().expect("a number")).expect("it lives");
        until("the child is recorded no more", || {
            let maps = child.maps().expect("it lives");
            !maps.iter().any(|m| is_session(m) || is_ledger(m))
        });
        assert_text_is_the_files(&child, true);
        child.pid()
    }

    /// Ends the recorder as a user does, and returns its output.
    fn stop(&mut self) -> String {
        // SAFETY: sends a signal to a child of this test that has not been waited for.
        let sent = unsafe { libc::kill(self.recorder.0.id() as i32, libc::SIGINT) };
        assert_eq!(sent, 0);
        let status = self.recorder.0.wait().expect("it ends");
        let mut text = String::new();
        let errors = self.recorder.0.stderr.as_mut().expect("a pipe");
        errors.read_to_string(&mut text).expect("text");
        assert!(status.success(), "{text}");
        text
    }

    /// Checks that the program is as it was before attaching, and that it has verified all its
    /// results.
    fn finish(mut self) {
        self.running.assert_alive();
        let process = self.running.process();
        assert_text_is_the_files(&process, true);
        assert_no_session(&process);
        assert_looks(&process, &self.before, "at the end");
        self.running.finish();
    }
}

#[test]
fn a_recorder_takes_out_what_it_put_in_whatever_children_wrote() {
    let Some(mut recorded) = Recorded::start() else {
        return;
    };
    recorded.forge();
    let said = recorded.stop();
    assert!(
        said.contains("in 1 child process the probes stay: it overwrote the list"),
        "{said}"
    );
    recorded.finish();
}

#[test]
fn probes_of_a_killed_recorder_are_taken_out_whatever_children_wrote() {
    let Some(mut recorded) = Recorded::start() else {
        return;
    };
    recorded.forge();
    recorded.recorder.kill();
    let output = capriole(&["detach", &recorded.running.pid.to_string()]);
    let said = told(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("in 1 child process the probes stay: it overwrote the list"),
        "{said}"
    );
    recorded.finish();
}

/// The program's recorder also has session memory, but is no child of the program.
#[test]
fn probes_of_a_living_recorder_are_taken_out_and_nothing_else_is_said() {
    let Some(recorded) = Recorded::start() else {
        return;
    };
    let output = capriole(&["detach", &recorded.running.pid.to_string()]);
    let said = told(&output);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("left alone"), "{said}");
    recorded.finish();
}

/// This holds even if the child is the one named: its ledger changes only its own code.
#[test]
fn a_forged_ledger_of_a_child_does_not_speak_of_its_parent() {
    let Some(mut recorded) = Recorded::start() else {
        return;
    };
    recorded.running.say("forge");
    assert!(recorded.running.line().starts_with("forged "));
    let parent = recorded.running.pid;
    let is_child = |process: &Process| {
        let status = std::fs::read_to_string(process.proc_path("status"));
        status.is_ok_and(|text| text.contains(&format!("PPid:\t{parent}\n")))
    };
    let child = Process::others().find(is_child).expect("a child");
    recorded.recorder.kill();
    let output = capriole(&["detach", &child.pid().to_string()]);
    assert!(output.status.success(), "{}", told(&output));
    recorded.finish();
}

/// A child that drops its privileges is detached, and the program is still recorded. This also
/// holds if another child that shares the program's memory, such as a vfork child, has dropped
/// them.
#[test]
fn a_child_that_drops_its_rights_is_not_recorded_any_more() {
    if !is_root("become another user") {
        return;
    }
    let Some(mut recorded) = Recorded::start() else {
        return;
    };
    recorded.running.say("share");
    let line = recorded.running.line();
    assert!(line.starts_with("shares "), "{line}");
    // The second one is found by another check, which would also detach the process that shares
    // memory, and its parent with it.
    let pids = [(); 2].map(|()| recorded.drop_a_child());
    assert!(is_probed(&*ptrace::host(&recorded.running.process())).expect("it lives"));
    recorded.running.assert_alive();
    let said = recorded.stop();
    for pid in pids {
        let about = format!("capriole: process {pid} (");
        assert!(said.lines().any(|l| l.starts_with(&about)), "{said}");
    }
    assert_eq!(said.matches("has other rights").count(), 2, "{said}");
    recorded.finish();
}

/// A child that keeps session memory could read the data that its parent's probes write there.
#[test]
fn a_recording_that_a_child_of_other_rights_overhears_ends() {
    if !is_root("become another user") {
        return;
    }
    let Some(mut recorded) = Recorded::start() else {
        return;
    };
    recorded.running.say("keep");
    let line = recorded.running.line();
    assert!(line.starts_with("kept "), "{line}");
    until("the recording ends", || {
        let ended = recorded.recorder.0.try_wait();
        ended.expect("a child").is_some()
    });
    let mut said = String::new();
    let errors = recorded.recorder.0.stderr.as_mut().expect("a pipe");
    errors.read_to_string(&mut said).expect("text");
    assert!(
        said.contains("it keeps the memory of this recording"),
        "{said}"
    );
    assert!(said.contains("could read the events"), "{said}");
    recorded.running.assert_alive();
    assert_text_is_the_files(&recorded.running.process(), true);
}

/// A process can put anything into its own ledger.
#[test]
fn ledgers_that_lie_are_refused() {
    let Some(program) = build(Compiler::Gcc, "forger.c", &[]) else {
        return;
    };
    const PAGE: usize = 4096;
    const JOURNAL: usize = 6 * PAGE;
    let header = |halves: &[(usize, u32)], words: &[(usize, u64)]| {
        let mut bytes = vec![0u8; JOURNAL + PAGE];
        bytes[..8].copy_from_slice(b"CAPRLEDG");
        bytes[8] = 3;
        for (at, half) in halves {
            bytes[*at..at + 4].copy_from_slice(&half.to_le_bytes());
        }
        for (at, word) in words {
            bytes[*at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    };
    let (state, entries, arenas, arena) = (12, 64, 68, 512);
    let some: &[(&str, &str, Vec<u8>, u64)] = &[
        ("noise", "capriole-ledger", vec![0xff; 2 * JOURNAL], 1 << 20),
        (
            "too small",
            "capriole-ledger",
            header(&[], &[])[..PAGE].to_vec(),
            4 * PAGE as u64,
        ),
        (
            "another version",
            "capriole-ledger",
            header(&[(8, 99)], &[]),
            1 << 20,
        ),
        (
            "no state",
            "capriole-ledger",
            header(&[(state, 77)], &[]),
            1 << 20,
        ),
        (
            "more entries than there is room for",
            "capriole-ledger",
            header(&[(entries, u32::MAX)], &[]),
            1 << 20,
        ),
        (
            "room for one entry less",
            "capriole-ledger",
            header(&[(entries, (PAGE / 64 + 1) as u32)], &[]),
            (JOURNAL + PAGE) as u64,
        ),
        (
            "many entries, and room",
            "capriole-ledger",
            header(&[(entries, u32::MAX)], &[]),
            1 << 40,
        ),
        (
            "many entries that are none",
            "capriole-ledger",
            header(&[(entries, 1 << 22)], &[]),
            1 << 40,
        ),
        (
            "many arenas",
            "capriole-ledger",
            header(&[(arenas, 65)], &[]),
            1 << 20,
        ),
        (
            "a large arena",
            "capriole-ledger",
            header(&[(arenas, 1)], &[(arena, 1 << 20), (arena + 8, u64::MAX)]),
            1 << 20,
        ),
        (
            "session memory alone",
            "capriole",
            vec![0xff; JOURNAL],
            1 << 20,
        ),
    ];
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("content");
    let trace = directory.path().join("trace");
    for (what, name, content, size) in some {
        std::fs::write(&file, content).expect("a file");
        let size = size.to_string();
        let path = file.display().to_string();
        let mut running = Running::start(&program, &["--fake", name, &path, &size]);
        let pid = running.pid.to_string();
        let traced = trace.display().to_string();
        let record = ["record", "-p", &pid, "-e", EVENT, "--duration", "10ms"];
        for arguments in [
            &["detach", &pid][..],
            &[&record[..], &["-o", &traced]].concat(),
        ] {
            let output = capriole(arguments);
            let said = told(&output);
            assert!(!said.contains("panicked"), "{what}: {said}");
            assert_eq!(output.status.code(), Some(1), "{what}: {said}");
            assert!(said.contains("is damaged"), "{what}: {said}");
            // Without a look at the room the entries would be read, and make no sense.
            let short = *what == "room for one entry less";
            let reason = "the journal does not fit";
            assert_eq!(said.contains(reason), short, "{what}: {said}");
        }
        running.assert_alive();
        assert_text_is_the_files(&running.process(), true);
        running.finish();
    }
}

/// A ledger may be plausible and wrong. Then it harms the program that has it, and no other.
#[test]
fn a_ledger_that_speaks_of_others_changes_the_one_that_has_it() {
    let Some(program) = build(Compiler::Gcc, "forger.c", &[]) else {
        return;
    };
    let mut recorded = Recorded::start().expect("it was built");
    // Copy the recorded program's ledger, word by word, with the address of its session memory.
    let victim = recorded.running.process();
    let maps = victim.maps().expect("maps");
    let ledger = maps.iter().find(|m| is_ledger(m)).expect("a ledger");
    let mut bytes = vec![0; 1 << 15];
    let len = victim.read_memory(ledger.start, &mut bytes).expect("read");
    let directory = tempfile::tempdir().expect("a directory");
    let file: PathBuf = directory.path().join("content");
    std::fs::write(&file, &bytes[..len]).expect("a file");
    let path = file.display().to_string();
    let liar = Running::start(&program, &["--fake", "capriole-ledger", &path, "1048576"]);
    let output = capriole(&["detach", &liar.pid.to_string()]);
    assert!(!told(&output).contains("panicked"), "{}", told(&output));
    assert!(
        is_probed(&*ptrace::host(&victim)).expect("it lives"),
        "{}",
        told(&output)
    );
    liar.finish();
    let said = recorded.stop();
    assert!(!said.contains("somebody else"), "{said}");
    recorded.finish();
}

/// The pointer on the way to a field is not taken from a packet, where a child with other
/// privileges could have replaced it meanwhile and so read its parent's memory. Here the test
/// plays that child, just after the kernel has copied the pointer.
#[test]
fn a_pointer_is_followed_from_where_nobody_else_writes() {
    let event = ":forger_follow text=+0(+0($arg1)):string";
    let Some(mut recorded) = Recorded::with(event) else {
        return;
    };
    recorded.running.say("where");
    let line = recorded.running.line();
    let mut words = line.split(' ').skip(1);
    let mut address = || words.next().and_then(|w| w.parse::<u64>().ok());
    let (public, secret) = (address().expect("at"), address().expect("at"));
    let process = recorded.running.process();
    let maps = process.maps().expect("maps");
    let shared = maps.iter().find(|m| is_session(m)).expect("session memory");
    let tid = recorded.running.pid as i32;
    let remote = RemoteMemory::open(tid).expect("its memory");
    requests::seize(tid, libc::PTRACE_O_TRACESYSGOOD).expect("seize");
    requests::interrupt(tid).expect("interrupt");
    let mut copied = 0;
    while copied < 20 {
        let event = requests::wait(tid, true).expect("it lives");
        let registers = requests::registers(tid).expect("it stands");
        let is_exit = registers.rax as i64 != -i64::from(libc::ENOSYS);
        let is_copy = registers.orig_rax == libc::SYS_process_vm_readv as u64;
        if event == Some(requests::Event::Syscall) && is_exit && is_copy {
            let to = remote.read_u64(registers.rsi).expect("a vector");
            if remote.read_u64(to).expect("what was read") == public {
                copied += 1;
                if shared.contains(to) {
                    remote.write(to, &secret.to_le_bytes()).expect("write");
                }
            }
        }
        requests::cont_to_syscall(tid, 0).expect("it goes on");
    }
    requests::interrupt(tid).expect("interrupt");
    while requests::wait(tid, true).expect("it lives") != Some(requests::Event::Interrupted) {
        requests::cont(tid, 0).expect("it goes on");
    }
    requests::detach(tid, 0).expect("detach");
    recorded.stop();
    let trace = recorded
        .directory
        .path()
        .join("trace")
        .display()
        .to_string();
    let report = told(&capriole(&["report", &trace]));
    assert!(report.matches("\"public\"").count() >= 20, "{report}");
    assert!(
        !report.contains("secret"),
        "followed where somebody else led"
    );
    recorded.finish();
}

/// A recorder holds and maps the memory of the program that it records. That is neither a session
/// in the recorder itself nor something that a killed tracer has left there.
#[test]
fn a_recorder_is_a_program_like_others() {
    let Some(mut recorded) = Recorded::start() else {
        return;
    };
    let first = Process::open(recorded.recorder.0.id()).expect("it records");
    // The recorder opens files of its trace meanwhile.
    let ours = || {
        let held = memfd::descriptors(first.pid(), |name| {
            ["capriole", "capriole-ledger"].contains(&name)
        });
        (looks(&first).mappings().to_vec(), held)
    };
    let before = ours();
    assert!(before.1.len() > 1 && before.1.iter().all(|held| held.reopened));
    let as_before = |when: &str| {
        until(when, || ours() == before);
    };
    let pid = first.pid().to_string();
    let output = capriole(&["detach", &pid]);
    assert!(
        told(&output).contains("has no probes of capriole"),
        "{}",
        told(&output)
    );
    as_before("nothing was there to be taken out");
    // One that takes its own probes out, and one that is killed.
    let trace = recorded.directory.path().join("of the recorder");
    let trace = trace.display().to_string();
    let arguments = [
        "record",
        "-p",
        &pid,
        "-e",
        "libc:malloc",
        "--buffer-size",
        "8M",
        "-o",
        &trace,
    ];
    let output = capriole(&[&arguments[..], &["--duration", "50ms"]].concat());
    assert!(output.status.success(), "{}", told(&output));
    as_before("after a recording of the recorder");
    let second = command(&arguments).stderr(Stdio::piped()).spawn();
    let mut second = Recorder(second.expect("capriole starts"));
    until_recording(first.pid());
    // A check by the first recorder of the processes that share its session: the recorder itself is
    // none, although it has a ledger now. A child that is found shows that there was a check.
    let dropped = is_root("become another user").then(|| recorded.drop_a_child());
    second.kill();
    let output = capriole(&["detach", &pid]);
    let said = told(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 probe taken out"), "{said}");
    assert!(!said.contains("left alone"), "{said}");
    as_before("after a killed recording of the recorder");
    assert!(is_probed(&*ptrace::host(&recorded.running.process())).expect("it lives"));
    let said = recorded.stop();
    let of_other_rights = said.matches("other rights").count();
    assert_eq!(of_other_rights, usize::from(dropped.is_some()), "{said}");
    recorded.finish();
}
