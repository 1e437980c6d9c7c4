//! Session memory of a test's child process, which is both target and tracer.

use capriole_codegen::runtime::{ClockReading, Counters, Frames, Runtime};
use capriole_resident as resident;
use capriole_ring::Memory;
use capriole_ring::layout::{self, Geometry};
use std::sync::Arc;

/// Creates session memory and maps it twice, as a tracer and its target do. Returns its address
/// in the target.
pub fn map_session(geometry: &Geometry) -> (Arc<Memory>, u64) {
    let fd = rustix::fs::memfd_create("session-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, geometry.size() as u64).unwrap();
    let memory = Arc::new(Memory::map(&fd, geometry.size()).unwrap());
    // SAFETY: a fresh mapping, never unmapped.
    let base = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            geometry.size(),
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::SHARED,
            &fd,
            0,
        )
    };
    (memory, base.unwrap() as u64)
}

/// Number of CPUs that this machine can have.
#[allow(dead_code)] // where there is one stream
pub fn cpus() -> u32 {
    // SAFETY: only reads a number.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    u32::try_from(cpus).expect("a number of CPUs")
}

/// Resets session memory, which the target has mapped at `base`: no packet is in use, no lane
/// is locked, all counters and counts of lost events are 0. Threads know their ids.
pub fn empty(memory: &Memory, base: u64, geometry: &Geometry) {
    memory.format(base, geometry);
    memory.store_u32(geometry.own_offset() + layout::own::KNOWN, 1);
    for at in streams(geometry) {
        memory.store(at + layout::stream::LOST, 0);
        memory.store(at + layout::stream::LOCK, 0);
    }
    for copy in 0..=geometry.cpus {
        for counter in 0..geometry.counters {
            memory.store(geometry.counter(copy, counter), 0);
        }
    }
}

/// The value of each counter, modulo 2^64.
#[allow(dead_code)] // where nothing is counted
pub fn counts(memory: &Memory, geometry: &Geometry) -> Vec<u64> {
    let sum = |counter| {
        let copies = 0..=geometry.cpus;
        let values = copies.map(|cpu| memory.load(geometry.counter(cpu, counter)));
        values.fold(0, u64::wrapping_add)
    };
    (0..geometry.counters).map(sum).collect()
}

/// Byte offsets of the streams' rows: of each lane on each CPU.
pub fn streams(geometry: &Geometry) -> impl Iterator<Item = usize> {
    let count = layout::LANES * geometry.cpus as usize;
    let size = layout::stream::SIZE;
    (geometry.streams()..).step_by(size).take(count)
}

/// Configuration of the resident; no offset is known to it, and it wakes no reader.
pub fn config(base: u64, geometry: &Geometry) -> resident::Config {
    resident::Config {
        session: base,
        geometry: *geometry,
        rseq_offset: None,
        tid_offset: None,
        coarse_clock: false,
        has_routines: false,
        clock_step: 0,
        traps: 0,
        old_trap: (0, 0),
        unwinding: 0,
        own_frames: 0,
    }
}

/// Runtime of detours, with the resident at an address; no offset is known.
pub fn runtime(base: u64, geometry: &Geometry, resident: u64) -> Runtime {
    let entries = resident::entries(resident);
    Runtime {
        shadow_stack: false,
        clock: ClockReading::default(),
        streams: base + geometry.streams() as u64,
        limit: geometry.limit(),
        directories: base + geometry.directories_offset() as u64,
        frames: Frames {
            address: base + geometry.frames_offset() as u64,
            slots: geometry.frames,
            size: geometry.frame_size() as u32,
        },
        counters: Counters {
            address: base + geometry.counters_offset() as u64,
            stride: geometry.counter_stride() as u32,
            cpus: geometry.cpus,
        },
        rseq_offset: None,
        tid_offset: None,
        switch: entries.switch,
        locked: entries.locked,
        run: entries.run,
    }
}
