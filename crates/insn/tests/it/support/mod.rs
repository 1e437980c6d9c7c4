//! Helpers for several tests.
#![allow(dead_code)]

pub mod elf;
pub mod random;
pub mod sandbox;

use capriole_insn::{Live, RegSet};

/// Registers that may be overwritten: all that are not live.
pub fn dead(live: &Live) -> RegSet {
    RegSet(!live.gprs.0)
}
