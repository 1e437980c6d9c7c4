//! A page of Markdown as blocks.

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use std::iter::Peekable;

/// How a piece of text is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// As the rest.
    Plain,
    /// Literal text, as typed or printed.
    Code,
    /// Bold.
    Strong,
    /// A word that is defined, or stressed.
    Emphasis,
    /// The name of another page, as a link to it: `stat` in `[stat](stat.md)`.
    Page,
}

/// A piece of text in one style.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The text; blanks and line ends of the source are one blank.
    pub text: String,
    /// Its style.
    pub style: Style,
}

/// A part of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    /// A heading, with its level: 1 is the page's title.
    Heading(u8, Vec<Span>),
    /// A paragraph.
    Paragraph(Vec<Span>),
    /// Lines that are shown as they are.
    Code(String),
    /// Head and rows. A head without any text is empty.
    Table(Vec<Vec<Span>>, Vec<Vec<Vec<Span>>>),
    /// The items of a list; with the first number, if they are numbered.
    List(Option<u64>, Vec<Vec<Block>>),
}

/// Joins the texts of spans.
pub fn text_of(spans: &[Span]) -> String {
    spans.iter().map(|span| span.text.as_str()).collect()
}

/// A page of the documentation.
#[derive(Debug, Clone)]
pub struct Page {
    blocks: Vec<Block>,
}

impl Page {
    /// Reads a page. Links become their texts ([`Style::Page`] if that is a page's name); images and HTML are left out.
    pub fn parse(markdown: &str) -> Page {
        let events = Parser::new_ext(markdown, Options::ENABLE_TABLES);
        let mut events = events.peekable();
        let mut blocks = Vec::new();
        while events.peek().is_some() {
            blocks.extend(block(&mut events));
        }
        Page { blocks }
    }

    /// Returns the whole page.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Returns what is below the title and above the first chapter.
    pub fn opening(&self) -> &[Block] {
        let is_heading = |block: &Block| matches!(block, Block::Heading(..));
        let start = self.blocks.iter().take_while(|block| is_heading(block));
        let rest = &self.blocks[start.count()..];
        &rest[..rest.iter().position(is_heading).unwrap_or(rest.len())]
    }

    /// Returns all chapters: what follows the opening.
    pub fn chapters(&self) -> &[Block] {
        let before = self
            .blocks
            .iter()
            .take_while(|b| matches!(b, Block::Heading(..)))
            .count();
        &self.blocks[before + self.opening().len()..]
    }

    /// Returns the chapter of this title, with its heading, up to the next heading of the same or a
    /// higher level.
    pub fn chapter(&self, title: &str) -> Option<&[Block]> {
        self.find(title)
            .map(|(start, _, end)| &self.blocks[start..end])
    }

    /// Returns a chapter without those below it: up to the next heading of any level.
    pub fn beginning(&self, title: &str) -> Option<&[Block]> {
        self.find(title)
            .map(|(start, next, _)| &self.blocks[start..next])
    }

    /// Returns where a chapter begins, where the first heading below it is, and where it ends.
    fn find(&self, title: &str) -> Option<(usize, usize, usize)> {
        let (start, level) = self.blocks.iter().enumerate().find_map(|(at, block)| {
            let Block::Heading(level, spans) = block else {
                return None;
            };
            (text_of(spans) == title).then_some((at, *level))
        })?;
        let after = |wanted: &dyn Fn(u8) -> bool| {
            let rest = self.blocks[start + 1..].iter();
            let is_wanted = |block: &Block| matches!(block, Block::Heading(l, _) if wanted(*l));
            let before = rest.take_while(|block| !is_wanted(block)).count();
            start + 1 + before
        };
        Some((start, after(&|_| true), after(&|other| other <= level)))
    }
}

/// Reads the block that begins with the next event, if it is of a known kind.
fn block<'a>(events: &mut Peekable<impl Iterator<Item = Event<'a>>>) -> Option<Block> {
    match events.next()? {
        Event::Start(Tag::Heading { level, .. }) => {
            Some(Block::Heading(number(level), spans(events)))
        }
        Event::Start(Tag::Paragraph) => Some(Block::Paragraph(spans(events))),
        Event::Start(Tag::CodeBlock(_)) => {
            let mut text = String::new();
            for event in events.by_ref() {
                match event {
                    Event::Text(part) => text.push_str(&part),
                    Event::End(TagEnd::CodeBlock) => break,
                    _ => {}
                }
            }
            Some(Block::Code(text))
        }
        Event::Start(Tag::Table(_)) => Some(table(events)),
        Event::Start(Tag::List(first)) => {
            let mut items = Vec::new();
            while let Some(event) = events.next() {
                match event {
                    Event::Start(Tag::Item) => items.push(item(events)),
                    Event::End(TagEnd::List(_)) => break,
                    _ => {}
                }
            }
            Some(Block::List(first, items))
        }
        _ => None,
    }
}

fn number(level: HeadingLevel) -> u8 {
    level as u8
}

/// Reads an item of a list. In a list without blank lines its text is not in paragraphs.
fn item<'a>(events: &mut Peekable<impl Iterator<Item = Event<'a>>>) -> Vec<Block> {
    let mut blocks = Vec::new();
    while let Some(event) = events.peek() {
        match event {
            Event::End(TagEnd::Item) => {
                events.next();
                break;
            }
            Event::Start(
                Tag::Paragraph
                | Tag::CodeBlock(_)
                | Tag::Table(_)
                | Tag::List(_)
                | Tag::Heading { .. },
            ) => blocks.extend(block(events)),
            _ => blocks.push(Block::Paragraph(spans(events))),
        }
    }
    blocks
}

fn table<'a>(events: &mut Peekable<impl Iterator<Item = Event<'a>>>) -> Block {
    let (mut head, mut rows, mut row) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(event) = events.next() {
        match event {
            Event::Start(Tag::TableCell) => row.push(spans(events)),
            Event::End(TagEnd::TableHead) => head = std::mem::take(&mut row),
            Event::End(TagEnd::TableRow) => rows.push(std::mem::take(&mut row)),
            Event::End(TagEnd::Table) => break,
            _ => {}
        }
    }
    if head.iter().all(|cell: &Vec<Span>| cell.is_empty()) {
        head.clear();
    }
    Block::Table(head, rows)
}

/// Reads text up to the end of the element that it is in, or the start of a block inside an item.
fn spans<'a>(events: &mut Peekable<impl Iterator<Item = Event<'a>>>) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut styles = vec![Style::Plain];
    let mut add = |text: &str, style: Style| match spans.last_mut() {
        Some(last) if last.style == style && style != Style::Code => last.text.push_str(text),
        _ => spans.push(Span {
            text: text.to_owned(),
            style,
        }),
    };
    loop {
        match events.peek() {
            None | Some(Event::End(TagEnd::Item)) => break,
            Some(Event::Start(Tag::List(_) | Tag::CodeBlock(_) | Tag::Table(_))) => break,
            Some(_) => {}
        }
        match events.next().expect("it was peeked at") {
            Event::Text(text) => add(&text, *styles.last().expect("one is always there")),
            Event::Code(text) => add(&text, Style::Code),
            Event::SoftBreak | Event::HardBreak => add(" ", Style::Plain),
            Event::Start(Tag::Strong) => styles.push(Style::Strong),
            Event::Start(Tag::Emphasis) => styles.push(Style::Emphasis),
            // A link to a page by its name; others are only their text.
            Event::Start(Tag::Link { dest_url, .. }) => {
                let named = match events.peek() {
                    Some(Event::Text(text)) => {
                        dest_url.split('#').next() == Some(&format!("{text}.md"))
                    }
                    _ => false,
                };
                let own = *styles.last().expect("one is always there");
                styles.push(if named { Style::Page } else { own });
            }
            Event::End(TagEnd::Strong | TagEnd::Emphasis | TagEnd::Link) => {
                styles.pop();
            }
            Event::End(TagEnd::Paragraph | TagEnd::Heading(_) | TagEnd::TableCell) => break,
            _ => {}
        }
    }
    spans
}
