//! Tools that tests start, and the source tree that they work on.

use rustix::thread::{CapabilitySet, capabilities};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the top of the source tree.
#[must_use]
pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("a directory")
}

/// True if a program is installed.
#[must_use]
pub fn have(tool: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {tool}")])
        .output();
    found.is_ok_and(|output| output.status.success())
}

/// Returns the tools that are installed; prints those that are not.
#[must_use]
pub fn present<'a>(tools: &[&'a str]) -> Vec<&'a str> {
    let (found, missing): (Vec<_>, Vec<_>) = tools.iter().partition(|tool| have(tool));
    for tool in missing {
        println!("skipped: no {tool}");
    }
    found
}

fn succeeded(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{said}",
        output.status
    );
    output
}

/// Runs a command that must succeed, and returns its standard output.
pub fn run(command: &mut Command) -> String {
    let output = succeeded(command);
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// True if the tests run as root of the machine, with all rights that root may lack in a container.
/// Otherwise notes in the summary: "skipped: only root can ...".
pub fn is_root(can: &str) -> bool {
    let rights = CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::KILL
        | CapabilitySet::SETGID
        | CapabilitySet::SETUID
        | CapabilitySet::SYS_CHROOT
        | CapabilitySet::SYS_PTRACE
        | CapabilitySet::SYS_ADMIN
        | CapabilitySet::SYS_NICE
        | CapabilitySet::MKNOD;
    let has_rights = capabilities(None).is_ok_and(|sets| sets.effective.contains(rights));
    // In a user namespace root is another user outside, and has rights over nothing there.
    let users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_outside = users.is_empty() || users.split_whitespace().eq(["0", "0", "4294967295"]);
    let root = rustix::process::geteuid().is_root() && is_outside && has_rights;
    if !root {
        println!("skipped: only root can {can}");
    }
    root
}

/// Like [`run`], and it must print nothing on standard error.
pub fn quiet(command: &mut Command) -> String {
    let output = succeeded(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.is_empty(), "{command:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
