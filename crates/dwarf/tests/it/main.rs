//! Tests of this crate, in one program, because each program takes long to link.

mod damaged;
mod lookup;
mod programs;
mod values;
