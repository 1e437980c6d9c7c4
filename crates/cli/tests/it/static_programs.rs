//! Static programs that are started: they are stopped when the C library is ready.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{calls, events, record_program, scratch, text};

const FLAGS: [&[&str]; 2] = [
    &["-static", "-fno-builtin"],
    &["-static-pie", "-fno-builtin"],
];

/// The implementations of indirect functions are chosen, and threads have their ids, before anything is recorded;
/// constructors are recorded.
#[test]
fn they_are_recorded_from_their_constructors_on() {
    for flags in FLAGS {
        let Some(program) = build(Compiler::Gcc, "started_static.c", flags) else {
            continue;
        };
        let directory = scratch();
        let trace = directory.path().join("t");
        let words = ["-e", ":memcpy $arg3", "-e", ":own", "-e", ":main"];
        record_program(&trace, &words, &program, &[]);
        let found = calls(&trace);
        assert_eq!(
            (found["memcpy"], found["own"], found["main"]),
            (1200, 3, 1),
            "{flags:?}"
        );
        assert!(
            events(&trace)
                .iter()
                .all(|event| event["tid"] != 0 && event["tid"].is_number()),
            "{flags:?}"
        );
    }
}

/// Functions that run before the constructors are recorded as well. Then no implementation has been chosen, which is
/// said, and nothing else is probed instead.
#[test]
fn what_runs_before_the_constructors_is_recorded() {
    for flags in FLAGS {
        let flags = [flags, &["-DPREINIT"]].concat();
        let Some(program) = build(Compiler::Gcc, "started_static.c", &flags) else {
            continue;
        };
        let directory = scratch();
        let trace = directory.path().join("t");
        record_program(&trace, &["-e", ":own"], &program, &[]);
        assert_eq!(calls(&trace)["own"], 4, "{flags:?}");
        let words = ["stat", "-e", ":memcpy", "--", text(&program)];
        let said = told(&capriole(&words));
        assert!(said.starts_with("exit status: 1"), "{said}");
        assert!(
            said.contains("has not chosen an implementation yet"),
            "{said}"
        );
    }
}
