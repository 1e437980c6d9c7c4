//! Package variables of Go.

use crate::target::{capriole, told};
use crate::traces::{arguments_in, record, scratch, text};
use capriole_testkit::programs::build_go_with;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn program() -> Option<PathBuf> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/go_globals");
    build_go_with(&["-C", text(&module)], "go_globals", "go_globals")
}

fn arguments(program: &Path, event: &str) -> Vec<Value> {
    arguments_in(program, event, "ok go_globals true of main\n")
}

#[test]
fn variables_are_named_by_their_package() {
    let Some(program) = program() else { return };
    let event =
        ":main.work n counter other=main.counter b=current.b c=main.current.b name=main.Name";
    let expected: Vec<Value> = [(0, 0, 0), (1, 0, 0), (2, 1, 2), (3, 3, 4)]
        .map(|(n, counter, b)| {
            json!({"n": n, "counter": counter, "other": counter, "b": b, "c": b, "name": "of main"})
        })
        .into();
    assert_eq!(arguments(&program, event), expected);
    let event = ":main.work a='globals/a/store'::Items b='globals/b/store'::Items";
    let expected: Vec<Value> = [0, 0, 1, 3]
        .map(|sum| json!({"a": sum, "b": 2 * sum}))
        .into();
    assert_eq!(arguments(&program, event), expected);
    // In its own package, the plain name.
    let event = ":globals/b/store.Put Items";
    let expected: Vec<Value> = [0, 0, 2, 6].map(|sum| json!({"Items": sum})).into();
    assert_eq!(arguments(&program, event), expected);
}

#[test]
fn several_packages_of_one_name_are_told_apart() {
    let Some(program) = program() else { return };
    let refused = |event: &str| {
        let directory = scratch();
        let trace = directory.path().join("t");
        told(&record(&trace, &["-e", event, "--", text(&program)]))
    };
    let said = refused(":main.work store.Items");
    let several =
        "names 2 variables; write one of 'globals/a/store'::Items, 'globals/b/store'::Items";
    assert!(said.contains(several), "{said}");
    let said = refused(":main.work store.nothing");
    assert!(
        said.contains("no variable `store` here: there are n, pp\n"),
        "{said}"
    );
    let said = told(&capriole(&["list", "--args", ":main.work", text(&program)]));
    assert!(!said.contains('~'), "{said}");
}

/// The end of a function's name is enough if no other ends with it.
#[test]
fn functions_are_found_by_the_end_of_their_package() {
    let Some(program) = program() else { return };
    for end in ["a/store.Put", "globals/a/store.Put"] {
        let output = capriole(&["list", "--json", &format!(":{end}"), text(&program)]);
        let sites: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(sites[0]["symbol"], "globals/a/store.Put", "{sites}");
        assert_eq!(sites.as_array().map(Vec::len), Some(1), "{sites}");
    }
    let said = told(&capriole(&["list", ":store.Put", text(&program)]));
    assert!(said.contains("`store.Put` names 2 functions"), "{said}");
    assert!(said.contains("globals/b/store.Put"), "{said}");
}

/// Only what points to an array can be indexed as one.
#[test]
fn a_pointer_to_a_pointer_to_an_array_is_followed_first() {
    let Some(program) = program() else { return };
    let found = arguments(&program, ":main.work p=pp[0] x=pp[0][1]");
    let elements: Vec<&Value> = found.iter().map(|one| &one["x"]).collect();
    assert_eq!(elements, [8, 8, 9, 11]);
    assert!(
        found
            .iter()
            .all(|one| one["p"] == found[0]["p"] && one["p"] != 7),
        "{found:?}"
    );
}
