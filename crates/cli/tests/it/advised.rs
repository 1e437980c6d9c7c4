//! Text that a message advises to write is accepted, and is the value or the function that was meant.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{record, scratch, text};
use std::path::Path;

/// An event that is refused, and the advice in the message.
struct Case {
    event: &'static str,
    /// The parts of the message before and after the advised text.
    before: &'static str,
    after: &'static str,
    /// The event with the advised text in the place of `{}`.
    advised: &'static str,
    /// The value or the function of each advised text, in the order of the message.
    expected: &'static [&'static str],
}

const fn case(
    event: &'static str,
    (before, after): (&'static str, &'static str),
    advised: &'static str,
    expected: &'static [&'static str],
) -> Case {
    Case {
        event,
        before,
        after,
        advised,
        expected,
    }
}

const ONE_OF: (&str, &str) = ("write one of ", "");
const MEMBERS: (&str, &str) = ("name a member: there are ", "");
const WRITE: (&str, &str) = ("write ", "");
const KEPT: (&str, &str) = ("for calls, ", " at a return");
const HELP: (&str, &str) = ("help: write ", " for ");
const SIMILAR: (&str, &str) = ("similar: ", "");

const CASES: [Case; 26] = [
    case(
        ":inherited t._M_head_impl",
        ONE_OF,
        ":inherited {}",
        &["3", "2", "1"],
    ),
    case(":inherited d.x", ONE_OF, ":inherited {}", &["11", "12"]),
    case(
        ":inherited e->value",
        ONE_OF,
        ":inherited {}",
        &["21", "22"],
    ),
    case(":inherited j.same", ONE_OF, ":inherited {}", &["31", "32"]),
    case(":inherited j", MEMBERS, ":inherited j.{}", &["31", "32"]),
    case(":inherited t", MEMBERS, ":inherited t.{}", &["3", "2", "1"]),
    case(
        ":inherited d.own if d.x > 10",
        ONE_OF,
        ":inherited d.own if {} > 10",
        &["15", "15"],
    ),
    case(
        "r :inherited $entry:d.x",
        ONE_OF,
        "r :inherited $entry:{}",
        &["11", "12"],
    ),
    case("r :texts $entry:s", KEPT, "r :texts {}", &["\"hello\""]),
    case("r :texts $entry:x", KEPT, "r :texts {}", &["\"world\""]),
    case("r :texts $entry:v", WRITE, "r :texts {}", &["\"view\""]),
    case(
        "r :texts $entry:v:string",
        WRITE,
        "r :texts {}",
        &["\"view\""],
    ),
    case(
        "r :texts s",
        ("memory; ", " is what"),
        "r :texts {}:string",
        &["\"hello\""],
    ),
    case(
        "r :number k",
        ("memory; ", " is what"),
        "r :number {}",
        &["7"],
    ),
    case(
        "r :number $retval if q[0][0] == 8",
        ("help: ", " is what"),
        "r :number {}",
        &["8"],
    ),
    case(":number %edi", HELP, ":number {}", &["7"]),
    case(":number *p", HELP, ":number {}", &["8"]),
    case(":number **q", HELP, ":number {}", &["8"]),
    case(":number z", ONE_OF, ":number {}", &["41", "42"]),
    case(
        ":number large",
        ("name an element, ", ""),
        ":number {}",
        &["44"],
    ),
    case(
        ":number c",
        ("bits with ", ""),
        ":number {}",
        &["0x3fc00000"],
    ),
    case(
        ":number colour if colour == Colour::GREEN",
        ("help: write `", "`"),
        ":number colour if colour == {}",
        &["GREEN"],
    ),
    case(
        "packed args",
        ("name an element: ", ""),
        "packed {}",
        &["51", "52"],
    ),
    case(
        ":Sized::size size",
        ("of that name is ", ""),
        ":Sized::size {}",
        &["43"],
    ),
    case(
        ":late array[0]",
        ("probe at line ", " instead"),
        ":advised.cpp:{} n",
        &["4"],
    ),
    case(
        ":lambdas()::{lambda(int)#1}::operato",
        SIMILAR,
        ":{}",
        &[
            "lambdas()",
            "lambdas()::{lambda(long)#2}::operator()(long)",
            "lambdas()::{lambda(int)#1}::operator()(int) const",
        ],
    ),
];

/// Splits a list at its commas, but not at those between template arguments and parameters.
fn items(list: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut depth = 0;
    for c in list.replace("->", ".").chars() {
        match c {
            '<' | '(' => depth += 1,
            '>' | ')' => depth -= 1,
            ',' if depth == 0 => {
                items.push(String::new());
                continue;
            }
            _ => {}
        }
        items.last_mut().expect("one").push(c);
    }
    let plain = |item: String| item.trim().trim_matches('`').to_owned();
    items.into_iter().map(plain).collect()
}

/// Returns the texts that the message advises to write.
fn advised(message: &str, case: &Case) -> Vec<String> {
    let (_, behind) = message
        .split_once(case.before)
        .unwrap_or_else(|| panic!("{}: {message}", case.event));
    let line = behind.lines().next().unwrap_or_default();
    match case.after {
        "" => items(line),
        after => items(line.split_once(after).map_or(line, |(advice, _)| advice)),
    }
}

/// Returns the value of the first event's only field; the function if it has no field.
fn recorded(event: &str, program: &Path) -> String {
    let directory = scratch();
    let trace = directory.path().join("trace");
    let output = record(&trace, &["-e", event, "--", text(program)]);
    assert!(output.status.success(), "{event}: {}", told(&output));
    let output = capriole(&["report", "--names", "full", text(&trace)]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = shown.lines().filter(|line| !line.starts_with('#'));
    let line = lines.next().unwrap_or_else(|| panic!("{event}: {shown}"));
    let (before, fields) = line.rsplit_once("+0x").expect("a place");
    match fields.split_once('=') {
        Some((_, value)) => value.to_owned(),
        None => {
            let (function, _) = before.rsplit_once(": (").expect("a function");
            let (_, function) = function.split_once(": ").expect("a time");
            function.to_owned()
        }
    }
}

#[test]
fn advised_text_is_accepted_and_right() {
    let Some(program) = build(Compiler::Gxx, "advised.cpp", &["-std=c++17", "-O0"]) else {
        return;
    };
    for case in &CASES {
        let directory = scratch();
        let trace = directory.path().join("trace");
        let output = record(&trace, &["-e", case.event, "--", text(&program)]);
        let message = told(&output);
        assert!(!output.status.success(), "{}: {message}", case.event);
        let found: Vec<String> = advised(&message, case)
            .iter()
            .map(|advice| recorded(&case.advised.replace("{}", advice), &program))
            .collect();
        assert_eq!(found, case.expected, "{}: {message}", case.event);
    }
}
