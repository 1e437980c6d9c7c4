//! How often what was counted, as the reader sees it.

use crate::Memory;
use crate::layout::Geometry;
use std::sync::Arc;

/// The counters of a session.
///
/// What the target wrote is only ever added up: a program that writes over them gets
/// wrong numbers, and does no other harm.
#[derive(Debug, Clone)]
pub struct Counters {
    memory: Arc<Memory>,
    geometry: Geometry,
}

impl Counters {
    /// The counters in session memory of this geometry.
    ///
    /// # Panics
    /// If `memory` is smaller than the geometry says.
    pub fn new(memory: Arc<Memory>, geometry: Geometry) -> Counters {
        assert!(memory.len() >= geometry.size());
        Counters { memory, geometry }
    }

    /// The value of each counter, modulo 2^64. While the target runs, a value is one
    /// that the counter had at some moment of the call or close to it: never less than
    /// what was counted before the call, never more than after it.
    pub fn read(&self) -> Vec<u64> {
        let mut values = vec![0u64; self.geometry.counters as usize];
        for cpu in 0..=self.geometry.cpus {
            for (counter, value) in values.iter_mut().enumerate() {
                let at = self.geometry.counter(cpu, counter as u32);
                *value = value.wrapping_add(self.memory.load(at));
            }
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    fn memory(geometry: &Geometry) -> Arc<Memory> {
        let fd = rustix::fs::memfd_create("counters-test", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&fd, geometry.size() as u64).expect("ftruncate");
        Arc::new(Memory::map(&fd, geometry.size()).expect("map"))
    }

    #[test]
    fn values_are_sums_over_cpus_and_the_shared_copy() {
        let geometry = Geometry::for_buffer(1 << 16, 3, 4).with_counters(20);
        let memory = memory(&geometry);
        let counters = Counters::new(memory.clone(), geometry);
        assert_eq!(counters.read(), [0; 20]);
        for cpu in 0..=3 {
            memory.store(geometry.counter(cpu, 0), 10u64.pow(cpu));
            memory.store(geometry.counter(cpu, 19), u64::from(cpu));
        }
        let mut expected = [0; 20];
        (expected[0], expected[19]) = (1111, 6);
        assert_eq!(counters.read(), expected);
    }

    #[test]
    fn nonsense_is_added_up_without_harm() {
        let geometry = Geometry::for_buffer(1 << 16, 2, 1).with_counters(1);
        let memory = memory(&geometry);
        memory.store(geometry.counter(0, 0), u64::MAX);
        memory.store(geometry.counter(2, 0), 3);
        assert_eq!(Counters::new(memory, geometry).read(), [2]);
    }

    #[test]
    fn without_counters_there_is_nothing_and_it_takes_no_room() {
        let geometry = Geometry::for_buffer(1 << 16, 2, 1);
        assert_eq!(geometry.counter(2, 0), geometry.counter(0, 0));
        assert!(Counters::new(memory(&geometry), geometry).read().is_empty());
    }
}
