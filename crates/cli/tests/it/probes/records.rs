//! Records of events and from code.

use super::{program, run, static_program};
use crate::programs::Compiler;

#[test]
fn threads_have_their_ids() {
    if let Some(program) = program("probes_records.c") {
        run(&program, &[]);
    }
    // With the library inside a program that has the C library as another object.
    if let Some(program) = static_program(Compiler::Gcc, "probes_records.c", &[]) {
        run(&program, &[]);
    }
}
