//! Compiling the programs.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::put;

const MAIN: &str = include_str!("../../peers/main.c");
/// Source of the unmodified function.
pub(crate) const HIT: &str = include_str!("../../peers/hit.c");

/// The name of the program in its directory.
pub(crate) const PROGRAM: &str = "program";

/// Compiler options that make the function equal to the bench target's copies.
pub(crate) const UNTOUCHED: &[&str] = &["-O0", "-fcf-protection=none"];

/// Builds the program with the unmodified function.
pub(crate) fn plain(files: &Path) -> Result<PathBuf, String> {
    build(files, "cc", ("hit.c", HIT), UNTOUCHED, &[])
}

/// Builds the program: compiles `main.c`, and the function as the tool needs it, and links both
/// with the link arguments that the tool needs.
pub(crate) fn build(
    files: &Path,
    compiler: &str,
    function: (&str, &str),
    compile: &[&str],
    link: &[&str],
) -> Result<PathBuf, String> {
    let object = compile_one(files, compiler, function, compile)?;
    link_all(files, compiler, &[object], link)
}

/// Compiles a source to an object file.
pub(crate) fn compile_one(
    files: &Path,
    compiler: &str,
    (name, text): (&str, &str),
    options: &[&str],
) -> Result<PathBuf, String> {
    let source = put(files, name, text)?;
    let object = source.with_extension("o");
    let mut command = Command::new(compiler);
    command.args(options).arg("-c").arg(&source);
    command.arg("-o").arg(&object);
    run(command, compiler)?;
    Ok(object)
}

/// Compiles `main.c` and links it with the objects.
pub(crate) fn link_all(
    files: &Path,
    compiler: &str,
    objects: &[PathBuf],
    options: &[&str],
) -> Result<PathBuf, String> {
    let main = compile_one(files, compiler, ("main.c", MAIN), &["-O2"])?;
    link_program(files, compiler, &[&[main], objects].concat(), options)
}

/// Links the program from objects.
pub(crate) fn link_program(
    files: &Path,
    compiler: &str,
    objects: &[PathBuf],
    options: &[&str],
) -> Result<PathBuf, String> {
    let program = files.join(PROGRAM);
    let mut command = Command::new(compiler);
    command.args(objects).args(options);
    command.arg("-o").arg(&program);
    run(command, compiler)?;
    Ok(program)
}

/// Returns a command that runs the built program.
pub(crate) fn program(files: &Path) -> Command {
    Command::new(files.join(PROGRAM))
}

/// Runs a compiler; if it fails, the error contains its first error message.
pub(crate) fn run(mut command: Command, compiler: &str) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| match (error.kind(), compiler) {
        (ErrorKind::NotFound, "cc") => "no C compiler (cc) is installed".to_owned(),
        (ErrorKind::NotFound, _) => format!("{compiler} is not installed"),
        _ => format!("cannot run {compiler}: {error}"),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let error = said.lines().find(|line| line.contains("error"));
    let error = error.or(said.lines().next()).unwrap_or("no reason given");
    Err(format!("{compiler} cannot build its program: {error}"))
}

/// Checks that a program is in `PATH`; the error is a message for the user.
pub(crate) fn installed(tool: &str) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = std::env::split_paths(&path).map(|directory| directory.join(tool));
    match all.any(|file| file.is_file()) {
        true => Ok(()),
        false => Err(format!("{tool} is not installed")),
    }
}
