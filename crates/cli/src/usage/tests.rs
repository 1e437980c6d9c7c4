//! Each message has one line, no words of the parser, and no wrong suggestion.

use clap::Parser as _;
use std::ffi::OsString;

fn said(line: &str) -> String {
    let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    let error = crate::Cli::try_parse_from([OsString::from("capriole")].iter().chain(&words))
        .expect_err("it is wrong");
    super::message(&error, &words).expect("a message of ours")
}

#[test]
fn command_lines_that_cannot_be_parsed() {
    let lines = [
        "record ls -l",
        "record -p 17",
        "record --pid=17 --duration 2s",
        "record -o x",
        "record -e :main",
        "record -e :main --min-duration 1us ls",
        "stat ls",
        "stat -m 4 -e :main ls",
        "stat 25450 -e handle",
        "stat -p 17 latency(:sleepy)",
        "stat -p 17 -e :main ls",
        "stat -p 17,18 -e :main",
        "record -p 17 -p 18 -e :main",
        "-p 17",
        "help nosuch",
        "stat -e :main",
        "check",
        "mark",
        "attach 1",
        "trace ls",
        "top",
        "script",
        "graph",
        "flamegraph",
        "info",
        "tplist",
        "stop 1",
        "recrod ls",
        "frobnicate",
        "record -g -e :main ls",
        "record -d 2s -e :main ls",
        "record -F 99 -e :main ls",
        "record --tid 17 -e :main -p 1",
        "record --sumary -e :main ls",
        "record --duratoin 2s -e :main ls",
        "report --tid 1",
        "report -g",
        "report -d 2s",
        "report --sumary",
        "report --frobnicate",
        "report one two",
        "report --graph --flame x",
        "report --depth 3",
        "report --graph --depth 0",
        "stat --keys 0 -e :main ls",
        "record -- ls -l",
        "report --sort size --summary",
        "stat -o x -e :main ls",
        "stat --top x -e :main ls",
        "stat --interval 1parsec -e :main ls",
        "stat --interval 1us -e :main ls",
        "record --buffer-size 12 -e :main ls",
        "stat --interval 0 -e :main ls",
        "stat --duration 0 -e :main ls",
        "record --duration 0ms -e :main -p 17",
        "record --duration 0.1ns -e :main ls",
        "record --duration",
        "record -e :main -p 1 ls",
        "record --json --json -e :main ls",
        "list -e libc:read -p 1",
    ];
    let all = lines.map(|line| {
        let said = said(line);
        assert!(
            !said.contains('\n') && !said.contains("tip:"),
            "{line}: {said}"
        );
        format!("$ capriole {line}\ncapriole: {said}\n")
    });
    insta::assert_snapshot!(all.join("\n"));
}
