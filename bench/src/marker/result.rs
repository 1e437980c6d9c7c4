//! Results of the marker rows.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::report::RowResult;

/// Result of one row.
#[derive(Debug, Clone)]
pub struct MarkerResult {
    /// The row's numbers; `over_bare_ns` is relative to the row `over`.
    pub result: RowResult,
    /// Name of the row that it is compared with.
    pub over: &'static str,
    /// Fastest round minus that row's fastest round, in nanoseconds per call: the value least
    /// disturbed by a busy machine.
    pub over_min_ns: f64,
}

/// Results of all rows.
#[derive(Debug, Clone)]
pub struct MarkerResults {
    /// Rows in the order given.
    pub rows: Vec<MarkerResult>,
    /// Ticks of the time stamp counter per nanosecond, over the whole run.
    pub ticks_per_ns: f64,
}

impl MarkerResults {
    /// Compares each row with its row `over`, if that was measured.
    pub(super) fn new(mut rows: Vec<MarkerResult>, ticks_per_ns: f64) -> MarkerResults {
        let all: Vec<(String, f64, f64)> = rows
            .iter()
            .filter_map(|row| row.result.measured())
            .map(|row| (row.name.clone(), row.ns, row.min_ns))
            .collect();
        for row in &mut rows {
            if let RowResult::Measured(numbers) = &mut row.result
                && let Some((_, ns, min)) = all.iter().find(|(name, ..)| name == row.over)
            {
                numbers.over_bare_ns = numbers.ns - ns;
                row.over_min_ns = numbers.min_ns - min;
            }
        }
        MarkerResults { rows, ticks_per_ns }
    }

    /// True if a row has failed.
    pub fn failed(&self) -> bool {
        let failed = |row: &MarkerResult| matches!(row.result, RowResult::Failed { .. });
        self.rows.iter().any(failed)
    }

    fn floor(&self) -> Option<f64> {
        let measured = self.rows.iter().filter_map(|row| row.result.measured());
        let mut floors = measured.filter(|row| row.name == "floor.record");
        let floor = floors.next()?.over_bare_ns;
        Some(floor).filter(|&ns| ns > 0.0)
    }

    /// Returns the rows for `--json`: as those of `bench hit`, with `ticks`, `over_bare_ticks`,
    /// `over` and `over_min_ns`.
    pub fn json(&self) -> Vec<Value> {
        let one = |row: &MarkerResult| {
            let mut value = json!(row.result);
            if let Some(numbers) = row.result.measured() {
                value["ticks"] = json!(numbers.ns * self.ticks_per_ns);
                value["over_bare_ticks"] = json!(numbers.over_bare_ns * self.ticks_per_ns);
                value["over"] = json!(row.over);
                value["over_min_ns"] = json!(row.over_min_ns);
            }
            value
        };
        self.rows.iter().map(one).collect()
    }

    /// Formats the results as a table.
    pub fn table(&self) -> String {
        let names = self.rows.iter().map(|row| row.result.name().len());
        let width = names.max().unwrap_or(0).max(4);
        let floor = self.floor();
        let mut text = format!(
            "{:<width$}  {:>9}  {:>9}  {:>9}  {:>9}  {:>8}  {:>8}  {:>7}  {:<19}  {:>11}\n",
            "row",
            "ns",
            "ticks",
            "over ns",
            "ticks",
            "over %",
            "min %",
            "x floor",
            "min .. max",
            "hits"
        );
        for row in &self.rows {
            let line = match &row.result {
                RowResult::Measured(numbers) => {
                    let itself = numbers.name == row.over;
                    let show = |value: f64, precision: usize| match itself {
                        true => String::new(),
                        false => format!("{value:.precision$}"),
                    };
                    let base = numbers.ns - numbers.over_bare_ns;
                    let base_min = numbers.min_ns - row.over_min_ns;
                    let times = floor.map_or(String::new(), |f| show(numbers.over_bare_ns / f, 2));
                    let spread = format!("{:.2} .. {:.2}", numbers.min_ns, numbers.max_ns);
                    let hits = numbers.hits.map_or("-".to_owned(), |hits| hits.to_string());
                    format!(
                        "{:<width$}  {:>9.2}  {:>9.2}  {:>9}  {:>9}  {:>8}  {:>8}  {times:>7}  {spread:<19}  {hits:>11}",
                        numbers.name,
                        numbers.ns,
                        numbers.ns * self.ticks_per_ns,
                        show(numbers.over_bare_ns, 2),
                        show(numbers.over_bare_ns * self.ticks_per_ns, 2),
                        show(numbers.over_bare_ns / base.max(1e-9) * 100.0, 1),
                        show(row.over_min_ns / base_min.max(1e-9) * 100.0, 1),
                    )
                }
                RowResult::Skipped { name, why } => format!("{name:<width$}  skipped: {why}"),
                RowResult::Failed { name, why } => format!("{name:<width$}  failed: {why}"),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Measured;

    #[test]
    fn rows_are_compared_with_their_own() {
        let row = |name: &str, ns, over| MarkerResult {
            result: RowResult::Measured(Measured::from_rounds(name, &[ns], 10, None)),
            over,
            over_min_ns: 0.0,
        };
        let skipped = MarkerResult {
            result: RowResult::Skipped {
                name: "d".to_owned(),
                why: "not here".to_owned(),
            },
            over: "a",
            over_min_ns: 0.0,
        };
        let rows = vec![
            row("bare", 2.0, "bare"),
            row("floor.record", 12.0, "bare"),
            row("a", 1.0, "a"),
            row("b", 16.0, "a"),
            skipped,
        ];
        let results = MarkerResults::new(rows, 2.0);
        let json = results.json();
        assert_eq!(json[3]["over_bare_ns"], 15.0);
        assert_eq!(json[3]["ticks"], 32.0);
        assert_eq!(json[3]["over_min_ns"], 15.0);
        assert_eq!(json[3]["over_bare_ticks"], 30.0);
        assert_eq!(json[4], json!({"name": "d", "skipped": "not here"}));
        let table = results.table();
        let lines: Vec<&str> = table.lines().collect();
        let b: Vec<&str> = lines[4].split_whitespace().collect();
        assert_eq!(
            b[..8],
            [
                "b", "16.00", "32.00", "15.00", "30.00", "1500.0", "1500.0", "1.50"
            ]
        );
        assert_eq!(lines[5], "d             skipped: not here");
        assert!(!results.failed());
    }
}
