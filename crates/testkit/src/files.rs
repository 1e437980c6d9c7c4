//! Files of tests.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Directory for the files of all tests, in the build's own: `target/tmp`.
#[must_use]
pub fn directory() -> PathBuf {
    // Test programs are in `target/PROFILE/deps`.
    let own = std::env::current_exe().expect("a program has a path");
    let target = own
        .ancestors()
        .nth(3)
        .expect("it is in target/PROFILE/deps");
    let directory = target.join("tmp");
    std::fs::create_dir_all(&directory).expect("a directory for tests");
    directory
}

/// Waits until no other test, of any process, holds the lock of this name, and holds it until the result
/// is dropped.
#[must_use]
pub fn locked(name: &str) -> File {
    let path = directory().join(format!("{name}.lock"));
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    flock(&file, FlockOperation::LockExclusive).expect("a lock");
    file
}

/// Makes a directory for one test, removed when it ends.
#[must_use]
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(directory()).expect("a directory")
}

/// Returns a path as an argument.
#[must_use]
pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Returns the first of these files that exists.
pub fn system_file(paths: &[&str]) -> Option<PathBuf> {
    let found = paths.iter().map(PathBuf::from).find(|path| path.exists());
    if found.is_none() {
        println!("skipped: none of {paths:?} is installed");
    }
    found
}

/// Returns the C library.
pub fn libc() -> Option<PathBuf> {
    system_file(&[
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/lib64/libc.so.6",
        "/usr/lib/libc.so.6",
    ])
}

/// System files of different origin: C, C++, hand-written assembly, stripped
/// and not.
pub fn system_files() -> Vec<PathBuf> {
    let groups: [&[&str]; 5] = [
        &["/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib64/libc.so.6"],
        &[
            "/usr/lib/x86_64-linux-gnu/libsqlite3.so.0",
            "/usr/lib64/libsqlite3.so.0",
        ],
        &[
            "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
            "/usr/lib64/libstdc++.so.6",
        ],
        &[
            "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
            "/usr/lib64/libcrypto.so.3",
        ],
        &["/usr/bin/python3", "/usr/bin/perl", "/usr/bin/bash"],
    ];
    groups.into_iter().filter_map(system_file).collect()
}
