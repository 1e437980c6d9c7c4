//! General registers and their names.

use std::fmt;

/// A 64-bit general register; `as u8` is its number in instruction encodings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gpr {
    /// `%ax`, `%rax`: the return value.
    Rax,
    /// `%cx`, `%rcx`: the fourth argument.
    Rcx,
    /// `%dx`, `%rdx`: the third argument.
    Rdx,
    /// `%bx`, `%rbx`
    Rbx,
    /// `%sp`, `%rsp`: the stack pointer.
    Rsp,
    /// `%bp`, `%rbp`
    Rbp,
    /// `%si`, `%rsi`: the second argument.
    Rsi,
    /// `%di`, `%rdi`: the first argument.
    Rdi,
    /// `%r8`: the fifth argument.
    R8,
    /// `%r9`: the sixth argument.
    R9,
    /// `%r10`
    R10,
    /// `%r11`
    R11,
    /// `%r12`
    R12,
    /// `%r13`
    R13,
    /// `%r14`
    R14,
    /// `%r15`
    R15,
}

impl Gpr {
    /// All registers, in the order of their encodings.
    pub const ALL: [Gpr; 16] = [
        Gpr::Rax,
        Gpr::Rcx,
        Gpr::Rdx,
        Gpr::Rbx,
        Gpr::Rsp,
        Gpr::Rbp,
        Gpr::Rsi,
        Gpr::Rdi,
        Gpr::R8,
        Gpr::R9,
        Gpr::R10,
        Gpr::R11,
        Gpr::R12,
        Gpr::R13,
        Gpr::R14,
        Gpr::R15,
    ];

    /// The register's number in instruction encodings, 0 to 15.
    pub fn encoding(self) -> u8 {
        self as u8
    }

    /// The register that carries a function's integer or pointer argument of this number, 1 to
    /// 6 (System V AMD64 psABI, 3.2.3 "Parameter Passing"); `None` for all other numbers.
    pub fn of_argument(number: u8) -> Option<Gpr> {
        let registers = [Gpr::Rdi, Gpr::Rsi, Gpr::Rdx, Gpr::Rcx, Gpr::R8, Gpr::R9];
        let index = usize::from(number).checked_sub(1)?;
        registers.get(index).copied()
    }

    /// The register that carries this word of a Go function's arguments, 1 to 9, counted without
    /// floating point numbers (cmd/compile/abi-internal.md, "amd64 architecture"). The first word
    /// of the result is in the register of word 1.
    pub fn of_go_argument(number: u8) -> Option<Gpr> {
        let registers = [
            Gpr::Rax,
            Gpr::Rbx,
            Gpr::Rcx,
            Gpr::Rdi,
            Gpr::Rsi,
            Gpr::R8,
            Gpr::R9,
            Gpr::R10,
            Gpr::R11,
        ];
        let index = usize::from(number).checked_sub(1)?;
        registers.get(index).copied()
    }

    /// The name that processor manuals use, in lower case: `rdi`.
    pub fn name(self) -> &'static str {
        [
            "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11",
            "r12", "r13", "r14", "r15",
        ][self as usize]
    }

    /// The kernel's name, from its `struct pt_regs`: `di`. It means all 64 bits.
    pub fn kernel_name(self) -> &'static str {
        let name = self.name();
        match name.as_bytes()[1] {
            b'0'..=b'9' => name,
            _ => &name[1..],
        }
    }

    /// The register of either name, without the `%`.
    pub fn from_name(name: &str) -> Option<Gpr> {
        let named = |register: &Gpr| register.name() == name || register.kernel_name() == name;
        Gpr::ALL.into_iter().find(named)
    }

    /// The register that this name of its lower 8, 16 or 32 bits belongs to: `edi`, `dil`,
    /// `r8d`. Not `di`, which by the kernel's names is the whole register.
    pub(crate) fn from_part(name: &str) -> Option<(Gpr, u8)> {
        let numbered = |suffix: char, bytes: u8| {
            let number = name.strip_suffix(suffix)?;
            let register = Gpr::from_name(number)?;
            (register >= Gpr::R8).then_some((register, bytes))
        };
        let four = || Some((Gpr::from_name(name.strip_prefix('e')?)?, 4));
        let one = || {
            let low = Gpr::from_name(name.strip_suffix('l')?);
            let letter = ["al", "cl", "dl", "bl"].iter().position(|l| *l == name);
            Some((low.or(letter.map(|at| Gpr::ALL[at]))?, 1))
        };
        numbered('d', 4)
            .or_else(|| numbered('w', 2))
            .or_else(|| numbered('b', 1))
            .or_else(four)
            .or_else(one)
            .filter(|_| !name.starts_with("er"))
    }
}

impl fmt::Display for Gpr {
    /// Writes the register as in a fetch argument, by the kernel's name: `%di`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.kernel_name())
    }
}
