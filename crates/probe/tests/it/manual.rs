//! The manual pages: their form, what they name, and the program in them.

use crate::support::{libraries, probing};
use capriole_testkit::tools::{have, quiet, root};
use std::path::{Path, PathBuf};
use std::process::Command;

fn pages() -> Vec<PathBuf> {
    let pages = std::fs::read_dir(root().join("man")).unwrap();
    let mut pages: Vec<PathBuf> = pages.map(|page| page.unwrap().path()).collect();
    pages.sort();
    assert!(pages.len() >= 5, "{pages:?}");
    pages
}

fn text(name: &str) -> String {
    std::fs::read_to_string(root().join("man").join(name)).unwrap()
}

/// The tools, with what each is given before the page; no output on standard error, and where the
/// problems are on standard output, none there.
#[test]
fn no_tool_has_anything_to_say_against_them() {
    for (tool, options) in [
        ("mandoc", "-Tlint -Wwarning"),
        ("groff", "-mandoc -ww -rCHECKSTYLE=3 -Tutf8 -z"),
        ("groff", "-man -ww -Tutf8 -z"),
        ("man", "--warnings --local-file"),
    ] {
        if !have(tool) {
            println!("skipped: no {tool}");
            continue;
        }
        for page in pages() {
            let said = quiet(
                Command::new(tool)
                    .args(options.split(' '))
                    .arg(&page)
                    .env("LC_ALL", "C.UTF-8")
                    .env("MANPAGER", "cat"),
            );
            if tool == "man" {
                assert!(said.contains("NAME"), "{page:?}: {said}");
            } else {
                assert_eq!(said, "", "{tool}: {page:?}");
            }
        }
    }
}

#[test]
fn each_function_is_in_a_synopsis() {
    let header = std::fs::read_to_string(root().join("include/capriole/probe.h")).unwrap();
    let all: String = pages()
        .iter()
        .map(|page| std::fs::read_to_string(page).unwrap())
        .collect();
    let inner = ["capriole_record_nothing"];
    for name in crate::symbols::declared(&header) {
        let found = all.contains(&format!(".Fn {name} "));
        assert_eq!(found, !inner.contains(&&*name), "{name}");
    }
    for line in header.lines() {
        let mut words = line.split_whitespace();
        let macro_ = words.next() == Some("#define");
        let name = words.next().unwrap_or_default();
        let name = name.split('(').next().unwrap_or_default();
        if macro_ && !name.ends_with('_') && name != "CAPRIOLE_PROBE_H" {
            assert!(all.contains(name), "{name}");
        }
        let constant = line.trim().split([' ', ',']).next().unwrap_or_default();
        if constant.starts_with("CAPRIOLE_") && line.contains(" = ") {
            assert!(all.contains(constant), "{constant}");
        }
    }
}

#[test]
fn fields_are_those_of_the_header() {
    let header = std::fs::read_to_string(root().join("include/capriole/probe.h")).unwrap();
    let plain = |line: &str| {
        let line = line.split("/*").next().unwrap_or_default();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let fields: Vec<String> = header.lines().map(plain).collect();
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let mut inside = false;
        for line in text.lines() {
            if line.starts_with("struct ") && line.ends_with('{') {
                inside = true;
            } else if line.starts_with('}') {
                inside = false;
            } else if inside {
                assert!(fields.contains(&plain(line)), "{page:?}: {line}");
            }
        }
    }
}

/// Builds a program with a static library, runs it, and looks for a text in its output.
fn runs(program: &str, libraries: &Path, wanted: &str) {
    let (source, out) = (libraries.join("program.c"), libraries.join("program"));
    std::fs::write(&source, program).unwrap();
    quiet(
        Command::new("cc")
            .args("-std=gnu99 -Wall -Wextra -Werror -O1 -I".split(' '))
            .arg(root().join("include"))
            .arg(&source)
            .arg(libraries.join("libcapriole.a"))
            .arg("-o")
            .arg(&out),
    );
    // One of them makes a file.
    let output = probing(Command::new(&out).current_dir(libraries));
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}: {wrong}\n{program}",
        output.status
    );
    assert!(said.contains(wanted), "{said}\n{program}");
}

#[test]
fn the_programs_of_the_guide_run() {
    let guide = std::fs::read_to_string(root().join("docs/probes.md")).unwrap();
    let directory = libraries("cc");
    let programs: Vec<&str> = guide
        .split("```c\n")
        .skip(1)
        .map(|block| block.split("```").next().unwrap())
        .collect();
    let said = [
        "1000 calls of malloc, 600000 bytes\n",
        "usleep returned 0 after ",
        "sleep(3600)\n",
        "half done=4\n",
        "recorded\n",
    ];
    assert_eq!(programs.len(), said.len());
    for (program, wanted) in programs.iter().zip(said) {
        runs(program, directory.path(), wanted);
    }
}

#[test]
fn the_program_of_the_overview_runs() {
    let page = text("capriole.7");
    let (_, program) = page
        .split_once(".Bd -literal\n#include")
        .expect("a program");
    let (program, _) = program.split_once(".Ed\n").expect("its end");
    let program = format!("#include{}", program.replace("\\e", "\\"));
    let directory = libraries("cc");
    let counted = "1000 calls for less than 2^10 bytes\n";
    runs(&program, directory.path(), counted);
}
