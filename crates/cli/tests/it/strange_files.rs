//! Paths from outside that name no file, or no ordinary one: a FIFO without a writer, an
//! endless device, a terminal, a directory, a file of holes. Every command reports this and
//! ends, and does not allocate more memory than there is.

use crate::target;

use crate::limited::ended;
use crate::programs::{Compiler, build};
use crate::traces::{record_program, scratch, text};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use target::told;

const KINDS: [&str; 5] = ["fifo", "zero", "terminal", "directory", "holes"];

/// Creates one of these at a path, replacing what was there.
fn put(kind: &str, at: &Path) {
    let _ = fs::remove_file(at);
    let _ = fs::remove_dir(at);
    match kind {
        "fifo" => {
            let status = Command::new("mkfifo").arg(at).status();
            assert!(status.expect("mkfifo").success());
        }
        "zero" => symlink("/dev/zero", at).expect("a link"),
        "terminal" => symlink("/dev/ptmx", at).expect("a link"),
        "directory" => fs::create_dir(at).expect("a directory"),
        _ => {
            let file = File::create(at).expect("a file");
            file.set_len(1 << 40).expect("holes");
        }
    }
}

fn assert_refused(words: &[&str], kind: &str) {
    let output = ended(words);
    assert_eq!(
        output.status.code(),
        Some(1),
        "{kind} {words:?} {}",
        told(&output)
    );
}

#[test]
fn as_a_program_and_as_definitions() {
    let scratch = scratch();
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    for kind in KINDS {
        let thing = scratch.path().join(kind);
        put(kind, &thing);
        let thing = text(&thing);
        let event = format!("{thing}:main");
        let trace = scratch.path().join("t");
        for words in [
            &["list", thing][..],
            &["list", thing, "--args"],
            &["check", ":main", thing],
            &["check", &event],
            &[
                "record",
                "-o",
                text(&trace),
                "-e",
                &event,
                "--",
                text(&program),
                "--calls",
                "5",
            ],
            &[
                "record",
                "-o",
                text(&trace),
                "-f",
                thing,
                "--",
                text(&program),
                "--calls",
                "5",
            ],
            &["stat", "-f", thing, "--", text(&program), "--calls", "5"],
            &["report", thing],
        ] {
            assert_refused(words, kind);
        }
    }
}

/// Definitions may be given through a pipe.
#[test]
fn definitions_may_come_from_a_pipe() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    for file in ["-", "/dev/stdin", "/dev/fd/0"] {
        let mut command =
            target::command(&["stat", "-f", file, "--", text(&program), "--calls", "5"]);
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("capriole starts");
        let mut input = child.stdin.take().expect("a pipe");
        writeln!(input, "p:work {}:counted_work", program.display()).expect("it reads");
        drop(input);
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{file} {}", told(&output));
    }
    // But the input must end.
    let mut command = target::command(&["stat", "-f", "-", "--", text(&program), "--calls", "5"]);
    command.stdin(File::open("/dev/zero").expect("a device"));
    let output = command.output().expect("it ends");
    assert!(
        told(&output).contains("larger than 16 MiB"),
        "{}",
        told(&output)
    );
}

#[test]
fn in_a_trace() {
    let scratch = scratch();
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let trace = scratch.path().join("t");
    record_program(
        &trace,
        &["-e", ":counted_work"],
        &program,
        &["--calls", "5"],
    );
    let description = trace.join("info/capriole.json");
    let whole = fs::read(&description).expect("a description");
    for kind in KINDS {
        put(kind, &description);
        assert_refused(&["report", text(&trace)], kind);
    }
    put("holes", &description);
    fs::remove_file(&description).expect("it is there");
    fs::write(&description, whole).expect("a description");
    let output = ended(&["report", text(&trace), "--summary"]);
    assert!(output.status.success(), "{}", told(&output));
    let stream = fs::read_dir(&trace).expect("a trace").find_map(|entry| {
        let name = entry.expect("an entry").file_name();
        let name = name.to_str().expect("UTF-8").to_owned();
        name.starts_with("cpu").then_some(name)
    });
    let stream = trace.join(stream.expect("a stream"));
    // The stream with all its contents, and holes after them.
    let file = OpenOptions::new()
        .write(true)
        .open(&stream)
        .expect("a stream");
    file.set_len(1 << 40).expect("holes");
    let output = ended(&["report", text(&trace), "--summary"]);
    assert!(output.status.success(), "{}", told(&output));
    assert!(told(&output).contains(" events in "), "{}", told(&output));
    for kind in KINDS {
        put(kind, &stream);
        let output = ended(&["report", text(&trace), "--summary"]);
        // Holes are damage, like anything else that is no packet.
        assert_eq!(
            output.status.success(),
            kind == "holes",
            "{kind} {}",
            told(&output)
        );
    }
}

/// A program's debug information in a separate file, of either kind.
#[test]
fn as_debug_information() {
    let scratch = scratch();
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let own = scratch.path().join("program");
    let debug = scratch.path().join("program.debug");
    fs::copy(&program, &debug).expect("a copy");
    let link = Command::new("objcopy")
        .arg("--strip-debug")
        .arg("--remove-section=.note.gnu.build-id")
        .arg(format!("--add-gnu-debuglink={}", debug.display()))
        .args([&program, &own])
        .status();
    assert!(link.expect("objcopy").success());
    let described = || {
        let output = ended(&["list", ":counted_work", text(&own), "--args"]);
        told(&output)
    };
    let sound = described();
    assert!(!sound.contains("no debug information"), "{sound}");
    for kind in KINDS {
        put(kind, &debug);
        assert_ne!(described(), sound, "{kind}");
    }

    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/counted.c");
    let split = scratch.path().join("split");
    let built = Command::new("gcc")
        .args(["-std=gnu99", "-g", "-gsplit-dwarf", "-pthread", "-o"])
        .args([&split, &source])
        .current_dir(scratch.path())
        .status();
    assert!(built.expect("gcc").success());
    let dwo = fs::read_dir(scratch.path())
        .expect("a directory")
        .find_map(|entry| {
            let path = entry.expect("an entry").path();
            (path.extension()? == "dwo").then_some(path)
        });
    let dwo = dwo.expect("a .dwo");
    let described = || told(&ended(&["list", ":counted_work", text(&split), "--args"]));
    let sound = described();
    for kind in KINDS {
        put(kind, &dwo);
        assert_ne!(described(), sound, "{kind}");
    }

    // A program followed by more holes than could be read.
    let file = OpenOptions::new()
        .write(true)
        .open(&own)
        .expect("a program");
    file.set_len(1 << 40).expect("holes");
    let output = ended(&["list", text(&own)]);
    assert!(told(&output).contains("mostly holes"), "{}", told(&output));
}
