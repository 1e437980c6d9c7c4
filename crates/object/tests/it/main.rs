//! Tests of this crate, in one program, because each program takes long to link.

mod dlang;
mod markers;
mod objects;
mod symbols;
