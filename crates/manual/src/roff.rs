//! Blocks in the language of manual pages: the macros of man(7), which groff and mandoc know.

use crate::page::{Block, Span, Style, text_of};
use std::fmt::Write as _;

/// Pages of the documentation that are manual pages, with the names and sections of these.
const PAGES: [(&str, &str, u8); 11] = [
    ("record", "capriole-record", 1),
    ("report", "capriole-report", 1),
    ("stat", "capriole-stat", 1),
    ("list", "capriole-list", 1),
    ("check", "capriole-check", 1),
    ("detach", "capriole-detach", 1),
    ("mark", "capriole-mark", 1),
    ("bench", "capriole-bench", 1),
    ("events", "capriole-events", 7),
    ("events-reference", "capriole-events", 7),
    ("probes", "capriole", 7),
];
/// Length of a word of code, in bytes, up to which it is never broken.
const LONGEST: usize = 40;

/// Returns blocks as parts of a manual page. Headings of the second level are sections, those below
/// are subsections.
pub fn page(blocks: &[Block]) -> String {
    let mut out = String::new();
    write(blocks, &mut out, true);
    out
}

/// Returns a section without heading: the blocks, in which headings of all levels are subsections.
pub fn section(title: &str, blocks: &[Block]) -> String {
    let lower = |block: &Block| match block {
        Block::Heading(level, spans) => Block::Heading((*level).max(3), spans.clone()),
        block => block.clone(),
    };
    let blocks: Vec<Block> = blocks.iter().map(lower).collect();
    format!(".SH {}\n{}", quoted(&title.to_uppercase()), page(&blocks))
}

/// Returns the start of a page: its name, section and date, the source, and the manual's title. Text is
/// neither justified nor hyphenated, as it is full of long words.
pub fn title(name: &str, section: u8, date: &str, source: &str, manual: &str) -> String {
    let name = name.to_uppercase();
    format!(
        ".TH {} {section} {} {} {}\n.ad l\n.nh\n",
        quoted(&name),
        quoted(date),
        quoted(source),
        quoted(manual)
    )
}

/// Writes blocks. A paragraph after a heading, or at the start of an item (`fresh`), needs no macro.
fn write(blocks: &[Block], out: &mut String, mut fresh: bool) {
    for block in blocks {
        match block {
            Block::Heading(level, spans) => {
                let text = text_of(spans);
                let _ = match level {
                    ..=2 => writeln!(out, ".SH {}", quoted(&text.to_uppercase())),
                    _ => writeln!(out, ".SS {}", quoted(&text)),
                };
                fresh = true;
                continue;
            }
            Block::Paragraph(spans) => {
                if !fresh {
                    out.push_str(".PP\n");
                }
                out.push_str(&lines(spans));
            }
            Block::Code(text) => {
                if !fresh {
                    out.push_str(".PP\n");
                }
                out.push_str(".RS 4\n.nf\n");
                for line in text.lines() {
                    // An empty line is a space, not the end of a paragraph.
                    match line {
                        "" => out.push_str("\\&\n"),
                        line => {
                            let _ = writeln!(out, "{}", guarded(&escaped(line, true)));
                        }
                    }
                }
                out.push_str(".fi\n.RE\n");
            }
            Block::Table(head, rows) => table(head, rows, out),
            Block::List(first, items) => {
                for (at, item) in items.iter().enumerate() {
                    match first {
                        Some(first) => {
                            let _ = writeln!(out, ".IP {}. 4", first + at as u64);
                        }
                        None => out.push_str(".IP \\(bu 3\n"),
                    }
                    write_item(item, out);
                }
            }
        }
        fresh = false;
    }
}

/// Writes the blocks of an item: all but the first are moved to the right with it.
fn write_item(item: &[Block], out: &mut String) {
    let Some((first, rest)) = item.split_first() else {
        return;
    };
    write(std::slice::from_ref(first), out, true);
    if !rest.is_empty() {
        out.push_str(".RS\n");
        write(rest, out, false);
        out.push_str(".RE\n");
    }
}

/// Writes a table as a list of terms. Cells of further columns have the title of their column.
fn table(head: &[Vec<Span>], rows: &[Vec<Vec<Span>>], out: &mut String) {
    for row in rows {
        let Some((term, cells)) = row.split_first() else {
            continue;
        };
        out.push_str(".TP\n");
        let term: Vec<Span> = term.to_vec();
        match term.is_empty() {
            true => out.push_str("\\&\n"),
            false => out.push_str(&lines(&term)),
        }
        let shown: Vec<_> = cells
            .iter()
            .enumerate()
            .filter(|(_, c)| !c.is_empty())
            .collect();
        if shown.is_empty() {
            out.push_str("\\&\n");
        }
        for (at, (column, cell)) in shown.iter().enumerate() {
            if at > 0 {
                out.push_str(".br\n");
            }
            let title = head.get(column + 1).filter(|_| cells.len() > 1);
            let mut spans = Vec::new();
            if let Some(title) = title.filter(|title| !title.is_empty()) {
                spans.push(Span {
                    text: format!("{}:", text_of(title)),
                    style: Style::Emphasis,
                });
                spans.push(Span {
                    text: " ".to_owned(),
                    style: Style::Plain,
                });
            }
            spans.extend(cell.iter().cloned());
            out.push_str(&lines(&spans));
        }
    }
}

/// Returns spans as one line of text.
pub fn lines(spans: &[Span]) -> String {
    let mut line = String::new();
    for span in spans {
        match span.style {
            Style::Plain => line.push_str(&escaped(&span.text, false)),
            Style::Code => {
                let _ = write!(line, "\\fB{}\\fR", breakable(&span.text));
            }
            Style::Page => match PAGES.iter().find(|(name, ..)| *name == span.text) {
                Some((_, name, section)) => {
                    let _ = write!(line, "\\fB{}\\fR({section})", escaped(name, true));
                }
                None => line.push_str(&escaped(&span.text, false)),
            },
            Style::Strong => {
                let _ = write!(line, "\\fB{}\\fR", escaped(&span.text, false));
            }
            Style::Emphasis => {
                let _ = write!(line, "\\fI{}\\fR", escaped(&span.text, false));
            }
        }
    }
    format!("{}\n", guarded(line.trim_start()))
}

/// Returns code in which words that may be longer than a line can be broken.
fn breakable(code: &str) -> String {
    let text = escaped(code, true);
    match code.split(' ').any(|word| word.len() > LONGEST) {
        true => text.replace(',', ",\\:").replace('/', "/\\:"),
        false => text,
    }
}

/// Protects the start of a line that would be taken for a macro.
fn guarded(line: &str) -> String {
    match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    }
}

/// Returns an argument of a macro.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text, false).replace('"', "\\(dq"))
}

/// Returns text in which nothing has a meaning for roff. In code, characters that formatters make
/// prettier stay those that can be copied into a shell.
pub fn escaped(text: &str, is_code: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' if is_code => out.push_str("\\-"),
            '\'' if is_code => out.push_str("\\(aq"),
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            c if c.is_ascii() => out.push(c),
            c => {
                let _ = write!(out, "\\[u{:04X}]", c as u32);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests;
