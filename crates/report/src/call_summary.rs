//! One table for the calls of a trace: number, total times and self times.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::PathBuf;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::summary::{Doubts, counted, seconds};
use super::table::{known, microseconds, put_table, time_of_calls, unless_zero};
use super::tasks::printable;
use crate::calls::{Begin, Call, Exit, Functions, Visitor, walk};
use crate::error::ReportError;
use capriole_object::symbols::shown::{Form, ShownNames};
use capriole_trace::Health;
use capriole_trace::clock::Scale;
use capriole_trace::{Event, Trace};

/// Sort key of the functions in a table, greatest value first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Time in the function itself.
    #[default]
    Own,
    /// Time from entry to exit, including called functions.
    Total,
    /// Number of calls.
    Calls,
}

/// The functions of a trace with the times of their calls. `Display` prints a readable table;
/// `Serialize` gives the same data for programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CallSummary {
    /// The trace directory.
    pub directory: PathBuf,
    /// Number of calls.
    pub calls: u64,
    /// Time in outermost calls, which is the sum of all self times, in ns. Calls without a recorded
    /// end count up to the last event seen in them.
    pub total_ns: u64,
    /// Calls that ended without an exit.
    pub abandoned: u64,
    /// Calls still open at the end of the trace, or when their thread ended.
    pub open: u64,
    /// Calls during which events were lost.
    pub doubtful: u64,
    /// Exits without an open call.
    pub unpaired: u64,
    /// Entries and exits that were paired although Go had moved the stack.
    pub moved: u64,
    /// Recorded events that are neither entries nor exits.
    pub other_events: u64,
    /// Hits that are not in the trace.
    pub lost_events: u64,
    /// Packets missing between others.
    pub lost_packets: u64,
    /// Number of places in the trace that could not be read.
    pub damages: u64,
    /// From the start of the recording to the moment at which all probes were out, in ns.
    pub duration_ns: u64,
    /// Step of the clock in ns, rounded up: the resolution of all times.
    pub clock_step_ns: u64,
    /// Number of threads that made calls.
    pub threads: u64,
    /// True if the recording ended normally.
    pub complete: bool,
    /// Warnings from the recorder.
    pub warnings: Vec<String>,
    /// The functions that were called, or had exits without a call.
    pub by_function: Vec<FunctionSummary>,
    /// Number of functions without a recorded call.
    pub silent: u64,
    /// True if calls of functions were recorded only if they took long enough (`record --min-duration`).
    pub only_long: bool,
    /// As in [`Summary`](crate::Summary).
    #[serde(skip)]
    pub advice_on_loss: &'static str,
    /// Form of the names of functions in the table; JSON has complete names.
    #[serde(skip)]
    pub names: Form,
}

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FunctionSummary {
    /// Its name.
    pub function: String,
    /// Number of calls.
    pub calls: u64,
    /// Time from entry to exit, in ns. A call within a call of the same function counts once. A lower
    /// bound if there are `unended` calls; `None` if nothing is known.
    pub total_ns: Option<u64>,
    /// Self time: time in the function itself, outside recorded calls made by it, in ns. Known as far
    /// as `total_ns`.
    pub self_ns: Option<u64>,
    /// Calls without a recorded end, which count up to the last event seen in them.
    pub unended: u64,
    /// Calls with both ends recorded and no events lost meanwhile; the following statistics cover
    /// only these calls.
    pub measured: u64,
    /// Average time from entry to exit, in ns.
    pub average_ns: Option<f64>,
    /// Minimum time, in ns.
    pub min_ns: Option<u64>,
    /// Maximum time, in ns.
    pub max_ns: Option<u64>,
    /// Median time, in ns, error at most 1 %.
    pub p50_ns: Option<u64>,
    /// 99th percentile, in ns, error at most 1 %.
    pub p99_ns: Option<u64>,
    /// Calls that ended with a tail jump to another function.
    pub tail_calls: u64,
    /// Calls that ended without an exit.
    pub abandoned: u64,
    /// Calls still open at the end of the trace, or when their thread ended.
    pub open: u64,
    /// Calls during which events were lost.
    pub doubtful: u64,
    /// Exits without an open call.
    pub unpaired: u64,
}

/// Counters of one function while reading.
#[derive(Debug, Default)]
struct Count {
    calls: u64,
    total: u128,
    own: u128,
    measured: u64,
    sum: u128,
    min: u64,
    max: u64,
    /// Durations in ticks.
    times: Option<Histogram<u64>>,
    tail_calls: u64,
    abandoned: u64,
    open: u64,
    doubtful: u64,
    unpaired: u64,
}

/// Significant digits of a time in a histogram.
const DIGITS: u8 = 2;

impl Count {
    fn add(&mut self, call: &Call) {
        let duration = call.duration();
        self.calls += 1;
        self.own += u128::from(call.own);
        if !call.begin.recursive {
            self.total += u128::from(duration);
        }
        match call.exit {
            Exit::Returned => {}
            Exit::TailCall => self.tail_calls += 1,
            Exit::Abandoned => self.abandoned += 1,
            Exit::Open | Exit::ThreadEnded => self.open += 1,
        }
        self.doubtful += u64::from(call.doubtful);
        if !call.is_certain() {
            return;
        }
        if self.measured == 0 {
            self.min = duration;
        }
        self.measured += 1;
        self.sum += u128::from(duration);
        self.min = self.min.min(duration);
        self.max = self.max.max(duration);
        if self.times.is_none() {
            // Grows as needed.
            self.times = Histogram::new(DIGITS).ok();
        }
        if let Some(times) = &mut self.times
            && times.record(duration).is_err()
        {
            times.saturating_record(duration);
        }
    }

    fn summary(&self, name: &str, scale: &Scale) -> FunctionSummary {
        let measured = |ticks: u64| (self.measured > 0).then(|| scale.ns(u128::from(ticks)));
        let quantile = |part: f64| {
            let times = self.times.as_ref()?;
            // The histogram returns the upper end of a bucket.
            measured(times.value_at_quantile(part).clamp(self.min, self.max))
        };
        let average = || scale.ns(self.sum) as f64 / self.measured as f64;
        let unended = self.abandoned + self.open;
        FunctionSummary {
            function: name.to_string(),
            calls: self.calls,
            total_ns: known(scale.ns(self.total), self.calls, unended),
            self_ns: known(scale.ns(self.own), self.calls, unended),
            unended,
            measured: self.measured,
            average_ns: (self.measured > 0).then(average),
            min_ns: measured(self.min),
            max_ns: measured(self.max),
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            tail_calls: self.tail_calls,
            abandoned: self.abandoned,
            open: self.open,
            doubtful: self.doubtful,
            unpaired: self.unpaired,
        }
    }
}

struct Counter {
    counts: Vec<Count>,
    threads: HashSet<u32>,
    last: Option<u32>,
    /// Ticks in outermost calls.
    total: u128,
    /// Time of the last entry or exit, as [`Event::time_ns`].
    last_time: u64,
}

impl Counter {
    fn see(&mut self, event: &Event<'_>) {
        self.last_time = self.last_time.max(event.time_ns);
    }
}

impl Visitor for Counter {
    fn begin(&mut self, begin: &Begin, event: &Event<'_>) -> io::Result<()> {
        self.see(event);
        if self.last != Some(begin.tid) {
            self.last = Some(begin.tid);
            self.threads.insert(begin.tid);
        }
        Ok(())
    }

    fn end(&mut self, call: &Call, event: Option<&Event<'_>>) -> io::Result<()> {
        if let Some(event) = event {
            self.see(event);
        }
        if call.begin.parent.is_none() {
            self.total += u128::from(call.duration());
        }
        self.counts[call.begin.function].add(call);
        Ok(())
    }

    fn unpaired(&mut self, function: usize, event: &Event<'_>) -> io::Result<()> {
        self.see(event);
        self.counts[function].unpaired += 1;
        Ok(())
    }
}

impl CallSummary {
    /// Reads a whole trace. The second part of the result lists the damage found in it.
    ///
    /// # Errors
    ///
    /// If the trace cannot be read.
    pub fn of(trace: &Trace, order: Order) -> Result<(CallSummary, Health), ReportError> {
        let document = trace.document();
        let functions = Functions::of(&document.events);
        let mut counter = Counter {
            counts: functions.names().iter().map(|_| Count::default()).collect(),
            threads: HashSet::new(),
            last: None,
            total: 0,
            last_time: 0,
        };
        let (counted, health) = walk(trace, &functions, &mut counter)?;
        let scale = Scale::of(&document.clock);
        let seen = |count: &&(&String, Count)| count.1.calls > 0 || count.1.unpaired > 0;
        let mut counts: Vec<(&String, Count)> =
            functions.names().iter().zip(counter.counts).collect();
        let silent = counts.iter().filter(|count| !seen(count)).count() as u64;
        counts.retain(|count| seen(&count));
        counts.sort_by(|(a_name, a), (b_name, b)| {
            let by = match order {
                Order::Own => b.own.cmp(&a.own),
                Order::Total => b.total.cmp(&a.total),
                Order::Calls => b.calls.cmp(&a.calls),
            };
            by.then_with(|| a_name.cmp(b_name))
        });
        let by_function: Vec<FunctionSummary> = counts
            .iter()
            .map(|(name, count)| count.summary(name, &scale))
            .collect();
        let sum = |part: fn(&FunctionSummary) -> u64| by_function.iter().map(part).sum();
        let summary = CallSummary {
            directory: trace.directory().to_path_buf(),
            calls: sum(|function| function.calls),
            total_ns: scale.ns(counter.total),
            abandoned: sum(|function| function.abandoned),
            open: sum(|function| function.open),
            doubtful: sum(|function| function.doubtful),
            unpaired: sum(|function| function.unpaired),
            moved: counted.moved,
            other_events: counted.points,
            lost_events: health.lost_events,
            lost_packets: health.lost_packets,
            damages: health.damages,
            duration_ns: document.time.length_ns(counter.last_time),
            clock_step_ns: document.clock.step_ns(),
            threads: counter.threads.len() as u64,
            complete: document.complete,
            warnings: document.warnings.clone(),
            silent,
            only_long: functions.have_whole(),
            by_function,
            advice_on_loss: "",
            names: Form::default(),
        };
        Ok((summary, health))
    }

    /// Returns remarks on calls that are not counted normally, one line each.
    fn remarks(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut remark = |count: u64, one: &str, many: &str, text: &str| {
            if count > 0 {
                lines.push(format!("{} {text}", self::counted(count, one, many)));
            }
        };
        remark(
            self.abandoned,
            "call",
            "calls",
            "ended without an exit: by an exception, by longjmp, or with their exits lost",
        );
        remark(
            self.open,
            "call",
            "calls",
            "had not ended when the trace or their thread did",
        );
        remark(
            self.doubtful,
            "call",
            "calls",
            "may be two, because events were lost meanwhile",
        );
        remark(
            self.unpaired,
            "exit",
            "exits",
            "without an entry: of calls from before the recording, or with their entries lost",
        );
        remark(
            self.moved,
            "entry or exit",
            "entries or exits",
            "of goroutines that were moved: who called whom is a guess there",
        );
        remark(
            self.other_events,
            "event",
            "events",
            "of other kinds not in the table",
        );
        lines
    }
}

impl fmt::Display for CallSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} in {} s, {}; {}{} s in outermost calls",
            self.directory.display(),
            counted(self.calls, "call", "calls"),
            seconds(self.duration_ns),
            counted(self.threads, "thread", "threads"),
            match self.abandoned + self.open {
                0 => "",
                _ => "at least ",
            },
            seconds(self.total_ns),
        )?;
        let doubts = Doubts {
            events: self.calls * 2 + self.other_events,
            lost_events: self.lost_events,
            lost_packets: self.lost_packets,
            damages: self.damages,
            complete: self.complete,
            warnings: &self.warnings,
            advice_on_loss: self.advice_on_loss,
        };
        for line in doubts.lines().into_iter().chain(self.remarks()) {
            writeln!(f, "{line}")?;
        }
        if !self.by_function.is_empty() {
            let shortest = self.by_function.iter().filter_map(|f| f.min_ns).min();
            match shortest.is_some_and(|ns| is_near_step(ns, self.clock_step_ns)) {
                true => {
                    let step = self.clock_step_ns as f64 / 1000.0;
                    writeln!(f, "\ntimes in us, by a clock with steps of {step} us")?;
                }
                false => writeln!(f, "\ntimes in us")?,
            }
            table(f, &self.by_function, self.names)?;
        }
        if self.silent > 0 {
            let or_short = match self.only_long {
                true => ", or no call took the minimum duration",
                false => "",
            };
            writeln!(
                f,
                "\n{} never called{or_short}",
                counted(self.silent, "function was", "functions were")
            )?;
        }
        Ok(())
    }
}

/// True if a time is so short that the clock's step matters.
pub(super) fn is_near_step(ns: u64, step_ns: u64) -> bool {
    step_ns > 1 && ns < step_ns.saturating_mul(10)
}

fn table(f: &mut fmt::Formatter<'_>, functions: &[FunctionSummary], form: Form) -> fmt::Result {
    let names = functions.iter().map(|function| function.function.as_str());
    let names = ShownNames::of(names, form);
    let head = [
        "calls",
        "total",
        "self",
        "average",
        "min",
        "max",
        "p50",
        "p99",
        "abandoned",
        "open",
        "doubtful",
        "unpaired",
    ];
    let time = |ns: Option<u64>| ns.map_or("-".to_string(), microseconds);
    let rows = functions.iter().map(|function| {
        let cells = vec![
            function.calls.to_string(),
            time_of_calls(function.total_ns, function.unended),
            time_of_calls(function.self_ns, function.unended),
            time(function.average_ns.map(|ns| ns as u64)),
            time(function.min_ns),
            time(function.max_ns),
            time(function.p50_ns),
            time(function.p99_ns),
            unless_zero(function.abandoned),
            unless_zero(function.open),
            unless_zero(function.doubtful),
            unless_zero(function.unpaired),
        ];
        (cells, printable(&names.get(&function.function)))
    });
    // Remarks on calls that did not end normally: most traces have none.
    let remarks = functions.iter().map(|function| {
        [
            function.abandoned,
            function.open,
            function.doubtful,
            function.unpaired,
        ]
    });
    let used = remarks.fold([false; 4], |used, counts| {
        std::array::from_fn(|column| used[column] || counts[column] > 0)
    });
    let plain = head.len() - used.len();
    let shown = |column: usize| column < plain || used[column - plain];
    let head: Vec<&str> = (0..head.len())
        .filter(|c| shown(*c))
        .map(|c| head[c])
        .collect();
    let rows = rows.map(|(cells, name): (Vec<String>, String)| {
        let cells = cells.into_iter().enumerate().filter(|(c, _)| shown(*c));
        (cells.map(|(_, cell)| cell).collect(), name)
    });
    put_table(f, &head, "function", rows)
}
