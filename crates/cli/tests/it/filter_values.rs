//! Filters over values that are no fields of the event, and comparisons that types forbid.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{counts_of, events, record_program, scratch, text};
use serde_json::{Value, json};
use std::path::PathBuf;

fn program() -> Option<PathBuf> {
    build(
        Compiler::Gcc,
        "requests.c",
        &["-fno-optimize-sibling-calls"],
    )
}

#[test]
fn a_filter_reads_values_that_are_not_recorded() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let event = ":handle r->fd r->path if r->size > 4096";
    record_program(&trace, &["-e", event], &program, &[]);
    let all = events(&trace);
    let recorded: Vec<_> = all.iter().map(|e| e["arguments"].clone()).collect();
    let path = |fd| if fd % 2 == 1 { "/odd" } else { "/even" };
    let wanted = (5..10).map(|fd| json!({"r_fd": fd, "r_path": path(fd)}));
    assert_eq!(recorded, wanted.collect::<Vec<_>>(), "{all:?}");
}

#[test]
fn so_does_that_of_each_kind_of_event() {
    let Some(program) = program() else { return };
    for (event, calls) in [
        (":handle if i >= 8", 2),
        (":handle $arg* if i >= 8 && r->path == \"/odd\"", 1),
        (":handle if $arg2:s32 == 3 || r->name ~ \"n?m\"", 1),
        (
            ":handle sum(r->size) by p=r->path:string if r->size > 4096 && r->fd < 7",
            2,
        ),
        (
            "r :handle $retval if $entry:r->size > 4096 && ret < 7000",
            2,
        ),
        ("r :handle if $arg2 == 1", 1),
        ("latency(:handle if r->size > 4096)", 5),
    ] {
        let counts = counts_of(event, &program);
        // Calls of a latency without a duration are those that the filter rejected.
        let row = &counts["groups"][0]["rows"][0];
        let counted = match &row["measures"][0]["count"] {
            Value::Null => &counts["events"][0]["calls"],
            timed => timed,
        };
        assert_eq!(*counted, calls, "{event}: {counts}");
    }
    let directory = scratch();
    let trace = directory.path().join("t");
    for (words, calls) in [
        (&["--graph", ":handle if r->size > 4096"][..], 10),
        (
            &["--graph", ":sleepy if us > 1", "--min-duration", "10ms"][..],
            2,
        ),
    ] {
        record_program(&trace, words, &program, &[]);
        assert_eq!(events(&trace).len(), calls, "{words:?}");
    }
}

/// Returns the message about an event that cannot be counted.
fn refused(program: &std::path::Path, event: &str) -> String {
    let output = capriole(&["stat", "-e", event, "--", text(program)]);
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    assert!(output.stdout.is_empty(), "{}", told(&output));
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    let said = said.replace(&format!("capriole: event `{event}`: "), "");
    said.trim_end().to_owned()
}

#[test]
fn values_that_are_not_there_and_types_that_differ() {
    let Some(program) = program() else { return };
    let refused = |event| refused(&program, event);
    insta::assert_snapshot!(refused(":handle if nosuch > 4"), @"`nosuch` in the filter is no field: no variable `nosuch` here: there are r, i");
    insta::assert_snapshot!(refused(":handle if r->nosuch > 4"), @"`r->nosuch` in the filter is no field: struct request has no member `nosuch`: there are fd, size, path, name, address, weight");
    insta::assert_snapshot!(refused(":handle x=r->fd if x == \"a\""), @r#"`x` is of type s32, and cannot be compared with the text "a""#);
    insta::assert_snapshot!(refused(":handle x=r->fd if x ~ \"a*\""), @r#"`x` is of type s32, and cannot be compared with the text "a*""#);
    insta::assert_snapshot!(refused(":handle nm=r->name if nm > 5"), @"`nm` is a text, and cannot be compared with a number; texts are compared with ==, != and ~ and a text in quotes");
    insta::assert_snapshot!(refused(":handle if r->weight > 1"), @"the filter asks for `r->weight`, a floating point number, which is not compared");
}

/// Each way to ask for the slow calls leads to the same advice. (These take so long that no other one does
/// on a busy machine.)
#[test]
fn latency_has_no_filter_by_duration() {
    let Some(program) = program() else { return };
    for (event, advice) in [
        (
            "latency(:sleepy) if duration > 300ms",
            "r :sleepy count() if duration > 300ms",
        ),
        (
            "latency(:sleepy if duration > 300ms)",
            "r :sleepy count() if duration > 300ms",
        ),
        (
            "latency(r :sleepy if duration > 300ms)",
            "r :sleepy count() if duration > 300ms",
        ),
        (
            "latency(:sleepy) by tid if duration > 0.25s",
            "r :sleepy count() if duration > 0.25s",
        ),
    ] {
        let said = refused(&program, event);
        let wanted = format!("has no filter by duration; count the slow ones: `{advice}`");
        assert!(said.ends_with(&wanted), "{event}: {said}");
        let counts = counts_of(advice, &program);
        assert_eq!(counts["events"][0]["calls"], 2, "{advice}: {counts}");
    }
    let counts = counts_of("latency(:sleepy duration=$arg1 if duration > 1)", &program);
    assert_eq!(
        counts["groups"][0]["rows"][0]["measures"][0]["count"], 2,
        "{counts}"
    );
    let counts = counts_of("latency(:middle) by p=$entry:r->path:string", &program);
    assert_eq!(
        counts["groups"][0]["rows"].as_array().map(Vec::len),
        Some(2),
        "{counts}"
    );
    let said = refused(&program, "latency(:middle) by i");
    assert!(said.ends_with("`by NAME=$entry:i:string`"), "{said}");
}
