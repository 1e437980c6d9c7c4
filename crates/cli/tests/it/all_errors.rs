//! A user who gives many events sees all that cannot be recorded, in one run.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{scratch, text};

#[test]
fn all_errors_of_a_file_are_shown_at_once() {
    let Some(program) = build(Compiler::Gcc, "members.c", &["-O0"]) else {
        return;
    };
    let directory = scratch();
    let file = directory.path().join("events");
    let events = ":take s.x\n:nobody\n:take s.q\n:real d e\n:in_memory p->a\n:members.c:9999 x\n";
    std::fs::write(&file, events).unwrap();
    let trace = directory.path().join("trace");
    let output = capriole(&[
        "record",
        "-o",
        text(&trace),
        "-f",
        text(&file),
        "--",
        text(&program),
    ]);
    let said = told(&output);
    assert!(!output.status.success(), "{said}");
    let lines = [
        "4 events cannot be recorded:\n",
        "  event `:nobody`: no function `nobody`",
        "\n  event `:take s.q`: field `s.q`: struct small has no member `q`",
        "\n  event `:real d e`: field `e`: no variable `e` here",
        "\n  event `:members.c:9999 x`: no code at line 9999",
    ];
    let mut from = 0;
    for line in lines {
        let at = said[from..].find(line);
        from += at.unwrap_or_else(|| panic!("{line} in {said}")) + line.len();
    }
    // Fields that `stat` does not use must exist as well.
    let output = capriole(&["stat", "-f", text(&file), "--", text(&program)]);
    let said = told(&output);
    assert!(said.contains("4 events cannot be recorded:\n"), "{said}");
    assert!(said.contains("struct small has no member `q`"), "{said}");
    // No cause is reported twice.
    assert_eq!(said.matches("no code at line 9999").count(), 1, "{said}");
    // A single error is printed alone, as before.
    let output = capriole(&["check", ":take s.q", text(&program)]);
    let said = told(&output);
    assert!(
        said.contains("capriole: event `:take s.q`: field"),
        "{said}"
    );
    assert!(!said.contains("cannot be recorded"), "{said}");
}
