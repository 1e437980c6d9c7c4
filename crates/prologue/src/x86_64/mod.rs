//! Functions of x86-64: their first instructions, executed symbolically.

pub mod instructions;
pub mod prologue;
pub mod registers;
