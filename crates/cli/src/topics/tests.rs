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
