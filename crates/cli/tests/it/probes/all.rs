//! All probes of a program, disarmed and armed again at once.

use super::{command, output, parts, program, well};
use crate::programs::{Compiler, build};

parts!("probes_all.c":
    all_kinds,
    changes_meanwhile,
    open_calls,
    many_at_once,
    threads_in_handlers,
    forked,
    helper_killed,
);

#[test]
fn a_library_that_is_gone_keeps_no_other_probe_out() {
    let flags = ["-shared", "-fPIC"];
    let (Some(program), Some(library)) = (
        program("probes_all.c"),
        build(Compiler::Gcc, "probes_plugin.c", &flags),
    ) else {
        return;
    };
    let mut command = command(&program, &["gone_library"]);
    well(&output(command.env("PLUGIN", library)));
}
