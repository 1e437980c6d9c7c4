//! Post-handlers of jumps, calls and returns.
//!
//! The long form of the load, 100,000 cycles:
//!
//! ```text
//! CAPRIOLE_LONG=1 cargo test --release -p capriole-cli --test it probes::branches:: -- --nocapture
//! ```

use super::{PATIENCE, command, output_within, parts, program, run, static_program, well};
use crate::programs::Compiler;
use crate::target::rounds;

parts!("probes_branches.c":
    jumps,
    breakpoints,
    posts_only,
    vectors,
    changes,
    skipped,
    several,
    missed,
    faulting,
    fatal,
    handler_faults,
    forked,
    behind_landing_pads,
    refused,
    with_return_probes,
    backtraces,
);

/// The library is a part of the program, whose code is at low addresses. With musl `make test` tries jumps
/// and breakpoints, the soak all.
#[test]
fn in_static_programs() {
    for compiler in [Compiler::Gcc, Compiler::MuslGcc] {
        let flags = ["-static", "-no-pie"];
        let Some(program) = static_program(compiler, "probes_branches.c", &flags) else {
            continue;
        };
        let parts = [
            "jumps",
            "breakpoints",
            "several",
            "handler_faults",
            "forked",
        ];
        let count = match compiler {
            Compiler::MuslGcc => rounds(2, parts.len(), parts.len()),
            _ => parts.len(),
        };
        for part in &parts[..count] {
            println!("{}", run(&program, &[part]));
        }
    }
}

/// Four threads, each with a thousand signals a second, go through branches whose probes come and go.
#[test]
fn load() {
    let Some(program) = program("probes_branches.c") else {
        return;
    };
    let cycles = rounds(75, 900, 100_000);
    let seed = capriole_testkit::effort::seed().to_string();
    let patience = PATIENCE * if cycles > 1000 { 200 } else { 1 };
    let mut command = command(&program, &["load", &seed, &cycles.to_string()]);
    println!("{}", well(&output_within(&mut command, patience)));
}
