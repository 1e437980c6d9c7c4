//! No library crate uses words of the command: its options, or `capriole` and a subcommand.

use clap::CommandFactory;
use std::fs;
use std::path::Path;

/// Crates that are programs, or parts of tests.
const PROGRAMS: [&str; 3] = ["bench", "cli", "testkit"];
/// String literals that name an option of another program: the file, and a part of the literal.
const EXCEPTIONS: [(&str, &str); 2] = [
    ("proc/src/process/error.rs", "docker run --cap-add"),
    ("engine/src/names.rs", "start node with --perf-basic-prof"),
];

#[test]
fn libraries_leave_the_words_of_the_command_to_it() {
    let command = crate::Cli::command();
    let verbs: Vec<String> = command
        .get_subcommands()
        .map(|verb| format!("capriole {}", verb.get_name()))
        .collect();
    assert!(verbs.contains(&"capriole detach".to_owned()), "{verbs:?}");
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut sources = Vec::new();
    for krate in fs::read_dir(&crates).unwrap() {
        let krate = krate.unwrap();
        let name = krate.file_name().into_string().unwrap();
        if !PROGRAMS.contains(&name.as_str()) {
            add_sources(&krate.path().join("src"), &mut sources);
        }
    }
    assert!(sources.len() > 100, "{}", sources.len());
    let mut found = Vec::new();
    let mut excepted = 0;
    for source in &sources {
        let place = source.strip_prefix(&crates).unwrap().display().to_string();
        for literal in literals(&fs::read_to_string(source).unwrap()) {
            if !names_option(&literal) && !verbs.iter().any(|verb| names(&literal, verb)) {
                continue;
            }
            let is_excepted =
                |(file, part): &(&str, &str)| place == *file && literal.contains(part);
            match EXCEPTIONS.iter().any(is_excepted) {
                true => excepted += 1,
                false => found.push(format!("{place}: {literal:?}")),
            }
        }
    }
    assert_eq!(found, Vec::<String>::new(), "use `Advice` for these");
    assert_eq!(excepted, EXCEPTIONS.len());
}

/// Collects the sources of a crate, without those that are only tests.
fn add_sources(directory: &Path, sources: &mut Vec<std::path::PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if name != "tests" {
                add_sources(&path, sources);
            }
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            sources.push(path);
        }
    }
}

/// True if a text has a long option.
fn names_option(text: &str) -> bool {
    let mut options = text.match_indices("--");
    options.any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + 2..]);
        after.starts_with(|c: char| c.is_ascii_lowercase())
            && !before.ends_with(|c: char| c.is_alphanumeric() || c == '-')
    })
}

/// True if a text has these words, and no longer ones.
fn names(text: &str, words: &str) -> bool {
    let mut places = text.match_indices(words);
    places.any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + words.len()..]);
        !before.ends_with(char::is_alphanumeric) && !after.starts_with(char::is_alphanumeric)
    })
}

/// Returns the string literals of a source up to its tests, with continued lines joined.
fn literals(source: &str) -> Vec<String> {
    let mut rest = source.split("#[cfg(test)]\nmod ").next().unwrap_or("");
    let mut all = Vec::new();
    while let Some(first) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
        } else if rest.starts_with("/*") {
            rest = rest.split_once("*/").map_or("", |(_, rest)| rest);
        } else if let Some((hashes, raw)) = raw_string(rest) {
            let end = format!("\"{}", "#".repeat(hashes));
            let (literal, after) = raw.split_once(&end).unwrap_or((raw, ""));
            all.push(literal.to_owned());
            rest = after;
        } else if first == '"' {
            let end = closing(&rest[1..]);
            all.push(joined(&rest[1..1 + end]));
            rest = rest.get(end + 2..).unwrap_or("");
        } else if let Some(after) = character(rest) {
            rest = after;
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    all
}

/// If a raw string begins here: the number of its hashes, and everything behind its quote.
fn raw_string(text: &str) -> Option<(usize, &str)> {
    let text = text.strip_prefix('r')?;
    let hashes = text.len() - text.trim_start_matches('#').len();
    Some((hashes, text[hashes..].strip_prefix('"')?))
}

/// If a character literal begins here, everything behind it. A lifetime has no second quote.
fn character(text: &str) -> Option<&str> {
    let inside = text.strip_prefix('\'')?;
    let end = match inside.strip_prefix('\\') {
        Some(escaped) => 1 + escaped.chars().next()?.len_utf8(),
        None => inside.chars().next()?.len_utf8(),
    };
    inside[end..].strip_prefix('\'')
}

/// Returns the length of a string literal behind its opening quote.
fn closing(text: &str) -> usize {
    let mut escaped = false;
    let mut end = text.char_indices().filter(|(_, c)| {
        let ends = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    });
    end.next().map_or(text.len(), |(at, _)| at)
}

/// Removes line ends that are escaped, with the blanks behind them.
fn joined(literal: &str) -> String {
    let mut parts = literal.split("\\\n");
    let first = parts.next().unwrap_or("").to_owned();
    parts.fold(first, |all, part| all + part.trim_start())
}

#[test]
fn literals_are_found() {
    let source = "//! \"no\"\nlet a = \"one \\\n   two\"; let b: &'static str = r#\"th\"ree\"#;\n\
                  let c = '\"'; /* \"no\" */ let d = \"\\\"--four\";\n\
                  #[cfg(test)]\nmod tests { \"no\" }";
    assert_eq!(literals(source), ["one two", "th\"ree", "\\\"--four"]);
    assert!(names_option("see --buffer-size") && !names_option("r--p --- --X"));
    assert!(names("`capriole list`", "capriole list") && !names("capriole lists", "capriole list"));
}
