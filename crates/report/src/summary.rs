//! One table for a whole trace: the number of calls of each function.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::shown::names_apart;
use super::table::put_table;
use super::tasks::printable;
use capriole_object::symbols::shown::{Form, ShownNames};
use capriole_trace::Trace;
use capriole_trace::{EventInfo, Health, Role, TraceError};

/// The contents of a trace, by event name. `Display` prints a readable table; `Serialize` gives
/// the same data for programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The trace directory.
    pub directory: PathBuf,
    /// Number of recorded events.
    pub events: u64,
    /// Hits that are not in the trace.
    pub lost_events: u64,
    /// Packets missing between others.
    pub lost_packets: u64,
    /// Number of places in the trace that could not be read.
    pub damages: u64,
    /// From the start of the recording to the moment at which all probes were out, in ns.
    pub duration_ns: u64,
    /// Number of threads that hit a probe.
    pub threads: u64,
    /// Number of CPUs on which a probe was hit.
    pub cpus: u64,
    /// True if the recording ended normally.
    pub complete: bool,
    /// Warnings from the recorder.
    pub warnings: Vec<String>,
    /// The events that were hit, most calls first.
    pub by_event: Vec<EventSummary>,
    /// Number of events that were never hit. Events of one name, which share a row, count each for
    /// itself; the exits of a function count as one.
    pub silent: u64,
    /// Advice for the case that events were lost, as the program that shows the table gives it,
    /// with the punctuation that joins it to a message. Empty unless that program sets it.
    #[serde(skip)]
    pub advice_on_loss: &'static str,
    /// Form of the names of functions in the table; JSON has complete names.
    #[serde(skip)]
    pub names: Form,
}

/// Name of the events for messages, which every recording has.
const MESSAGES: &str = "capriole:message";

/// One row of the table: all sites with the same event name, except functions of one name in one object.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EventSummary {
    /// The event's name.
    pub event: String,
    /// Number of hits.
    pub calls: u64,
    /// Share of all recorded events, 0 to 1.
    pub share: f64,
    /// Calls per second of the recording.
    pub calls_per_second: f64,
    /// The first hit, in ns since the recording began.
    pub first_ns: u64,
    /// The last hit, in ns since the recording began.
    pub last_ns: u64,
    /// Number of threads that hit it.
    pub threads: u64,
}

/// Counters of one event while reading.
#[derive(Debug, Default)]
struct Count {
    calls: u64,
    first: u64,
    last: u64,
    last_tid: Option<u32>,
    tids: HashSet<u32>,
}

impl Count {
    #[inline]
    fn add(&mut self, time: u64, tid: u32) {
        if self.calls == 0 {
            self.first = time;
        }
        self.calls += 1;
        self.first = self.first.min(time);
        self.last = self.last.max(time);
        if self.last_tid != Some(tid) {
            self.last_tid = Some(tid);
            self.tids.insert(tid);
        }
    }

    fn merge(&mut self, other: Count) {
        if other.calls == 0 {
            return;
        }
        if self.calls == 0 || other.first < self.first {
            self.first = other.first;
        }
        self.calls += other.calls;
        self.last = self.last.max(other.last);
        self.tids.extend(other.tids);
    }
}

impl Summary {
    /// Reads a whole trace. The second part of the result lists the damage found in it.
    ///
    /// # Errors
    ///
    /// If the trace cannot be read.
    pub fn of(trace: &Trace) -> Result<(Summary, Health), TraceError> {
        let document = trace.document();
        let mut counts: Vec<Count> = Vec::new();
        counts.resize_with(document.events.len(), Count::default);
        let mut cpus = HashSet::new();
        let mut last_cpu = None;
        let mut last_time = 0;
        let mut events = trace.events()?;
        while let Some(event) = events.next()? {
            counts[event.index].add(event.time_ns, event.tid);
            last_time = last_time.max(event.time_ns);
            if last_cpu != Some(event.cpu) {
                last_cpu = Some(event.cpu);
                cpus.insert(event.cpu);
            }
        }
        let health = events.health();
        let mut by_name: HashMap<&str, Count> = HashMap::new();
        let mut asked: HashMap<(&str, Result<u32, u32>), bool> = HashMap::new();
        // The function ends in one of two ways, and need not use both.
        let returns = |event: &&EventInfo| event.role == Role::Return && event.call.is_some();
        let returns = document.events.iter().filter(returns);
        let returns: HashMap<Option<u32>, &str> = returns
            .map(|event| (event.call, event.name.as_str()))
            .collect();
        let names = names_apart(&document.events);
        for ((event, own_name), count) in document.events.iter().zip(&names).zip(counts) {
            // Nobody selected the events for messages, from outside or by markers of the program.
            if event.place().is_some() && event.name != MESSAGES {
                let call = event.call.ok_or(event.id);
                let name = match (event.role, returns.get(&event.call)) {
                    (Role::TailCall, Some(name)) => name,
                    _ => event.name.as_str(),
                };
                *asked.entry((name, call)).or_default() |= count.calls > 0;
            }
            by_name.entry(own_name).or_default().merge(count);
        }
        let silent = asked.values().filter(|hit| !**hit).count() as u64;
        let total: u64 = by_name.values().map(|count| count.calls).sum();
        let start = document.time.start_monotonic_ns;
        let duration_ns = document.time.length_ns(last_time);
        let all_tids: HashSet<u32> = by_name
            .values()
            .flat_map(|c| c.tids.iter().copied())
            .collect();
        let mut by_event: Vec<EventSummary> = by_name
            .into_iter()
            .filter(|(_, count)| count.calls > 0)
            .map(|(name, count)| EventSummary {
                event: name.to_string(),
                calls: count.calls,
                share: count.calls as f64 / total as f64,
                calls_per_second: per_second(count.calls, duration_ns),
                first_ns: count.first.saturating_sub(start),
                last_ns: count.last.saturating_sub(start),
                threads: count.tids.len() as u64,
            })
            .collect();
        by_event.sort_by(|a, b| b.calls.cmp(&a.calls).then_with(|| a.event.cmp(&b.event)));
        let summary = Summary {
            directory: trace.directory().to_path_buf(),
            events: total,
            lost_events: health.lost_events,
            lost_packets: health.lost_packets,
            damages: health.damages,
            duration_ns,
            threads: all_tids.len() as u64,
            cpus: cpus.len() as u64,
            complete: document.complete,
            warnings: document.warnings.clone(),
            by_event,
            silent,
            advice_on_loss: "",
            names: Form::default(),
        };
        Ok((summary, health))
    }
}

/// Reasons why a table may be incomplete.
pub(super) struct Doubts<'a> {
    /// Number of recorded events.
    pub(super) events: u64,
    pub(super) lost_events: u64,
    pub(super) lost_packets: u64,
    pub(super) damages: u64,
    pub(super) complete: bool,
    pub(super) warnings: &'a [String],
    pub(super) advice_on_loss: &'static str,
}

impl Doubts<'_> {
    /// Returns one line for each reason.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.lost_events > 0 {
            let lost = self.lost_events as f64;
            let share = lost / (lost + self.events as f64);
            lines.push(format!(
                "LOST {} ({}): not in the table{}",
                counted(self.lost_events, "EVENT", "EVENTS"),
                percent(share),
                self.advice_on_loss
            ));
        }
        if self.lost_packets > 0 {
            lines.push(format!(
                "LOST {}: an unknown number of events is not in the table",
                counted(self.lost_packets, "PACKET", "PACKETS")
            ));
        }
        if self.damages > 0 {
            lines.push(format!(
                "DAMAGED in {}: what could be read is in the table",
                counted(self.damages, "place", "places")
            ));
        }
        if !self.complete {
            lines.push(
                "warning: the recorder did not end this trace; its last moments may be missing"
                    .to_string(),
            );
        }
        lines.extend(
            self.warnings
                .iter()
                .map(|text| format!("warning: {}", printable(text))),
        );
        lines
    }
}

fn per_second(calls: u64, duration_ns: u64) -> f64 {
    if duration_ns == 0 {
        0.0
    } else {
        calls as f64 * 1e9 / duration_ns as f64
    }
}

/// `1 event`, `2 events`
pub(super) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Formats `97.2 %`; a share is shown as 0 or 100 % only if it is exact.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 0.1 {
        "< 0.1 %".to_string()
    } else if percent < 100.0 && percent > 99.9 {
        "> 99.9 %".to_string()
    } else {
        format!("{percent:.1} %")
    }
}

/// Formats calls per second: an integer, or with one decimal place below 100.
fn rate(calls_per_second: f64) -> String {
    let places = usize::from(calls_per_second < 100.0);
    format!("{calls_per_second:.places$}")
}

/// Formats seconds with microseconds.
pub(super) fn seconds(ns: u64) -> String {
    format!("{}.{:06}", ns / 1_000_000_000, ns / 1_000 % 1_000_000)
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} in {} s, {}, {}",
            self.directory.display(),
            counted(self.events, "event", "events"),
            seconds(self.duration_ns),
            counted(self.threads, "thread", "threads"),
            counted(self.cpus, "CPU", "CPUs"),
        )?;
        let doubts = Doubts {
            events: self.events,
            lost_events: self.lost_events,
            lost_packets: self.lost_packets,
            damages: self.damages,
            complete: self.complete,
            warnings: &self.warnings,
            advice_on_loss: self.advice_on_loss,
        };
        for caveat in doubts.lines() {
            writeln!(f, "{caveat}")?;
        }
        if !self.by_event.is_empty() {
            writeln!(f)?;
            table(f, &self.by_event, self.names)?;
        }
        if self.silent > 0 {
            writeln!(
                f,
                "\n{} never hit",
                counted(self.silent, "event was", "events were")
            )?;
        }
        Ok(())
    }
}

fn table(f: &mut fmt::Formatter<'_>, events: &[EventSummary], form: Form) -> fmt::Result {
    let names = ShownNames::of(events.iter().map(|event| event.event.as_str()), form);
    let head = [
        "calls",
        "share",
        "calls/s",
        "first [s]",
        "last [s]",
        "threads",
    ];
    let rows = events.iter().map(|event| {
        let cells = vec![
            event.calls.to_string(),
            percent(event.share),
            rate(event.calls_per_second),
            seconds(event.first_ns),
            seconds(event.last_ns),
            event.threads.to_string(),
        ];
        (cells, printable(&names.get(&event.event)))
    });
    put_table(f, &head, "event", rows)
}
