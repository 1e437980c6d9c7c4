//! The resident's summaries, run store by store: wherever the program is killed, or a thread leaves a
//! summary for good, totals are exact and counts are within their errors; also if they are read while
//! they change.

use crate::compiled::Compiled;
use crate::mapped::map_session;
use crate::support::random::Random;
use capriole_codegen::histogram;
use capriole_ring::Memory;
use capriole_ring::layout::Geometry;
use capriole_ring::numbers::table;
use capriole_ring::summary;
use capriole_ring::tables::{Contents, Shape, Table, TableReader, Tables};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const EVENTS: std::ops::Range<u32> = 30..32;
/// More than a set has rows.
const KEYS: usize = 60;
/// Cells of a row: hits, sum of values, the greatest value, and one that is never used.
const CELLS: u32 = 4;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Hit {
    event: u32,
    hash: u32,
    key: [u64; 2],
    value: u64,
}

/// Totals of all stores that were made, by event.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Done {
    hits: [u64; 2],
    sums: [u64; 2],
    greatest: [u64; 2],
}

type MakeHits = unsafe extern "C" fn(
    counters: u64,
    stride: u64,
    table: *const u64,
    cpu: u32,
    lane: u32,
    hits: *const Hit,
    count: u64,
    stores: i64,
    done: *mut Done,
    counted: *mut u64,
) -> u64;

/// Compiles the library and returns its function. The library stays loaded, and has a configuration and
/// a number of stores of its own.
fn make_hits() -> MakeHits {
    let function = Compiled::load("summarise.c").symbol(c"make_hits");
    // SAFETY: the function has this type.
    unsafe { std::mem::transmute::<*mut libc::c_void, MakeHits>(function) }
}

/// A table, the summaries of one lane, and what was stored there.
struct Summary {
    make_hits: MakeHits,
    table: Table,
    /// The table's description for the resident.
    words: Vec<u64>,
    memory: Arc<Memory>,
    geometry: Geometry,
    counters: u64,
    done: Done,
    counted: Vec<u64>,
}

impl Summary {
    fn new(make_hits: MakeHits) -> Summary {
        let mut tables = Tables::default();
        let shape = Shape {
            events: EVENTS,
            key: 16,
            keys: 16,
            cells: CELLS,
            maxima: vec![2],
            summary: summary::ROOM,
        };
        tables
            .add(Shape {
                key: 0,
                ..shape.clone()
            })
            .expect("room");
        let table = tables.add(shape).expect("room").clone();
        let summaries = table.summaries.expect("it has some");
        let mut bytes = vec![0; table::SIZE];
        for (at, word) in [
            (table::KEY_SIZE, table.shape.key),
            (table::CELLS, CELLS),
            (table::FIRST_EVENT, EVENTS.start),
            (table::SUMMARIES, summaries.first),
            (table::SUMMARY_LANES, summaries.lanes),
            (table::SUMMARY_SETS, summaries.sets),
            (table::SUMMARY_BITS, summaries.bits),
        ] {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes.extend((1u64 << 2).to_le_bytes());
        let (words, _) = bytes.as_chunks();
        let geometry = Geometry::for_buffer(1 << 16, 2, 4).with_tables(&tables);
        let (memory, base) = map_session(&geometry);
        Summary {
            make_hits,
            table,
            words: words.iter().map(|word| u64::from_le_bytes(*word)).collect(),
            memory,
            geometry,
            counters: base + geometry.counters_offset() as u64,
            done: Done::default(),
            counted: vec![0; KEYS],
        }
    }

    /// Makes hits on a CPU and lane, until `stores` stores have been made. Returns how many hits were
    /// begun.
    fn hit(&mut self, (cpu, lane): (u32, u32), hits: &[Hit], stores: Option<i64>) -> usize {
        // SAFETY: memory of the session is mapped at the address, and the rest is as C has it.
        let begun = unsafe {
            (self.make_hits)(
                self.counters,
                self.geometry.counter_stride() as u64,
                self.words.as_ptr(),
                cpu,
                lane,
                hits.as_ptr(),
                hits.len() as u64,
                stores.unwrap_or(-1),
                &mut self.done,
                self.counted.as_mut_ptr(),
            )
        };
        usize::try_from(begun).expect("a summary")
    }

    fn reader(&self) -> TableReader {
        TableReader::new(self.memory.clone(), self.geometry)
    }

    fn clear(&mut self) {
        self.reader().clear(&self.table);
        (self.done, self.counted) = (Done::default(), vec![0; KEYS]);
    }

    /// Checks that the tables hold what was stored.
    fn check(&self, when: &str) {
        let contents = self.reader().read(&self.table);
        assert_eq!(totals(&contents), self.done, "{when}");
        assert_eq!(contents.dropped, 0);
        let mut found: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for row in &contents.rows {
            let (words, _) = row.key.as_chunks();
            let [key, other] = [0, 1].map(|word| u64::from_le_bytes(words[word]));
            assert_eq!(other, !key, "{when}");
            assert!(
                found.insert(key, (row.cells[0], row.error)).is_none(),
                "{when}"
            );
            let parts = row.parts.iter().map(|part| part.cells[0]);
            assert_eq!(parts.sum::<u64>(), row.cells[0], "{when}");
        }
        for (key, counted) in (0..).zip(&self.counted) {
            match found.get(&key) {
                Some((hits, error)) => {
                    let bounds = *hits..=hits + error;
                    assert!(
                        bounds.contains(counted),
                        "{when}: {key}: {counted}: {bounds:?}"
                    );
                }
                None => assert!(
                    *counted <= contents.most_without_row,
                    "{when}: {key}: {counted}"
                ),
            }
        }
    }
}

/// Totals of rows and others.
fn totals(contents: &Contents) -> Done {
    let mut totals = Done::default();
    for row in contents.rows.iter().chain(&contents.others) {
        let event = (row.event - EVENTS.start) as usize;
        totals.hits[event] += row.cells[0];
        totals.sums[event] += row.cells[1];
        totals.greatest[event] = totals.greatest[event].max(row.cells[2]);
        assert_eq!(row.cells[3], 0);
    }
    totals
}

/// Returns hits of keys of which the first are the most frequent ones. Each key is of one event.
fn hits(random: &mut Random, count: usize) -> Vec<Hit> {
    let hit = |_| {
        let most = 1 + random.below(KEYS);
        let key = random.below(most) as u64;
        Hit {
            event: EVENTS.start + (key % 2) as u32,
            hash: (key as u32).wrapping_mul(0x9e37_79b1),
            key: [key, !key],
            value: 1 + key * 3 + random.below(1000) as u64,
        }
    };
    (0..count).map(hit).collect()
}

#[test]
fn it_is_exact_wherever_it_ends() {
    let mut summary = Summary::new(make_hits());
    let mut random = Random::new(5);
    let all = hits(&mut random, 250);
    let mut ends = 0;
    for stores in 0.. {
        summary.clear();
        let begun = summary.hit((1, 1), &all, Some(stores));
        summary.check(&format!("killed before store {stores}"));
        if begun == all.len() && summary.done.hits.iter().sum::<u64>() == all.len() as u64 {
            break;
        }
        ends += 1;
        // Another thread takes the lane over; and is itself interrupted at once.
        for more in 0..12 {
            let rest = &all[begun..];
            summary.hit((1, 1), rest, Some(more));
            summary.check(&format!(
                "interrupted before store {stores}, again {more} later"
            ));
        }
        summary.hit((1, 1), &all[begun..], None);
        summary.check(&format!("continued behind store {stores}"));
    }
    assert!(ends > 1000, "{ends} stores");
}

/// Hits of one key in several summaries are one row.
#[test]
fn summaries_of_all_lanes_are_one_table() {
    let mut summary = Summary::new(make_hits());
    let mut random = Random::new(6);
    for round in 0..200 {
        let place = random.pick(&[(0, 1), (0, 2), (1, 1), (1, 1), (1, 3)]);
        let count = random.below(60);
        let some = hits(&mut random, count);
        assert_eq!(summary.hit(place, &some, None), some.len());
        summary.check(&format!("round {round}"));
    }
}

/// A reader never sees a hit twice or not at all, whatever is moved meanwhile.
#[test]
fn it_is_exact_while_it_changes() {
    let summary = Summary::new(make_hits());
    let reader = summary.reader();
    let table = summary.table.clone();
    let over = AtomicBool::new(false);
    let summary = std::sync::Mutex::new(summary);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut summary = summary.lock().expect("not poisoned");
            let mut random = Random::new(7);
            let all = hits(&mut random, 3000);
            for _ in 0..100 {
                summary.hit((0, 1), &all, None);
            }
            over.store(true, Ordering::Release);
        });
        let (mut before, mut readings) = ([0; 2], 0);
        while !over.load(Ordering::Acquire) {
            let now = totals(&reader.read(&table)).hits;
            assert!(
                before[0] <= now[0] && before[1] <= now[1],
                "{before:?} {now:?}"
            );
            (before, readings) = (now, readings + 1);
        }
        assert!(before.iter().all(|hits| *hits <= 300_000), "{before:?}");
        println!("{readings} readings");
    });
    summary.lock().expect("not poisoned").check("at the end");
}

/// Sets have room for a histogram, and a table that would take too much has none.
#[test]
fn there_is_room_for_histograms() {
    let summaries = |events: u32, keys: u32, cells: u32| {
        let mut tables = Tables::default();
        let shape = Shape {
            events: 0..events,
            key: 8,
            keys,
            cells,
            maxima: Vec::new(),
            summary: summary::ROOM,
        };
        tables.add(shape).ok()?.summaries
    };
    let plain = summaries(1, 1024, 2).expect("room");
    assert_eq!((plain.sets, plain.lanes), (64, 128));
    let durations = summaries(1, 1024, histogram::BUCKETS + 3).expect("room");
    assert_eq!(durations.sets, 64);
    assert!(durations.lanes >= 4);
    let pattern = summaries(3000, 1024, 2).expect("room");
    assert_eq!((pattern.sets, pattern.bits), (3000, 0));
    assert_eq!(summaries(6000, 1024, histogram::BUCKETS), None);
}
