//! Builds the program from the sources of the library and of the benchmark.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{CROWD, EVENT, RING_BYTES};
use crate::peers::build::run;
use crate::runner::Trouble;

/// A file of the source tree, by its path there.
macro_rules! files {
    ($($path:literal,)*) => {
        &[$(($path, include_str!(concat!("../../../", $path)))),*]
    };
}

/// What scripts/library.sh needs, and the program.
const FILES: &[(&str, &str)] = files![
    "Cargo.toml",
    "scripts/library.sh",
    "include/capriole/probe.h",
    "library/branch.c",
    "library/events.c",
    "library/helper.c",
    "library/hit.S",
    "library/internal.h",
    "library/memory.c",
    "library/numbers.h",
    "library/probe.c",
    "library/return.c",
    "library/run.c",
    "bench/probes/program.h",
    "bench/probes/main.c",
    "bench/probes/step.c",
    "bench/probes/functions.S",
];

/// Copies of the function, one for each row, and one for latencies.
pub(super) const COPIES: usize = 64;

/// Builds the program in the directory, with the library, whose helper is the command `helper`.
pub(super) fn build(files: &Path, helper: &Path) -> Result<PathBuf, Trouble> {
    for (path, text) in FILES {
        let path = files.join(path);
        let directory = path.parent().unwrap_or(files);
        let written = fs::create_dir_all(directory).and_then(|()| fs::write(&path, text));
        written.map_err(|error| {
            Trouble::Missing(format!("cannot write {}: {error}", path.display()))
        })?;
    }
    let library = files.join("lib");
    let mut script = Command::new("sh");
    script.arg(files.join("scripts/library.sh"));
    script.arg(&library).arg(helper).arg("static");
    run(script, "sh").map_err(Trouble::Missing)?;
    let program = files.join("program");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-falign-loops=64", "-pthread"]);
    for (name, value) in [
        ("COPIES", COPIES as u64),
        ("CROWD", CROWD as u64),
        ("RING_BYTES", RING_BYTES),
        ("EVENT", EVENT),
    ] {
        compiler.arg(format!("-D{name}={value}"));
    }
    compiler.arg("-I").arg(files.join("include"));
    for source in ["main.c", "step.c", "functions.S"] {
        compiler.arg(files.join("bench/probes").join(source));
    }
    compiler.arg(library.join("libcapriole.a"));
    compiler.arg("-o").arg(&program);
    run(compiler, "cc").map_err(Trouble::Missing)?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sources_of_the_library_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let listed = fs::read_dir(root.join("library")).expect("the library's sources");
        let mut there: Vec<String> = listed
            .map(|entry| entry.expect("an entry").file_name())
            .map(|name| format!("library/{}", name.to_string_lossy()))
            .collect();
        there.sort();
        let known = FILES.iter().map(|(path, _)| *path);
        let known: Vec<&str> = known.filter(|path| path.starts_with("library/")).collect();
        assert_eq!(known, there);
    }
}
