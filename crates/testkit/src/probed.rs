//! Attaches probes while a closure runs, and returns the recorded hits.

use capriole_codegen::runtime::ClockReading;
use capriole_codegen::work::Work;
use capriole_host::error::TargetError;
use capriole_host::ptrace;
use capriole_patch::attach::{Attached, Probe, SiteError, attach};
use capriole_planner::guards;
use capriole_proc::process::Process;
use capriole_ring::layout::Geometry;
use capriole_ring::reader::record_size;
use capriole_ring::{Packet, Reader};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Error message.
pub type Wrong = String;

/// The contents of the records.
#[derive(Debug, Default)]
pub struct Hits {
    /// Number of records of each event.
    pub records: BTreeMap<u32, u64>,
    /// Number of further events that did not fit into the buffer.
    pub lost: u64,
    /// True if the arenas are still mapped.
    pub lingering: bool,
}

/// Counts records while they are read, by event: the events of a test are numbered from 0 on.
struct Count {
    /// Size of each event's records in bytes; 0 if there is no such event.
    sizes: Vec<usize>,
    records: Vec<u64>,
}

impl Count {
    fn of(sizes: impl Iterator<Item = (u32, usize)>) -> Count {
        let mut all = Vec::new();
        for (event, size) in sizes {
            let event = event as usize;
            all.resize(all.len().max(event + 1), 0);
            all[event] = size;
        }
        Count {
            records: vec![0; all.len()],
            sizes: all,
        }
    }

    fn take(&mut self, packet: &Packet<'_>) -> Result<(), Wrong> {
        let (mut at, mut time) = (0, 0);
        while at < packet.content.len() {
            let word = |at: usize| {
                let bytes = packet.content.get(at..at + 8).ok_or("half a record")?;
                Ok::<u64, Wrong>(u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
            };
            let event = word(at + 8)? as u32;
            if word(at)? < time {
                return Err(format!("time goes backwards at event {event}"));
            }
            time = word(at)?;
            match self.sizes.get(event as usize) {
                None | Some(0) => return Err(format!("there is no event {event}")),
                Some(size) => at += size,
            }
            self.records[event as usize] += 1;
        }
        Ok(())
    }

    fn records(&self) -> BTreeMap<u32, u64> {
        let counted = (0..).zip(&self.records).filter(|(_, count)| **count > 0);
        counted.map(|(event, count)| (event, *count)).collect()
    }
}

impl Hits {
    pub fn total(&self) -> u64 {
        self.records.values().sum::<u64>() + self.lost
    }
}

/// Attaches, runs the closure, and takes the probes out. Returns the hits, and the number of probes
/// that could not be written, by reason.
pub fn probed(
    process: &Process,
    probes: &[Probe],
    meanwhile: impl FnOnce() -> Result<(), Wrong>,
) -> Result<(Hits, BTreeMap<String, usize>), Wrong> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    // SAFETY: reads a number.
    let configured = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) } as u32;
    let geometry = |journal| Geometry::for_buffer(8 << 20, cpus.max(configured), journal);
    let guards = guards::of_process(process).map_err(|e| format!("guards: {e}"))?;
    let attached = attach(
        &ptrace::host(process),
        probes.to_vec(),
        &guards,
        ClockReading::default(),
        geometry,
    )
    .map_err(|e| format!("attach: {e}"))?;
    let mut left_out: BTreeMap<String, usize> = BTreeMap::new();
    for outcome in &attached.outcomes() {
        match outcome {
            Ok(_) => {}
            Err(SiteError::Modified) => return Err("bytes of the last batch were left".to_owned()),
            Err(error) => *left_out.entry(error.to_string()).or_default() += 1,
        }
    }
    let size = |work: &Work| match work {
        Work::Record(r) => Some((r.event, record_size(r.fields.len()))),
        _ => None,
    };
    let points = probes.iter().flat_map(|p| &p.points);
    let work = points.flat_map(|point| &point.work);
    let mut count = Count::of(work.filter_map(size));
    let memory = &attached.memory;
    let mut reader = Reader::new(memory.memory.clone(), memory.geometry);
    let ended = AtomicBool::new(false);
    let (result, read) = std::thread::scope(|scope| {
        let (reader, count, ended) = (&mut reader, &mut count, &ended);
        let reading = scope.spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                reader.collect(false, |packet| count.take(&packet))?;
                reader.wait(Duration::from_millis(2));
            }
            Ok::<(), Wrong>(())
        });
        let result = meanwhile();
        ended.store(true, Ordering::Relaxed);
        (result, reading.join().expect("the reader"))
    });
    result?;
    read?;
    let lingering = detach(&attached)?;
    reader.collect(true, |packet| count.take(&packet))?;
    let hits = Hits {
        records: count.records(),
        lost: reader.lost(),
        lingering,
    };
    match reader.damaged() {
        0 => Ok((hits, left_out)),
        damaged => Err(format!("{damaged} packets are damaged")),
    }
}

/// Takes the probes out. Returns true if memory stays mapped.
fn detach(attached: &Attached) -> Result<bool, Wrong> {
    let report = attached.detach().map_err(|e| format!("detach: {e}"))?;
    match report.foreign {
        0 => Ok(report.lingering),
        _ => Err(format!("somebody else's bytes: {report:?}")),
    }
}

/// Tries to unmap what a detach has left. Returns true if it stays mapped.
pub fn lingers(process: &Process) -> Result<bool, Wrong> {
    match capriole_patch::recover::detach_all(&*ptrace::host(process)) {
        Ok(report) => Ok(report.lingering),
        Err(TargetError::NothingAttached { .. }) => Ok(false),
        Err(error) => Err(format!("detach: {error}")),
    }
}
