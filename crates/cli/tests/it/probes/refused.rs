//! Mistakes: each is refused, with a message in one line, and changes nothing.

use super::{parts, program_by, run, static_program};
use crate::programs::Compiler;

parts!("probes_refused.c":
    nothing_given,
    places,
    mapped_again,
    copies,
    garbage,
    known,
    replacements,
    events,
    records,
    other_helper,
    address_space,
    held_in_the_c_library,
    functions_of_the_c_library,
    actions,
);

/// At a fixed address as well.
#[test]
fn mapped_again_by_programs_at_a_fixed_address() {
    let flags = ["-no-pie", "-fno-pie"];
    if let Some(program) = program_by(Compiler::Gcc, "probes_refused.c", &flags) {
        run(&program, &["mapped_again"]);
    }
}

#[test]
fn records_with_the_static_library() {
    for flags in [&[][..], &["-static"]] {
        if let Some(program) = static_program(Compiler::Gcc, "probes_refused.c", flags) {
            run(&program, &["records"]);
        }
    }
}
