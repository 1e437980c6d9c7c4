//! Topics of `capriole help`: chapters of the documentation.

use capriole_manual::terminal::{self, Look};
use capriole_manual::{Block, Page, Span, Style};

#[cfg(test)]
mod tests;

/// A page of `docs`, by its file's name.
macro_rules! docs {
    ($name:literal) => {
        include_str!(concat!("../../../docs/", $name, ".md"))
    };
}

/// The pages that topics and manual pages are made of.
pub const README: &str = docs!("README");
pub const EVENTS: &str = docs!("events-reference");
pub const EXAMPLES: &str = docs!("examples");
pub const RECORD: &str = docs!("record");
pub const STAT: &str = docs!("stat");
pub const REPORT: &str = docs!("report");
pub const LIST: &str = docs!("list");
pub const CHECK: &str = docs!("check");
pub const DETACH: &str = docs!("detach");
pub const MARK: &str = docs!("mark");
pub const BENCH: &str = docs!("bench");
const MARKERS: &str = docs!("markers");
const SAFETY: &str = docs!("safety");
const TACTICS: &str = docs!("tactics");

/// Part of a page that a topic shows.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// A chapter with all below it.
    Chapter(&'static str),
    /// A chapter up to the first heading below it.
    Beginning(&'static str),
    /// The opening of the page, above its first chapter.
    Opening,
    /// All chapters.
    Whole,
}

/// A topic of `capriole help`.
#[derive(Debug, Clone, Copy)]
pub struct Topic {
    /// The word after `capriole help`.
    pub name: &'static str,
    /// A line about it.
    pub about: &'static str,
    parts: &'static [(&'static str, Part)],
}

use Part::{Beginning, Chapter, Opening, Whole};

/// All topics, in the order in which they are listed.
pub const ALL: &[Topic] = &[
    Topic {
        name: "examples",
        about: "Commands for common tasks",
        parts: &[(EXAMPLES, Opening), (EXAMPLES, Whole)],
    },
    Topic {
        name: "events",
        about: "How events are written: grammar, names, files, functions, patterns",
        parts: &[
            (EVENTS, Chapter("Grammar")),
            (EVENTS, Chapter("Kind and name")),
            (EVENTS, Chapter("The file")),
            (EVENTS, Chapter("The function")),
            (EVENTS, Chapter("One site, many events")),
        ],
    },
    Topic {
        name: "places",
        about: "Places other than functions: offsets, source lines, inlined copies",
        parts: &[
            (EVENTS, Chapter("Other places")),
            (EVENTS, Chapter("Inlined functions")),
        ],
    },
    Topic {
        name: "fields",
        about: "Arguments of an event: registers, memory, texts",
        parts: &[(EVENTS, Beginning("Arguments"))],
    },
    Topic {
        name: "types",
        about: "Types of fields, and how they are shown",
        parts: &[
            (EVENTS, Chapter("Types")),
            (EVENTS, Chapter("File descriptors")),
        ],
    },
    Topic {
        name: "variables",
        about: "Variables and parameters by their names in the source",
        parts: &[(EVENTS, Chapter("Names of variables"))],
    },
    Topic {
        name: "filters",
        about: "Conditions behind `if`",
        parts: &[(EVENTS, Chapter("Filters"))],
    },
    Topic {
        name: "aggregates",
        about: "Sums, histograms, keys and intervals of `capriole stat`",
        parts: &[
            (EVENTS, Chapter("Aggregates and keys")),
            (EVENTS, Chapter("Intervals")),
        ],
    },
    Topic {
        name: "returns",
        about: "Events at the return of a function, results, values at the entry",
        parts: &[
            (EVENTS, Chapter("Returns")),
            (RECORD, Chapter("Returns by the return address")),
        ],
    },
    Topic {
        name: "calls",
        about: "Calls from entry to exit: `record --graph`, `--min-duration`",
        parts: &[(RECORD, Chapter("Calls"))],
    },
    Topic {
        name: "stacks",
        about: "Call stacks of events, and as keys of `capriole stat`",
        parts: &[
            (EVENTS, Chapter("Call stacks")),
            (STAT, Chapter("Call stacks")),
        ],
    },
    Topic {
        name: "markers",
        about: "Static markers (USDT)",
        parts: &[
            (EVENTS, Chapter("Static markers")),
            (MARKERS, Chapter("Recording markers")),
        ],
    },
    Topic {
        name: "definitions",
        about: "Files of events, for `-f FILE`",
        parts: &[(EVENTS, Chapter("Files of definitions"))],
    },
    Topic {
        name: "kernel",
        about: "Differences to the events of the kernel's uprobe_events",
        parts: &[(EVENTS, Chapter("Differences to the kernel"))],
    },
    Topic {
        name: "costs",
        about: "Cost of fields and filters",
        parts: &[(EVENTS, Chapter("What it costs"))],
    },
    Topic {
        name: "tactics",
        about: "Ways from a site to its detour: reserved, jump, region, pun, ...",
        parts: &[(TACTICS, Opening)],
    },
    Topic {
        name: "refusals",
        about: "What is refused, to protect the program",
        parts: &[(SAFETY, Chapter("What is refused"))],
    },
    Topic {
        name: "messages",
        about: "Messages, their meaning, and what to do",
        parts: &[
            (README, Chapter("Messages")),
            (RECORD, Chapter("Left-out events and errors")),
        ],
    },
    Topic {
        name: "words",
        about: "Words that messages and pages use",
        parts: &[(README, Chapter("Words"))],
    },
    Topic {
        name: "exit-codes",
        about: "Exit statuses",
        parts: &[(README, Chapter("Exit statuses"))],
    },
    Topic {
        name: "files",
        about: "Files and environment variables",
        parts: &[(README, Chapter("Files and environment"))],
    },
];

/// Returns the topic of this name.
pub fn find(name: &str) -> Option<&'static Topic> {
    ALL.iter().find(|topic| topic.name == name)
}

impl Topic {
    /// Returns the topic's chapters; `None` if the documentation lacks one.
    fn parts(&self) -> Option<Vec<Block>> {
        let mut blocks = Vec::new();
        for (page, part) in self.parts {
            let page = Page::parse(page);
            blocks.extend_from_slice(match part {
                Chapter(title) => page.chapter(title)?,
                Beginning(title) => page.beginning(title)?,
                Opening => page.opening(),
                Whole => page.chapters(),
            });
        }
        Some(blocks)
    }

    /// Returns the topic's chapters.
    pub fn blocks(&self) -> Vec<Block> {
        // A test has looked for all of them.
        self.parts().unwrap_or_default()
    }
}

/// Returns the list of topics for `capriole --help`, as text of so many columns.
pub fn list(width: usize) -> String {
    let cell = |text: &str| {
        vec![Span {
            text: text.to_owned(),
            style: Style::Plain,
        }]
    };
    let rows = ALL
        .iter()
        .map(|topic| vec![cell(topic.name), cell(topic.about)]);
    let table = Block::Table(Vec::new(), rows.collect());
    let rows = terminal::text(&[table], width, Look::Plain);
    format!("Topics (capriole help TOPIC):\n{}", rows.trim_end())
}
