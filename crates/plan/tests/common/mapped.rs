//! Session memory of a test's child, which is target and tracer at once.

use capriole_ring::Memory;
use capriole_ring::layout::Geometry;
use std::sync::Arc;

/// Makes session memory and maps it twice, as a tracer and its target do. Tells where the
/// target has it.
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
