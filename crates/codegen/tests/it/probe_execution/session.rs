//! Session memory of the child process, which is both target and tracer, and the data that
//! detours have written to it.

use std::sync::{Arc, LazyLock};

use capriole_codegen::runtime::Runtime;
use capriole_codegen::work::Work;
use capriole_resident as resident;
use capriole_ring::layout::Geometry;
use capriole_ring::{Memory, Reader};

use super::memory::{ARENA, NO_RSEQ, RSEQ, TID};
use crate::mapped;

static GEOMETRY: LazyLock<Geometry> = LazyLock::new(|| Geometry {
    cpus: mapped::cpus(),
    packet_size: 4096,
    packets: 64,
    journal: 1,
    counters: COUNTERS,
    directories: 0,
    frames: 0,
    areas: 0,
    kept: 0,
    windows: false,
});
/// Number of counters.
pub const COUNTERS: u32 = 6;
const RESIDENT_SIZE: u64 = 0x6000;
/// The detours follow the residents.
pub const DETOURS: u64 = ARENA + 3 * RESIDENT_SIZE;

/// The way in which a detour finds its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By restartable sequences that the kernel knows.
    Registered,
    /// A `struct rseq` that reads as "not registered".
    Unregistered,
    /// No offset is known: every record takes the locked path.
    Locked,
}

impl Mode {
    const ALL: [Self; 3] = [Self::Registered, Self::Unregistered, Self::Locked];

    fn rseq_offset(self) -> Option<i32> {
        match self {
            Self::Registered => Some(RSEQ),
            Self::Unregistered => Some(NO_RSEQ),
            Self::Locked => None,
        }
    }

    fn resident(self) -> u64 {
        ARENA + self as u64 * RESIDENT_SIZE
    }
}

/// A written record: its event and fields.
pub type Written = (u32, Vec<u64>);

/// Data that detours have left in a session.
pub struct Seen {
    /// All records, in the order of their times.
    pub records: Vec<Written>,
    /// The values of the counters.
    pub counts: Vec<u64>,
    /// Number of records and counts made by a restartable sequence.
    pub restartable: u64,
}

pub struct Session {
    memory: Arc<Memory>,
    base: u64,
}

impl Session {
    pub fn new() -> Session {
        let (memory, base) = mapped::map_session(&GEOMETRY);
        Session { memory, base }
    }

    /// Addresses and bytes of the residents, one for each mode.
    pub fn residents(&self) -> Vec<(u64, Vec<u8>)> {
        let place = |mode: Mode| {
            let config = resident::Config {
                rseq_offset: mode.rseq_offset(),
                tid_offset: Some(TID.0),
                ..mapped::config(self.base, &GEOMETRY)
            };
            (mode.resident(), resident::place(mode.resident(), &config))
        };
        Mode::ALL.map(place).to_vec()
    }

    pub fn runtime(&self, mode: Mode) -> Runtime {
        Runtime {
            rseq_offset: mode.rseq_offset(),
            tid_offset: Some(TID.0),
            ..mapped::runtime(self.base, &GEOMETRY, mode.resident())
        }
    }

    /// Resets the session.
    pub fn reset(&self) {
        mapped::empty(&self.memory, self.base, &GEOMETRY);
    }

    /// Returns the data left by the detour that does `work`.
    pub fn seen(&self, work: &[Work]) -> Result<Seen, String> {
        let fields = |event: u32| {
            work.iter().find_map(|work| match work {
                Work::Record(record) if record.event == event => Some(record.fields.len()),
                _ => None,
            })
        };
        let counts = mapped::counts(&self.memory, &GEOMETRY);
        let shared = |counter| self.memory.load(GEOMETRY.counter(GEOMETRY.cpus, counter));
        let shared: u64 = (0..COUNTERS).map(shared).sum();
        let mut restartable = counts.iter().sum::<u64>() - shared;
        let mut reader = Reader::new(self.memory.clone(), *GEOMETRY);
        let mut written: Vec<(u64, Written)> = Vec::new();
        reader.collect::<String>(true, |packet| {
            let mut rest = packet.content;
            while !rest.is_empty() {
                let word =
                    |i: usize| u64::from_le_bytes(rest[8 * i..8 * i + 8].try_into().unwrap());
                let (time, event) = (word(0), word(1) as u32);
                let fields =
                    fields(event).ok_or_else(|| format!("event {event} was never asked for"))?;
                written.push((time, (event, (0..fields).map(|i| word(2 + i)).collect())));
                restartable += u64::from(packet.lane == 0);
                rest = &rest[16 + 8 * fields..];
            }
            Ok(())
        })?;
        if reader.lost() != 0 || reader.damaged() != 0 {
            return Err(format!(
                "{} lost, {} damaged",
                reader.lost(),
                reader.damaged()
            ));
        }
        written.sort();
        Ok(Seen {
            records: written.into_iter().map(|(_, record)| record).collect(),
            counts,
            restartable,
        })
    }
}
