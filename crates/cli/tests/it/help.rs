//! Help, its topics, manual pages, the version, and the amount of messages.

use crate::programs::{Compiler, build};
use crate::target::{Running, capriole, command, told};
use crate::tools::{have, root, run};
use crate::traces::{Background, scratch, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use unicode_width::UnicodeWidthStr as _;

const COMMANDS: [&str; 8] = [
    "record", "report", "stat", "list", "check", "detach", "mark", "help",
];

/// Returns what a command prints that succeeds and prints no errors, on so many columns.
fn printed(words: &[&str], columns: usize) -> String {
    let mut command = command(words);
    let output = command.env("COLUMNS", columns.to_string()).output();
    let output = output.expect("capriole starts");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{words:?}: {}",
        told(&output)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The names of all topics, as `capriole help` lists them.
fn topics() -> Vec<String> {
    let all = printed(&["help"], 100);
    let (_, topics) = all.split_once("Topics").expect("topics");
    let names = topics.lines().skip(1).map(|line| {
        let name = line.split_whitespace().next();
        name.expect("a name").to_owned()
    });
    names.collect()
}

#[test]
fn of_the_commands() {
    insta::assert_snapshot!("help", printed(&["--help"], 100));
    for command in COMMANDS {
        let help = printed(&[command, "--help"], 100);
        insta::assert_snapshot!(format!("help_{command}"), help);
        assert_eq!(printed(&["help", command], 100), help);
    }
    assert_eq!(printed(&["help"], 100), printed(&["--help"], 100));
}

#[test]
fn lines_are_no_longer_than_the_terminal_is_wide() {
    let topics = topics();
    assert!(topics.len() >= 15, "{topics:?}");
    for columns in [60, 80] {
        let topics = topics.iter().map(String::as_str);
        for word in COMMANDS.into_iter().chain(topics) {
            let help = printed(&["help", word], columns);
            assert!(help.lines().count() > 4, "{word}: {help}");
            for line in help.lines() {
                assert!(line.width() <= columns, "{word} at {columns}: {line}");
            }
        }
        for line in printed(&["--help"], columns).lines() {
            assert!(line.width() <= columns, "at {columns}: {line}");
        }
    }
}

#[test]
fn topics_are_chapters_of_the_documentation() {
    let letters = |text: &str| -> String { text.chars().filter(|c| c.is_alphanumeric()).collect() };
    for (topic, page, start, end) in [
        ("filters", "events-reference.md", "## Filters\n", "```"),
        ("types", "events-reference.md", "### Types\n", "\n|"),
        (
            "aggregates",
            "events-reference.md",
            "## Aggregates and keys\n",
            "\n|",
        ),
        ("exit-codes", "README.md", "## Exit statuses\n", "\n#"),
        (
            "stacks",
            "events-reference.md",
            "## Call stacks\n",
            "](report.md",
        ),
    ] {
        let page = std::fs::read_to_string(root().join("docs").join(page)).expect("a page");
        let (_, chapter) = page.split_once(start).expect(start);
        let (chapter, _) = chapter.split_once(end).unwrap_or((chapter, ""));
        let shown = letters(&printed(&["help", topic], 72));
        let wanted = letters(chapter);
        assert!(
            shown.contains(&wanted),
            "{topic}: {wanted} is not in {shown}"
        );
    }
}

#[test]
fn a_word_that_is_no_topic_is_an_error_that_names_a_similar_one() {
    let output = capriole(&["help", "filter"]);
    assert_eq!(output.status.code(), Some(2), "{}", told(&output));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("similar: `filters`"), "{said}");
    for hidden in ["generate", "probe-helper"] {
        assert_eq!(
            capriole(&["help", hidden]).status.code(),
            Some(2),
            "{hidden}"
        );
        assert!(!printed(&["help"], 100).contains(hidden));
    }
}

#[test]
fn the_version_has_the_commit_of_the_source() {
    let package = concat!("capriole ", env!("CARGO_PKG_VERSION"));
    let short = printed(&["-V"], 100);
    let long = printed(&["--version"], 100);
    assert_eq!(long.lines().next(), short.lines().next());
    assert_eq!(short.lines().count(), 1);
    assert!(long.contains("\ntarget: x86_64-unknown-linux-"), "{long}");
    if !root().join(".git").exists() {
        assert_eq!(short, format!("{package}\n"));
        return println!("skipped: no git checkout, so no commit in the version");
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(root())
            .args(arguments)
            .output();
        let output = output.expect("git runs");
        String::from_utf8(output.stdout)
            .expect("UTF-8")
            .trim_end()
            .to_owned()
    };
    let commit = git(&["log", "-1", "--abbrev=10", "--format=%h %cs"]);
    assert_eq!(short, format!("{package} ({commit})\n"));
    let id = git(&["rev-parse", "HEAD"]);
    assert!(long.contains(&format!("\ncommit: {id}\n")), "{long}");
}

/// Runs the build script for a source tree of its own.
fn build_script(tree: &Path, script: &Path) -> String {
    let own = tree.join("crates/cli");
    std::fs::create_dir_all(&own).expect("a directory");
    let mut command = Command::new(script);
    command
        .current_dir(&own)
        .env("CARGO_MANIFEST_DIR", &own)
        .env("TARGET", "x")
        .env("PROFILE", "y");
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", told(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn sources_without_a_repository_of_their_own_have_no_commit() {
    let scratch = scratch();
    let script = scratch.path().join("script");
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition=2024", "-o", text(&script)]);
    let built = rustc.arg(root().join("crates/cli/build.rs")).output();
    let built = built.expect("rustc runs");
    assert!(built.status.success(), "{}", told(&built));

    let tree = scratch.path().join("outer/capriole");
    assert!(!build_script(&tree, &script).contains("COMMIT"));
    let git = |directory: &Path, arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(directory).args(arguments);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null");
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "a");
            command.env(format!("GIT_{who}_EMAIL"), "a@b");
            command.env(format!("GIT_{who}_DATE"), "2026-02-03T04:05:06Z");
        }
        run(&mut command)
    };
    // In the repository of a distribution, say.
    let outer = scratch.path().join("outer");
    git(&outer, &["init", "-q"]);
    git(&outer, &["commit", "-q", "--allow-empty", "-m", "x"]);
    assert!(!build_script(&tree, &script).contains("COMMIT"));
    // In its own, at a tag.
    git(&tree, &["init", "-q"]);
    git(&tree, &["commit", "-q", "--allow-empty", "-m", "x"]);
    git(&tree, &["tag", "v9.8.7"]);
    let said = build_script(&tree, &script);
    assert!(said.contains("CAPRIOLE_DESCRIBED=v9.8.7\n"), "{said}");
    assert!(said.contains(" 2026-02-03\n"), "{said}");
    assert!(said.contains("rerun-if-changed="), "{said}");
}

/// Writes the manual pages, and returns their paths.
fn pages(prefix: &Path) -> Vec<PathBuf> {
    let output = capriole(&["generate", "man", text(prefix)]);
    assert!(output.status.success(), "{}", told(&output));
    let mut pages = Vec::new();
    for section in ["man1", "man7"] {
        let directory = prefix.join("share/man").join(section);
        let entries = std::fs::read_dir(directory).expect("pages");
        pages.extend(entries.map(|entry| entry.expect("a page").path()));
    }
    pages.sort();
    pages
}

#[test]
fn no_tool_complains_about_the_manual_pages() {
    let scratch = scratch();
    let pages = pages(scratch.path());
    // One for each command, also `bench`; capriole(1) and capriole-events(7).
    assert_eq!(pages.len(), COMMANDS.len() + 3, "{pages:?}");
    for (tool, options) in [
        ("mandoc", "-Tlint -Wwarning"),
        ("groff", "-man -ww -rCHECKSTYLE=3 -Tutf8 -z"),
        ("man", "--warnings --local-file"),
    ] {
        if !have(tool) {
            println!("skipped: no {tool}");
            continue;
        }
        for page in &pages {
            for columns in ["60", "80"] {
                let mut command = Command::new(tool);
                command.args(options.split(' ')).arg(page);
                command
                    .env("LC_ALL", "C.UTF-8")
                    .env("MANPAGER", "cat")
                    .env("MANWIDTH", columns);
                let output = command.output().expect("it runs");
                assert!(output.status.success(), "{tool}: {}", told(&output));
                let said = String::from_utf8_lossy(&output.stderr);
                assert_eq!(said, "", "{tool}: {page:?}");
                let shown = String::from_utf8_lossy(&output.stdout);
                match tool {
                    "man" => {
                        for heading in ["NAME", "DESCRIPTION", "SEE ALSO"] {
                            assert!(shown.contains(heading), "{page:?}: {heading}");
                        }
                    }
                    _ => assert_eq!(shown, "", "{tool}: {page:?}"),
                }
            }
        }
    }
    if !have("lexgrog") {
        return println!("skipped: no lexgrog");
    }
    // `apropos` and `whatis` find each page.
    for page in &pages {
        let output = Command::new("lexgrog").arg(page).output().expect("it runs");
        assert!(output.status.success(), "{page:?}: {}", told(&output));
    }
}

fn stderr(output: &Output) -> String {
    assert!(output.status.success(), "{}", told(output));
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[test]
fn quiet_prints_what_is_missing_and_nothing_else() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let (program, scratch) = (text(&program).to_owned(), scratch());
    let trace = scratch.path().join("t");
    let record = |words: &[&str]| {
        let first = ["record", "-o", text(&trace)];
        capriole(&[&first[..], words, &["--", &program]].concat())
    };
    let stat = |words: &[&str]| capriole(&[&["stat"], words, &["--", &program]].concat());
    let event = ["-e", ":counted_work"];
    for quiet in ["-q", "--quiet"] {
        let words = [&[quiet], &event[..]].concat();
        assert_eq!(stderr(&record(&words)), "");
        let counted = stat(&words);
        assert_eq!(stderr(&counted), "");
        let table = String::from_utf8_lossy(&counted.stdout);
        assert!(table.contains("counted_work"), "{table}");
    }
    assert!(stderr(&record(&event)).contains(" -> "));
    // A function that does not return has no exit that could be probed.
    let words = ["-q", "-e", "libc:a*%return"];
    let said = stderr(&record(&words));
    assert!(said.starts_with("capriole: left out: "), "{said}");
    assert!(!said.contains(" -> "), "{said}");

    let words = ["-q", "-v", "-e", ":counted_work"];
    assert_eq!(record(&words).status.code(), Some(2));
}

#[test]
fn verbose_prints_sites_reasons_and_times() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let (program, scratch) = (text(&program).to_owned(), scratch());
    let trace = scratch.path().join("t");
    let recorded = |words: &[&str]| {
        let first = [
            "record",
            "-o",
            text(&trace),
            "-e",
            ":counted_work",
            "-e",
            "libc:a*%return",
        ];
        stderr(&capriole(&[&first[..], words, &["--", &program]].concat()))
    };
    let normal = recorded(&[]);
    for option in ["-v", "--verbose"] {
        let said = recorded(&[option]);
        let site = said.lines().find(|line| line.contains("  counted_work ("));
        let site: Vec<&str> = site
            .unwrap_or_else(|| panic!("{said}"))
            .split_whitespace()
            .collect();
        assert!(site[0].starts_with("0x"), "{site:?}");
        assert_eq!(site[2], "optimised", "{site:?}");
        for phase in [
            "functions found, probes planned",
            "probes inserted",
            "trace completed",
        ] {
            let start = format!("capriole: {phase}: ");
            assert!(
                said.lines().any(|line| line.starts_with(&start)),
                "{phase}: {said}"
            );
            assert!(!normal.contains(&start), "{normal}");
        }
        assert!(said.contains("abort__return: it never returns"), "{said}");
        assert!(!said.contains("For example"), "{said}");
    }
    assert!(!normal.contains("  counted_work ("), "{normal}");

    // The options stand before the command as well, and every command has them.
    let list = |words: &[&str]| stderr(&capriole(&[words, &["list", &program]].concat()));
    assert!(list(&["-v"]).contains("capriole: file read: "));
    let report = capriole(&["report", "-v", "--summary", text(&trace)]);
    assert!(stderr(&report).contains("capriole: trace opened: "));
}

#[test]
fn detach_takes_its_process_as_the_other_commands_do() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let running = Running::start(&program, &["--wait"]);
    let pid = running.pid.to_string();
    let scratch = scratch();
    for quiet in [false, true] {
        let trace = scratch.path().join("t");
        let recorder = Background::attach(&trace, running.pid, &[":counted_work"]);
        let mut words = vec!["detach", "-p", &pid];
        words.extend(quiet.then_some("-q"));
        let output = capriole(&words);
        assert_eq!(stderr(&output), "");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.is_empty(), quiet, "{said}");
        assert_eq!(recorder.ended_by_itself()["ended"], "detached");
    }
    for words in [&["detach"][..], &["detach", "-p", "1", "1"]] {
        assert_eq!(capriole(words).status.code(), Some(2));
    }
    drop(running);
}
