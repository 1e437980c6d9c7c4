//! Memory that probes use in a program.

use anyhow::Context;
use capriole_patch::attach::Attached;
use capriole_patch::session::STUBS_NAME;
use capriole_proc::process::Process;
use serde::Serialize;

/// Bytes of memory, apart from the packets for events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// Session memory before the packets (header, streams, controls, counters), plus the ledger
    /// with the journal.
    pub session_bytes: u64,
    /// Physical pages of stubs, however often they are mapped.
    pub stub_bytes: u64,
    /// Number of stub mappings.
    pub stub_mappings: u64,
    /// Pages of the arenas that are in use: detours, shared code, tables.
    pub code_bytes: u64,
    /// Part of `code_bytes` that the detours themselves use.
    pub detour_bytes: u64,
}

impl Footprint {
    /// Measures a program with its probes attached.
    ///
    /// # Errors
    /// `/proc/PID/smaps` cannot be read.
    pub fn of(process: &Process, attached: &Attached) -> anyhow::Result<Footprint> {
        let geometry = &attached.memory.geometry;
        let arenas: Vec<u64> = attached.arenas().collect();
        let path = process.proc_path("smaps");
        let smaps = std::fs::read_to_string(&path);
        let smaps = smaps.with_context(|| path.display().to_string())?;
        let outcomes = attached.outcomes();
        let detours = outcomes.iter().flatten();
        let mut footprint = Footprint {
            session_bytes: geometry.counter(geometry.cpus + 1, 0) as u64
                + attached.memory.ledger.len,
            stub_bytes: 0,
            stub_mappings: 0,
            code_bytes: 0,
            detour_bytes: detours.map(|site| site.detour_size as u64).sum(),
        };
        for mapping in mappings(&smaps) {
            if arenas.contains(&mapping.start) {
                footprint.code_bytes += mapping.proportional;
            } else if mapping.name.contains(STUBS_NAME) {
                footprint.stub_bytes += mapping.proportional;
                footprint.stub_mappings += 1;
            }
        }
        Ok(footprint)
    }
}

/// A mapping in the text of `/proc/PID/smaps`.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    start: u64,
    name: &'a str,
    /// Proportional set size in bytes: a page that is mapped several times is divided among the
    /// mappings.
    proportional: u64,
}

fn mappings(smaps: &str) -> Vec<Mapping<'_>> {
    let mut mappings: Vec<Mapping<'_>> = Vec::new();
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if first == "Pss:" {
            let kilobytes: u64 = words.next().and_then(|w| w.parse().ok()).unwrap_or(0);
            if let Some(mapping) = mappings.last_mut() {
                mapping.proportional = kilobytes << 10;
            }
        } else if let Some((start, _)) = first.split_once('-')
            && let Ok(start) = u64::from_str_radix(start, 16)
        {
            mappings.push(Mapping {
                start,
                name: line.splitn(6, ' ').nth(5).unwrap_or_default().trim(),
                proportional: 0,
            });
        }
    }
    mappings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_are_read() {
        let smaps = "7f10-7f20 r-xp 00000000 00:00 0 \nSize:  64 kB\nRss: 12 kB\nPss:  8 kB\nPss_Dirty: 4 kB\n\
                     7f30-7f40 r-xs 00001000 00:01 12      /memfd:capriole-stubs (deleted)\nPss: 2 kB\n";
        let read = mappings(smaps);
        assert_eq!(read.len(), 2, "{read:?}");
        assert_eq!((read[0].start, read[0].proportional), (0x7f10, 8192));
        assert_eq!(read[1].name, "/memfd:capriole-stubs (deleted)");
        assert_eq!(read[1].proportional, 2048);
    }
}
