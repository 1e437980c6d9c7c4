//! Programs that probe themselves, by libcapriole.
//!
//! The library is built from its source, once for each state of that. The programs are in
//! `tests/programs/probes_*`; each part of one is a test here, and checks itself.

mod all;
mod arguments;
mod beside;
mod branches;
mod debugged;
mod dlopen;
mod documents;
mod environments;
mod functions;
mod hammered;
mod interrupted;
mod kinds;
mod leave;
mod noprobe;
mod records;
mod refused;
mod registers;
mod returns;
mod signals;
mod stacks;
mod traces;
mod types;
mod unstopped;
mod unwinding;

use crate::programs::{Compiler, build};
use crate::target::{standing, told};
use crate::tools::root;
use capriole_testkit::files;
use capriole_testkit::waiting::PATIENCE;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The command, which is also the helper.
const HELPER: &str = env!("CARGO_BIN_EXE_capriole");

/// Builds the library with a compiler and flags, and returns the directory that it is in.
fn library_by(compiler: &str, flags: &str) -> PathBuf {
    let name = format!("library-{:016x}", key(compiler, flags));
    let _lock = files::locked(&name);
    let directory = files::directory().join(name);
    if directory.exists() {
        return directory;
    }
    let unfinished = directory.with_extension(std::process::id().to_string());
    let mut script = Command::new(root().join("scripts/library.sh"));
    script.arg(&unfinished).arg(HELPER).env("CC", compiler);
    if !flags.is_empty() {
        script.env("CFLAGS", flags);
    }
    let output = script.output().expect("a shell");
    assert!(output.status.success(), "{}", told(&output));
    std::fs::rename(&unfinished, &directory).expect("a directory of this test");
    directory
}

fn library() -> PathBuf {
    library_by("cc", "")
}

/// Returns a hash of what the library and the programs are made of.
fn key(compiler: &str, flags: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (compiler, flags, HELPER).hash(&mut hasher);
    for directory in ["library", "include/capriole", "tests/programs"] {
        let entries = std::fs::read_dir(root().join(directory)).expect("a directory");
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("entry").path()).collect();
        let is_header = |path: &PathBuf| path.extension().is_some_and(|end| end == "h");
        paths.retain(|path| directory != "tests/programs" || is_header(path));
        paths.sort();
        for path in paths {
            std::fs::read(path).expect("a source").hash(&mut hasher);
        }
    }
    let script = std::fs::read(root().join("scripts/library.sh"));
    script.expect("a script").hash(&mut hasher);
    hasher.finish()
}

/// Builds a program with the shared library.
fn program_by(compiler: Compiler, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let library = library();
    let directory = files::text(&library);
    let include = format!("-I{}", root().join("include").display());
    let search = format!("-L{directory}");
    let run_path = format!("-Wl,-rpath,{directory}");
    // The source comes last on the command line.
    let own = [
        &*include,
        "-Wl,--no-as-needed",
        &search,
        &run_path,
        "-lcapriole",
    ];
    build(compiler, source, &[&own[..], flags].concat())
}

fn program(source: &str) -> Option<PathBuf> {
    program_by(Compiler::Gcc, source, &[])
}

/// Builds a program with the static library.
fn static_program(compiler: Compiler, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let archive = library().join("libcapriole.a");
    let include = format!("-I{}", root().join("include").display());
    let whole = format!(
        "-Wl,--whole-archive,{},--no-whole-archive",
        archive.display()
    );
    build(compiler, source, &[&[&*include, &*whole], flags].concat())
}

/// Returns a command that runs a program which finds the helper, at a lower priority.
fn command(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("nice");
    command.arg(program).args(arguments);
    command.env("CAPRIOLE_HELPER", HELPER).stdin(Stdio::null());
    command
}

/// Runs a command to its end, and kills it, with all that it has started, if it hangs.
fn output(command: &mut Command) -> Output {
    output_within(command, PATIENCE)
}

fn output_within(command: &mut Command, patience: Duration) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0);
    let child = command.spawn().expect("it starts");
    let group = child.id();
    let (ended, end) = channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let hangs = end.recv_timeout(patience) == Err(RecvTimeoutError::Timeout);
        hangs.then(|| {
            let standing = standing(group);
            // SAFETY: a signal to the group of a child that was not waited for.
            unsafe { libc::kill(-(group as i32), libc::SIGKILL) };
            standing
        })
    });
    let output = child.wait_with_output().expect("a child");
    drop(ended);
    let hangs = watchdog.join().expect("no panic");
    if let Some(standing) = hangs {
        panic!("{command:?} hangs\n{standing}\n{}", told(&output));
    }
    output
}

/// Runs a program, which must find that all is well, and returns what it prints.
fn run(program: &Path, arguments: &[&str]) -> String {
    well(&output(&mut command(program, arguments)))
}

/// Returns what a program has printed that has found that all is well.
fn well(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = text.lines().last().unwrap_or_default();
    let is_well =
        output.status.success() && (last.starts_with("ok") || last.starts_with("skipped: "));
    assert!(is_well, "{}", told(output));
    text
}

/// Defines a test for each part of a program.
macro_rules! parts {
    ($source:literal: $($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                if let Some(program) = crate::probes::program($source) {
                    println!("{}", crate::probes::run(&program, &[stringify!($name)]));
                }
            }
        )*
    };
}
use parts;
