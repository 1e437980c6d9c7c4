//! Functions are found by the names that people use: without their library, without their namespace,
//! and, of indirect functions, without knowing the implementation; processes by the names of their
//! programs.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{events, record, scratch, text};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Number of rounds of the program.
const ROUNDS: u64 = 40;

fn program() -> Option<PathBuf> {
    build(
        Compiler::Gxx,
        "named.cpp",
        &["-g", "-fno-builtin", "-Wl,-z,now"],
    )
}

/// Counts an event in the program, from its start to its end.
fn count(event: &str, program: &Path) -> String {
    told(&capriole(&["stat", "-e", event, "--", text(program)]))
}

/// Returns the calls in the table of `stat`, and the event.
fn row(said: &str) -> Option<(u64, String)> {
    let mut lines = said
        .lines()
        .skip_while(|line| !line.starts_with("calls ") && !line.contains(" calls/s "));
    let row: Vec<&str> = lines.nth(1)?.split_whitespace().collect();
    Some((row.first()?.parse().ok()?, row.get(2..)?.join(" ")))
}

/// The program, waiting for its first line.
struct Waiting(Child);

impl Waiting {
    fn start(program: &Path) -> Waiting {
        let mut child = Command::new(program)
            .arg("wait")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut first = String::new();
        let output = child.stdout.take().expect("a pipe");
        BufReader::new(output)
            .read_line(&mut first)
            .expect("a line");
        assert_eq!(first, "ready\n");
        Waiting(child)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.stdin.take().map(|mut input| input.write_all(b"\n"));
        let _ = self.0.wait();
    }
}

#[test]
fn a_function_is_found_wherever_it_is() {
    let Some(program) = program() else { return };
    for (event, function, told) in [
        ("aligned_alloc", "aligned_alloc", Some(":aligned_alloc")),
        (
            "cost",
            "shop::cart::cost",
            Some("`cost` is shop::cart::cost(int, char const*)"),
        ),
        (
            "::cost",
            "shop::cart::cost",
            Some("`cost` is shop::cart::cost(int, char const*)"),
        ),
        (
            "cart::cost",
            "shop::cart::cost",
            Some("is shop::cart::cost("),
        ),
        (":cost", "shop::cart::cost", Some("is shop::cart::cost(")),
        ("shop::cart::cost", "shop::cart::cost", None),
        (
            "Box::get",
            "shop::cart::Box<int>::get",
            Some("`Box::get` is "),
        ),
        ("get", "shop::cart::Box<int>::get", Some("`get` is ")),
        ("shop::add(long)", "shop::add(long)", None),
        (
            "add(long)",
            "shop::add(long)",
            Some("`add(long)` is shop::add(long)"),
        ),
    ] {
        let said = count(event, &program);
        let (calls, name) = row(&said).unwrap_or_else(|| panic!("{event}: {said}"));
        assert_eq!(calls, ROUNDS, "{event}: {said}");
        assert!(
            name.contains(function) || function.contains(&name),
            "{event}: {said}"
        );
        match told {
            Some(told) => assert!(said.contains(told), "{event}: {said}"),
            None => assert!(!said.contains("` is "), "{event}: {said}"),
        }
    }
    let said = count("named.cpp:14", &program);
    assert_eq!(row(&said).map(|row| row.0), Some(ROUNDS), "{said}");
}

#[test]
fn an_indirect_function_is_the_one_in_use() {
    let Some(program) = program() else { return };
    for event in ["libc:strlen", "strlen"] {
        let said = count(event, &program);
        let (calls, name) = row(&said).unwrap_or_else(|| panic!("{said}"));
        // The C library calls it as well.
        assert!((2 * ROUNDS..3 * ROUNDS).contains(&calls), "{said}");
        assert_eq!(name, "strlen", "{said}");
    }
    let waiting = Waiting::start(&program);
    let pid = waiting.0.id().to_string();
    let said = told(&capriole(&["check", "libc:memcpy", "-p", &pid]));
    let library = said.split(", file offset").next().unwrap_or_default();
    let library = library.rsplit(' ').next().unwrap_or_default();
    assert!(said.contains("memcpy in /"), "{said}");
    // A file alone does not tell which one a process chooses.
    let offline = told(&capriole(&["check", ":strlen", library]));
    assert!(
        offline.contains("`strlen` is an indirect function (IFUNC)"),
        "{offline}"
    );
    assert!(offline.contains("-p PID"), "{offline}");
}

#[test]
fn where_a_name_means_nothing_or_too_much() {
    let Some(program) = program() else { return };
    let waiting = Waiting::start(&program);
    let pid = waiting.0.id().to_string();
    let check = |event: &str| told(&capriole(&["check", event, "-p", &pid]));
    let said = check("add");
    assert!(
        said.contains("`add` names 2 functions; choose one:"),
        "{said}"
    );
    assert!(
        said.contains("shop::add(int)") && said.contains("shop::add(long)"),
        "{said}"
    );
    let said = check("costt");
    assert!(said.contains("no function `costt` in /"), "{said}");
    assert!(said.contains("similar: `:shop::cart::cost`"), "{said}");
    let said = told(&capriole(&["list", "-p", &pid, "libc"]));
    assert!(
        said.contains("`libc` is no function; libc.so.6 is loaded"),
        "{said}"
    );
    assert!(said.contains("libc:*"), "{said}");
    // A pattern, too, is looked for in the program first.
    let said = told(&capriole(&["list", "-p", &pid, "aligned_all*"]));
    assert!(said.contains("aligned_alloc"), "{said}");
    let said = told(&capriole(&["list", "-p", &pid, "*cost*"]));
    assert!(said.contains("shop::cart::cost"), "{said}");
}

#[test]
fn a_program_is_found_by_its_name() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let name = format!("named-{}", std::process::id());
    let copy = directory.path().join(&name);
    std::fs::copy(&program, &copy).expect("copied");
    let said = told(&capriole(&["check", ":main", "-p", &name]));
    assert!(said.contains("no running process is called that"), "{said}");
    let one = Waiting::start(&copy);
    let said = told(&capriole(&["check", ":main", "-p", &name]));
    assert!(said.starts_with("exit status: 0"), "{said}");
    let two = Waiting::start(&copy);
    let said = told(&capriole(&["list", "-p", &name]));
    assert!(said.contains("2 processes are called that"), "{said}");
    for child in [&one, &two] {
        let line = format!("{:>7}  {} wait", child.0.id(), text(&copy));
        let start: String = line.chars().take(40).collect();
        assert!(said.contains(&start), "{said}");
    }
    drop((one, two));
    // A command is found in PATH, as it is when it is started.
    let said = told(&capriole(&["list", "ls", "--summary"]));
    assert!(said.starts_with("exit status: 0"), "{said}");
    let said = told(&capriole(&["list", "no-such-command"]));
    assert!(said.contains("no such file, and no such command"), "{said}");
}

#[test]
fn a_text_in_a_register_is_shown() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let event = r#"cost price=$arg1:s32 $arg2:string if arg2 == "pear""#;
    let said = told(&record(&trace, &["-e", event, "--", text(&program)]));
    assert!(said.starts_with("exit status: 0"), "{said}");
    let events = events(&trace);
    assert_eq!(events.len() as u64, ROUNDS / 2, "{said}");
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["arguments"]["arg2"], "pear", "{event}");
        assert_eq!(event["arguments"]["price"], 2 * at + 1, "{event}");
    }
}
