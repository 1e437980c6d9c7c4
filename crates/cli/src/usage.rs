//! Messages for command lines that cannot be parsed: one line, with what to write instead.

mod hints;

use crate::subject;
use crate::topics;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use std::ffi::OsString;

/// Formats an error of the parser; `words` is the command line without the command itself. `None`
/// if the parser's own text, such as a page of help, is to be printed.
pub fn message(error: &Error, words: &[OsString]) -> Option<String> {
    let words: Vec<String> = words
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let command = words.first().map_or("", String::as_str);
    let argument = || one(error, ContextKind::InvalidArg).unwrap_or_default();
    Some(match error.kind() {
        ErrorKind::InvalidSubcommand => {
            unknown_command(&one(error, ContextKind::InvalidSubcommand)?)
        }
        ErrorKind::MissingSubcommand => "no command; `capriole help` lists them".to_owned(),
        ErrorKind::UnknownArgument => unknown_argument(error, command, &argument()),
        ErrorKind::MissingRequiredArgument => {
            missing(command, &all(error, ContextKind::InvalidArg), &words)
        }
        ErrorKind::ArgumentConflict => {
            let others = all(error, ContextKind::PriorArg);
            let argument = argument();
            match others
                .iter()
                .chain([&argument])
                .any(|name| name.contains("PROGRAM"))
            {
                true => match event_without_option(&words) {
                    Some(event) => format!("events stand behind -e: write -e '{event}'"),
                    None => "give either -p PID or a program to start, not both".to_owned(),
                },
                false if others == [argument.clone()] && argument.contains("--pid") => {
                    format!("--pid PID is given twice; {}", subject::ONE_PROCESS)
                }
                false if others == [argument.clone()] => {
                    format!("{} is given twice; give it once", plain(&argument))
                }
                false => format!(
                    "{} and {} exclude each other; give one of them",
                    plain(&argument),
                    named(&others, "and")
                ),
            }
        }
        ErrorKind::InvalidValue if command == "help" => no_topic(error),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => wrong_value(error, &argument()),
        ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues | ErrorKind::TooManyValues => {
            format!(
                "{} has a wrong number of values{}",
                plain(&argument()),
                see(command)
            )
        }
        ErrorKind::InvalidUtf8 => "an argument is not text in UTF-8; only the program to start \
                                   and its arguments, and names of files, may have other bytes"
            .to_owned(),
        _ => return None,
    })
}

/// Returns the first word that looks like an event, if none stands behind an option.
fn event_without_option(words: &[String]) -> Option<&str> {
    let options = ["-e", "--event", "-f", "--file"];
    let is_option = |word: &String| options.iter().any(|option| word.starts_with(option));
    let mut others = words.iter().skip(1);
    let event = others.find(|word| !word.starts_with('-') && word.contains(':'));
    event
        .filter(|_| !words.iter().any(is_option))
        .map(String::as_str)
}

/// Formats that the word behind `help` is neither a command nor a topic.
fn no_topic(error: &Error) -> String {
    let word = one(error, ContextKind::InvalidValue).unwrap_or_default();
    let near = |similar: &String| {
        similar.starts_with(&word) || hints::is_near(word.as_bytes(), similar.as_bytes())
    };
    if let Some(similar) = one(error, ContextKind::SuggestedValue).filter(near) {
        return format!("there is no command or topic `{word}`; similar: `{similar}`");
    }
    let topics: Vec<&str> = topics::ALL.iter().map(|topic| topic.name).collect();
    format!(
        "there is no command or topic `{word}`; the topics are {}",
        topics.join(", ")
    )
}

/// Returns a text of the error's context.
fn one(error: &Error, kind: ContextKind) -> Option<String> {
    all(error, kind).into_iter().next()
}

/// Returns the texts of the error's context.
fn all(error: &Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

/// Formats `--pid <PID>` as `--pid PID`.
fn plain(argument: &str) -> String {
    argument.replace(['<', '>'], "")
}

/// Joins names of arguments: `A`, `A and B`, `A, B and C`.
fn named(arguments: &[String], and: &str) -> String {
    let names: Vec<String> = arguments.iter().map(|name| plain(name)).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} {and} {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Points to the help of a command.
fn see(command: &str) -> String {
    format!("; see `capriole {command} --help`")
}

fn unknown_command(word: &str) -> String {
    let hint = match hints::command(word) {
        Some(hint) => hint.to_owned(),
        None => match hints::misspelt(word) {
            Some(similar) => format!("similar: `{similar}`"),
            None => "`capriole help` lists the commands".to_owned(),
        },
    };
    format!("there is no command `{word}`; {hint}")
}

fn unknown_argument(error: &Error, command: &str, argument: &str) -> String {
    if !argument.starts_with('-') {
        return format!(
            "`{argument}` is one argument too many for `capriole {command}`{}",
            see(command)
        );
    }
    if command.starts_with('-') {
        return format!("name a command first, as in `capriole stat {command} ...`");
    }
    let hint = match (
        hints::option(command, argument),
        one(error, ContextKind::SuggestedArg),
    ) {
        (Some(hint), _) => hint.to_owned(),
        (None, Some(similar)) => format!("similar: `{}`", plain(&similar)),
        (None, None) => format!("`capriole {command} --help` lists all"),
    };
    format!("`capriole {command}` has no option `{argument}`; {hint}")
}

/// Formats that required arguments are missing.
fn missing(command: &str, missing: &[String], words: &[String]) -> String {
    let lacks = |name: &str| missing.iter().any(|argument| argument.contains(name));
    if let "record" | "stat" = command {
        let example = match command {
            "record" => "capriole record -e 'libc:malloc size=$arg1'",
            _ => "capriole stat -e 'libc:malloc hist(size=$arg1)'",
        };
        if lacks("--event") {
            let nothing = match command {
                "record" => "nothing to record",
                _ => "nothing to count",
            };
            if let Some(pid) = words.get(1).filter(|word| word.parse::<u32>().is_ok()) {
                return format!("a process is given by -p: write `capriole {command} -p {pid}`");
            }
            let (subject, list) = subject(words);
            return format!(
                "{nothing}: name a function, as in `{example} {subject}`; `capriole list {list}` \
                 shows names, `capriole {command} --help` the syntax",
            );
        }
        if lacks("PROGRAM") {
            return format!(
                "no program: give -p PID for a running one, or a program to start, as in \
                 `{example} -- ls`"
            );
        }
    }
    match command {
        "check" => "no event: name a function, as in `capriole check libc:malloc -p PID` or \
                    `capriole check :main ./program`; `capriole list` shows names"
            .to_owned(),
        "detach" => "no process: write `capriole detach PID`".to_owned(),
        "mark" => "no message: write `capriole mark TEXT...`".to_owned(),
        _ => {
            let needed = named(missing, "and");
            let options = words.iter().filter_map(|word| word.split('=').next());
            let given = options.filter(|option| needs_another(option));
            let given: Vec<String> = given.map(str::to_owned).collect();
            match given.len() {
                0 => format!("{needed} is needed{}", see(command)),
                1 => format!("{} needs {needed}", given[0]),
                _ => format!("{} need {needed}", named(&given, "and")),
            }
        }
    }
}

/// True for options that have a meaning only together with another one.
fn needs_another(word: &str) -> bool {
    ["--depth", "--min-duration", "--sort", "--instructions"].contains(&word)
}

/// Returns the program that a command line names, as it was written, and how to name it for `list`.
fn subject(words: &[String]) -> (String, String) {
    let words = &words[1..];
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let pid = match word.as_str() {
            "-p" | "--pid" => rest.next().map(String::as_str),
            word => word
                .strip_prefix("--pid=")
                .or_else(|| word.strip_prefix("-p")),
        };
        if let Some(pid) = pid {
            return (format!("-p {pid}"), format!("-p {pid}"));
        }
    }
    let program: Vec<&String> = match words.iter().position(|word| word == "--") {
        Some(at) => words[at + 1..].iter().collect(),
        // Behind an option it is not known where the program begins.
        None if words.first().is_some_and(|word| word.starts_with('-')) => Vec::new(),
        None => words.iter().collect(),
    };
    let quoted = |word: &&String| {
        let safe = |c: char| c.is_ascii_alphanumeric() || "_-./:=+,@%".contains(c);
        match !word.is_empty() && word.chars().all(safe) {
            true => word.to_string(),
            false => format!("'{}'", word.replace('\'', r"'\''")),
        }
    };
    match program.first() {
        Some(first) => {
            let all: Vec<String> = program.iter().map(quoted).collect();
            (format!("-- {}", all.join(" ")), quoted(first))
        }
        None => ("-p PID".to_owned(), "-p PID".to_owned()),
    }
}

/// Formats a range of numbers in the parser's notation, `1..4` or `1..=3`.
fn within(range: &str) -> String {
    let (low, high) = range.split_once("..").unwrap_or((range, ""));
    let last = match high.strip_prefix('=') {
        Some(last) => last.parse::<u64>().ok(),
        None => high
            .parse::<u64>()
            .ok()
            .and_then(|high| high.checked_sub(1)),
    };
    match last.filter(|last| *last < u64::from(u32::MAX) - 1) {
        Some(last) => format!("a number from {low} to {last} is needed"),
        None => format!("a number from {low} on is needed"),
    }
}

/// Formats that an option's value cannot be used.
fn wrong_value(error: &Error, argument: &str) -> String {
    let value = one(error, ContextKind::InvalidValue).unwrap_or_default();
    let argument = plain(argument);
    let valid = all(error, ContextKind::ValidValue);
    if value.is_empty() && valid.is_empty() {
        return match argument.split_once(' ') {
            Some((option, values)) => format!("{option} needs {values} right behind it"),
            None => format!("{argument} has no value"),
        };
    }
    if let Some(similar) = one(error, ContextKind::SuggestedValue) {
        return format!("{argument}: `{value}` is not one of its values; similar: `{similar}`");
    }
    if !valid.is_empty() {
        return format!(
            "{argument}: `{value}` is not one of its values, which are {}",
            named(&valid, "and")
        );
    }
    let reason = std::error::Error::source(error).map(|source| source.to_string());
    let reason = match reason {
        // The standard library's words for a number.
        Some(reason) if reason.contains(" is not in ") => match reason.rsplit_once(" is not in ") {
            Some((_, range)) => within(range),
            None => reason,
        },
        Some(reason) if reason.contains("digit") => "a whole number is needed".to_owned(),
        Some(reason) if reason.contains("number too") => "the number is too large".to_owned(),
        Some(reason) => reason,
        None => "it cannot be used".to_owned(),
    };
    format!("{argument}: `{value}`: {reason}")
}

#[cfg(test)]
mod tests;
