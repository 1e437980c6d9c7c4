//! An argument by number is what the source has there, or is refused: optimisers change the parameters of
//! functions that only one file calls.

use crate::programs::{Compiler, build};
use crate::target::told;
use crate::traces::{events, pairs, record, record_program, scratch};
use capriole_testkit::files::text;
use capriole_testkit::workshop::{Workshop, run};
use std::process::Command;

/// Arguments of each function by number, and what the source has there in the first call.
const FUNCTIONS: [(&str, &[Option<u64>]); 4] = [
    ("first_unused", &[Some(77), Some(0), Some(1000)]),
    ("middle_unused", &[Some(0), Some(77), Some(1000)]),
    ("all_used", &[Some(0), Some(1000)]),
    // The first register has the address for the result.
    ("in_memory", &[None, Some(0), Some(1000)]),
];

#[test]
fn arguments_by_number_are_right_or_refused() {
    for compiler in [Compiler::Gcc, Compiler::Clang] {
        for level in ["-O0", "-O1", "-O2", "-O3"] {
            let Some(program) = build(compiler, "changed_parameters.c", &[level, "-g"]) else {
                continue;
            };
            for (function, arguments) in FUNCTIONS {
                for (number, value) in (1..).zip(arguments) {
                    let Some(value) = value else { continue };
                    let directory = scratch();
                    let trace = directory.path().join("trace");
                    let event = format!(":{function} n=$arg{number}:u64");
                    let output = record(&trace, &["-e", &event, "--", text(&program)]);
                    let said = told(&output);
                    let context = format!("{compiler:?} {level} {event}: {said}");
                    if output.status.success() {
                        let all = events(&trace);
                        assert_eq!(all.len(), 100, "{context}");
                        assert_eq!(all[0]["arguments"]["n"], *value, "{context}");
                    } else {
                        let is_refused =
                            said.contains("changed the") || said.contains("no function");
                        assert!(is_refused && level != "-O0", "{context}");
                    }
                }
            }
        }
    }
}

#[test]
fn arguments_that_are_passed_as_declared_are_not_refused() {
    for compiler in [Compiler::Gcc, Compiler::Clang] {
        for level in ["-O1", "-O2"] {
            let Some(program) = build(compiler, "changed_parameters.c", &[level, "-g"]) else {
                continue;
            };
            let directory = scratch();
            let trace = directory.path().join("trace");
            let event = ":all_used n=$arg1:u64 sum=$arg2:u64";
            let output = record(&trace, &["-e", event, "--", text(&program)]);
            assert!(output.status.success(), "{}", told(&output));
            assert_eq!(events(&trace).len(), 100);
        }
    }
}

/// Languages that pass arguments in a way of their own are recognised by their names of functions.
#[test]
fn arguments_of_other_conventions_are_refused() {
    let Some(program) = build(Compiler::Gcc, "own_conventions.c", &[]) else {
        return;
    };
    for (function, refused) in [
        ("camlOrders__price_283", Some("OCaml passes arguments")),
        ("camlOrders.price_283", Some("OCaml passes arguments")),
        ("caml_alloc_shr_2", None),
        ("camlCase_2", None),
        ("Orders_zdwprice_info", Some("Haskell's code has arguments")),
        ("order_infos", None),
    ] {
        for register in [false, true] {
            let directory = scratch();
            let trace = directory.path().join("trace");
            let value = match register {
                true => "%di",
                false => "$arg1",
            };
            let event = format!(":{function} n={value}");
            let output = record(&trace, &["-e", &event, "--", text(&program)]);
            let said = told(&output);
            match refused.filter(|_| !register) {
                Some(why) => assert!(said.contains(why), "{event}: {said}"),
                None => {
                    assert!(output.status.success(), "{event}: {said}");
                    assert_eq!(events(&trace).len(), 10, "{event}: {said}");
                }
            }
        }
    }
}

/// Zig passes arguments of functions that it does not export in a way of its own.
#[test]
fn arguments_of_zig_are_refused_unless_the_function_is_exported() {
    let source = r#"volatile long sink;
long take(long n) __asm__("main.take");
__attribute__((noinline, noclone)) long take(long n) { sink += n; return n; }
__attribute__((noinline, noclone)) long exported(long n) { sink += n; return n; }
int main(void) { for (int i = 0; i < 10; i++) sink += take(i) + exported(i); }
"#;
    let workshop = Workshop::new();
    let Some(assembly) = workshop.compile("gcc", &["-g", "-O1", "-S"], source, "zig") else {
        return;
    };
    let text_of = std::fs::read_to_string(&assembly).expect("it was compiled");
    let (before, rest) = text_of.split_once("GNU C17").expect("a producer");
    let (_, after) = rest.split_once('"').expect("a string");
    let changed = workshop.path("zig.s");
    std::fs::write(&changed, format!("{before}zig 0.13.0\"{after}")).expect("written");
    let program = workshop.path("zig_program");
    if !run(Command::new("gcc").arg(&changed).arg("-o").arg(&program)) {
        return;
    }
    for (function, field, is_refused) in [
        ("main.take", "n=$arg1:s64", true),
        ("main.take", "n", false),
        ("exported", "n=$arg1:s64", false),
    ] {
        let directory = scratch();
        let trace = directory.path().join("trace");
        let event = format!(":{function} {field}");
        let output = record(&trace, &["-e", &event, "--", text(&program)]);
        let said = told(&output);
        if is_refused {
            assert!(
                said.contains("Zig passes arguments of functions"),
                "{event}: {said}"
            );
        } else {
            let all = events(&trace);
            assert_eq!(all.len(), 10, "{event}: {said}");
            assert_eq!(all[9]["arguments"]["n"], 9, "{event}");
        }
    }
}

/// Functions with a number in their symbols, which makes them unique, have the parameters of the source.
#[test]
fn arguments_of_renamed_functions_are_not_refused() {
    let optimised_together: &[&str] = &["-flto", "-flto-partition=max"];
    for flags in [&[][..], &["-O0"], optimised_together] {
        let Some(program) = build(Compiler::Gcc, "nested.c", flags) else {
            return;
        };
        for function in ["nested", "unique"] {
            let directory = scratch();
            let trace = directory.path().join("trace");
            let event = format!(":{function} n=$arg1:s32");
            let output = record_program(&trace, &["-e", &event], &program, &[]);
            let passed = pairs(&output).filter(|(name, _)| *name == function);
            let passed: Vec<String> = passed.map(|(_, value)| value.to_owned()).collect();
            let seen = events(&trace).into_iter();
            let seen: Vec<String> = seen.map(|e| e["arguments"]["n"].to_string()).collect();
            assert_eq!(seen, passed, "{flags:?} {function}");
        }
    }
}
