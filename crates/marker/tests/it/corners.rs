//! `capriole/marker.h` in special cases of C++: coroutines, lambdas over parameter packs, and
//! with warnings about old-style casts.

use std::process::Command;

use crate::support::{Elf, compile, program};
use capriole_testkit::tools::{have, quiet};

const WARNINGS: &[&str] = &[
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wshadow",
    "-Wconversion",
    "-Wold-style-cast",
    "-Werror",
];

/// Installed compilers that support C++20.
fn compilers() -> Vec<String> {
    let newer = (15..=22).map(|version| format!("clang++-{version}"));
    let all = ["g++", "clang++"]
        .map(str::to_owned)
        .into_iter()
        .chain(newer);
    all.filter(|compiler| have(compiler)).collect()
}

fn built(source: &str, standard: &str) {
    for compiler in compilers() {
        for level in ["-O0", "-O2"] {
            for more in ["-UCAPRIOLE_MARK_NONE", "-DCAPRIOLE_MARK_NONE"] {
                let directory = tempfile::tempdir().unwrap();
                let out = directory.path().join("program");
                println!("{compiler} {level} {more} {source}");
                let options = [WARNINGS, &[standard, level, more]].concat();
                compile(&compiler, &options, &program(source), &out);
                quiet(&mut Command::new(&out));
                let markers = Elf::read(&out).markers();
                for name in ["begin", "step", "guarded", "message", "end"] {
                    let there = markers.iter().any(|marker| marker.name == name);
                    assert_eq!(there, more.starts_with("-U"), "{name}");
                }
            }
        }
    }
}

#[test]
fn coroutines() {
    built("coroutine.cpp", "-std=c++20");
}

#[test]
fn lambdas_over_parameter_packs() {
    built("pack.cpp", "-std=c++17");
    built("pack.cpp", "-std=c++20");
}
