//! What handlers may do, the states of probes, errors.

use super::{command, output, parts, program, program_by, run};
use crate::programs::Compiler;
use crate::target::told;
use crate::tools::root;
use capriole_testkit::files;
use std::os::unix::process::ExitStatusExt;

parts!("probes_functions.c":
    pre_and_post,
    skipped_instruction,
    skipped_where_a_neighbour_is_probed,
    changed_ip_and_sp,
    changed_ip,
    changed_sp,
    lowered_sp,
    several_on_one_site,
    posts_come_and_go,
    enabled_and_disabled,
    states,
    optimization,
    arrays,
    misses,
    misses_of_malloc,
    misses_by_signals,
    names,
    names_of_indirect_functions,
    errors,
    bad_addresses,
    dynamic_linker,
    calls_from_handlers,
    faults,
    fault_of_the_program,
    finish_and_begin_anew,
    optimized_while_all_threads_hit_it,
    seen_by_others_from_the_first_hit_on,
);

#[test]
fn a_fault_that_nobody_takes_ends_the_program() {
    let Some(program) = program("probes_functions.c") else {
        return;
    };
    let output = output(&mut command(&program, &["fault_ends_the_program"]));
    assert_eq!(
        output.status.signal(),
        Some(libc::SIGSEGV),
        "{}",
        told(&output)
    );
}

#[test]
fn names_of_several_functions() {
    let other = root().join("tests/programs/probes_namesake.c");
    let flags = [files::text(&other)];
    if let Some(program) = program_by(Compiler::Gcc, "probes_functions.c", &flags) {
        run(&program, &["ambiguous"]);
    }
}

#[test]
fn list() {
    let Some(program) = program("probes_functions.c") else {
        return;
    };
    let text = run(&program, &["list"]);
    let masked = |line: &str| {
        let (address, rest) = line.split_once("  ").unwrap_or(("", line));
        let is_address = address.len() == 16 && u64::from_str_radix(address, 16).is_ok();
        let rest = rest.replace(
            &*program.file_name().unwrap_or_default().to_string_lossy(),
            "PROGRAM",
        );
        let address = if is_address { "ADDRESS" } else { "" };
        format!("{address}  {rest}")
    };
    let lines: Vec<String> = text.lines().map(masked).collect();
    insta::assert_snapshot!(lines.join("\n"));
}
