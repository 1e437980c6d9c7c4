//! The macros that check types, in each version of C++.

use super::{program_by, run};
use crate::programs::Compiler;
use crate::target::told;
use crate::tools::root;
use std::process::Command;

#[test]
fn noexcept_may_differ() {
    for standard in ["-std=c++11", "-std=c++14", "-std=c++17", "-std=c++20"] {
        let flags = [standard, "-DWRONG=0", "-Wall", "-Wextra"];
        if let Some(program) = program_by(Compiler::Gxx, "probes_types.cpp", &flags) {
            run(&program, &[]);
        }
    }
}

/// Functions of C libraries that are declared `const` and `noreturn`.
#[test]
fn attributes_may_differ() {
    let flags = ["-std=gnu99", "-DWRONG=0", "-Wall", "-Wextra", "-pedantic"];
    for compiler in [Compiler::Gcc, Compiler::MuslGcc] {
        if let Some(program) = program_by(compiler, "probes_types.c", &flags) {
            run(&program, &[]);
        }
    }
}

#[test]
fn other_types_do_not_compile() {
    let compile = |wrong: u32, standard: &str| {
        let (compiler, source) = match standard.contains("++") {
            true => ("c++", "probes_types.cpp"),
            false => ("cc", "probes_types.c"),
        };
        let mut compiler = Command::new(compiler);
        compiler.args(["-fsyntax-only", standard, &format!("-DWRONG={wrong}"), "-I"]);
        compiler.arg(root().join("include"));
        compiler.arg(root().join("tests/programs").join(source));
        compiler.output().expect("a compiler")
    };
    for standard in ["-std=c++11", "-std=c++17", "-std=gnu99", "-std=gnu11"] {
        let output = compile(0, standard);
        assert!(output.status.success(), "{}", told(&output));
        for wrong in 1..5 {
            let output = compile(wrong, standard);
            assert!(!output.status.success(), "{wrong} compiles");
        }
    }
}
