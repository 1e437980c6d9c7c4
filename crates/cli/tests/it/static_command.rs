//! The static command: it needs no libraries, and no file but the program and /proc.

use crate::packages::records;
use crate::programs::{Compiler, build, copied};
use crate::target::{capriole, is_root, told};
use crate::tools::{have, root, run};
use crate::traces::{scratch, text};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the static command. Prints "skipped: ..." and returns `None` where there is no static C
/// library.
fn built() -> Option<PathBuf> {
    let library = run(Command::new("cc").arg("-print-file-name=libc.a"));
    if !Path::new(library.trim()).is_absolute() {
        println!("skipped: no static C library, libc.a");
        return None;
    }
    let mut script = Command::new(root().join("scripts/static.sh"));
    let path = run(script.arg("test").current_dir(root()));
    Some(root().join(path.trim()))
}

/// Some of its structures are not those of glibc.
#[test]
#[ignore = "soak"]
fn the_command_compiles_for_musl() {
    const TARGET: &str = "x86_64-unknown-linux-musl";
    let sysroot = run(Command::new("rustc").args(["--print", "sysroot"]));
    let library = format!("lib/rustlib/{TARGET}/lib");
    if !Path::new(sysroot.trim()).join(library).is_dir() {
        return println!("skipped: no rust library for musl (rustup target add {TARGET})");
    }
    let mut cargo = Command::new("cargo");
    cargo.args(["check", "-q", "-p", "capriole-cli", "--target", TARGET]);
    run(cargo.current_dir(root()));
}

#[test]
fn it_records_and_reports_in_an_empty_root() {
    let Some(command) = built() else { return };
    let headers = run(Command::new("objdump").arg("-p").arg(&command));
    assert!(
        !headers.contains("NEEDED") && !headers.contains("INTERP"),
        "{headers}"
    );
    let scratch = scratch();
    records(&command, scratch.path());
    if let Some(program) = build(Compiler::Gxx, "overloads.cpp", &[]) {
        let list = run(Command::new(&command).arg("list").arg(&program));
        let expected = capriole(&["list", text(&program)]);
        assert!(list.lines().count() > 10, "{list}");
        assert_eq!(
            list,
            String::from_utf8_lossy(&expected.stdout),
            "{}",
            told(&expected)
        );
    }

    if !is_root("change the root directory") {
        return;
    }
    if !have("unshare") {
        return println!("skipped: no unshare");
    }
    let Some(program) = build(Compiler::Gcc, "counted.c", &["-static"]) else {
        return;
    };
    let root = scratch.path().join("root");
    std::fs::create_dir_all(root.join("proc")).expect("a directory");
    copied(&command, &root.join("capriole"));
    copied(&program, &root.join("program"));
    let inside = |words: &str| {
        // The mount ends with the namespace.
        let script =
            format!("mount -t proc proc \"$0/proc\" && exec chroot \"$0\" /capriole {words}");
        run(Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .arg(&root))
    };
    inside("record -o /trace -e :counted_work -- /program");
    let summary = inside("report --summary --json /trace");
    let summary: serde_json::Value = serde_json::from_str(&summary).expect("JSON");
    let calls = summary["by_event"][0]["calls"].as_u64();
    assert!(calls.is_some_and(|calls| calls > 0), "{summary}");
    assert_eq!(summary["lost_events"], 0, "{summary}");
}
