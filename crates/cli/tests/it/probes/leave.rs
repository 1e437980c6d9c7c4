//! Programs that take away what probes need.

use super::{parts, program_by, run};
use crate::programs::Compiler;

parts! {
    "probes_leave.c":
    thread_pointer,
    clock,
}

#[test]
fn thread_pointer_that_only_the_library_uses() {
    if let Some(program) = program_by(Compiler::Gcc, "probes_leave.c", &["-DUNGUARDED"]) {
        run(&program, &["thread_pointer"]);
    }
}
