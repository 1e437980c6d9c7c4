//! Open intervals: from the hit of one event to the hit of another one with the same key.
//!
//! A start writes the time into a slot, with its key; an end finds the slot by the key, and frees it.
//! Both may be on any thread and CPU. The slots are in session memory, found by the hash of the key:
//!
//! ```text
//! states  a u64 for each slot: generation (32 bits), hash of the key (30 bits), status (2 bits)
//! slots   time, process, words of the key, words that the start keeps;
//!         each word is two u64: a half of the word, with the generation above it
//!
//! start   claim a slot: state = next generation, hash, CLAIMED    compare-and-swap
//!         write the words, last the time
//!         publish it:   state = this generation, hash, OPEN       compare-and-swap
//! end     find the slot; read its words
//!         free it:      state = this generation, FREE             compare-and-swap
//! ```
//!
//! **Nothing is waited for.** Whoever loses a compare-and-swap looks again, a bounded number of times.
//! A thread may be killed or interrupted at any instruction, for any time. If it had claimed a slot, any
//! start that needs the slot takes it; the thread's own publication fails then, and its interval is
//! lost. Until then it may write words into the slot that another one uses. They have an older
//! generation, which no reader takes for its own: so keys are never mixed up, and at worst the other
//! interval is lost, too. A slot that is broken in this way is taken again by a start that finds no
//! other one.
//!
//! **Keys are compared as a whole**; the hash only selects the slots to look at. The process is a
//! part of the key, because an address means something else in a forked child. Its number is made in
//! the target, without a system call: a word of the process's own memory, cleared by a fork, that is
//! set from a counter of the session.
//!
//! **Two starts with one key at the same moment** may take a slot each. Every search looks at all slots
//! in which a key can be; whoever finds several drops all but the latest, which counts as a restart.
//!
//! **The counts** say what became of each start: ended, restarted, without room, or still open. The
//! rest was lost.

use crate::Memory;
use crate::layout::Geometry;
use crate::memory::MOST;
use crate::numbers::interval;
use std::collections::HashSet;
use std::ops::Range;

/// Slots for open intervals, and their place in session memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Intervals {
    /// Byte offset of their states from [`Geometry::directories_offset`].
    pub states: u64,
    /// Number of slots, a power of two.
    pub slots: u32,
    /// Number of words of a key.
    pub keys: u32,
    /// Number of further words that a start keeps.
    pub kept: u32,
    /// The first of their counters.
    pub first_counter: u32,
}

/// Counts of intervals so far, by their outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contents {
    /// Starts whose key could be read.
    pub started: u64,
    /// Intervals that ended because another one with the same key started.
    pub restarted: u64,
    /// Ends without an open interval of their key.
    pub unmatched: u64,
    /// Starts for which no slot was free.
    pub no_room: u64,
    /// Starts and ends whose key could not be read.
    pub unreadable: u64,
    /// Intervals that are open.
    pub open: u64,
    /// Number of counts that are impossible, and left out: they were written over.
    pub damaged: u64,
}

impl Intervals {
    /// Largest number of slots.
    pub const MOST: u32 = 1 << 22;

    /// Describes slots without a place; `None` for too many.
    pub(crate) fn new(keys: u32, kept: u32, slots: u32) -> Option<Intervals> {
        assert!(
            keys + kept <= interval::MOST_WORDS,
            "more words than a slot has"
        );
        let slots = slots.max(interval::WINDOW).checked_next_power_of_two()?;
        (slots <= Intervals::MOST).then_some(Intervals {
            states: 0,
            slots,
            keys,
            kept,
            first_counter: 0,
        })
    }

    /// Returns the number of words of the key and of those that are kept.
    #[must_use]
    pub fn words(&self) -> u32 {
        self.keys + self.kept
    }

    /// Returns the shift that turns the hash of a key into the number of its first slot.
    #[must_use]
    pub fn shift(&self) -> u32 {
        32 - self.slots.ilog2()
    }

    /// Size in bytes of a slot.
    fn slot_size(&self) -> u64 {
        (interval::KEY as u64 + u64::from(self.words())) * interval::WORD_SIZE as u64
    }

    /// Size in bytes of all states and slots.
    pub(crate) fn size(&self) -> u64 {
        let size = u64::from(self.slots) * (8 + self.slot_size());
        size.next_multiple_of(crate::layout::directory::HEAD as u64)
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.states..self.states + self.size()
    }

    pub(crate) fn counters(&self) -> Range<u64> {
        let first = u64::from(self.first_counter);
        first..first + u64::from(interval::COUNTERS)
    }

    /// Byte offset of a slot in session memory.
    fn slot(&self, geometry: &Geometry, index: u32) -> usize {
        let states = geometry.directories_offset() + self.states as usize;
        states + self.slots as usize * 8 + index as usize * self.slot_size() as usize
    }
}

impl Contents {
    /// Returns the number of starts that were lost, if `ended` intervals have ended.
    #[must_use]
    pub fn lost(&self, ended: u64) -> u64 {
        let known = [self.restarted, self.no_room, self.open, ended];
        let known = known.into_iter().fold(0, u64::saturating_add);
        self.started.saturating_sub(known)
    }
}

/// Reads what is known of intervals.
pub(crate) fn read(memory: &Memory, geometry: &Geometry, of: &Intervals) -> Contents {
    let mut damaged = 0;
    let mut counter = |number: u32| {
        let on = |cpu| memory.load(geometry.counter(cpu, of.first_counter + number));
        let all = (0..=geometry.cpus).map(on).fold(0, u64::wrapping_add);
        let impossible = all >= MOST;
        damaged += u64::from(impossible);
        if impossible { 0 } else { all }
    };
    let mut contents = Contents {
        started: counter(interval::STARTED),
        restarted: counter(interval::RESTARTED),
        unmatched: counter(interval::UNMATCHED),
        no_room: counter(interval::NO_ROOM),
        unreadable: counter(interval::UNREADABLE),
        open: 0,
        damaged,
    };
    let states = geometry.directories_offset() + of.states as usize;
    let mut keys: HashSet<Vec<u64>> = HashSet::new();
    for part in memory.written(states..states + 8 * of.slots as usize) {
        for at in part.step_by(8) {
            let state = memory.load(at);
            if state as u32 & interval::STATUS != interval::OPEN {
                continue;
            }
            let slot = of.slot(geometry, ((at - states) / 8) as u32);
            let Some(key) = key_of(memory, of, slot, state) else {
                continue;
            };
            // Two starts at the same moment, of which no later event has dropped one yet.
            match keys.insert(key) {
                true => contents.open += 1,
                false => contents.restarted += 1,
            }
        }
    }
    contents
}

/// Returns the process and the key of an open interval; `None` if the slot is broken.
fn key_of(memory: &Memory, of: &Intervals, slot: usize, state: u64) -> Option<Vec<u64>> {
    let generation = state >> interval::GENERATION_SHIFT;
    let words = interval::PROCESS..interval::KEY + of.keys as usize;
    let word = |word: usize| {
        let at = slot + word * interval::WORD_SIZE;
        let [low, high] = [memory.load(at), memory.load(at + 8)];
        let own = [low, high].map(|half| half >> interval::GENERATION_SHIFT);
        (own == [generation; 2]).then_some(low & u64::from(u32::MAX) | high << 32)
    };
    words.map(word).collect()
}

/// Drops all intervals and zeroes the counters.
pub(crate) fn clear(memory: &Memory, geometry: &Geometry, of: &Intervals) {
    let states = geometry.directories_offset() + of.states as usize;
    let slots = states..states + of.size() as usize;
    let counters = (0..=geometry.cpus).map(|cpu| {
        let at = |counter: u64| geometry.counter(cpu, counter as u32);
        at(of.counters().start)..at(of.counters().end)
    });
    for range in counters.chain([slots]) {
        for part in memory.written(range) {
            memory.write(part.start, &vec![0; part.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{Shape, TableReader, Tables, TooLarge};
    use rustix::fs::MemfdFlags;
    use std::sync::Arc;

    fn session(tables: &Tables) -> (Arc<Memory>, Geometry) {
        let geometry = Geometry::for_buffer(1 << 16, 2, 4).with_tables(tables);
        let fd = rustix::fs::memfd_create("intervals-test", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&fd, geometry.size() as u64).expect("ftruncate");
        let memory = Memory::map(&fd, geometry.size()).expect("map");
        (Arc::new(memory), geometry)
    }

    fn table() -> Shape {
        Shape {
            events: 0..1,
            key: 8,
            keys: 100,
            cells: 5,
            maxima: Vec::new(),
            summary: 0,
        }
    }

    /// Writes a slot as the target does.
    fn put(memory: &Memory, geometry: &Geometry, of: &Intervals, index: u32, words: &[(u32, u64)]) {
        let slot = of.slot(geometry, index);
        for (number, (generation, word)) in words.iter().enumerate() {
            let at = slot + number * interval::WORD_SIZE;
            let tag = u64::from(*generation) << 32;
            memory.store(at, word & 0xffff_ffff | tag);
            memory.store(at + 8, word >> 32 | tag);
        }
    }

    fn state(memory: &Memory, geometry: &Geometry, of: &Intervals, index: u32, state: u64) {
        let states = geometry.directories_offset() + of.states as usize;
        memory.store(states + 8 * index as usize, state);
    }

    #[test]
    fn open_intervals_are_counted_once_by_key() {
        let mut tables = Tables::default();
        tables.add(table()).expect("room");
        let of = tables.add_intervals(2, 1, 100).expect("room");
        tables.add(table()).expect("room");
        assert_eq!((of.slots, of.shift(), of.words()), (128, 25, 3));
        let (memory, geometry) = session(&tables);
        let reader = TableReader::new(memory.clone(), geometry);
        assert_eq!(reader.intervals(&of), Contents::default());
        let open = |generation: u64| generation << 32 | u64::from(interval::OPEN) | 0x40;
        let key = |process, last| [(7, 1000), (7, process), (7, 5), (7, last), (7, 9)];
        for (index, words) in [
            (0, key(1, 6 << 40)),
            (1, key(1, 7)),
            (99, key(1, 7)), // started at the same moment
            (127, key(2, 7)),
        ] {
            put(&memory, &geometry, &of, index, &words);
            state(&memory, &geometry, &of, index, open(7));
        }
        // Written by a thread that had claimed it before; being written; free.
        let broken = [(7, 1000), (7, 3), (6, 5), (7, 7), (7, 9)];
        put(&memory, &geometry, &of, 50, &broken);
        state(&memory, &geometry, &of, 50, open(7));
        put(&memory, &geometry, &of, 51, &key(4, 4));
        state(
            &memory,
            &geometry,
            &of,
            51,
            7 << 32 | u64::from(interval::CLAIMED),
        );
        state(&memory, &geometry, &of, 52, 7 << 32);
        for (cpu, counter, value) in [
            (0, interval::STARTED, 20),
            (2, interval::STARTED, 3),
            (1, interval::RESTARTED, 4),
            (1, interval::NO_ROOM, 2),
            (1, interval::UNMATCHED, 8),
            (1, interval::UNREADABLE, 1),
        ] {
            memory.store(geometry.counter(cpu, of.first_counter + counter), value);
        }
        let contents = reader.intervals(&of);
        let wanted = Contents {
            started: 23,
            restarted: 5,
            unmatched: 8,
            no_room: 2,
            unreadable: 1,
            open: 3,
            damaged: 0,
        };
        assert_eq!(contents, wanted);
        assert_eq!((contents.lost(10), contents.lost(100)), (3, 0));
        reader.clear_intervals(&of);
        assert_eq!(reader.intervals(&of), Contents::default());
    }

    #[test]
    fn nonsense_is_read_without_harm() {
        let mut tables = Tables::default();
        let of = tables.add_intervals(1, 6, 32).expect("room");
        let (memory, geometry) = session(&tables);
        let mut noise = crate::noise();
        let from = geometry.directories_offset();
        for round in 0..50 {
            for at in (from..geometry.packets_offset()).step_by(8) {
                memory.store(at, noise() >> (noise() % 64).min(3 * round));
            }
            let contents = TableReader::new(memory.clone(), geometry).intervals(&of);
            assert!(contents.open <= 32, "{contents:?}");
            assert!(contents.started < MOST && contents.lost(0) < MOST);
        }
        memory.store(geometry.counter(0, of.first_counter), u64::MAX / 2);
        let contents = TableReader::new(memory, geometry).intervals(&of);
        assert!(contents.damaged > 0 && contents.started == 0);
    }

    #[test]
    fn slots_have_room_of_their_own_and_a_limit() {
        let mut tables = Tables::default();
        let first = tables.add(table()).expect("room").clone();
        let one = tables.add_intervals(1, 0, 1).expect("room");
        let two = tables.add_intervals(3, 4, 5000).expect("room");
        let last = tables.add(table()).expect("room").clone();
        assert_eq!((one.slots, two.slots), (32, 8192));
        assert!(u64::from(first.first_cell + first.rows * 5) <= one.counters().start);
        assert!(one.counters().end <= two.counters().start);
        assert!(two.counters().end <= u64::from(last.first_cell));
        assert!(one.range().end <= two.range().start && two.range().end <= last.directory);
        assert_eq!(two.size(), 8192 * (8 + 9 * 16));
        tables.remove_intervals(&one);
        let again = tables.add_intervals(1, 0, 20).expect("room");
        assert_eq!(again, one);
        assert_eq!(tables.add_intervals(1, 0, u32::MAX), Err(TooLarge));
        assert_eq!(
            tables.add_intervals(1, 0, Intervals::MOST + 1),
            Err(TooLarge)
        );
    }
}
