//! Helpers for several tests.
#![allow(dead_code)]

pub mod elf;
pub mod random;
pub mod sandbox;
