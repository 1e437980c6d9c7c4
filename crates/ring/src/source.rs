//! Session memory as a reader accesses it: mapped here, or read from another process.

use crate::layout;
use crate::layout::{Geometry, LANES, header};
use crate::memory::Memory;
use std::sync::Arc;

/// Access to session memory by byte offsets, which must be inside it. The values read may be
/// anything.
pub trait Source {
    /// Loads a u64.
    fn load(&self, offset: usize) -> u64;
    /// Loads a u32.
    fn load_u32(&self, offset: usize) -> u32;
    /// Copies bytes out; returns false if the memory no longer exists.
    fn read(&self, offset: usize, into: &mut [u8]) -> bool;
    /// Stores a u64, after all earlier stores; returns false if the memory no longer exists.
    fn store(&self, offset: usize, value: u64) -> bool;
    /// Gives packet `index` to the writers, if there are any.
    fn free_packet(&self, index: u32);
}

impl Source for Memory {
    fn load(&self, offset: usize) -> u64 {
        Memory::load(self, offset)
    }

    fn load_u32(&self, offset: usize) -> u32 {
        Memory::load_u32(self, offset)
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> bool {
        Memory::read(self, offset, into);
        true
    }

    fn store(&self, offset: usize, value: u64) -> bool {
        Memory::store(self, offset, value);
        true
    }

    fn free_packet(&self, index: u32) {
        Memory::free_packet(self, index);
    }
}

impl<S: Source> Source for Arc<S> {
    fn load(&self, offset: usize) -> u64 {
        S::load(self, offset)
    }

    fn load_u32(&self, offset: usize) -> u32 {
        S::load_u32(self, offset)
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> bool {
        S::read(self, offset, into)
    }

    fn store(&self, offset: usize, value: u64) -> bool {
        S::store(self, offset, value)
    }

    fn free_packet(&self, index: u32) {
        S::free_packet(self, index);
    }
}

/// Maximum number of CPUs in a session made by another process: the limit of Linux on x86-64.
pub(crate) const MAX_CPUS: u32 = 8192;

impl Geometry {
    /// Reads the geometry of a session made by another process from its header; returns it with the
    /// byte offset of its packets. All of that must fit into `len` bytes of memory, which include
    /// the header. Tables and the memory private to each process are not known.
    pub(crate) fn of(source: &impl Source, len: u64) -> Option<(Geometry, usize)> {
        // Read each word once: the program may change it meanwhile.
        let half = |at| source.load_u32(at);
        let sound = source.load(header::MAGIC) == layout::MAGIC
            && half(header::VERSION) == layout::VERSION
            && half(header::LANES) == LANES as u32;
        if !sound {
            return None;
        }
        let geometry = Geometry {
            cpus: half(header::CPUS),
            packet_size: half(header::PACKET_SIZE),
            packets: half(header::PACKETS),
            journal: 0,
            counters: 0,
            directories: 0,
            frames: 0,
            areas: 0,
            kept: 0,
            windows: false,
        };
        let packets = source.load(header::PACKETS_OFFSET);
        let bytes = u64::from(geometry.packets) * u64::from(geometry.packet_size);
        // Each CPU takes more than a byte, so a CPU count that fits into memory cannot overflow the
        // calculation.
        let sizes = layout::MIN_PACKET_SIZE..=layout::MAX_PACKET_SIZE;
        let fits = sizes.contains(&(geometry.packet_size as usize))
            && geometry.packet_size.is_power_of_two()
            && (1..=layout::MAX_PACKETS as u32).contains(&geometry.packets)
            && (1..len).contains(&u64::from(geometry.cpus))
            && (geometry.directories_offset() + geometry.streams_size()) as u64 <= packets
            && packets.is_multiple_of(layout::MIN_PACKET_SIZE as u64)
            && packets.checked_add(bytes).is_some_and(|end| end <= len);
        fits.then_some((geometry, packets as usize))
    }

    /// As `of`, for a session that keeps records and so has no tables.
    pub fn of_recording(source: &impl Source, len: u64) -> Option<Geometry> {
        let (geometry, packets) = Geometry::of(source, len)?;
        let sound = geometry.cpus <= MAX_CPUS
            && geometry.packets_offset() == packets
            && geometry.shared_size() as u64 <= len;
        sound.then_some(geometry)
    }
}
