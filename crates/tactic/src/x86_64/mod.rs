//! Jumps of x86-64: their bytes, the instructions that they replace, and the tactics that share
//! bytes of a displacement with other instructions.

pub(crate) mod instruction;
pub(crate) mod jump;
pub(crate) mod mask;
mod prescribed;
