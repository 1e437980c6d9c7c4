//! Flame graphs: the time or number of calls of each call path, as a picture.

use std::collections::HashMap;
use std::io::{self, Write};

use inferno::flamegraph::{self, Options};
use serde::Serialize;

use super::open::Open;
use super::table::known;
use super::tasks::printable;
use crate::calls::{Begin, Call, Functions, Visitor, walk};
use crate::error::ReportError;
use capriole_object::symbols::shown::{Form, ShownNames};
use capriole_trace::Health;
use capriole_trace::clock::Scale;
use capriole_trace::{Event, Trace};

/// Meaning of a frame's width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlameBy {
    /// Time.
    #[default]
    Time,
    /// Number of calls.
    Calls,
}

/// The calls of a trace, merged by call path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Flame {
    /// All call paths, sorted by names.
    pub stacks: Vec<FoldedStack>,
    /// Hits that are not in the trace.
    pub lost_events: u64,
}

/// All calls with the same call path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FoldedStack {
    /// The function names, outermost first, the called function last. Levels deeper than
    /// [`Flame::MOST_DEEP`] are merged into `(deeper)`.
    pub functions: Vec<String>,
    /// Number of calls of the last function.
    pub calls: u64,
    /// Self time of the last function, in ns. A lower bound if there are `unended` calls; `None` if
    /// nothing is known.
    pub self_ns: Option<u64>,
    /// Calls without a recorded end, which count up to the last event seen in them.
    pub unended: u64,
}

/// All calls with the same call path.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// `None` for an outermost call.
    parent: Option<usize>,
    /// `None` for the merged deeper levels.
    function: Option<usize>,
    calls: u64,
    unended: u64,
    own: u128,
}

struct Folder {
    nodes: Vec<Node>,
    children: HashMap<(Option<usize>, Option<usize>), usize>,
    /// The nodes of the open calls.
    open: Open<usize>,
}

impl Visitor for Folder {
    fn begin(&mut self, begin: &Begin, _: &Event<'_>) -> io::Result<()> {
        let parent = self.open.of(begin.stack).last().copied();
        let node = if begin.depth > Flame::MOST_DEEP {
            parent.unwrap_or(0)
        } else {
            let function = (begin.depth < Flame::MOST_DEEP).then_some(begin.function);
            *self.children.entry((parent, function)).or_insert_with(|| {
                self.nodes.push(Node {
                    parent,
                    function,
                    calls: 0,
                    unended: 0,
                    own: 0,
                });
                self.nodes.len() - 1
            })
        };
        self.open.push(begin.stack, node);
        Ok(())
    }

    fn end(&mut self, call: &Call, _: Option<&Event<'_>>) -> io::Result<()> {
        if let Some(node) = self.open.pop(call.begin.stack) {
            self.nodes[node].calls += 1;
            self.nodes[node].unended += u64::from(!call.exit.is_recorded());
            self.nodes[node].own += u128::from(call.own);
        }
        Ok(())
    }
}

impl Flame {
    /// Maximum number of levels that are distinguished.
    pub const MOST_DEEP: usize = 250;
    /// Name of the frame that replaces all deeper levels.
    pub(crate) const DEEPER: &str = "(deeper)";

    /// Reads a whole trace. The second part of the result lists the damage found in it.
    ///
    /// # Errors
    ///
    /// If the trace cannot be read.
    pub fn of(trace: &Trace) -> Result<(Flame, Health), ReportError> {
        let document = trace.document();
        let functions = Functions::of(&document.events);
        let mut folder = Folder {
            nodes: Vec::new(),
            children: HashMap::new(),
            open: Open::new(),
        };
        let (_, health) = walk(trace, &functions, &mut folder)?;
        let scale = Scale::of(&document.clock);
        let name = |function: Option<usize>| match function {
            Some(function) => functions.names()[function].clone(),
            None => Flame::DEEPER.to_string(),
        };
        let way = |mut node: Node| {
            let mut names = vec![name(node.function)];
            while let Some(parent) = node.parent {
                node = folder.nodes[parent];
                names.push(name(node.function));
            }
            names.reverse();
            names
        };
        let stack = |node: &Node| FoldedStack {
            functions: way(*node),
            calls: node.calls,
            self_ns: known(scale.ns(node.own), node.calls, node.unended),
            unended: node.unended,
        };
        let mut stacks: Vec<FoldedStack> = folder.nodes.iter().map(stack).collect();
        stacks.sort_by(|a, b| a.functions.cmp(&b.functions));
        let flame = Flame {
            stacks,
            lost_events: health.lost_events,
        };
        Ok((flame, health))
    }

    /// Draws the flame graph as SVG.
    ///
    /// # Errors
    ///
    /// If it cannot be written, or if there is nothing to draw.
    pub fn draw(&self, by: FlameBy, form: Form, title: &str, out: impl Write) -> io::Result<()> {
        let functions = self.stacks.iter().flat_map(|stack| &stack.functions);
        let names = FrameNames::of(functions, form);
        let lines = self
            .stacks
            .iter()
            .filter_map(|stack| stack.line(by, &names));
        let lines: Vec<String> = lines.collect();
        if lines.is_empty() {
            return Err(io::Error::other(match self.stacks.is_empty() {
                true => "there are no calls in the trace",
                false => "the end of no call was recorded, so there are no times to draw",
            }));
        }
        let unit = match by {
            FlameBy::Time => "ns",
            FlameBy::Calls => "calls",
        };
        draw(&lines, title, unit, out)
    }
}

impl FoldedStack {
    /// Returns the line for [`draw`]; `None` if the number would be 0.
    fn line(&self, by: FlameBy, names: &FrameNames) -> Option<String> {
        let count = match by {
            FlameBy::Time => self.self_ns.unwrap_or(0),
            FlameBy::Calls => self.calls,
        };
        (count > 0).then(|| names.line(&self.functions, count))
    }
}

/// Names for the frames of a picture.
pub(super) struct FrameNames(ShownNames);

impl FrameNames {
    /// Prepares the names of all functions of a picture.
    pub(super) fn of<'a>(functions: impl Iterator<Item = &'a String>, form: Form) -> FrameNames {
        let form = match form {
            Form::Short => Form::Frame,
            form => form,
        };
        FrameNames::in_form(functions, form)
    }

    /// Prepares names in this very form, for lines of text.
    pub(super) fn in_form<'a>(
        functions: impl Iterator<Item = &'a String>,
        form: Form,
    ) -> FrameNames {
        FrameNames(ShownNames::of(functions.map(String::as_str), form))
    }

    /// Returns the line of a call path for [`draw`]: `main;parse;read 123`.
    pub(super) fn line(&self, functions: &[String], count: u64) -> String {
        let name = |name: &String| visible(&self.0.get(name));
        let names: Vec<String> = functions.iter().map(name).collect();
        format!("{} {count}", names.join(";"))
    }
}

/// Draws call paths as SVG; `unit` is that of their counts.
pub(super) fn draw(
    lines: &[String],
    title: &str,
    unit: &str,
    mut out: impl Write,
) -> io::Result<()> {
    let mut options = Options::default();
    options.title = visible(title);
    options.count_name = unit.to_string();
    options.name_type = "Function:".to_string();
    // Makes the SVG reproducible.
    options.deterministic = true;
    let mut picture = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut picture)?;
    out.write_all(&with_root_label(picture))
}

/// Labels the root frame, which inferno draws without a text.
fn with_root_label(picture: Vec<u8>) -> Vec<u8> {
    let find = |from: usize, wanted: &[u8]| {
        let mut places = picture[from..].windows(wanted.len());
        places.position(|bytes| bytes == wanted).map(|at| from + at)
    };
    let root = find(0, b"<title>all (");
    let label = root.and_then(|root| {
        let text = find(root, b"<text ")?;
        let end = find(text, b">")? + 1;
        // Another text, or the end of the picture: this version labels the root itself.
        (picture[end..].starts_with(b"</text>")).then_some(end)
    });
    match label {
        Some(at) => [&picture[..at], b"all", &picture[at..]].concat(),
        None => picture,
    }
}

/// Returns a name without characters that end a frame or that XML forbids.
fn visible(name: &str) -> String {
    printable(name)
        .chars()
        .map(|character| match character {
            ';' => ',',
            '\u{fffe}' | '\u{ffff}' => '?',
            other => other,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_has_a_label() {
        let mut picture = Vec::new();
        draw(&["main;read 7".to_owned()], "title", "ns", &mut picture).unwrap();
        let picture = String::from_utf8(picture).unwrap();
        let root = picture.find("<title>all (").unwrap();
        let group = &picture[root..root + picture[root..].find("</g>").unwrap()];
        assert!(group.ends_with(">all</text>"), "{group}");
    }
}
