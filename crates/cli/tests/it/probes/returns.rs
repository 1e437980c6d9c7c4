//! Calls that are followed to their ends, by exits and by return addresses.

use super::{parts, program_by, run};
use crate::programs::Compiler;

parts!("probes_returns.c":
    values,
    doubles,
    not_followed,
    several,
    tail_call,
    tail_calls,
    chains_after_left_calls,
    threads_that_end,
    limited,
    deep,
    longjmps,
    backtraces,
    taken_out_while_open,
    threads,
    coroutines,
    moved,
    errors,
    misses,
    come_and_go,
    entered_while_taken_out,
);

#[test]
fn in_cxx() {
    if let Some(program) = program_by(Compiler::Gxx, "probes_returns_cxx.cpp", &[]) {
        for part in [
            "exceptions",
            "tail_calls",
            "replacements",
            "arguments",
            "names",
        ] {
            run(&program, &[part]);
        }
    }
}
