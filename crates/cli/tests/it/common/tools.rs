//! Tools that tests start.

use crate::target::told;
use std::process::Command;

/// True if a program is installed.
pub fn have(tool: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {tool}")])
        .output();
    found.is_ok_and(|output| output.status.success())
}

/// Runs a command that must succeed, and returns its standard output.
pub fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", told(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}
