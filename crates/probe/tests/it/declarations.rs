//! The crate's declarations agree with the header.
//!
//! The text of `ffi.rs` is made into a C file of assertions: for each field of a structure, its type and
//! its place among the others; for each constant, its value; for each function and type of a handler, its
//! prototype. The sizes are those that Rust computes. Generating the declarations (bindgen) would need
//! libclang to build the tests, and generating the header (cbindgen) would lose its comments and macros;
//! either would bring in some thirty crates for sixty lines that rarely change.

use capriole_probe::{Registers, ffi};
use capriole_testkit::files;
use capriole_testkit::tools::{present, quiet, root};
use std::fmt::Write;
use std::process::Command;

/// Returns the C type of a type in the declarations, with `inner` where a declared name would be.
fn in_c(rust: &str, inner: &str) -> String {
    let rust = rust.trim();
    if let Some(target) = rust.strip_prefix("*mut ") {
        return in_c(target, &format!("*{inner}"));
    }
    if let Some(target) = rust.strip_prefix("*const ") {
        return format!("const {}", in_c(target, &format!("*{inner}")));
    }
    if let Some(function) = rust.strip_prefix("Option<") {
        return in_c(function.strip_suffix('>').expect("an end"), inner);
    }
    if let Some(function) = rust.strip_prefix("unsafe extern \"C\" fn(") {
        return function_in_c(function, &format!("(*{inner})"));
    }
    if let Some((element, count)) = rust
        .strip_prefix('[')
        .and_then(|array| array.strip_suffix(']')?.split_once("; "))
    {
        return in_c(element, &format!("{inner}[{count}]"));
    }
    let plain = match rust {
        "c_int" => "int",
        "c_uint" => "unsigned",
        "c_ulong" => "unsigned long",
        "c_char" => "char",
        "c_void" | "()" => "void",
        "usize" => "size_t",
        "u64" => "uint64_t",
        "Registers" => "struct capriole_regs",
        "capriole_write" => {
            return in_c(
                "unsafe extern \"C\" fn(u64, u64, u64, u64, u64, u64)",
                inner,
            );
        }
        handler if handler.ends_with("_handler") => handler,
        structure if structure.starts_with("capriole_") => {
            return format!("struct {structure} {inner}");
        }
        other => panic!("the type `{other}` is not known"),
    };
    format!("{plain} {inner}")
}

/// Returns the C type of a function, from what follows the parenthesis that begins its parameters.
fn function_in_c(rest: &str, inner: &str) -> String {
    let (parameters, result) = rest.rsplit_once(')').expect("parameters");
    let result = result.trim().strip_prefix("-> ").unwrap_or("()");
    let parameters: Vec<String> = parameters
        .split(',')
        .map(|parameter| parameter.rsplit(": ").next().unwrap_or(parameter).trim())
        .filter(|parameter| !parameter.is_empty())
        .map(|parameter| in_c(parameter, ""))
        .collect();
    let parameters = match parameters.is_empty() {
        true => "void".to_owned(),
        false => parameters.join(", "),
    };
    in_c(result, &format!("{inner}({parameters})"))
}

/// Returns assertions for all declarations in a text.
fn assertions(source: &str, made: &mut String) -> usize {
    let mut structure: Option<(String, Option<String>)> = None;
    let mut number = 0;
    // A declaration that is on several lines becomes one.
    let source: Vec<&str> = source.lines().map(str::trim).collect();
    let source = source.join(" ");
    let source = source.replace("( ", "(").replace(", )", ")");
    let source = source.replace("unsafe extern \"C\" {", "");
    // Comments end where the next declaration begins.
    for part in source.split("pub ").skip(1) {
        let part = part.split("///").next().unwrap_or(part);
        let part = part.split("#[").next().unwrap_or(part).trim();
        let closes = part.ends_with('}');
        let part = part.trim_end_matches(['}', ' ', ',', ';']);
        number += 1;
        let made = &mut *made;
        let mut assert = |what: String| {
            writeln!(made, "_Static_assert({what}, {part:?});").expect("a string takes everything");
        };
        let compatible = |a: &str, b: &str| format!("__builtin_types_compatible_p({a}, {b})");
        if let Some(constant) = part.strip_prefix("const ") {
            let (name, rest) = constant.split_once(": ").expect("a type");
            let (_, value) = rest.split_once(" = ").expect("a value");
            assert(format!("{name} == {value}"));
        } else if let Some(handler) = part.strip_prefix("type ") {
            let (name, rust) = handler.split_once(" = ").expect("a type");
            let c = if name == "capriole_write" {
                "__typeof__(((struct capriole_record *)0)->write)"
            } else {
                name
            };
            assert(compatible(c, &in_c(rust, "")));
        } else if let Some(function) = part.strip_prefix("fn ") {
            let (name, rest) = function.split_once('(').expect("parameters");
            let c = function_in_c(rest, "(*)");
            assert(compatible(&format!("__typeof__(&{name})"), &c));
        } else if let Some(name) = part.strip_prefix("struct ") {
            let (name, field) = name.split_once(" {").expect("fields");
            assert!(field.is_empty(), "{part}");
            let name = if name == "Registers" {
                "capriole_regs"
            } else {
                name
            };
            structure = Some((name.to_owned(), None));
        } else {
            let (field, rust) = part.split_once(": ").expect("a field");
            let (name, before) = structure.as_mut().expect("a field is in a structure");
            let c = format!("__typeof__(((struct {name} *)0)->{field})");
            assert(compatible(&c, &in_c(rust, "")));
            assert(match before.replace(field.to_owned()) {
                None => format!("offsetof(struct {name}, {field}) == 0"),
                Some(before) => {
                    format!("offsetof(struct {name}, {field}) > offsetof(struct {name}, {before})")
                }
            });
        }
        if closes {
            structure = None;
        }
    }
    number
}

#[test]
fn all_declarations_agree_with_the_header() {
    let mut made = String::from("#include <capriole/probe.h>\n");
    let declarations = assertions(include_str!("../../src/ffi.rs"), &mut made);
    let registers = include_str!("../../src/registers.rs");
    let (registers, _) = registers.split_once("impl Registers").unwrap();
    let registers = assertions(registers, &mut made);
    assert_eq!(registers, 19, "{made}");
    assert!(declarations >= 82, "{declarations} of them:\n{made}");
    for (name, size, align) in [
        size_of_type::<Registers>("regs"),
        size_of_type::<ffi::capriole_probe>("probe"),
        size_of_type::<ffi::capriole_call>("call"),
        size_of_type::<ffi::capriole_return_probe>("return_probe"),
        size_of_type::<ffi::capriole_argument_probe>("argument_probe"),
        size_of_type::<ffi::capriole_replacement>("replacement"),
        size_of_type::<ffi::capriole_record>("record"),
    ] {
        writeln!(
            made,
            "_Static_assert(sizeof(struct capriole_{name}) == {size}, \"size of {name}\");\n\
             _Static_assert(__alignof__(struct capriole_{name}) == {align}, \"alignment of {name}\");"
        )
        .unwrap();
    }
    let directory = files::scratch();
    let source = directory.path().join("assertions.c");
    std::fs::write(&source, &made).unwrap();
    for compiler in present(&["gcc", "clang"]) {
        quiet(
            Command::new(compiler)
                .args("-std=gnu11 -fsyntax-only -I".split(' '))
                .arg(root().join("include"))
                .arg(&source),
        );
    }
    // They can fail: each with a false type or number.
    for (right, wrong) in [
        ("CAPRIOLE_OFF == 4", "CAPRIOLE_OFF == 5"),
        ("data), void *)", "data), int *)"),
        ("size_t", "int"),
        ("__typeof__(&capriole_list)", "__typeof__(&capriole_error)"),
    ] {
        assert!(made.contains(right), "{right}\n{made}");
        std::fs::write(&source, made.replace(right, wrong)).unwrap();
        let output = Command::new("gcc")
            .args("-std=gnu11 -fsyntax-only -I".split(' '))
            .arg(root().join("include"))
            .arg(&source)
            .output()
            .unwrap();
        assert!(!output.status.success(), "`{wrong}` compiles");
    }
}

fn size_of_type<T>(name: &str) -> (&str, usize, usize) {
    (name, size_of::<T>(), align_of::<T>())
}

#[test]
fn all_of_the_header_is_declared() {
    let header = std::fs::read_to_string(root().join("include/capriole/probe.h")).unwrap();
    let ours = include_str!("../../src/ffi.rs");
    for name in crate::symbols::declared(&header) {
        assert!(ours.contains(&format!("fn {name}(")), "{name}");
    }
    for line in header.lines() {
        let word = line.trim().split([' ', ',', '\t']).next().unwrap_or("");
        if word.starts_with("CAPRIOLE_") && line.contains(" = ") {
            assert!(ours.contains(&format!("const {word}:")), "{word}");
        }
    }
}
