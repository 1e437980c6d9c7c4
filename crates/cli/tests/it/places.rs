//! Places where traces and pictures are written: in places created by another user nothing is
//! overwritten, and nothing is written where that user can change it.

use crate::programs::{Compiler, build};
use crate::target::{capriole, is_root, told};
use crate::traces::{record, scratch, summary, text};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

/// Another user: `nobody`.
const OTHER: u32 = 65534;

fn recorded(trace: &Path) -> Option<Output> {
    let program = build(Compiler::Gcc, "counted.c", &[])?;
    let words = ["-e", ":counted_work", "--", text(&program), "--calls", "5"];
    Some(record(trace, &words))
}

fn mode(path: &Path, bits: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(bits)).expect("it is ours");
}

fn directory(path: PathBuf) -> PathBuf {
    fs::create_dir(&path).expect("a directory");
    path
}

fn names(path: &Path) -> usize {
    fs::read_dir(path).expect("a directory").count()
}

fn assert_refused(output: &Output, why: &str) {
    assert_eq!(output.status.code(), Some(1), "{}", told(output));
    assert!(told(output).contains(why), "{}", told(output));
}

#[test]
fn a_directory_that_others_may_write_to_is_refused() {
    let scratch = scratch();
    for bits in [0o777, 0o1777, 0o702] {
        let place = directory(scratch.path().join(format!("{bits:o}")));
        mode(&place, bits);
        let Some(output) = recorded(&place) else {
            return;
        };
        assert_refused(&output, "or others may write to it");
        assert_eq!(names(&place), 0);
    }
    // An empty directory of our own can be used like a new one, even through a link.
    for bits in [0o700, 0o755] {
        let place = directory(scratch.path().join(format!("{bits:o}")));
        mode(&place, bits);
        symlink(&place, scratch.path().join("link")).expect("a link");
        let output = recorded(&scratch.path().join("link")).expect("built");
        assert!(output.status.success(), "{}", told(&output));
        assert!(summary(&place)["events"].as_u64() >= Some(5));
        fs::remove_file(scratch.path().join("link")).expect("it is there");
    }
}

#[test]
fn a_directory_of_another_user_is_refused() {
    if !is_root("make files of other users") {
        return;
    }
    let scratch = scratch();
    let place = directory(scratch.path().join("theirs"));
    chown(&place, Some(OTHER), Some(OTHER)).expect("root may");
    let Some(output) = recorded(&place) else {
        return;
    };
    assert_refused(&output, "belongs to another user");
    assert_eq!(names(&place), 0);

    // An older trace is not moved aside onto a trace of another user either.
    let trace = scratch.path().join("t");
    for _ in 0..2 {
        let output = recorded(&trace).expect("built");
        assert!(output.status.success(), "{}", told(&output));
    }
    let old = scratch.path().join("t.old");
    chown(&old, Some(OTHER), Some(OTHER)).expect("root may");
    let before = names(&old);
    assert_refused(&recorded(&trace).expect("built"), "belongs to another user");
    assert_eq!(names(&old), before);

    // In a directory of his own, the other user can do anything to our files except change their
    // contents.
    let inside = place.join("t");
    let output = recorded(&inside).expect("built");
    assert!(output.status.success(), "{}", told(&output));
    let made = fs::metadata(&inside).expect("a trace");
    assert_eq!((made.uid(), made.mode() & 0o777), (0, 0o700));
}

#[test]
fn a_link_of_another_user_is_not_followed() {
    if !is_root("make files of other users") {
        return;
    }
    let scratch = scratch();
    let ours = directory(scratch.path().join("ours"));
    let theirs = scratch.path().join("theirs");
    symlink(&ours, &theirs).expect("a link");
    lchown(&theirs, Some(OTHER), Some(OTHER)).expect("root may");
    let picture = theirs.join("picture.svg");
    for place in [&theirs, &theirs.join("t"), &theirs.join("a/../t")] {
        let Some(output) = recorded(place) else {
            return;
        };
        assert_refused(&output, "a symbolic link of another user (uid 65534)");
        assert_eq!(names(&ours), 0);
    }
    let trace = scratch.path().join("trace");
    let program = build(Compiler::Gcc, "counted.c", &[]).expect("built");
    let words = [
        "--graph",
        ":counted_work",
        "--",
        text(&program),
        "--calls",
        "5",
    ];
    let output = record(&trace, &words);
    assert!(output.status.success(), "{}", told(&output));
    let flame = |file: &Path| capriole(&["report", text(&trace), "--flame", text(file)]);
    assert_refused(&flame(&picture), "a symbolic link of another user");
    assert_eq!(names(&ours), 0);

    // Files that the other user has put there are not overwritten either: a link in place of the
    // file, or of its temporary file, or a hard link to a file of ours.
    let victim = scratch.path().join("victim");
    let shared = directory(scratch.path().join("shared"));
    mode(&shared, 0o777);
    for (name, planted) in [
        ("a.svg", "a.svg"),
        ("b.svg", ".b.svg.tmp"),
        ("c.svg", "c.svg"),
    ] {
        fs::write(&victim, "precious").expect("a file");
        let (file, planted) = (shared.join(name), shared.join(planted));
        match name {
            "c.svg" => fs::hard_link(&victim, &planted).expect("a link"),
            _ => symlink(&victim, &planted).expect("a link"),
        }
        lchown(&planted, Some(OTHER), Some(OTHER)).expect("root may");
        let output = flame(&file);
        assert_eq!(
            output.status.success(),
            name != "a.svg",
            "{}",
            told(&output)
        );
        assert_eq!(fs::read_to_string(&victim).expect("a file"), "precious");
        if output.status.success() {
            assert!(fs::symlink_metadata(&file).expect("a picture").is_file());
            assert_eq!(fs::metadata(&file).expect("a picture").uid(), 0);
        }
    }
}

/// For a user who wants no file.
#[test]
fn a_picture_goes_to_what_is_open_too() {
    let scratch = scratch();
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let trace = scratch.path().join("trace");
    let words = [
        "--graph",
        ":counted_work",
        "--",
        text(&program),
        "--calls",
        "5",
    ];
    let output = record(&trace, &words);
    assert!(output.status.success(), "{}", told(&output));
    let flame = |file: &str| capriole(&["report", text(&trace), "--flame", file]);
    assert!(told(&flame("/dev/stdout")).contains("</svg>"));
    assert!(flame("/dev/null").status.success());
    // Appends to existing contents, like a shell's `>>`.
    let log = scratch.path().join("log");
    fs::write(&log, "before\n").expect("a file");
    let to = File::options().append(true).open(&log).expect("a file");
    let status = crate::target::own()
        .args(["report", text(&trace), "--flame", "/dev/stdout"])
        .stdout(to)
        .status();
    assert!(status.expect("it runs").success());
    let log = fs::read_to_string(&log).expect("text");
    assert!(log.starts_with("before\n<?xml") && log.contains("</svg>"));
    assert_refused(&flame(text(scratch.path())), "is not a regular file");
    // A link of our own is followed.
    let (file, link) = (
        scratch.path().join("file.svg"),
        scratch.path().join("link.svg"),
    );
    symlink("file.svg", &link).expect("a link");
    assert!(flame(text(&link)).status.success());
    assert!(
        fs::read_to_string(&file)
            .expect("a picture")
            .contains("</svg>")
    );
    assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
}
