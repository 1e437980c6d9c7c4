//! Machine code of x86-64: its registers, and detours that do the work of a site.

pub mod detour;
pub(crate) mod registers;
