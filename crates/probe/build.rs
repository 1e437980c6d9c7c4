//! Compiles libcapriole into the crate.

use std::path::Path;
use std::process::Command;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let script = root.join("scripts/library.sh");
    println!("cargo:rerun-if-env-changed=CC");
    println!("cargo:rerun-if-env-changed=CFLAGS");
    for source in [
        "library",
        "include/capriole/probe.h",
        "scripts/library.sh",
        "Cargo.toml",
    ] {
        println!("cargo:rerun-if-changed={}", root.join(source).display());
    }
    // By the script that builds the installed library, so that its flags are written once, and not by
    // the crate `cc`: that puts the flags in CFLAGS last, and some (-fstack-protector, -mavx, -flto) make
    // code that must not run inside a probe.
    let mut command = Command::new("sh");
    command
        .arg(&script)
        .args([out.as_str(), "/usr/local/bin/capriole", "static"]);
    let status = command
        .status()
        .unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
    assert!(
        status.success(),
        "{command:?} failed; a C compiler and binutils are needed"
    );
    println!("cargo:rustc-link-search=native={out}");
    println!("cargo:rustc-link-lib=static=capriole");
}
