//! What several tests need.
#![allow(dead_code)]

pub mod elf;
pub mod random;
pub mod sandbox;
