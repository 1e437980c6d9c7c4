//! Registers and conditions of x86-64, as far as fields and their work have to know them.

pub(crate) use iced_x86::{ConditionCode, Register};

/// The stack pointer, which a detour may have moved.
pub(crate) const STACK_POINTER: Register = Register::RSP;
/// Maximum number of general registers that the code of a record can read: it needs the others as
/// scratch registers.
pub(crate) const MOST_IN_RECORD: usize = 11;
/// The same for the code of an entry.
pub(crate) const MOST_AT_ENTRY: usize = 8;
/// The same for the code of a table's cell.
pub(crate) const MOST_IN_CELL: usize = 8;

/// Returns the vector register with a number from 0 to 15.
pub(crate) fn vector(number: u8) -> Register {
    Register::XMM0 + u32::from(number)
}

/// True for a vector register; the others that fields name are general registers.
pub(crate) fn is_vector(register: Register) -> bool {
    register.is_xmm()
}
