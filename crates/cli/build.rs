//! Passes the commit of the source and its date to the program, if this is a git checkout.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs git in the source tree; `None` if there is no git, or if it fails.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output
        .status
        .success()
        .then(|| text.trim_end().to_owned())
        .filter(|text| !text.is_empty())
}

/// Describes the commit that is checked out: short name and date, full name, and the nearest tag
/// with the distance to it.
fn describe(root: &Path) -> Option<[(&'static str, String); 3]> {
    // A source tarball that was unpacked in the repository of something else has no commit.
    let top = PathBuf::from(git(root, &["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // The files that change when another commit is checked out: HEAD, its log, and the branch, which
    // has a file of its own until git packs it.
    let mut files = vec!["HEAD".to_owned(), "logs/HEAD".to_owned()];
    files.extend(git(root, &["symbolic-ref", "-q", "HEAD"]));
    for file in files {
        let path = root.join(git(root, &["rev-parse", "--git-path", &file])?);
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    let show = |format: &str| git(root, &["log", "-1", "--abbrev=10", format]);
    Some([
        ("CAPRIOLE_COMMIT", show("--format=%h %cs")?),
        ("CAPRIOLE_COMMIT_ID", show("--format=%H")?),
        (
            "CAPRIOLE_DESCRIBED",
            git(root, &["describe", "--tags", "--always", "--abbrev=10"])?,
        ),
    ])
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let own = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let root = Path::new(&own).join("../..");
    for (name, value) in describe(&root).into_iter().flatten() {
        println!("cargo:rustc-env={name}={value}");
    }
    let target = std::env::var("TARGET").expect("cargo sets TARGET");
    println!("cargo:rustc-env=CAPRIOLE_TARGET={target}");
    let profile = std::env::var("PROFILE").expect("cargo sets PROFILE");
    println!("cargo:rustc-env=CAPRIOLE_PROFILE={profile}");
}
