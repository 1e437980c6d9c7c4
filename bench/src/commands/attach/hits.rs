//! Cost of a hit when all other functions of the program have probes, too.

use super::super::reading::Reading;
use super::{go_on, prepare, visit};
use anyhow::{Context, ensure};
use capriole_bench::crowd::{self, Crowd};
use capriole_bench::{Measured, RowResult};
use capriole_codegen::work::Record;
use capriole_patch::attach::Probe;
use capriole_patch::guards::Guards;
use capriole_proc::process::Process;
use capriole_ring::reader::record_size;
use iced_x86::Register;
use indicatif::ProgressBar;
use std::fmt::Write as _;

/// Estimated number of calls of the measured function per millisecond.
const CALLS: u64 = 50_000;

/// Makes a probe record both arguments, as `capriole.record2` of `bench hit` does.
fn record2(probe: &mut Probe) {
    let record = Record::new(u32::MAX, vec![Register::RDI, Register::RSI]);
    probe.points[0].work = vec![record.into()];
}

/// Returns the nanoseconds that `calls` calls take with these probes; every call must be seen.
fn time(crowd: &mut Crowd, probes: &[Probe], guards: &Guards, calls: u64) -> anyhow::Result<u64> {
    let process = Process::open(crowd.pid())?;
    let (_, (ns, hits)) = visit(&process, probes.to_vec(), guards, |attached| {
        let reading = Reading::start(attached, record_size(2));
        let ns = crowd.time(calls);
        let hits = reading.hits();
        reading.end().map_err(anyhow::Error::msg)?;
        Ok((ns?, hits))
    })?;
    ensure!(hits == calls, "{hits} hits in {calls} calls");
    Ok(ns)
}

/// Measures a paused crowd: `hit.bare`, `hit.alone`, and `hit.among` the others.
///
/// # Errors
/// The program has ended, or its functions are not found.
pub fn measure(
    crowd: &mut Crowd,
    functions: usize,
    rounds: u32,
    round_ms: u64,
    bar: &ProgressBar,
) -> anyhow::Result<Vec<RowResult>> {
    let process = Process::open(crowd.pid())?;
    let prepared = prepare(&process, &format!(":{}", crowd::MEASURED), 1)?;
    let (mut alone, guards) = (prepared.probes, prepared.guards);
    // All are planned together, so that none conflicts with another.
    let mut all = prepare(&process, crowd::ALL, usize::MAX)?.probes;
    let site = alone.first().map(|probe| probe.shape.site);
    let same = all.iter_mut().find(|probe| Some(probe.shape.site) == site);
    let same = same.context("the function to be measured cannot be probed")?;
    alone.iter_mut().chain([same]).for_each(record2);
    let calls = round_ms * CALLS;
    let among = format!("hit.among{functions}");
    let rows: [(&str, &[Probe]); 3] = [("hit.bare", &[]), ("hit.alone", &alone), (&among, &all)];
    let mut per_call = [const { Vec::new() }; 3];
    let mut failed = [const { None }; 3];
    for _ in 0..rounds {
        for (index, (name, probes)) in rows.iter().enumerate() {
            go_on()?;
            bar.set_message((*name).to_owned());
            let ns = match probes.is_empty() {
                true => Ok(crowd.time(calls)?),
                false => time(crowd, probes, &guards, calls),
            };
            match ns {
                Ok(ns) => per_call[index].push(ns as f64 / calls as f64),
                Err(error) => failed[index] = Some(format!("{error:#}")),
            }
            bar.inc(1);
        }
    }
    crowd.check()?;
    let mut bare = 0.0;
    let mut results = Vec::new();
    for (index, (name, probes)) in rows.iter().enumerate() {
        let name = (*name).to_owned();
        results.push(match failed[index].take() {
            Some(why) => RowResult::Failed { name, why },
            None => {
                let total = calls * u64::from(rounds);
                let hits = (!probes.is_empty()).then_some(total);
                let mut row = Measured::from_rounds(&name, &per_call[index], total, hits);
                if index == 0 {
                    bare = row.ns;
                }
                row.over_bare_ns = row.ns - bare;
                RowResult::Measured(row)
            }
        });
    }
    Ok(results)
}

/// Formats the results as a table.
pub fn table(results: &[RowResult]) -> String {
    let width = results.iter().map(|row| row.name().len()).max();
    let width = width.unwrap_or(0);
    let mut text = format!(
        "{:<width$}  {:>8}  {:>9}  {:>16}  {:>10}\n",
        "hit", "ns/call", "over bare", "min .. max", "hits"
    );
    for result in results {
        // Writing to a String cannot fail.
        let _ = match result {
            RowResult::Measured(row) => writeln!(
                text,
                "{:<width$}  {:>8.2}  {:>9.2}  {:>16}  {:>10}",
                row.name,
                row.ns,
                row.over_bare_ns,
                format!("{:.2} .. {:.2}", row.min_ns, row.max_ns),
                row.hits.map_or("-".to_owned(), |hits| hits.to_string())
            ),
            RowResult::Skipped { name, why } => writeln!(text, "{name}  skipped: {why}"),
            RowResult::Failed { name, why } => writeln!(text, "{name}  failed: {why}"),
        };
    }
    text
}

/// True if a row has failed.
pub fn failed(results: &[RowResult]) -> bool {
    results
        .iter()
        .any(|row| matches!(row, RowResult::Failed { .. }))
}
