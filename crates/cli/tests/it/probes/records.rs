//! Records of events and from code.

use super::{program, program_by, run, static_program};
use crate::programs::Compiler;

#[test]
fn threads_have_their_ids() {
    if let Some(program) = program("probes_records.c") {
        run(&program, &[]);
    }
    // Large libraries have bytes that look like clone flags by chance.
    for sanitizer in ["-fsanitize=undefined", "-fsanitize=address"] {
        if let Some(program) = program_by(Compiler::Gcc, "probes_records.c", &[sanitizer]) {
            run(&program, &[]);
        }
    }
    // With the library inside a program that has the C library as another object.
    if let Some(program) = static_program(Compiler::Gcc, "probes_records.c", &[]) {
        run(&program, &[]);
    }
}
