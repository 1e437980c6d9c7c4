//! The library, on programs that run.

mod sessions;
