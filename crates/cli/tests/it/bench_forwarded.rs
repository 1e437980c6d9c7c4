//! `capriole bench` runs `capriole-bench`, which is a program of its own.

use crate::programs::copied;
use crate::target::told;
use crate::traces::scratch;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

#[test]
fn arguments_are_passed_on_to_the_program_beside_the_command() {
    let directory = scratch();
    let own = directory.path().join("capriole");
    copied(Path::new(env!("CARGO_BIN_EXE_capriole")), &own);
    let program = directory.path().join("capriole-bench");
    let script = "#!/bin/sh\nfor word; do echo \"<$word>\"; done\nexit 7\n";
    fs::write(&program, script).expect("a script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
    let words = ["bench", "hit", "--rows", "a b", "--help"];
    let output = Command::new(&own).args(words).output().expect("it starts");
    assert_eq!(output.status.code(), Some(7), "{}", told(&output));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed, "<hit>\n<--rows>\n<a b>\n<--help>\n");
}

#[test]
fn a_program_that_is_missing_is_named() {
    let directory = scratch();
    let own = directory.path().join("capriole");
    copied(Path::new(env!("CARGO_BIN_EXE_capriole")), &own);
    let mut command = Command::new(&own);
    let output = command.arg("bench").env("PATH", directory.path()).output();
    let output = output.expect("it starts");
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("capriole-bench"), "{message}");
    assert!(message.contains("No such file"), "{message}");
}
