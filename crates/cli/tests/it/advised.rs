//! Text that a message advises to write is accepted, and is the value or the function that was meant.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{record, scratch, text};
use capriole_testkit::workshop::Workshop;
use std::collections::BTreeSet;
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

/// Lines and offsets that a refusal of a variable names, in programs with many copies of functions, are accepted:
/// all of them.
#[test]
fn advised_places_have_the_variable() {
    const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct item { struct item *next; int weight; char name[12]; };
static int total;
static inline int weigh(const struct item *of, int factor)
{
	int sum = 0;
	for (const struct item *at = of; at; at = at->next) {
		int own = at->weight * factor;
		if (own > 100)
			own = 100 + rand() % 2;
		sum += own;
	}
	return sum;
}
static struct item *made(int weight, struct item *next)
{
	struct item *item = malloc(sizeof *item);
	int length = snprintf(item->name, sizeof item->name, "%d", weight);
	item->weight = weight + (length > 3);
	item->next = next;
	total++;
	return item;
}
static int compared(const void *a, const void *b)
{
	const int *first = a, *second = b;
	int difference = *first - *second;
	return difference;
}
__attribute__((noinline)) int filled(int count)
{
	struct item *all = NULL;
	int weights[64];
	for (int i = 0; i < count; i++) {
		int weight = rand() % 50;
		weights[i % 64] = weight;
		all = made(weight, all);
	}
	qsort(weights, count < 64 ? count : 64, sizeof *weights, compared);
	int light = weigh(all, 1), heavy = weigh(all, 3 + weights[0]);
	while (all) {
		struct item *next = all->next;
		free(all);
		all = next;
	}
	return heavy - light;
}
int main(int argc, char **argv)
{
	int limit = argc > 1 ? atoi(argv[1]) : 10, result = 0;
	for (int i = 0; i < limit; i++) {
		int one = filled(i + 1);
		result ^= one;
	}
	printf("ok %d %d\n", result, total);
	return 0;
}
"#;
    let shop = Workshop::new();
    let mut advised = 0;
    for (compiler, level) in [
        ("gcc", "-O2"),
        ("gcc", "-O0"),
        ("gcc", "-Og"),
        ("gcc", "-O3"),
        ("clang", "-O2"),
        ("clang", "-O1"),
    ] {
        let name = format!("places_{compiler}{level}");
        let Some(program) = shop.compile(compiler, &["-g", level], SOURCE, &name) else {
            continue;
        };
        let program = text(&program);
        let list = capriole(&["list", "--args", ":*", program]);
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        let mut events = BTreeSet::new();
        for line in list.lines() {
            let Some((variable, refusal)) = line.split_once("cannot be recorded here: ") else {
                continue;
            };
            let variable = variable.split_whitespace().next().expect("a name");
            let refusal = refusal.trim_end_matches("  (a variable)");
            if let Some((_, lines)) = refusal.split_once("kept at line") {
                for number in lines
                    .split(|c: char| !c.is_ascii_digit())
                    .filter(|n| !n.is_empty())
                {
                    events.insert(format!(":{name}.c:{number} {variable}"));
                }
            } else if let Some((_, place)) = refusal.split_once("; probe ")
                && let Some(place) = place.strip_suffix(" instead")
            {
                match place.strip_prefix("at line ") {
                    Some(number) => events.insert(format!(":{name}.c:{number} {variable}")),
                    None if place == "a later place" => false,
                    None => events.insert(format!(":{place} {variable}")),
                };
            }
        }
        advised += events.len();
        for event in events {
            let said = told(&capriole(&["list", &event, program]));
            let is_there = said.starts_with("exit status: 0")
                // What it is does not depend on the place.
                || said.contains("name a member") || said.contains("name an element");
            assert!(is_there, "{event}: {said}\n{list}");
        }
    }
    assert!(advised == 0 || advised > 60, "{advised}");
}
