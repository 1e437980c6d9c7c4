//! Two summaries of calls in one table.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::call_summary::{CallSummary, FunctionSummary};
use super::summary::{counted, seconds};
use super::table::{microseconds, put_table, time_of_calls};
use super::tasks::printable;
use capriole_object::symbols::shown::{Form, ShownNames};

/// The functions of two traces, with the change from one to the other. `Display` prints a readable
/// table; `Serialize` gives the same data for programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The first trace.
    pub before: Compared,
    /// The second trace.
    pub after: Compared,
    /// The functions that were called in either, by the change of their total time, greatest increase
    /// first.
    pub by_function: Vec<FunctionComparison>,
    /// Form of the names of functions in the table; JSON has complete names.
    #[serde(skip)]
    pub names: Form,
}

/// A trace that is compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// The trace directory.
    pub directory: PathBuf,
    /// Number of calls.
    pub calls: u64,
    /// From the start of the recording to the moment at which all probes were out, in ns.
    pub duration_ns: u64,
    /// Hits that are not in the trace.
    pub lost_events: u64,
    /// True if the recording ended normally.
    pub complete: bool,
}

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FunctionComparison {
    /// Its name.
    pub function: String,
    /// Its calls in the first trace; `None` without any.
    pub before: Option<FunctionSummary>,
    /// Its calls in the second trace; `None` without any.
    pub after: Option<FunctionSummary>,
    /// Change of the total time from entry to exit, in ns, as far as it is known; `None` if nothing is
    /// known of one of the two.
    pub total_change_ns: Option<i64>,
}

impl Comparison {
    /// Compares two summaries. Functions are the same if their complete names are.
    #[must_use]
    pub fn of(before: CallSummary, after: CallSummary) -> Comparison {
        let compared = |summary: &CallSummary| Compared {
            directory: summary.directory.clone(),
            calls: summary.calls,
            duration_ns: summary.duration_ns,
            lost_events: summary.lost_events,
            complete: summary.complete,
        };
        let (first, second) = (compared(&before), compared(&after));
        type Both = (Option<FunctionSummary>, Option<FunctionSummary>);
        let mut both: BTreeMap<String, Both> = BTreeMap::new();
        for one in before.by_function {
            let entry = both.entry(one.function.clone()).or_default();
            entry.0 = Some(one);
        }
        for one in after.by_function {
            let entry = both.entry(one.function.clone()).or_default();
            entry.1 = Some(one);
        }
        let total =
            |one: &Option<FunctionSummary>| one.as_ref().map_or(Some(0), |one| one.total_ns);
        let rows = both.into_iter().map(|(function, (before, after))| {
            let both = total(&before).zip(total(&after));
            let change = both.map(|(before, after)| after.wrapping_sub(before).cast_signed());
            FunctionComparison {
                function,
                before,
                after,
                total_change_ns: change,
            }
        });
        let mut by_function: Vec<FunctionComparison> = rows.collect();
        // Stable: functions with the same change are in the order of their names.
        by_function.sort_by_key(|row| std::cmp::Reverse(row.total_change_ns));
        Comparison {
            before: first,
            after: second,
            by_function,
            names: Form::default(),
        }
    }

    /// True if one recording took longer than the other by more than a tenth.
    fn differ_in_length(&self) -> bool {
        let (one, other) = (self.before.duration_ns, self.after.duration_ns);
        one.abs_diff(other) > one.max(other) / 10
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, trace) in [("before", &self.before), ("after", &self.after)] {
            let unfinished = match trace.complete {
                true => "",
                false => "; the recorder did not end this trace",
            };
            let lost = match trace.lost_events {
                0 => String::new(),
                lost => format!("; LOST {}", counted(lost, "event", "events")),
            };
            writeln!(
                f,
                "{what}: {}: {} in {} s{lost}{unfinished}",
                trace.directory.display(),
                counted(trace.calls, "call", "calls"),
                seconds(trace.duration_ns),
            )?;
        }
        if self.differ_in_length() {
            writeln!(
                f,
                "one recording was longer: compare times of a call, not numbers of calls and total times"
            )?;
        }
        if self.by_function.is_empty() {
            return Ok(());
        }
        writeln!(f, "\ntimes in us")?;
        let names = self.by_function.iter().map(|row| row.function.as_str());
        let names = ShownNames::of(names, self.names);
        let head = [
            "calls", "after", "change", "average", "after", "change", "p99", "after", "change",
            "total", "after", "change",
        ];
        let rows = self.by_function.iter().map(|row| {
            let cells = row.cells();
            (cells, printable(&names.get(&row.function)))
        });
        put_table(f, &head, "function", rows)
    }
}

impl FunctionComparison {
    fn cells(&self) -> Vec<String> {
        let both = |part: fn(&FunctionSummary) -> Option<u64>| {
            let before = self.before.as_ref().and_then(part);
            (before, self.after.as_ref().and_then(part))
        };
        let time = |ns: Option<u64>| ns.map_or("-".to_owned(), microseconds);
        let calls = both(|one| Some(one.calls));
        let number = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
        let mut cells = vec![number(calls.0), number(calls.1), change(calls)];
        for part in [
            |one: &FunctionSummary| one.average_ns.map(|ns| ns as u64),
            |one: &FunctionSummary| one.p99_ns,
        ] {
            let times = both(part);
            cells.extend([time(times.0), time(times.1), change(times)]);
        }
        let total = |one: &Option<FunctionSummary>| {
            let one = one.as_ref();
            one.map_or("-".to_owned(), |one| {
                time_of_calls(one.total_ns, one.unended)
            })
        };
        let changed = self.total_change_ns.map_or("-".to_owned(), |ns| {
            let sign = match ns {
                ..0 => "-",
                0 => "",
                1.. => "+",
            };
            format!("{sign}{}", microseconds(ns.unsigned_abs()))
        });
        cells.extend([total(&self.before), total(&self.after), changed]);
        cells
    }
}

/// Formats the change from one number to another: `+12.5 %`, or `x5.2` for more than twice as much.
fn change(both: (Option<u64>, Option<u64>)) -> String {
    match both {
        (Some(before), Some(after)) if before == after => "0 %".to_owned(),
        (Some(before @ 1..), Some(after)) => {
            let ratio = after as f64 / before as f64;
            match ratio > 2.0 {
                true => format!("x{ratio:.1}"),
                false => format!("{:+.1} %", (ratio - 1.0) * 100.0),
            }
        }
        (None, Some(_)) => "new".to_owned(),
        (Some(_), None) => "gone".to_owned(),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, calls: u64, average: u64, p99: u64) -> FunctionSummary {
        FunctionSummary {
            function: name.to_owned(),
            calls,
            total_ns: Some(calls * average),
            self_ns: Some(calls * average),
            unended: 0,
            measured: calls,
            average_ns: Some(average as f64),
            min_ns: Some(average / 2),
            max_ns: Some(p99 + 1),
            p50_ns: Some(average),
            p99_ns: Some(p99),
            tail_calls: 0,
            abandoned: 0,
            open: 0,
            doubtful: 0,
            unpaired: 0,
        }
    }

    fn summary(directory: &str, duration_ns: u64, all: Vec<FunctionSummary>) -> CallSummary {
        CallSummary {
            directory: directory.into(),
            calls: all.iter().map(|one| one.calls).sum(),
            total_ns: 0,
            abandoned: 0,
            open: 0,
            doubtful: 0,
            unpaired: 0,
            moved: 0,
            other_events: 0,
            lost_events: 0,
            lost_packets: 0,
            damages: 0,
            duration_ns,
            clock_step_ns: 1,
            threads: 1,
            complete: true,
            warnings: Vec::new(),
            by_function: all,
            silent: 0,
            only_long: false,
            advice_on_loss: "",
            names: Form::default(),
        }
    }

    #[test]
    fn functions_by_the_change_of_their_total_time() {
        let before = vec![
            function("parse", 100, 2_000, 4_000),
            function("reply", 100, 10_000, 20_000),
            function("old", 7, 1_000, 1_000),
            function("same", 3, 1_000, 1_500),
        ];
        let after = vec![
            function("parse", 110, 9_000, 41_000),
            function("reply", 100, 9_000, 21_000),
            function("fresh", 5, 2_000, 3_000),
            function("same", 3, 1_000, 1_500),
        ];
        let second = 1_000_000_000;
        let compared = Comparison::of(
            summary("before.trace", second, before),
            summary("after.trace", second + second / 20, after),
        );
        insta::assert_snapshot!(compared.to_string(), @r"
        before: before.trace: 210 calls in 1.000000 s
        after: after.trace: 218 calls in 1.050000 s

        times in us
        calls  after   change  average  after   change     p99   after  change     total    after    change  function
          100    110  +10.0 %    2.000  9.000     x4.5   4.000  41.000   x10.2   200.000  990.000  +790.000  parse
            -      5      new        -  2.000      new       -   3.000     new         -   10.000   +10.000  fresh
            3      3      0 %    1.000  1.000      0 %   1.500   1.500     0 %     3.000    3.000     0.000  same
            7      -     gone    1.000      -     gone   1.000       -    gone     7.000        -    -7.000  old
          100    100      0 %   10.000  9.000  -10.0 %  20.000  21.000  +5.0 %  1000.000  900.000  -100.000  reply
        ");
    }

    #[test]
    fn recordings_of_different_lengths_are_told() {
        let mut after = summary("b", 2_000_000_000, Vec::new());
        (after.lost_events, after.complete) = (3, false);
        let compared = Comparison::of(summary("a", 1_000_000_000, Vec::new()), after);
        insta::assert_snapshot!(compared.to_string(), @r"
        before: a: 0 calls in 1.000000 s
        after: b: 0 calls in 2.000000 s; LOST 3 events; the recorder did not end this trace
        one recording was longer: compare times of a call, not numbers of calls and total times
        ");
    }
}
