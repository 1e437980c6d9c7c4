//! Session memory: its layout, and the reader's side of it.
//!
//! A session's memory is shared with the program that is being traced, which may
//! be broken or hostile. The reader therefore keeps its own copy of the geometry,
//! checks every position and number that it reads, bounds every walk, and copies a
//! packet before it looks at it: it can be fed nonsense, but not crashed.
//!
//! - [`layout`]: byte offsets, geometry
//! - [`lanes`]: holders of locked lanes
//! - [`memory`]: the mapping; the only unsafe code of the crate
//! - [`numbers`]: offsets, opcodes and limits that the code in the target uses too
//! - [`tables`]: values aggregated by key
//! - [`intervals`]: intervals from one event to another that are open
//! - [`reader`]: closed packets, in order, stream by stream; read from a [`source`], with its
//!   progress noted for a successor (`taken`)
//! - [`writer`]: records from outside the program
#![deny(unsafe_code)]

pub mod intervals;
pub mod lanes;
pub mod layout;
#[allow(unsafe_code)]
pub mod memory;
pub mod numbers;
pub mod reader;
pub mod source;
pub mod summary;
pub mod tables;
mod taken;
pub mod writer;

pub use memory::Memory;
pub use reader::{Packet, Reader};
pub use source::Source;
pub use writer::Writer;

/// Returns pseudo-random numbers from a fixed seed (xorshift64: G. Marsaglia, "Xorshift RNGs").
#[cfg(test)]
fn noise() -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}
