//! Mistakes: each is refused, with a message in one line, and changes nothing.

use super::{parts, run, static_program};
use crate::programs::Compiler;

parts!("probes_refused.c":
    nothing_given,
    places,
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

#[test]
fn records_with_the_static_library() {
    for flags in [&[][..], &["-static"]] {
        if let Some(program) = static_program(Compiler::Gcc, "probes_refused.c", flags) {
            run(&program, &["records"]);
        }
    }
}
