//! Manual pages: capriole(1), one page for each subcommand, and capriole-events(7).

use crate::topics;
use crate::version;
use capriole_manual::page::{Block, Page, Span, Style, text_of};
use capriole_manual::roff;
use clap::{Arg, Command, CommandFactory as _};
use std::fmt::Write as _;

#[cfg(test)]
mod tests;

/// Title of the manual, in the middle of each page's first line.
const MANUAL: &str = "Capriole Manual";

/// A manual page.
pub struct ManualPage {
    name: String,
    section: u8,
    /// The page, in the language of man(7).
    pub text: String,
}

impl ManualPage {
    /// Returns the path of the page's file below a prefix.
    pub fn path(&self) -> String {
        let ManualPage { name, section, .. } = self;
        format!("share/man/man{section}/{name}.{section}")
    }
}

/// Returns all manual pages.
pub fn pages() -> Vec<ManualPage> {
    let mut cli = crate::Cli::command();
    cli.build();
    let mut pages = vec![overview(&cli), events()];
    let shown = cli
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    pages.extend(shown.map(|command| subcommand(command, &cli)));
    pages
}

/// The page in `docs` about a command.
fn documentation(command: &str) -> Option<Page> {
    let text = match command {
        "record" => topics::RECORD,
        "stat" => topics::STAT,
        "report" => topics::REPORT,
        "list" => topics::LIST,
        "check" => topics::CHECK,
        "detach" => topics::DETACH,
        "mark" => topics::MARK,
        "bench" => topics::BENCH,
        _ => return None,
    };
    Some(Page::parse(text))
}

fn title(name: &str, section: u8) -> String {
    let source = format!("Capriole {}", version::PACKAGE);
    roff::title(name, section, version::date(), &source, MANUAL)
}

/// The NAME section.
fn named(name: &str, about: &str) -> String {
    let plain = |text: &str| roff::escaped(text, false);
    format!(
        ".SH \"NAME\"\n{} \\- {}\n",
        roff::escaped(name, true),
        plain(about)
    )
}

fn overview(cli: &Command) -> ManualPage {
    let mut text = title("capriole", 1);
    text += &named("capriole", &about(cli));
    text += ".SH \"SYNOPSIS\"\n";
    text += ".B capriole\n.I COMMAND\n.RI [ ARGUMENTS ]\n.br\n.B capriole help\n.RI [ COMMAND | TOPIC ]\n";
    let readme = Page::parse(topics::README);
    text += &roff::section("Description", &chapter(&readme, "Overview"));
    text += ".SH \"COMMANDS\"\n";
    for command in cli
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
    {
        let name = roff::escaped(command.get_name(), true);
        let about = roff::escaped(&about(command), false);
        let _ = write!(text, ".TP\n.BR capriole\\-{name} (1)\n{about}\n");
    }
    text += &options(cli, None);
    text += ".SH \"TOPICS\"\n";
    text += "\\fBcapriole help\\fR \\fITOPIC\\fR shows one of these:\n";
    for topic in topics::ALL {
        let name = roff::escaped(topic.name, true);
        let about = backquoted(topic.about);
        let _ = write!(text, ".TP\n.B {name}\n{about}");
    }
    for chapter in ["Messages", "Five minutes", "Words"] {
        text += &chapter_of(&readme, chapter, chapter);
    }
    text += &ending(&see_also(cli, "capriole"), &[("capriole", 7)]);
    ManualPage {
        name: "capriole".to_owned(),
        section: 1,
        text,
    }
}

fn events() -> ManualPage {
    let page = Page::parse(topics::EVENTS);
    let mut text = title("capriole-events", 7);
    text += &named(
        "capriole-events",
        "events of capriole: places in programs, and what is recorded there",
    );
    text += &roff::section("Description", page.opening());
    text += &roff::page(page.chapters());
    let others = [
        "capriole",
        "capriole-record",
        "capriole-stat",
        "capriole-list",
    ];
    let others: Vec<(String, u8)> = others.iter().map(|name| ((*name).to_owned(), 1)).collect();
    text += &also(&others);
    ManualPage {
        name: "capriole-events".to_owned(),
        section: 7,
        text,
    }
}

fn subcommand(command: &Command, cli: &Command) -> ManualPage {
    let own = command.get_name();
    let name = format!("capriole-{own}");
    let page = documentation(own);
    let mut text = title(&name, 1);
    text += &named(&name, &about(command));
    text += &synopsis(command);
    let mut details = Vec::new();
    match &page {
        Some(page) => {
            let opening: Vec<Block> = page
                .opening()
                .iter()
                .filter(|block| !is_usage(block, own) && !is_options(block))
                .cloned()
                .collect();
            text += &roff::section("Description", &opening);
            details.extend(page.blocks().iter().filter(|block| is_options(block)));
        }
        None => {
            let about = about(command);
            let _ = write!(
                text,
                ".SH \"DESCRIPTION\"\n{}.\n",
                roff::escaped(&about, false)
            );
        }
    }
    text += &options(command, Some(&details));
    let mut examples: Vec<Block> = chapter(&Page::parse(topics::EXAMPLES), own);
    if let Some(page) = page.as_ref().filter(|_| own != "bench") {
        for block in page.chapters() {
            let Block::Heading(2, spans) = block else {
                continue;
            };
            match text_of(spans).as_str() {
                "Options" => {
                    let rest = chapter(page, "Options");
                    let rest: Vec<Block> = rest.into_iter().filter(|b| !is_options(b)).collect();
                    if !rest.is_empty() {
                        text += &roff::section("Notes", &rest);
                    }
                }
                "Examples" => examples.extend(chapter(page, "Examples")),
                title => text += &chapter_of(page, title, title),
            }
        }
    }
    if !examples.is_empty() {
        text += &roff::section("Examples", &examples);
    }
    text += &ending(&see_also(cli, &name), &[("capriole-events", 7)]);
    ManualPage {
        name,
        section: 1,
        text,
    }
}

/// True for the lines in a page that show how its command is called.
fn is_usage(block: &Block, command: &str) -> bool {
    let start = format!("capriole {command} [");
    matches!(block, Block::Code(text) if text.starts_with(&start))
}

/// True for a table of options.
fn is_options(block: &Block) -> bool {
    matches!(block, Block::Table(head, _) if head.first().is_some_and(|title| text_of(title) == "option"))
}

/// Returns a chapter without its heading.
fn chapter(page: &Page, title: &str) -> Vec<Block> {
    let blocks = page.chapter(title).unwrap_or_default();
    blocks.iter().skip(1).cloned().collect()
}

fn chapter_of(page: &Page, title: &str, heading: &str) -> String {
    roff::section(heading, &chapter(page, title))
}

fn about(command: &Command) -> String {
    command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default()
}

/// Returns a line in which text in back quotes is bold.
fn backquoted(text: &str) -> String {
    let style = |at: usize| {
        if at % 2 == 1 {
            Style::Code
        } else {
            Style::Plain
        }
    };
    let spans: Vec<Span> = text
        .split('`')
        .enumerate()
        .map(|(at, text)| Span {
            text: text.to_owned(),
            style: style(at),
        })
        .collect();
    roff::lines(&spans)
}

fn synopsis(command: &Command) -> String {
    let mut text = ".SH \"SYNOPSIS\"\n".to_owned();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:");
    for (at, line) in usage
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .enumerate()
    {
        if at > 0 {
            text += ".br\n";
        }
        let own = command.get_bin_name().unwrap_or_default();
        let _ = match line.strip_prefix(own) {
            Some(rest) => writeln!(
                text,
                "\\fB{}\\fR{}",
                roff::escaped(own, true),
                roff::escaped(rest, true)
            ),
            None => writeln!(text, "{}", roff::escaped(line, true)),
        };
    }
    text
}

/// The OPTIONS section: each argument as the documentation describes it in the tables of its page, or
/// else as the command's help does.
fn options(command: &Command, details: Option<&[&Block]>) -> String {
    let mut text = ".SH \"OPTIONS\"\n".to_owned();
    let shown = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set());
    let (positional, options): (Vec<&Arg>, Vec<&Arg>) =
        shown.partition(|argument| argument.is_positional());
    for argument in positional.into_iter().chain(options) {
        text += ".TP\n";
        text += &term(argument);
        match details.and_then(|tables| described(argument, tables)) {
            Some(spans) => text += &roff::lines(&spans),
            None => text += &help(argument),
        }
    }
    text
}

/// The names of an argument, and its value's.
fn term(argument: &Arg) -> String {
    let code = |text: &str| roff::escaped(text, true);
    let names = argument
        .get_short()
        .map(|short| format!("\\fB\\-{short}\\fR"));
    let long = argument
        .get_long()
        .map(|long| format!("\\fB\\-\\-{}\\fR", code(long)));
    let names: Vec<String> = names.into_iter().chain(long).collect();
    let mut text = names.join(", ");
    let takes_values = argument.get_action().takes_values();
    let values = argument.get_value_names().unwrap_or_default();
    for value in values.iter().filter(|_| takes_values) {
        if !text.is_empty() {
            text += " ";
        }
        let _ = write!(text, "\\fI{}\\fR", code(value));
    }
    text + "\n"
}

/// Returns the text about an argument in tables of options.
fn described(argument: &Arg, tables: &[&Block]) -> Option<Vec<Span>> {
    let name = match (argument.get_long(), argument.get_value_names()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some([value, ..])) => value.to_string(),
        (None, _) => return None,
    };
    let rows = tables.iter().filter_map(|block| match block {
        Block::Table(_, rows) => Some(rows),
        _ => None,
    });
    let row = rows.flatten().find(|row| {
        let term = row.first().map(|cell| text_of(cell)).unwrap_or_default();
        let mut words = term.split([' ', ',']);
        words.any(|word| word == name)
    })?;
    row.get(1).cloned()
}

/// Returns the command's own help about an argument, with default and possible values.
fn help(argument: &Arg) -> String {
    let help = argument
        .get_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let mut text = backquoted(&help);
    let defaults: Vec<String> = argument
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    if argument.get_action().takes_values() && !defaults.is_empty() {
        let _ = writeln!(
            text,
            "[default: {}]",
            roff::escaped(&defaults.join(" "), true)
        );
    }
    let possible: Vec<String> = argument
        .get_possible_values()
        .iter()
        .map(|value| value.get_name().to_owned())
        .collect();
    if !possible.is_empty() && !argument.is_hide_possible_values_set() {
        let _ = writeln!(text, "[{}]", roff::escaped(&possible.join(", "), true));
    }
    text
}

/// The last sections: FILES, EXIT STATUS, SEE ALSO.
fn ending(commands: &[(String, u8)], further: &[(&str, u8)]) -> String {
    let readme = Page::parse(topics::README);
    let mut text = chapter_of(&readme, "Files and environment", "Files");
    text += &chapter_of(&readme, "Exit statuses", "Exit status");
    let mut all = commands.to_vec();
    all.extend(
        further
            .iter()
            .map(|(name, section)| ((*name).to_owned(), *section)),
    );
    text + &also(&all)
}

/// The pages of the other commands.
fn see_also(cli: &Command, but: &str) -> Vec<(String, u8)> {
    let shown = cli
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let names = shown.map(|command| format!("capriole-{}", command.get_name()));
    let all = std::iter::once("capriole".to_owned()).chain(names);
    all.filter(|name| name != but)
        .map(|name| (name, 1))
        .collect()
}

fn also(pages: &[(String, u8)]) -> String {
    let mut pages = pages.to_vec();
    pages.sort_by(|(a, of_a), (b, of_b)| (of_a, a).cmp(&(of_b, b)));
    let mut text = ".SH \"SEE ALSO\"\n".to_owned();
    for (at, (name, section)) in pages.iter().enumerate() {
        let comma = if at + 1 < pages.len() { "," } else { "" };
        let _ = writeln!(text, ".BR {} ({section}){comma}", roff::escaped(name, true));
    }
    text
}
