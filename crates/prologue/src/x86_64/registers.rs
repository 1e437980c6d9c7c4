//! Registers by their DWARF numbers, and those of parameters.

use capriole_event::Gpr;

/// Argument registers: six for parameters, and the static chain of a nested function (GCC),
/// which leads to the enclosing function.
pub const PARAMETERS: [Gpr; 7] = [
    Gpr::Rdi,
    Gpr::Rsi,
    Gpr::Rdx,
    Gpr::Rcx,
    Gpr::R8,
    Gpr::R9,
    Gpr::R10,
];

/// Returns a vector register by its DWARF number (System V AMD64 psABI, figure 3.36).
#[must_use]
pub fn vector(register: u16) -> Option<u8> {
    let number = register.checked_sub(17).filter(|number| *number < 16)?;
    u8::try_from(number).ok()
}

/// Returns a general register by its DWARF number (System V AMD64 psABI, figure 3.36).
#[must_use]
pub fn general(register: u16) -> Option<Gpr> {
    use Gpr::{R8, R9, R10, R11, R12, R13, R14, R15, Rax, Rbp, Rbx, Rcx, Rdi, Rdx, Rsi, Rsp};
    const ORDER: [Gpr; 16] = [
        Rax, Rdx, Rcx, Rbx, Rsi, Rdi, Rbp, Rsp, R8, R9, R10, R11, R12, R13, R14, R15,
    ];
    ORDER.get(usize::from(register)).copied()
}
