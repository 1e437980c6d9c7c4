//! The programs in the documentation compile without warnings, and print what is said there.

use super::{command, library, output};
use crate::target::told;
use crate::tools::root;
use capriole_testkit::files;
use std::path::PathBuf;
use std::process::Command;

/// Returns the programs in C of a page.
fn programs(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(page)).expect("a page");
    let blocks = text.split("```c\n").skip(1);
    let blocks = blocks.filter_map(|block| Some(block.split_once("\n```")?.0.to_owned()));
    blocks
        .filter(|block| block.contains("int main(") && block.contains("capriole/probe.h"))
        .collect()
}

/// Builds a program, with the shared or the static library.
fn build(source: &str, name: &str, is_static: bool) -> PathBuf {
    let directory = files::directory();
    let path = directory.join(format!("document-{name}-{is_static}"));
    let file = path.with_extension("c");
    std::fs::write(&file, source).expect("a file");
    let library = library();
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-I"]);
    compiler.arg(root().join("include")).arg(&file);
    match is_static {
        true => compiler.arg(library.join("libcapriole.a")),
        false => compiler
            .arg(library.join("libcapriole.so"))
            .arg(format!("-Wl,-rpath,{}", files::text(&library))),
    };
    let output = compiler.arg("-o").arg(&path).output().expect("a compiler");
    assert!(output.status.success(), "{}", told(&output));
    path
}

fn print(source: &str, name: &str, parts: &[&str]) {
    for is_static in [false, true] {
        let mut command = command(&build(source, name, is_static), &[]);
        // One of them makes a file.
        let scratch = files::scratch();
        let output = output(command.current_dir(scratch.path()));
        let text = told(&output);
        assert!(output.status.success(), "{text}");
        for part in parts {
            assert!(text.contains(part), "there is no `{part}` in:\n{text}");
        }
    }
}

#[test]
fn of_the_readme() {
    let programs = programs("README.md");
    let [program] = &programs[..] else {
        panic!("{} programs", programs.len());
    };
    print(
        program,
        "readme",
        &["1000 calls, 102000 bytes; malloc was reached by "],
    );
}

#[test]
fn of_the_page() {
    let programs = programs("docs/probes.md");
    let [first, calls, replace, events, trace] = &programs[..] else {
        panic!("{} programs", programs.len());
    };
    print(
        first,
        "first",
        &[":malloc", "1000 calls of malloc, 600000 bytes"],
    );
    print(calls, "calls", &["usleep returned 0 after "]);
    print(replace, "replace", &["sleep(3600)"]);
    print(
        events,
        "events",
        &[
            " open path=\"/dev/zero\"\n",
            " half done=4\n",
            " count=10 sum(bytes)=1000\n",
        ],
    );
    print(trace, "trace", &["recorded\n"]);
}
