//! The grammar of events. All tests are in one program, because each program takes long to
//! link.

mod aggregation;
mod call_stack;
mod definitions;
mod entry;
mod fetch;
mod filter;
mod glob;
mod grammar;
mod kernel;
mod probe;
mod random;
