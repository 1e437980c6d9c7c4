//! The test programs of `tests/programs`, built when a test needs them.
//!
//! A program is built once for each compiler and set of flags, and again when its
//! source changes. Tests that run at the same time may build the same program.

use crate::files;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The ways in which `exit_race.c --how WAY` ends, with exit status or the signal that ends it.
pub const ENDS: [(&str, Option<i32>, Option<i32>); 6] = [
    ("return", Some(7), None),
    ("exit", Some(7), None),
    ("thread", Some(7), None),
    ("last-thread", Some(7), None),
    ("kill", None, Some(9)),
    ("abort", None, Some(6)),
];

/// A compiler for the test programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compiler {
    /// C with glibc: C99 and GNU extensions.
    Gcc,
    /// The same, by clang.
    Clang,
    /// C++11 and GNU extensions.
    Gxx,
    /// The same, by clang.
    Clangxx,
    /// C with musl.
    MuslGcc,
    /// Rust 2024.
    Rustc,
}

impl Compiler {
    fn program(self) -> &'static str {
        match self {
            Compiler::Gcc => "gcc",
            Compiler::Clang => "clang",
            Compiler::Gxx => "g++",
            Compiler::Clangxx => "clang++",
            Compiler::MuslGcc => "musl-gcc",
            Compiler::Rustc => "rustc",
        }
    }

    /// Flags for every program; a test's own flags follow them.
    fn flags(self) -> &'static [&'static str] {
        match self {
            Compiler::Gcc | Compiler::Clang | Compiler::MuslGcc => {
                &["-std=gnu99", "-Wall", "-Wextra", "-O2", "-g", "-pthread"]
            }
            Compiler::Gxx | Compiler::Clangxx => {
                &["-std=gnu++11", "-Wall", "-Wextra", "-O2", "-g", "-pthread"]
            }
            Compiler::Rustc => &["--edition=2024", "-O", "-g"],
        }
    }

    /// The smallest program, to tell an incomplete compiler from a bad source.
    fn empty_source(self) -> (&'static str, &'static str) {
        match self {
            Compiler::Gcc | Compiler::Clang | Compiler::MuslGcc => {
                ("c", "int main(void) { return 0; }\n")
            }
            Compiler::Gxx | Compiler::Clangxx => ("cpp", "int main() { return 0; }\n"),
            Compiler::Rustc => ("rs", "fn main() {}\n"),
        }
    }

    fn run(self, source: &Path, flags: &[&str], output: &Path) -> std::io::Result<Output> {
        let mut command = Command::new(self.program());
        command
            .args(self.flags())
            .args(flags)
            .arg("-o")
            .arg(output)
            .arg(source);
        if self == Compiler::Gcc {
            command.arg("-ldl"); // a library of its own before glibc 2.34
        }
        command.output()
    }
}

/// Builds `tests/programs/SOURCE` and returns the path of the program. If the compiler is not
/// installed, or cannot build even an empty program with those flags (such as `-m32`
/// without the 32-bit libraries), prints "skipped: ..." and returns `None`.
///
/// # Panics
///
/// If the compiler works but the source does not compile.
pub fn build(compiler: Compiler, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs");
    let source = directory.join(source);
    let cache = files::directory().join("programs");
    std::fs::create_dir_all(&cache).expect("a directory for test programs");
    let stem = source
        .file_stem()
        .expect("a source has a name")
        .to_string_lossy()
        .into_owned();
    let program = cache.join(format!(
        "{stem}-{:016x}",
        key(compiler, &directory, &source, flags)
    ));
    if program.exists() {
        return Some(program);
    }
    // Another test may be building it.
    let name = program.file_name().expect("a name").to_string_lossy();
    let _lock = files::locked(&name);
    if program.exists() {
        return Some(program);
    }
    // Write it under another name first, so that any program found under the final name is
    // complete.
    let unique = format!("{}-{:?}", std::process::id(), std::thread::current().id());
    let unfinished = program.with_extension(unique.replace(['(', ')'], ""));
    let output = match compiler.run(&source, flags, &unfinished) {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: cannot run {}: {error}", compiler.program());
            return None;
        }
    };
    if !output.status.success() {
        if let Some(why) = why_not_even_empty(compiler, flags, &unfinished) {
            println!(
                "skipped: {} {} does not work: {why}",
                compiler.program(),
                flags.join(" ")
            );
            return None;
        }
        panic!(
            "{} does not compile:\n{}",
            source.display(),
            text_of(&output)
        );
    }
    // Another test may have been faster, and may be running its program: that stays.
    match std::fs::hard_link(&unfinished, &program) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            panic!("{}: {error}", program.display())
        }
        _ => {}
    }
    std::fs::remove_file(&unfinished).expect("the program was just made");
    Some(program)
}

/// Copies a program that will be run. Another process makes the copy: if this process wrote it,
/// a child that another thread is just forking would have the new file open for writing, and a
/// file open for writing cannot be executed.
pub fn copied(program: &Path, copy: &Path) {
    let status = Command::new("cp").args([program, copy]).status();
    assert!(status.expect("cp runs").success(), "{}", copy.display());
}

/// Copies a program into a directory of ours and gives that directory these permissions, for
/// other users to run: they cannot enter the directory of the tests. The copy is called
/// `capriole`.
pub fn copied_for_others(program: &Path, directory: &Path, mode: u32) -> PathBuf {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(directory, mode).expect("it is ours");
    let copy = directory.join("capriole");
    copied(program, &copy);
    copy
}

/// Returns a hash of the inputs that the program depends on.
fn key(compiler: Compiler, directory: &Path, source: &Path, flags: &[&str]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (compiler, compiler.flags(), flags).hash(&mut hasher);
    // Another compiler of that name builds anew.
    let places = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&places).map(|place| place.join(compiler.program()));
    if let Some(file) = files.find_map(|file| std::fs::metadata(file).ok()) {
        (file.dev(), file.ino(), file.mtime(), file.len()).hash(&mut hasher);
    }
    for path in [source, &directory.join("common.h")] {
        let text = std::fs::read(path);
        text.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            .hash(&mut hasher);
    }
    hasher.finish()
}

/// Returns the compiler's last line about an empty program, if it cannot build one.
fn why_not_even_empty(compiler: Compiler, flags: &[&str], near: &Path) -> Option<String> {
    let (extension, text) = compiler.empty_source();
    let source = near.with_extension(format!(
        "{}.{extension}",
        near.extension().unwrap_or_default().to_string_lossy()
    ));
    std::fs::write(&source, text).expect("a file in the directory for test programs");
    let output = compiler.run(&source, flags, near);
    let _ = std::fs::remove_file(&source);
    let _ = std::fs::remove_file(near);
    let output = output.expect("it could be run a moment ago");
    if output.status.success() {
        return None;
    }
    let said = text_of(&output);
    Some(
        said.lines()
            .find(|line| line.contains("cannot") || line.contains("error"))
            .unwrap_or("")
            .to_owned(),
    )
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Builds `tests/programs/SOURCE` with Go, without cgo, and returns the path of the program,
/// which is called `name`. Without Go, prints "skipped: ..." and returns `None`.
pub fn build_go(source: &str, name: &str) -> Option<PathBuf> {
    build_go_with(&[], source, name)
}

/// Does what [`build_go`] does, with these flags.
///
/// # Panics
/// The program does not compile.
pub fn build_go_with(flags: &[&str], source: &str, name: &str) -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs");
    let program = files::directory().join(name);
    // Go itself knows what has changed, and writes nothing if nothing has.
    let _lock = files::locked(name);
    for go in ["go", "/usr/local/go/bin/go"] {
        let mut command = Command::new(go);
        let command = command.arg("build").args(flags).arg("-o").arg(&program);
        let command = command.arg(directory.join(source));
        match command.env("CGO_ENABLED", "0").output() {
            Ok(output) if output.status.success() => return Some(program),
            Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => println!("cannot run {go}: {error}"),
        }
    }
    println!("skipped: there is no go");
    None
}
