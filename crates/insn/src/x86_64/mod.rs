//! Machine code of x86-64: the conventions of its tool chains, and its instructions as data.

pub mod conventions;
pub mod decode;
pub(crate) mod depth;
pub mod exits;
pub mod jump_table;
pub mod liveness;
pub mod red_zone;
pub mod relocate;
pub mod result_use;
pub(crate) mod stack_check;
pub(crate) mod sweep;
