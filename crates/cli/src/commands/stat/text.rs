//! Formats a snapshot or an interval as lines of text: tables, each followed by its histograms.

use super::columns::{self, Figure, Names, parts};
use super::plot;
use super::stacks;
use super::table::{self, Column};
use capriole::aggregate::model::{
    self, Group, Interval, Intervals, Measure, Row, RowName, Snapshot, Value,
};
use capriole_object::symbols::shown::Form;
use capriole_report::{put_descriptor, put_escaped};
use capriole_text::units;
use capriole_trace::Descriptor;
use std::collections::HashMap;
use std::time::Duration;

/// Limits on what is shown, and the character set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Maximum number of rows of each table.
    pub rows: usize,
    /// Maximum number of histograms for each measure of each table.
    pub plots: usize,
    /// True if histograms of tables with keys are shown, too.
    pub keyed_plots: bool,
    /// Place of call stacks.
    pub stacks: Stacks,
    /// Form of the names of functions in call stacks.
    pub form: Form,
    /// True if more than ASCII can be shown.
    pub blocks: bool,
    /// Maximum width of a table: columns between the number of calls and the keys are left out to
    /// keep it.
    pub columns: usize,
}

/// Place of call stacks that are keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stacks {
    /// Below their row, a line for each function.
    Below,
    /// In a column, by their functions.
    Inline,
}

/// The tables to be shown, in order.
#[derive(Debug)]
pub struct Page<'a> {
    names: Vec<String>,
    tables: Vec<Table<'a>>,
    /// Number of events that were not hit; 0 for an interval, which does not show them.
    silent: u64,
    /// Words for events that were not hit.
    never_hit: &'static str,
    /// In an interval, suffix for the names of measures that cover all time since the start.
    so_far: &'static str,
    rates: Rates<'a>,
}

/// Rows that share columns.
#[derive(Debug)]
struct Table<'a> {
    /// The group with the keys and measures; for plain counting, one of the plain groups.
    group: &'a Group,
    /// Rows, sorted.
    rows: Vec<&'a Row>,
}

/// Basis of the column `calls/s`.
#[derive(Debug)]
pub struct Rates<'a> {
    time: Duration,
    /// Calls in `time`, by row; `None` if the rows themselves cover that time.
    calls: Option<HashMap<RowName<'a>, u64>>,
}

impl Rates<'_> {
    /// Returns the hits of a row per second.
    pub fn of(&self, row: &Row) -> f64 {
        let calls = match &self.calls {
            Some(calls) => calls.get(&row.name()).copied().unwrap_or(0),
            None => row.calls,
        };
        model::per_second(calls, self.time)
    }
}

impl<'a> Page<'a> {
    /// Creates a page of everything so far; `names` are the event names.
    pub fn whole(snapshot: &'a Snapshot, names: &[String]) -> Page<'a> {
        let mut page = Page::new(&snapshot.groups, names, snapshot.time);
        let events = model::by_event(&snapshot.groups).into_iter();
        let unhit = events.filter(|(event, calls)| *calls == 0 && !unmatched(snapshot, *event));
        page.silent = unhit.count() as u64;
        page
    }

    /// Counts events that were not hit by the numbers of other events, with which they are hit.
    #[must_use]
    pub fn hit_as(mut self, snapshot: &Snapshot, numbers: &[u32]) -> Page<'a> {
        let mut calls: HashMap<usize, bool> = HashMap::new();
        for (event, count) in model::by_event(&snapshot.groups) {
            let number = numbers.get(event).map_or(event, |number| *number as usize);
            *calls.entry(number).or_default() |= count > 0 || unmatched(snapshot, event);
        }
        self.silent = calls.values().filter(|hit| !**hit).count() as u64;
        self
    }

    /// Leaves so many events out of the number of those that were not hit: they are mentioned elsewhere.
    #[must_use]
    pub fn mentioned(mut self, events: usize) -> Page<'a> {
        self.silent = self.silent.saturating_sub(events as u64);
        self
    }

    /// Creates a page of an interval.
    pub fn interval(interval: &'a Interval, names: &[String]) -> Page<'a> {
        let mut page = Page::new(&interval.groups, names, interval.time);
        page.so_far = " so far";
        page
    }

    /// Creates a page of everything so far, with the rates of `recent`, the interval that just
    /// ended.
    pub fn live(snapshot: &'a Snapshot, recent: &'a Interval, names: &[String]) -> Page<'a> {
        let mut page = Page::whole(snapshot, names);
        let rows = recent.groups.iter().flat_map(Group::all_rows);
        page.never_hit = "not hit yet";
        page.rates = Rates {
            time: recent.time,
            calls: Some(rows.map(|row| (row.name(), row.calls)).collect()),
        };
        page
    }

    fn new(groups: &'a [Group], names: &[String], time: Duration) -> Page<'a> {
        let (plain, others): (Vec<&Group>, Vec<&Group>) =
            groups.iter().partition(|group| group.is_plain());
        let counted = plain.first().map(|first| Table {
            group: first,
            rows: model::sorted(plain.iter().flat_map(|group| &group.rows)),
        });
        let others = others.into_iter().map(|group| Table {
            group,
            rows: model::sorted(group.rows.iter()),
        });
        Page {
            names: names
                .iter()
                // An event as written may have quotes: they stay.
                .map(|name| escaped(name.as_bytes(), 0))
                .collect(),
            tables: counted.into_iter().chain(others).collect(),
            silent: 0,
            never_hit: "never hit",
            so_far: "",
            rates: Rates { time, calls: None },
        }
    }

    /// Returns the number of rows of the longest table.
    pub fn longest(&self) -> usize {
        let lengths = self.tables.iter().map(|table| table.rows.len());
        lengths.max().unwrap_or(0)
    }

    /// Sorts the rows of each table by the column with this title, as far as it has one.
    #[must_use]
    pub fn sorted_by(mut self, title: Option<&str>) -> Page<'a> {
        for table in &mut self.tables {
            let names = Names::from(table.group);
            if let Some(figure) = title.and_then(|title| names.find(title)) {
                columns::sort(&mut table.rows, figure, &self.rates, &self.names);
            }
        }
        self
    }

    /// Formats the lines, with an empty one between parts.
    pub fn lines(&self, style: Style) -> Vec<String> {
        let mut parts: Vec<Vec<String>> = Vec::new();
        for table in &self.tables {
            parts.push(self.table(table, style));
            for number in 0..table.group.measure_names.len() {
                parts.extend(self.plots(table, number, style));
            }
        }
        if self.silent > 0 {
            let silent = units::counted(self.silent, "event was", "events were");
            parts.push(vec![format!("{silent} {}", self.never_hit)]);
        }
        parts.retain(|part| !part.is_empty());
        parts.join(&String::new())
    }

    fn name(&self, event: usize) -> &str {
        self.names.get(event).map_or("?", String::as_str)
    }

    /// Formats the heading, the rows, and remarks on what is left out.
    fn table(&self, table: &Table<'_>, style: Style) -> Vec<String> {
        let group = table.group;
        let shown = &table.rows[..style.rows.min(table.rows.len())];
        let mut lines = Vec::new();
        let others = model::sorted(group.others.iter());
        if !shown.is_empty() || !others.is_empty() {
            if let Some(event) = title_event(group) {
                let keys = group.key_names.join(", ");
                lines.push(format!("{} by {keys}", self.name(event)));
            }
            let rows = [shown, &others].concat();
            let dots = if style.blocks { "…" } else { ".." };
            let columns = self.columns(group, &rows, style);
            let (mut table, left_out) = table::within(columns, style.columns, dots);
            if style.stacks == Stacks::Below {
                let first = table.remove(0);
                lines.push(first);
                for (line, row) in table.into_iter().zip(&rows) {
                    lines.push(line);
                    lines.extend(stacks::below(row, style.form));
                }
            } else {
                lines.extend(table);
            }
            if !left_out.is_empty() {
                lines.push(format!("no room for {}", left_out.join(", ")));
            }
        }
        let more = table.rows.len() - shown.len();
        if more > 0 {
            let dots = if style.blocks { "…" } else { "..." };
            lines.push(format!("{dots} and {} more", units::count(more as u64)));
        }
        let which = if group.events.len() > 1 { "a" } else { "the" };
        if !others.is_empty() || table.rows.iter().any(|row| row.error > 0) {
            lines.push(format!(
                "{which} table is full: up to `error` calls of a row may be among those of other \
                 keys, and a key without a row had at most {}; give it more room with --keys (now {})",
                units::count(group.most_without_row),
                units::count(group.capacity.into()),
            ));
        }
        if let Some(intervals) = &group.intervals {
            let name = match (&group.events[..], lines.is_empty()) {
                ([event], true) => format!("{}: ", self.name(*event)),
                _ => String::new(),
            };
            lines.extend(remarks(intervals, &name, group.capacity));
        }
        if group.dropped > 0 {
            lines.push(format!(
                "{which} table is full: {} not counted; give it more room with --keys (now {})",
                units::counted(
                    group.dropped,
                    "hit of a new key was",
                    "hits of new keys were"
                ),
                units::count(group.capacity.into()),
            ));
        }
        lines
    }

    fn columns(&self, group: &Group, rows: &[&Row], style: Style) -> Vec<Column> {
        let names = Names::from(group);
        let is_shown = |figure: Figure| match figure {
            Figure::Unreadable => rows.iter().any(|row| row.unreadable > 0),
            Figure::Error => rows.iter().any(|row| row.error > 0),
            Figure::Event => title_event(group).is_none(),
            Figure::Key(key) if style.stacks == Stacks::Below => {
                let value = rows.iter().find_map(|row| row.keys.get(key));
                !matches!(value, Some(Value::Stack(_)))
            }
            _ => true,
        };
        let column = |(mut title, figure): (String, Figure)| {
            let mut time = false;
            if let Figure::Measure(number) | Figure::Of(number, _) = figure {
                time = names.is_time(number);
            }
            if let Figure::Measure(number) = figure
                && matches!(parts(&group.measure_names[number]).0, "min" | "max")
            {
                title += self.so_far;
            }
            let cells = rows
                .iter()
                .map(|row| columns::cell(row, figure, time, &self.rates, &self.names));
            let is_text =
                |value: Option<&Value>| matches!(value, Some(Value::Text(_) | Value::Stack(_)));
            match figure {
                Figure::Event => Column::text(title, cells).flexible(),
                Figure::Key(key) if rows.iter().any(|row| is_text(row.keys.get(key))) => {
                    Column::text(title, cells).flexible()
                }
                Figure::Key(_) => Column::numbers(title, cells).flexible(),
                Figure::Calls | Figure::Error | Figure::Unreadable => Column::numbers(title, cells),
                Figure::Rate | Figure::Measure(_) | Figure::Of(..) => {
                    let importance = figure.importance(&title);
                    Column::numbers(title, cells).optional(importance)
                }
            }
        };
        let all = names.columns().into_iter();
        all.filter(|(_, figure)| is_shown(*figure))
            .map(column)
            .collect()
    }

    /// Formats the histograms of the most frequent rows, each with a heading that names its row.
    fn plots(&self, table: &Table<'_>, measure: usize, style: Style) -> Vec<Vec<String>> {
        if !table.group.key_names.is_empty() && !style.keyed_plots {
            return Vec::new();
        }
        let name = &table.group.measure_names[measure];
        let time = Names::from(table.group).is_time(measure);
        let plot = |row: &&Row| {
            let Some(Measure::Histogram(histogram)) = row.measures.get(measure) else {
                return None;
            };
            let lines = plot::lines(histogram, time, style.blocks);
            let mut heading = format!("{name} of {}", self.name(row.event));
            for (name, value) in table.group.key_names.iter().zip(&row.keys) {
                heading += &format!(", {name}={}", key_value(value));
            }
            (!lines.is_empty()).then(|| [vec![heading], lines].concat())
        };
        let shown = table.rows.iter().take(style.rows);
        shown.filter_map(plot).take(style.plots).collect()
    }
}

/// True if an event ends intervals, and was hit without one.
fn unmatched(snapshot: &Snapshot, event: usize) -> bool {
    snapshot.groups.iter().any(|group| {
        let unmatched = group.intervals.map_or(0, |intervals| intervals.unmatched);
        unmatched > 0 && group.events.contains(&event)
    })
}

/// Formats what became of starts and ends that are in no row. `name` is put before it.
pub fn remarks(intervals: &Intervals, name: &str, keys: u32) -> Vec<String> {
    let [start, end, key] = [("start", "starts"), ("end", "ends"), ("key", "keys")];
    let parts = [
        (intervals.open, start, "still open"),
        (intervals.restarted, start, "restarted by the next one"),
        (intervals.unmatched, end, "unmatched"),
        (intervals.unreadable, key, "unreadable"),
        (intervals.lost.unwrap_or(0), start, "lost"),
    ];
    let parts = parts.iter().filter(|(count, ..)| *count > 0);
    let parts = parts.map(|(count, (one, several), what)| {
        format!("{} {what}", units::counted(*count, one, several))
    });
    let parts: Vec<String> = parts.collect();
    let mut lines = Vec::new();
    if !parts.is_empty() {
        lines.push(format!("{name}no interval: {}", parts.join(", ")));
    }
    if intervals.no_room > 0 {
        lines.push(format!(
            "{name}too many intervals were open: {} no room; give them more with --keys (now {}, which \
             is room for {} intervals at most)",
            units::counted(intervals.no_room, "start had", "starts had"),
            units::count(keys.into()),
            units::count(intervals.slots.into()),
        ));
    }
    lines
}

/// Returns the event that goes into the title instead of a column, because it is the only one.
/// Without keys the column is needed to name the row.
fn title_event(group: &Group) -> Option<usize> {
    match group.events[..] {
        [event] if !group.key_names.is_empty() => Some(event),
        _ => None,
    }
}

/// Formats a key in a column: text as it is, or quoted if its ends would not be visible or it could
/// be taken for something else.
pub fn key_cell(value: &Value) -> String {
    match value {
        Value::Text(text) => {
            let plain = escaped(text, b'"');
            let hidden = plain.is_empty() || plain.starts_with([' ', '(']) || plain.ends_with(' ');
            if hidden {
                format!("\"{plain}\"")
            } else {
                plain
            }
        }
        value => key_value(value),
    }
}

/// Formats a key within other text.
fn key_value(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Hexadecimal(number) => format!("{number:#x}"),
        Value::Character(byte) => format!("'{}'", escaped(&[*byte], b'\'')),
        Value::Descriptor(number, name) => {
            let mut out = Vec::new();
            let name = name
                .as_ref()
                .map(|(name, certainty)| (name.as_str(), *certainty));
            let number = *number;
            put_descriptor(&mut out, Descriptor { number, name });
            String::from_utf8_lossy(&out).into_owned()
        }
        Value::Name(name) => escaped(name.as_bytes(), b'"'),
        Value::Function(address, None) => format!("{address:#x}"),
        Value::Function(_, Some((name, offset))) => {
            format!("{}+{offset:#x}", escaped(name.as_bytes(), b'"'))
        }
        Value::Address(address) => address.to_string(),
        Value::Text(text) => format!("\"{}\"", escaped(text, b'"')),
        Value::Stack(chain) => stacks::inline(chain),
        Value::Unreadable => "(fault)".to_owned(),
    }
}

/// Escapes characters that act on a terminal, as in reports.
fn escaped(text: &[u8], quote: u8) -> String {
    let mut out = Vec::new();
    put_escaped(&mut out, text, quote);
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests;
