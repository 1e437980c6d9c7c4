//! Blocks as text for a terminal.

use crate::page::{Block, Span, Style, text_of};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// How styles are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Code in back quotes, headings in capitals.
    Plain,
    /// Code and headings bold, by escape sequences.
    Ansi,
}

/// Indentation of everything but headings.
const INDENT: usize = 2;
/// Additional indentation of code, and of the rest of a line of code that is too long.
const CODE_INDENT: usize = 4;
/// Blanks between the columns of a table.
const GAP: usize = 2;
/// Least width that text is wrapped to, however narrow the terminal is.
const NARROWEST: usize = 20;

/// A word: pieces of text without blanks between them.
type Word = Vec<(String, Style)>;

fn width_of(word: &Word) -> usize {
    word.iter().map(|(text, _)| text.width()).sum()
}

/// Returns blocks as text, no line of which is longer than `width` columns.
pub fn text(blocks: &[Block], width: usize, look: Look) -> String {
    let mut writer = Writer {
        out: String::new(),
        width: width.max(NARROWEST),
        look,
    };
    writer.blocks(blocks, INDENT);
    // A row of a table may end with empty cells.
    let lines = writer.out.lines().map(str::trim_end);
    lines.flat_map(|line| [line, "\n"]).collect()
}

struct Writer {
    out: String,
    width: usize,
    look: Look,
}

impl Writer {
    fn blocks(&mut self, blocks: &[Block], indent: usize) {
        for (at, block) in blocks.iter().enumerate() {
            if at > 0 && !matches!(blocks[at - 1], Block::Heading(..)) {
                self.out.push('\n');
            }
            self.block(block, indent);
        }
    }

    fn block(&mut self, block: &Block, indent: usize) {
        match block {
            Block::Heading(level, spans) => {
                let text = text_of(spans);
                let text = match self.look {
                    Look::Plain if *level <= 2 => text.to_uppercase(),
                    _ => text,
                };
                let span = Span {
                    text,
                    style: Style::Strong,
                };
                let indent = if *level <= 2 { 0 } else { indent / 2 };
                self.paragraph(&words(&[span], self.look), indent, indent);
            }
            Block::Paragraph(spans) => {
                self.paragraph(&words(spans, self.look), indent, indent);
            }
            Block::Code(text) => {
                for line in text.lines() {
                    self.code(&expanded(line), indent + INDENT);
                }
            }
            Block::Table(head, rows) => self.table(head, rows, indent),
            Block::List(first, items) => {
                let is_long = items.iter().any(|item| item.len() > 1);
                for (at, item) in items.iter().enumerate() {
                    if at > 0 && is_long {
                        self.out.push('\n');
                    }
                    let mark = match first {
                        Some(first) => format!("{}. ", first + at as u64),
                        None => "- ".to_owned(),
                    };
                    // The mark replaces the indentation of the item's first line.
                    let start = self.out.len();
                    self.blocks(item, indent + mark.len());
                    let place = start + indent;
                    self.out.replace_range(place..place + mark.len(), &mark);
                }
            }
        }
    }

    /// Writes words, the first line with another indentation than the others.
    fn paragraph(&mut self, words: &[Word], first: usize, indent: usize) {
        let lines = wrapped(words, self.width.saturating_sub(indent).max(NARROWEST / 2));
        for (at, line) in lines.iter().enumerate() {
            let indent = if at == 0 { first } else { indent };
            self.out.extend(std::iter::repeat_n(' ', indent));
            self.line(line);
            self.out.push('\n');
        }
    }

    fn line(&mut self, words: &[Word]) {
        for (at, word) in words.iter().enumerate() {
            if at > 0 {
                self.out.push(' ');
            }
            for (text, style) in word {
                match (self.look, style) {
                    (Look::Ansi, Style::Code | Style::Strong) => {
                        self.out.push_str(&format!("\x1b[1m{text}\x1b[0m"));
                    }
                    (Look::Ansi, Style::Emphasis) => {
                        self.out.push_str(&format!("\x1b[4m{text}\x1b[0m"));
                    }
                    _ => self.out.push_str(text),
                }
            }
        }
    }

    /// Writes a line of code. If it is too long, it is broken, if possible before a comment in a
    /// column of its own or else at a blank, and goes on further to the right.
    fn code(&mut self, line: &str, indent: usize) {
        let (mut rest, mut indent) = (line, indent);
        loop {
            let room = self.width.saturating_sub(indent).max(NARROWEST / 2);
            let fits = prefix(rest, room);
            let mut end = rest.len();
            if fits < rest.len() {
                let own = rest.len() - rest.trim_start().len();
                if own >= fits {
                    rest = rest.trim_start();
                    continue;
                }
                let columns = rest[own..fits].find("   ");
                let blanks = rest[own..].match_indices(' ').map(|(at, _)| at);
                let blank = blanks.take_while(|at| own + at <= fits).last();
                end = columns.or(blank).map_or(fits, |at| own + at);
            }
            self.out.extend(std::iter::repeat_n(' ', indent));
            self.out.push_str(rest[..end].trim_end());
            while self.out.ends_with(' ') {
                self.out.pop();
            }
            self.out.push('\n');
            if rest[end..].trim_start().is_empty() {
                return;
            }
            if rest.len() == line.len() {
                indent += CODE_INDENT;
            }
            rest = rest[end..].trim_start();
        }
    }

    fn table(&mut self, head: &[Vec<Span>], rows: &[Vec<Vec<Span>>], indent: usize) {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let room = self.width.saturating_sub(indent).max(NARROWEST);
        let cells: Vec<Vec<Vec<Word>>> = rows
            .iter()
            .map(|row| {
                let cell = |(at, spans): (usize, &Vec<Span>)| match at {
                    0 => words(&bare(spans), self.look),
                    _ => words(spans, self.look),
                };
                row.iter().enumerate().map(cell).collect()
            })
            .collect();
        let titles: Vec<Vec<Word>> = head
            .iter()
            .map(|spans| words(&emphasised(spans), self.look))
            .collect();
        let natural: Vec<usize> = (0..columns)
            .map(|column| {
                let all = cells.iter().chain(std::iter::once(&titles));
                all.filter_map(|row| row.get(column))
                    .map(|cell| length(cell))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let total = natural.iter().sum::<usize>() + GAP * columns.saturating_sub(1);
        if total <= room {
            self.columns(&titles, &cells, &natural, indent);
        } else if columns == 2 {
            self.terms(&titles, &cells, room, indent);
        } else {
            self.records(head, &cells, indent);
        }
    }

    /// Writes a table as columns; the last one is wrapped.
    fn columns(
        &mut self,
        titles: &[Vec<Word>],
        cells: &[Vec<Vec<Word>>],
        widths: &[usize],
        indent: usize,
    ) {
        let head = (!titles.is_empty()).then_some(titles);
        for row in head.into_iter().chain(cells.iter().map(Vec::as_slice)) {
            self.out.extend(std::iter::repeat_n(' ', indent));
            let mut column = indent;
            for (at, cell) in row.iter().enumerate() {
                if at + 1 == row.len() {
                    self.paragraph(cell, 0, column);
                    if cell.is_empty() {
                        self.out.push('\n');
                    }
                    break;
                }
                self.line(cell);
                let next = widths[at] + GAP;
                let blanks = next - length(cell);
                self.out.extend(std::iter::repeat_n(' ', blanks));
                column += next;
            }
        }
    }

    /// Writes a table of two columns: short terms beside their explanations, long ones above them.
    fn terms(
        &mut self,
        titles: &[Vec<Word>],
        cells: &[Vec<Vec<Word>>],
        room: usize,
        indent: usize,
    ) {
        let limit = room / 3;
        let lengths = cells.iter().filter_map(|row| row.first());
        let short = lengths.map(|cell| length(cell)).filter(|l| *l <= limit);
        let widest = short.max().unwrap_or(CODE_INDENT).max(CODE_INDENT);
        let head = (!titles.is_empty()).then_some(titles);
        for row in head.into_iter().chain(cells.iter().map(Vec::as_slice)) {
            let [term, text, ..] = row else { continue };
            let column = indent + widest + GAP;
            if length(term) <= widest {
                self.out.extend(std::iter::repeat_n(' ', indent));
                self.line(term);
                let blanks = column - indent - length(term);
                self.paragraph(text, blanks, column);
            } else {
                self.paragraph(term, indent, indent + GAP);
                self.paragraph(text, column, column);
            }
            if text.is_empty() {
                self.out.push('\n');
            }
        }
    }

    /// Writes each row as a paragraph of its own, with the titles of the columns before the cells.
    fn records(&mut self, head: &[Vec<Span>], cells: &[Vec<Vec<Word>>], indent: usize) {
        for (at, row) in cells.iter().enumerate() {
            if at > 0 {
                self.out.push('\n');
            }
            let Some((term, rest)) = row.split_first() else {
                continue;
            };
            self.paragraph(term, indent, indent + GAP);
            for (column, cell) in rest.iter().enumerate().filter(|(_, cell)| !cell.is_empty()) {
                let mut all = Vec::new();
                if let Some(title) = head.get(column + 1).filter(|title| !title.is_empty()) {
                    all = words(&emphasised(title), self.look);
                    if let Some(last) = all.last_mut() {
                        last.push((":".to_owned(), Style::Plain));
                    }
                }
                all.extend(cell.iter().cloned());
                self.paragraph(&all, indent + CODE_INDENT, indent + CODE_INDENT + GAP);
            }
        }
    }
}

/// Returns a line with blanks instead of tabs.
fn expanded(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    for c in line.chars() {
        match c {
            '\t' => out.extend(std::iter::repeat_n(' ', 8 - out.width() % 8)),
            c => out.push(c),
        }
    }
    out
}

/// Returns the number of bytes of the text that fit into so many columns.
fn prefix(text: &str, columns: usize) -> usize {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += c.width().unwrap_or(0);
        if used > columns {
            return at;
        }
    }
    text.len()
}

/// Returns the columns that words take in one line.
fn length(words: &[Word]) -> usize {
    let letters: usize = words.iter().map(width_of).sum();
    letters + words.len().saturating_sub(1)
}

/// Returns a cell without back quotes: in the first column everything is code.
fn bare(spans: &[Span]) -> Vec<Span> {
    let with = |span: &Span| Span {
        style: match span.style {
            Style::Code => Style::Strong,
            style => style,
        },
        ..span.clone()
    };
    spans.iter().map(with).collect()
}

fn emphasised(spans: &[Span]) -> Vec<Span> {
    let text = text_of(spans);
    let span = Span {
        text,
        style: Style::Emphasis,
    };
    vec![span]
}

/// Splits spans into words.
fn words(spans: &[Span], look: Look) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut open = false;
    for span in spans {
        let text = match (look, span.style) {
            (Look::Plain, Style::Code) => format!("`{}`", span.text),
            _ => span.text.clone(),
        };
        for (at, piece) in text.split(' ').enumerate() {
            if at > 0 {
                open = false;
            }
            if piece.is_empty() {
                continue;
            }
            let piece = (piece.to_owned(), span.style);
            match words.last_mut() {
                Some(word) if open => word.push(piece),
                _ => words.push(vec![piece]),
            }
            open = true;
        }
    }
    words
}

/// Distributes words over lines. A word that is longer than a line is cut.
fn wrapped(words: &[Word], width: usize) -> Vec<Vec<Word>> {
    let mut lines: Vec<Vec<Word>> = Vec::new();
    let mut used = 0;
    for word in words {
        for part in cut(word, width) {
            let own = width_of(&part);
            match lines.last_mut() {
                Some(line) if used + 1 + own <= width => {
                    line.push(part);
                    used += 1 + own;
                }
                _ => {
                    lines.push(vec![part]);
                    used = own;
                }
            }
        }
    }
    lines
}

/// Cuts a word into parts that fit into a line.
fn cut(word: &Word, width: usize) -> Vec<Word> {
    if width_of(word) <= width {
        return vec![word.clone()];
    }
    let (mut parts, mut used): (Vec<Word>, usize) = (vec![Vec::new()], 0);
    for (text, style) in word {
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let fits = prefix(rest, width - used);
            if fits > 0 {
                let last = parts.last_mut().expect("there is one");
                last.push((rest[..fits].to_owned(), *style));
                used += rest[..fits].width();
                rest = &rest[fits..];
            }
            if !rest.is_empty() {
                parts.push(Vec::new());
                used = 0;
            }
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests;
