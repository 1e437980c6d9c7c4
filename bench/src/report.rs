//! Results, as JSON for `--json` and as a table.

use std::fmt::Write as _;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use crate::spread::quantile;

/// Result of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum RowResult {
    /// It was measured.
    Measured(Measured),
    /// It cannot be measured here.
    Skipped {
        /// The row.
        name: String,
        /// Why.
        why: String,
    },
    /// It was measured and is wrong: a probe saw a different number of calls than were made, or
    /// failed during the round.
    Failed {
        /// The row.
        name: String,
        /// Description of the failure.
        why: String,
    },
}

/// The numbers of a row; times in nanoseconds per call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// The row.
    pub name: String,
    /// Median over the rounds, including the call itself.
    pub ns: f64,
    /// `ns` minus the bare call's median; 0 if no bare call was measured.
    pub over_bare_ns: f64,
    /// Median of the calls timed one by one, including the call itself: the median over the rounds.
    /// Absent if no call was timed alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<f64>,
    /// 99th percentile of the calls timed one by one, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<f64>,
    /// Number of threads that made the calls at the same time.
    pub threads: usize,
    /// Calls that the probe saw in all measured rounds; `null` if there is no probe or it does not
    /// count.
    pub hits: Option<u64>,
    /// Calls made in all measured rounds.
    pub calls: u64,
    /// Fastest round.
    pub min_ns: f64,
    /// First quartile.
    pub q1_ns: f64,
    /// Third quartile.
    pub q3_ns: f64,
    /// Slowest round.
    pub max_ns: f64,
    /// Number of rounds.
    pub rounds: usize,
}

impl Measured {
    /// Summarises a row from each round's nanoseconds per call.
    ///
    /// # Panics
    ///
    /// If there is no round.
    pub fn from_rounds(name: &str, per_call: &[f64], calls: u64, hits: Option<u64>) -> Measured {
        let mut sorted = per_call.to_vec();
        sorted.sort_by(f64::total_cmp);
        Measured {
            name: name.to_owned(),
            ns: quantile(&sorted, 0.5),
            over_bare_ns: 0.0,
            p50_ns: None,
            p99_ns: None,
            threads: 1,
            hits,
            calls,
            min_ns: sorted[0],
            q1_ns: quantile(&sorted, 0.25),
            q3_ns: quantile(&sorted, 0.75),
            max_ns: sorted[sorted.len() - 1],
            rounds: sorted.len(),
        }
    }
}

impl RowResult {
    /// The row's name.
    pub fn name(&self) -> &str {
        match self {
            RowResult::Measured(row) => &row.name,
            RowResult::Skipped { name, .. } | RowResult::Failed { name, .. } => name,
        }
    }

    /// The numbers, if it was measured.
    pub fn measured(&self) -> Option<&Measured> {
        match self {
            RowResult::Measured(row) => Some(row),
            _ => None,
        }
    }
}

/// `{"name","ns","over_bare_ns","hits",...}`, `{"name","skipped":"why"}` or
/// `{"name","failed":"why"}`.
impl Serialize for RowResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (name, key, why) = match self {
            RowResult::Measured(row) => return row.serialize(serializer),
            RowResult::Skipped { name, why } => (name, "skipped", why),
            RowResult::Failed { name, why } => (name, "failed", why),
        };
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("name", name)?;
        map.serialize_entry(key, why)?;
        map.end()
    }
}

/// Formats the results as a table: one row a line, times in nanoseconds per call, and the cost as a
/// multiple of `floor.record` with the same number of threads.
pub fn table(results: &[RowResult]) -> String {
    table_with(results, "", |_| String::new())
}

/// Formats the results as [`table`] does, with one column more.
pub fn table_with(results: &[RowResult], title: &str, column: impl Fn(&str) -> String) -> String {
    let width = results
        .iter()
        .map(|row| row.name().len())
        .max()
        .unwrap_or(0)
        .max(4);
    let floor = |threads| {
        results
            .iter()
            .filter_map(RowResult::measured)
            .find(|row| row.threads == threads && is_floor(&row.name))
            .map(|row| row.over_bare_ns)
            .filter(|&ns| ns > 0.0)
    };
    let mut text = format!(
        "{:<width$}  {:>9}  {:>9}  {:>9}  {:<21}  {:>9}  {:>9}  {:>11}",
        "row", "ns/call", "over bare", "x floor", "min .. max", "p50", "p99", "hits"
    );
    if !title.is_empty() {
        text += &format!("  {title:>8}");
    }
    text.push('\n');
    for result in results {
        let line = match result {
            RowResult::Measured(row) => {
                let line = measured_line(row, width, floor(row.threads));
                format!("{line}  {:>8}", column(&row.name))
            }
            RowResult::Skipped { name, why } => format!("{name:<width$}  skipped: {why}"),
            RowResult::Failed { name, why } => format!("{name:<width$}  failed: {why}"),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn measured_line(row: &Measured, width: usize, floor: Option<f64>) -> String {
    let times = floor.map_or(String::new(), |floor| {
        format!("{:.2}", row.over_bare_ns / floor)
    });
    let times = match row.name.split('@').next() {
        Some("bare") => String::new(),
        _ => times,
    };
    let spread = format!("{:.2} .. {:.2}", row.min_ns, row.max_ns);
    let hits = row.hits.map_or("-".to_owned(), |hits| hits.to_string());
    let [p50, p99] =
        [row.p50_ns, row.p99_ns].map(|ns| ns.map_or("-".to_owned(), |ns| format!("{ns:.1}")));
    format!(
        "{:<width$}  {:>9.2}  {:>9.2}  {times:>9}  {spread:<21}  {p50:>9}  {p99:>9}  {hits:>11}",
        row.name, row.ns, row.over_bare_ns
    )
}

/// True for `floor.record`, with any number of threads.
fn is_floor(name: &str) -> bool {
    name.split('@').next() == Some("floor.record")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, ns: &[f64], bare: f64, hits: Option<u64>) -> RowResult {
        let mut row = Measured::from_rounds(name, ns, 300, hits);
        row.over_bare_ns = row.ns - bare;
        row.p50_ns = Some(row.ns * 2.0);
        row.p99_ns = Some(row.ns * 10.0);
        RowResult::Measured(row)
    }

    fn on_two_threads(row: RowResult) -> RowResult {
        match row {
            RowResult::Measured(row) => RowResult::Measured(Measured {
                name: format!("{}@2", row.name),
                threads: 2,
                p50_ns: None,
                p99_ns: None,
                ..row
            }),
            other => other,
        }
    }

    fn some_results() -> Vec<RowResult> {
        vec![
            row("bare", &[1.5, 1.25, 2.0], 1.5, Some(0)),
            row("floor.record", &[12.0, 11.5, 11.0], 1.5, Some(300)),
            row("capriole.record2", &[16.5, 16.5, 17.0], 1.5, None),
            RowResult::Skipped {
                name: "kernel.uprobe".into(),
                why: "not root".into(),
            },
            RowResult::Failed {
                name: "capriole.int3".into(),
                why: "3 hits in 4 calls".into(),
            },
            on_two_threads(row("bare", &[2.0], 2.0, None)),
            on_two_threads(row("floor.record", &[22.0], 2.0, Some(600))),
        ]
    }

    #[test]
    fn medians_and_quartiles() {
        let row = Measured::from_rounds("x", &[5.0, 1.0, 4.0, 2.0, 3.0], 5, None);
        assert_eq!((row.ns, row.min_ns, row.max_ns), (3.0, 1.0, 5.0));
        assert_eq!((row.q1_ns, row.q3_ns), (2.0, 4.0));
        let row = Measured::from_rounds("x", &[1.0, 2.0], 5, None);
        assert_eq!((row.ns, row.q1_ns, row.q3_ns), (1.5, 1.25, 1.75));
    }

    #[test]
    fn json_has_the_documented_keys() {
        let json = serde_json::to_value(some_results()).expect("no map with odd keys");
        assert_eq!(
            json[1],
            serde_json::json!({"name": "floor.record", "ns": 11.5, "over_bare_ns": 10.0,
                "p50_ns": 23.0, "p99_ns": 115.0, "threads": 1, "hits": 300, "calls": 300, "min_ns": 11.0, "q1_ns": 11.25, "q3_ns": 11.75, "max_ns": 12.0, "rounds": 3})
        );
        assert_eq!(
            json[6],
            serde_json::json!({"name": "floor.record@2", "ns": 22.0, "over_bare_ns": 20.0,
                "threads": 2, "hits": 600, "calls": 300,
                "min_ns": 22.0, "q1_ns": 22.0, "q3_ns": 22.0, "max_ns": 22.0, "rounds": 1})
        );
        assert_eq!(
            json[3],
            serde_json::json!({"name": "kernel.uprobe", "skipped": "not root"})
        );
        assert_eq!(
            json[4],
            serde_json::json!({"name": "capriole.int3", "failed": "3 hits in 4 calls"})
        );
    }

    #[test]
    fn the_table_reads_like_this() {
        let expected = "\
row                 ns/call  over bare    x floor  min .. max                   p50        p99         hits
bare                   1.50       0.00             1.25 .. 2.00                 3.0       15.0            0
floor.record          11.50      10.00       1.00  11.00 .. 12.00              23.0      115.0          300
capriole.record2      16.50      15.00       1.50  16.50 .. 17.00              33.0      165.0            -
kernel.uprobe     skipped: not root
capriole.int3     failed: 3 hits in 4 calls
bare@2                 2.00       0.00             2.00 .. 2.00                   -          -            -
floor.record@2        22.00      20.00       1.00  22.00 .. 22.00                 -          -          600
";
        assert_eq!(table(&some_results()), expected);
    }
}
