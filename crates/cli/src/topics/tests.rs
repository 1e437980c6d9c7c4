use super::*;
use capriole_manual::terminal::{Look, text};

#[test]
fn all_chapters_are_in_the_documentation() {
    for topic in ALL {
        let blocks = topic.parts();
        let blocks = blocks.unwrap_or_else(|| panic!("{}: a chapter is missing", topic.name));
        let shown = text(&blocks, 80, Look::Plain);
        assert!(shown.lines().count() >= 5, "{}: {shown}", topic.name);
    }
}

#[test]
fn no_topic_is_listed_twice_or_has_the_name_of_a_command() {
    use clap::CommandFactory as _;
    let command = crate::Cli::command();
    for (at, topic) in ALL.iter().enumerate() {
        assert!(
            command.find_subcommand(topic.name).is_none(),
            "{}",
            topic.name
        );
        assert!(ALL[..at].iter().all(|other| other.name != topic.name));
        assert!(
            topic.name.len() + topic.about.len() + 4 <= 80,
            "{}",
            topic.name
        );
    }
}

#[test]
fn help_knows_all_commands() {
    use clap::CommandFactory as _;
    let command = crate::Cli::command();
    let shown = command.get_subcommands().filter(|c| !c.is_hide_set());
    let shown: Vec<&str> = shown.map(clap::Command::get_name).collect();
    assert_eq!(shown, crate::COMMANDS.map(|(name, _)| name));
}

/// Splits a command line as a shell does, up to a pipe.
fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut open, mut quoted) = (Vec::new(), None::<String>, false);
    for c in line.chars() {
        match c {
            '\'' => {
                quoted = !quoted;
                open.get_or_insert_default();
            }
            '|' if !quoted => break,
            ' ' if !quoted => words.extend(open.take()),
            c => open.get_or_insert_default().push(c),
        }
    }
    assert!(!quoted, "{line}");
    words.extend(open);
    words
}

#[test]
fn the_examples_are_valid_commands_with_valid_events() {
    use crate::Command;
    use capriole_select::definitions::{parse_counted, parse_plain};
    use clap::Parser as _;
    let lines = EXAMPLES
        .lines()
        .filter(|line| line.starts_with("capriole "));
    let mut examples = 0;
    for line in lines {
        let words = shell_words(&line.replace("PID", "4711"));
        let parsed = crate::Cli::try_parse_from(&words);
        let parsed = parsed.unwrap_or_else(|error| panic!("{line}: {error}"));
        let after = |option: &str| -> Vec<String> {
            let pairs = words.windows(2).filter(|pair| pair[0] == option);
            pairs.map(|pair| pair[1].clone()).collect()
        };
        let (events, graph) = (after("-e"), after("--graph"));
        let events = match parsed.command {
            Command::Stat(_) => parse_counted(&events, &[]).map(|events| events.len()),
            Command::Record(_) => {
                let all = [events, graph].concat();
                parse_plain(&all, &[]).map(|events| events.len())
            }
            _ => Ok(1),
        };
        assert!(events.as_ref().is_ok_and(|n| *n > 0), "{line}: {events:?}");
        examples += 1;
    }
    assert!(examples > 20, "{examples}");
}
