//! Creating trace directories, and the files left on disk after errors.

use crate::common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use capriole_trace::clock::{ClockModel, SyncPoint};
use capriole_trace::{PacketMeta, Trace, TraceWriter, WriteError};

/// Returns the number of readable events, and whether the recording ended normally.
fn read(directory: &Path) -> (usize, bool) {
    let trace = Trace::open(directory).unwrap();
    let mut events = trace.events().unwrap();
    let mut count = 0;
    while events.next().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(events.health().damages, 0);
    (count, trace.document().complete)
}

fn packet(count: u64) -> Vec<u8> {
    (0..count)
        .flat_map(|n| common::record(common::START + n, 0, 4242, &[n]))
        .collect()
}

/// Returns the reason why a trace cannot be created in `scratch/trace`, without the scratch
/// directory's name.
fn refusal(scratch: &Path) -> String {
    let error = TraceWriter::create(&scratch.join("trace"), &common::info()).unwrap_err();
    error.to_string().replace(scratch.to_str().unwrap(), "DIR")
}

#[test]
fn a_second_trace_puts_the_first_aside_and_a_third_replaces_it() {
    let scratch = tempfile::tempdir().unwrap();
    let (trace, old) = (
        scratch.path().join("trace"),
        scratch.path().join("trace.old"),
    );
    for count in [10, 20, 30] {
        common::generate(&trace, count, 1);
    }
    assert_eq!((read(&trace), read(&old)), ((30, true), (20, true)));
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 2);
    let mode = fs::metadata(&trace).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

/// Until a recording begins, and if it never does, older traces stay as they are.
#[test]
fn a_recording_that_never_begins_moves_and_removes_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let (trace, old) = (
        scratch.path().join("trace"),
        scratch.path().join("trace.old"),
    );
    let names = || {
        let entries = fs::read_dir(scratch.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    common::generate(&trace, 10, 1);
    common::generate(&trace, 20, 1);
    let before = ((20, true), (10, true));
    for remove in [true, false, false] {
        let mut writer = TraceWriter::prepare(&trace, &common::info()).unwrap();
        assert_eq!((read(&trace), read(&old)), before);
        assert!(refusal(scratch.path()).contains("is being written by another recording"));
        match remove {
            true => {
                writer.remove().unwrap();
                assert_eq!(names(), ["trace", "trace.old"]);
            }
            // Its recorder is killed.
            false => writer.set_start(Instant::now()),
        }
        assert_eq!((read(&trace), read(&old)), before);
    }
    // What the killed recorder has left is in nobody's way.
    common::generate(&trace, 30, 1);
    assert_eq!((read(&trace), read(&old)), ((30, true), (20, true)));
    assert_eq!(names(), ["trace", "trace.old"]);
}

/// The probes may be in the program, and their recorder killed, before the trace is in its place.
#[test]
fn a_trace_that_was_not_put_in_place_yet_is_found_and_continued() {
    let scratch = tempfile::tempdir().unwrap();
    let (trace, old) = (
        scratch.path().join("trace"),
        scratch.path().join("trace.old"),
    );
    for older in [false, true] {
        let writer = TraceWriter::prepare(&trace, &common::info()).unwrap();
        let uuid = *writer.uuid();
        drop(writer);
        let other = TraceWriter::reopen(&trace, &[7; 16]).unwrap_err();
        let reason = match older {
            false => "does not exist",
            true => "is the trace of another recording",
        };
        assert!(other.to_string().contains(reason), "{other}");
        let mut writer = TraceWriter::reopen(&trace, &uuid).unwrap();
        writer
            .write_packet(&PacketMeta::default(), &packet(5))
            .unwrap();
        writer.finish(common::finish()).unwrap();
        assert_eq!(read(&trace), (5, true));
        assert_eq!(old.exists(), older);
    }
}

#[test]
fn the_place_of_a_new_trace_is_left_alone_if_it_is_something_else() {
    let scratch = tempfile::tempdir().unwrap();
    let new = scratch.path().join(".trace.new");
    fs::create_dir(&new).unwrap();
    fs::write(new.join("thesis.tex"), "").unwrap();
    insta::assert_snapshot!(refusal(scratch.path()), @"the new trace would first be written to DIR/.trace.new, which exists and is not a trace; move it away");
    assert!(new.join("thesis.tex").exists());
}

/// An empty directory that the user has made is used, and is not removed.
#[test]
fn an_empty_directory_is_used_and_stays() {
    let scratch = tempfile::tempdir().unwrap();
    let writer = TraceWriter::prepare(scratch.path(), &common::info()).unwrap();
    writer.remove().unwrap();
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn an_empty_directory_is_used() {
    let scratch = tempfile::tempdir().unwrap();
    common::generate(scratch.path(), 10, 1);
    assert_eq!(read(scratch.path()), (10, true));
}

#[test]
fn nothing_is_moved_or_removed_that_is_not_a_trace() {
    let scratch = tempfile::tempdir().unwrap();
    let (trace, old) = (
        scratch.path().join("trace"),
        scratch.path().join("trace.old"),
    );
    fs::write(&trace, "").unwrap();
    insta::assert_snapshot!(refusal(scratch.path()), @"DIR/trace exists and is not a directory; choose another place for the trace");
    fs::remove_file(&trace).unwrap();
    fs::create_dir(&trace).unwrap();
    fs::write(trace.join("thesis.tex"), "").unwrap();
    insta::assert_snapshot!(refusal(scratch.path()), @"DIR/trace exists and is not a trace; move it away, or choose another place for the trace");
    fs::remove_dir_all(&trace).unwrap();

    common::generate(&trace, 10, 1);
    fs::create_dir(&old).unwrap();
    fs::write(old.join("thesis.tex"), "").unwrap();
    insta::assert_snapshot!(refusal(scratch.path()), @"the older trace would be kept as DIR/trace.old, which exists and is not a trace; move it away");
    fs::remove_dir_all(&old).unwrap();
    fs::create_dir_all(old.join("info/notes")).unwrap();
    insta::assert_snapshot!(refusal(scratch.path()), @"the older trace would be kept as DIR/trace.old, which exists and is not a trace; move it away");
    fs::remove_dir_all(&old).unwrap();
    common::generate(&trace, 20, 1);
    fs::write(old.join("notes.txt"), "").unwrap();
    insta::assert_snapshot!(refusal(scratch.path()), @"DIR/trace.old/notes.txt is in the directory of an old trace that would be removed, but is not part of the trace; move it away");
    assert_eq!((read(&trace), read(&old)), ((20, true), (10, true)));

    let nowhere = scratch.path().join("no/such");
    let error = TraceWriter::create(&nowhere, &common::info())
        .unwrap_err()
        .to_string();
    insta::assert_snapshot!(error.replace(scratch.path().to_str().unwrap(), "DIR"), @"cannot create DIR/no/such: No such file or directory (os error 2)");
}

/// A recorder creates the directories first, then the files, under temporary names until they
/// are complete; it removes the oldest trace in the reverse order.
#[test]
fn what_a_killed_recorder_has_just_begun_is_in_nobodys_way() {
    for left in [
        &[][..],
        &["info"],
        &["info", "info/.capriole.json.tmp"],
        &["info", ".metadata.tmp"],
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let (trace, old) = (
            scratch.path().join("trace"),
            scratch.path().join("trace.old"),
        );
        let leave = |at: &Path| {
            fs::create_dir(at).unwrap();
            for name in left {
                match name.contains("tmp") {
                    true => fs::write(at.join(name), "{").unwrap(),
                    false => fs::create_dir(at.join(name)).unwrap(),
                }
            }
        };
        leave(&trace);
        leave(&old);
        common::generate(&trace, 10, 1);
        assert_eq!(read(&trace), (10, true), "{left:?}");
        common::generate(&trace, 20, 1);
        assert_eq!((read(&trace), read(&old)), ((20, true), (10, true)));
    }
}

#[test]
fn a_trace_that_is_being_written_is_not_put_aside() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("trace");
    let writer = TraceWriter::create(&trace, &common::info()).unwrap();
    insta::assert_snapshot!(refusal(scratch.path()), @"DIR/trace is being written by another recording; choose another place for the trace");
    writer.finish(common::finish()).unwrap();
    TraceWriter::create(&trace, &common::info()).unwrap();
}

#[test]
fn a_trace_can_be_read_while_it_is_written_and_after_the_recorder_was_killed() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("trace");
    let mut writer = TraceWriter::create(&trace, &common::info()).unwrap();
    assert_eq!(read(&trace), (0, false));
    writer
        .write_packet(&PacketMeta::default(), &packet(100))
        .unwrap();
    assert_eq!(read(&trace), (100, false));
    let threads = BTreeMap::from([(1, "one".to_string())]);
    writer.checkpoint(&common::clock(), &threads).unwrap();
    drop(writer);
    assert_eq!(read(&trace), (100, false));
    assert_eq!(Trace::open(&trace).unwrap().document().threads, threads);
}

#[test]
fn events_that_cannot_be_recorded_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let mut info = common::info();
    info.events.push(common::event(7, "taken", &[]));
    let error = TraceWriter::create(&scratch.path().join("x"), &info).unwrap_err();
    assert!(matches!(error, WriteError::DuplicateEvent(7)));
    let mut writer = TraceWriter::create(&scratch.path().join("y"), &common::info()).unwrap();
    let unknown = common::record(5, 500, 1, &[1, 2]);
    let written = writer
        .write_packet(&PacketMeta::default(), &unknown)
        .unwrap();
    assert_eq!((written.events, written.damaged_bytes), (0, 32));
    let many: Vec<String> = (0..129).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut info = common::info();
    info.events = vec![common::event(1, "many", &many)];
    let error = TraceWriter::create(&scratch.path().join("x"), &info).unwrap_err();
    insta::assert_snapshot!(error, @"the event many has 129 fields, and no more than 128 can be recorded");
    assert!(!scratch.path().join("x").exists());
}

#[test]
fn the_clock_of_the_end_replaces_that_of_the_start() {
    let scratch = tempfile::tempdir().unwrap();
    let mut info = common::info();
    let point = SyncPoint {
        tsc: common::START,
        monotonic_ns: 1,
        realtime_ns: 1,
    };
    info.clock = ClockModel::from_points(vec![point], 1_000_000).unwrap();
    let writer = TraceWriter::create(scratch.path(), &info).unwrap();
    let metadata = || fs::read_to_string(scratch.path().join("metadata")).unwrap();
    assert!(metadata().contains("freq = 1000000;"));
    writer.finish(common::finish()).unwrap();
    assert!(metadata().contains(&format!("freq = {};", common::HZ)));
}

#[test]
fn the_metadata_reads_like_this() {
    let scratch = tempfile::tempdir().unwrap();
    let mut info = common::info();
    info.events.truncate(2);
    TraceWriter::create(scratch.path(), &info).unwrap();
    let text = fs::read_to_string(scratch.path().join("metadata")).unwrap();
    let uuid = Trace::open(scratch.path()).unwrap().document().uuid.clone();
    assert!(text.contains(&format!("uuid = \"{uuid}\"")));
    insta::assert_snapshot!(
        text.replace(&uuid, "UUID")
            .replace(env!("CARGO_PKG_VERSION"), "VERSION")
    );
}

#[test]
fn the_json_reads_like_this() {
    let scratch = tempfile::tempdir().unwrap();
    let mut info = common::info();
    info.events.truncate(1);
    info.warnings
        .push("the kernel keeps time with hpet".to_string());
    let writer = TraceWriter::create(scratch.path(), &info).unwrap();
    writer.finish(common::finish()).unwrap();
    let text = fs::read_to_string(scratch.path().join("info/capriole.json")).unwrap();
    let uuid = Trace::open(scratch.path()).unwrap().document().uuid.clone();
    insta::assert_snapshot!(
        text.replace(&uuid, "UUID")
            .replace(env!("CARGO_PKG_VERSION"), "VERSION")
    );
}

/// Set in the child process of `a_full_disk_...` to the directory to write to.
const FULL: &str = "CAPRIOLE_TEST_FULL_DISK";

/// Runs in a child process whose files have a size limit: writes until the limit is reached.
#[test]
fn child_that_writes_until_the_disk_is_full() {
    let Some(directory) = std::env::var_os(FULL) else {
        return;
    };
    let mut writer = TraceWriter::create(Path::new(&directory), &common::info()).unwrap();
    let mut failed = 0;
    for seq in 0..20 {
        let meta = PacketMeta {
            seq,
            ..PacketMeta::default()
        };
        if let Err(error) = writer.write_packet(&meta, &packet(300)) {
            failed += 1;
            println!("error: {error}");
        }
    }
    println!("failed: {failed}, events: {}", writer.totals().events);
    // A short packet still fits.
    let meta = PacketMeta {
        seq: 20,
        ..PacketMeta::default()
    };
    writer.write_packet(&meta, &packet(1)).unwrap();
    writer.finish(common::finish()).unwrap();
}

#[test]
fn a_full_disk_is_an_error_that_names_the_file_and_leaves_whole_packets() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    // The shell turns the limit into an error of write(2), for itself and the program that it
    // executes.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 100; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "writing::child_that_writes_until_the_disk_is_full",
            "--nocapture",
        ])
        .env(FULL, &directory)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let error = text.lines().find(|line| line.contains("error: ")).unwrap();
    assert!(error.contains("trace/cpu0: File too large"), "{error}");
    let count = |key: &str| -> usize {
        let after = text.split(key).nth(1).unwrap();
        after
            .split(|c: char| !c.is_ascii_digit())
            .next()
            .unwrap()
            .parse()
            .unwrap()
    };
    let (failed, events) = (count("failed: "), count("events: "));
    assert!(failed > 0 && failed < 20, "{text}");
    assert_eq!(events, (20 - failed) * 300);
    assert_eq!(read(&directory), (events + 1, true));
    let length = fs::metadata(directory.join("cpu0")).unwrap().len() as usize;
    assert_eq!(length, (20 - failed) * (80 + 300 * 24) + 80 + 24);
}
