//! The columns of a table: their titles and cells, and the order of rows by one of them.

use super::text::{Rates, key_cell};
use capriole::aggregate::model::{Group, Histogram, Measure, PERCENTILES, Row};
use capriole_event::identifier;
use capriole_text::units;
use std::cmp::Ordering;

/// Content of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// Number of hits.
    Calls,
    /// Hits per second.
    Rate,
    /// Number of calls that may be missing in the row, at most.
    Error,
    /// Number of hits with a value that could not be read.
    Unreadable,
    /// A measure that is one number, by its index.
    Measure(usize),
    /// A number that is computed from a histogram, which is the measure with this index.
    Of(usize, Statistic),
    /// A key, by its index.
    Key(usize),
    /// The event's name.
    Event,
}

impl Figure {
    /// Returns the importance of a column with this title that may be left out: the least important one
    /// goes first. A measure of the event's own comes after all that is computed from histograms.
    pub fn importance(self, title: &str) -> u8 {
        let computed = match parts(title).0 {
            "p99" => 9,
            "avg" => 8,
            "total" => 7,
            "max" => 6,
            "p50" => 5,
            "p90" => 3,
            "p99.9" => 2,
            "min" => 1,
            _ => 4,
        };
        match self {
            Figure::Measure(_) => 10 + computed,
            _ => computed,
        }
    }
}

/// A number that is computed from a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistic {
    /// The mean; if the sum was not kept, as if each value were in the middle of its bucket.
    Mean,
    /// The smallest value, or the lower bound of the first bucket.
    Least,
    /// The upper bound of the bucket that contains this permille of the values.
    Percentile(u16),
    /// The largest value, or the upper bound of the last bucket.
    Largest,
    /// The sum; if it was not kept, as if each value were in the middle of its bucket.
    Sum,
}

/// Names of what a table has; for each measure, true if it is a duration in ns.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    /// Names of the keys.
    pub keys: &'a [String],
    /// Names of the measures.
    pub measures: &'a [String],
    /// For each measure, true if its values are durations in ns.
    pub in_nanoseconds: &'a [bool],
}

impl<'a> From<&'a Group> for Names<'a> {
    fn from(group: &'a Group) -> Names<'a> {
        Names {
            keys: &group.key_names,
            measures: &group.measure_names,
            in_nanoseconds: &group.in_nanoseconds,
        }
    }
}

/// Function and field of a measure's name: `sum(n)`.
pub fn parts(measure: &str) -> (&str, &str) {
    let (function, field) = measure.split_once('(').unwrap_or((measure, ""));
    (function, field.strip_suffix(')').unwrap_or(field))
}

impl Names<'_> {
    /// True if the measure is a duration in ns.
    pub fn is_time(&self, measure: usize) -> bool {
        self.in_nanoseconds.get(measure).is_some_and(|is| *is)
    }

    /// Returns the columns with their titles, from left to right. Durations need no name of a
    /// field. A number that was measured takes the place of one computed from a histogram.
    pub fn columns(&self) -> Vec<(String, Figure)> {
        let mut columns = vec![
            ("calls".to_owned(), Figure::Calls),
            ("calls/s".to_owned(), Figure::Rate),
            ("error".to_owned(), Figure::Error),
            ("unreadable".to_owned(), Figure::Unreadable),
        ];
        let measured = |name: String| self.measures.iter().position(|other| *other == name);
        for (number, name) in self.measures.iter().enumerate() {
            let (function, field) = parts(name);
            let time = self.is_time(number);
            if function != "hist" {
                let placed = time && measured(format!("hist({field})")).is_some();
                match (placed, time) {
                    (true, _) => {}
                    (false, true) if function == "sum" => {
                        columns.push(("total".to_owned(), Figure::Measure(number)));
                    }
                    (false, true) => columns.push((function.to_owned(), Figure::Measure(number))),
                    (false, false) => columns.push((name.clone(), Figure::Measure(number))),
                }
                continue;
            }
            let mut add = |title: &str, function: &str, statistic| {
                let exact = measured(format!("{function}({field})"));
                let figure = match exact {
                    Some(_) if !time => return, // it has a column of its own
                    Some(exact) => Figure::Measure(exact),
                    None => Figure::Of(number, statistic),
                };
                columns.push(match time {
                    true => (title.to_owned(), figure),
                    false => (format!("{title}({field})"), figure),
                });
            };
            add("avg", "avg", Statistic::Mean);
            if time {
                add("min", "min", Statistic::Least);
            }
            for (title, permille) in PERCENTILES {
                add(title, title, Statistic::Percentile(permille));
            }
            add("max", "max", Statistic::Largest);
            if time {
                add("total", "sum", Statistic::Sum);
            }
        }
        let keys = self.keys.iter().enumerate();
        columns.extend(keys.map(|(number, name)| (name.clone(), Figure::Key(number))));
        columns.push(("event".to_owned(), Figure::Event));
        columns
    }

    /// Finds the column with this title: `p99(n)`, or `p99` for the first one of that function. A
    /// field may be written as in the event: `sum(req->size)` is the column `sum(req_size)`.
    pub fn find(&self, title: &str) -> Option<Figure> {
        let columns = self.columns();
        let named = |wanted: &str| {
            let exact = columns.iter().find(|(other, _)| other == wanted);
            let function = || columns.iter().find(|(other, _)| parts(other).0 == wanted);
            exact.or_else(function).map(|(_, figure)| *figure)
        };
        let synonym = || match title {
            "total" => named("sum"),
            "sum" => named("total"),
            _ => None,
        };
        // In an interval, `min(n)` and `max(n)` are shown as those so far.
        let title = title.strip_suffix(" so far").unwrap_or(title);
        let as_in_event = || {
            let field = |text: &str| identifier(text.trim());
            let name = match title.split_once('(') {
                Some((function, rest)) => {
                    let measured = rest.trim_end().strip_suffix(')')?;
                    format!("{}({})", function.trim(), field(measured)?)
                }
                None => field(title)?,
            };
            named(&name)
        };
        named(title).or_else(synonym).or_else(as_in_event)
    }
}

/// Sorts rows by a column: numbers descending, keys and events ascending. Rows that are equal there,
/// or have no number, keep their order.
pub fn sort(rows: &mut [&Row], figure: Figure, rates: &Rates<'_>, names: &[String]) {
    let descending = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (a, b) => b.is_some().cmp(&a.is_some()),
    };
    rows.sort_by(|a, b| match figure {
        Figure::Calls => b.calls.cmp(&a.calls),
        Figure::Error => b.error.cmp(&a.error),
        Figure::Unreadable => b.unreadable.cmp(&a.unreadable),
        Figure::Rate => rates.of(b).total_cmp(&rates.of(a)),
        Figure::Key(number) => a.keys.get(number).cmp(&b.keys.get(number)),
        Figure::Event => names.get(a.event).cmp(&names.get(b.event)),
        Figure::Measure(number) => {
            let value = |row: &Row| row.measures.get(number).and_then(measured);
            exact(a, b, number).unwrap_or_else(|| descending(value(a), value(b)))
        }
        Figure::Of(number, statistic) => {
            let value = |row: &Row| Some(computed(histogram(row, number)?, statistic)?.0);
            descending(value(a), value(b))
        }
    });
}

/// Compares whole numbers, which a floating point number might not tell apart.
fn exact(a: &Row, b: &Row, number: usize) -> Option<Ordering> {
    let whole = |row: &Row| match row.measures.get(number)? {
        Measure::Sum(sum) => Some(sum.value()),
        Measure::Minimum(value) | Measure::Maximum(value) => *value,
        Measure::Average { .. } | Measure::Histogram(_) => None,
    };
    Some(whole(b)?.cmp(&whole(a)?))
}

fn measured(measure: &Measure) -> Option<f64> {
    match measure {
        Measure::Sum(sum) => Some(sum.value() as f64),
        Measure::Minimum(value) | Measure::Maximum(value) => value.map(|value| value as f64),
        average @ Measure::Average { .. } => average.mean(),
        Measure::Histogram(_) => None,
    }
}

fn histogram(row: &Row, number: usize) -> Option<&Histogram> {
    match row.measures.get(number)? {
        Measure::Histogram(histogram) => Some(histogram),
        _ => None,
    }
}

/// Computes a statistic, and says if it is exact; `None` without any value.
pub fn computed(histogram: &Histogram, statistic: Statistic) -> Option<(f64, bool)> {
    let whole = |(value, exact): (i128, bool)| (value as f64, exact);
    Some(match statistic {
        Statistic::Least => whole(histogram.least()?),
        Statistic::Largest => whole(histogram.largest()?),
        Statistic::Sum if histogram.buckets.is_empty() => return None,
        Statistic::Mean => (histogram.mean()?, histogram.is_exact()),
        Statistic::Sum => (histogram.sum(), histogram.is_exact()),
        Statistic::Percentile(permille) => {
            let bucket = histogram.quantile(permille)?;
            (bucket.high as f64, bucket.low == bucket.high)
        }
    })
}

/// Formats the cell of a row, `-` without any value. `names` are those of the events.
pub fn cell(row: &Row, figure: Figure, time: bool, rates: &Rates<'_>, names: &[String]) -> String {
    let shown = match figure {
        Figure::Calls => Some(row.calls.to_string()),
        Figure::Rate => Some(units::rate(rates.of(row))),
        Figure::Error => Some(row.error.to_string()),
        Figure::Unreadable => Some(row.unreadable.to_string()),
        Figure::Measure(number) => row.measures.get(number).and_then(|measure| {
            let value = measured(measure)?;
            Some(match measure {
                _ if time => units::short_time(value),
                Measure::Sum(sum) => sum.value().to_string(),
                Measure::Minimum(value) | Measure::Maximum(value) => value.as_ref()?.to_string(),
                Measure::Average { .. } | Measure::Histogram(_) => format!("{value:.1}"),
            })
        }),
        Figure::Of(number, statistic) => {
            histogram(row, number).and_then(|histogram| statistic_cell(histogram, statistic, time))
        }
        Figure::Key(0) if row.keys.is_empty() => return "(other keys)".to_owned(),
        Figure::Key(number) => return row.keys.get(number).map(key_cell).unwrap_or_default(),
        Figure::Event => return names.get(row.event).map_or("?", String::as_str).to_owned(),
    };
    shown.unwrap_or_else(|| "-".to_owned())
}

/// Formats a statistic. An estimate begins with `~`; percentiles are always bounds.
fn statistic_cell(histogram: &Histogram, statistic: Statistic, time: bool) -> Option<String> {
    let (value, exact) = computed(histogram, statistic)?;
    let whole = match statistic {
        Statistic::Percentile(permille) => histogram.quantile(permille).map(|bucket| bucket.high),
        Statistic::Least => histogram.least().map(|(least, _)| least),
        Statistic::Largest => histogram.largest().map(|(largest, _)| largest),
        Statistic::Mean | Statistic::Sum => None,
    };
    let shown = match whole {
        _ if time => units::short_time(value),
        Some(whole) => whole.to_string(),
        None => format!("{value:.1}"),
    };
    let mark = match statistic {
        Statistic::Percentile(_) => "",
        _ if exact => "",
        _ => "~",
    };
    Some(format!("{mark}{shown}"))
}
