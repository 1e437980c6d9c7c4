//! The header with the compilers and languages that it is for.

use capriole_testkit::tools::{present, quiet, root};
use std::process::Command;

fn compile(compiler: &str, options: &str, source: &str) {
    let source = root().join("crates/probe/tests/it/programs").join(source);
    quiet(
        Command::new(compiler)
            .args(options.split(' '))
            .args("-Wall -Wextra -Werror -c -o /dev/null -I".split(' '))
            .arg(root().join("include"))
            .arg(source),
    );
}

#[test]
fn it_compiles_alone() {
    for compiler in present(&["gcc", "clang"]) {
        compile(compiler, "-std=c99 -pedantic", "header_alone.c");
    }
    for compiler in present(&["g++", "clang++"]) {
        compile(compiler, "-x c++ -std=c++11 -pedantic", "header_alone.c");
    }
}

#[test]
fn all_of_it_can_be_used() {
    for compiler in present(&["gcc", "clang"]) {
        for standard in ["c99", "gnu99", "c11", "c17"] {
            compile(compiler, &format!("-std={standard}"), "uses_header.c");
        }
    }
    for compiler in present(&["g++", "clang++"]) {
        for standard in ["c++11", "c++17", "c++20"] {
            let options = format!("-x c++ -std={standard} -pedantic");
            compile(compiler, &options, "uses_header.c");
        }
    }
}

#[test]
fn a_handler_of_another_type_does_not_compile() {
    let source = root().join("crates/probe/tests/it/programs/other_type.c");
    for (compilers, options) in [
        (["gcc", "clang"], "-std=c99"),
        (["g++", "clang++"], "-x c++ -std=c++11"),
    ] {
        for compiler in present(&compilers) {
            for (what, compiles) in [
                ("RIGHT", true),
                ("WRONG_HANDLER", false),
                ("WRONG_REPLACEMENT", false),
                ("WRONG_ORIGINAL", false),
            ] {
                let output = Command::new(compiler)
                    .args(options.split(' '))
                    .args(["-c", "-o", "/dev/null", "-D", what, "-I"])
                    .arg(root().join("include"))
                    .arg(&source)
                    .output()
                    .unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                assert_eq!(
                    output.status.success(),
                    compiles,
                    "{compiler} {what}: {said}"
                );
            }
        }
    }
}
