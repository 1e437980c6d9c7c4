//! The library, on programs that run.

mod probes;
mod sessions;
