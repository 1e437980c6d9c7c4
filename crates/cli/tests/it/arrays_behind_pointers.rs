//! Brackets behind a pointer to an array index the array in Go and Rust, and behind other pointers what they
//! point to.

use crate::programs::{Compiler, build, build_go};
use crate::target::told;
use crate::traces::{events, record, scratch};
use capriole_testkit::files::text;
use std::path::Path;

fn check(program: &Path, event: &str, fields: &[(&str, u64)]) {
    let directory = scratch();
    let trace = directory.path().join("trace");
    record(&trace, &["-e", event, "--", text(program)]);
    let all = events(&trace);
    assert_eq!(all.len(), 100, "{event}");
    for (number, event) in (0..).zip(&all) {
        for (field, first) in fields {
            assert_eq!(
                event["arguments"][field],
                first + number,
                "{field}: {event}"
            );
        }
    }
}

#[test]
fn in_go() {
    if let Some(program) = build_go("arrays.go", "arrays_go") {
        let event = ":main.take a=p[1] b=q.p[2] c=p[0] e=q.n";
        let fields = [("a", 1000), ("b", 3000), ("c", 0), ("e", 0)];
        check(&program, event, &fields);
    }
}

#[test]
fn in_rust() {
    if let Some(program) = build(Compiler::Rustc, "arrays.rs", &["-Copt-level=0"]) {
        let event = ":arrays::take a=b[1] b=q.p[2] c=bb[2] d=raw[2] e=q.n";
        let fields = [("a", 1000), ("b", 3000), ("c", 2000), ("d", 4000), ("e", 0)];
        check(&program, event, &fields);
    }
}

#[test]
fn brackets_behind_a_slice_are_refused_with_the_elements_name() {
    let Some(program) = build_go("arrays.go", "arrays_go_slices") else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let output = record(&trace, &["-e", ":main.total s[1]", "--", text(&program)]);
    let said = told(&output);
    let advice = "`s` is []int, a pointer with a length: an element is s.array[1]";
    assert!(said.contains(advice), "{said}");
    check(&program, ":main.total a=s.array[1]", &[("a", 1000)]);
}
