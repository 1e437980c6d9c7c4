//! Fetch arguments: what a probe records beside the fact that it was hit.

use std::fmt;

/// One value that a probe reads when it is hit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FetchArg {
    /// The field's name in the trace: `NAME` of `NAME=$arg1`, otherwise `arg1`.
    /// Always an identifier, and different from the other names of its event.
    pub name: String,
    /// Where the value is at the function's entry.
    pub source: ArgRegister,
}

/// An integer or pointer argument of a function, by its register
/// (System V AMD64 psABI, 3.2.3 "Parameter Passing").
///
/// What the register holds is the argument only at the function's first instruction; at any
/// other place it is simply the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ArgRegister {
    /// `rdi`
    Arg1,
    /// `rsi`
    Arg2,
    /// `rdx`
    Arg3,
    /// `rcx`
    Arg4,
    /// `r8`
    Arg5,
    /// `r9`
    Arg6,
}

impl ArgRegister {
    /// All six, first argument first.
    pub const ALL: [ArgRegister; 6] = [
        ArgRegister::Arg1,
        ArgRegister::Arg2,
        ArgRegister::Arg3,
        ArgRegister::Arg4,
        ArgRegister::Arg5,
        ArgRegister::Arg6,
    ];

    /// The argument's number, 1 to 6.
    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    /// The register's number in instruction encodings, 0 to 15 (`rax` is 0, `rdi` is 7).
    pub fn encoding(self) -> u8 {
        [7, 6, 2, 1, 8, 9][self as usize]
    }

    /// The register's name in lower case, `rdi` to `r9`.
    pub fn register_name(self) -> &'static str {
        ["rdi", "rsi", "rdx", "rcx", "r8", "r9"][self as usize]
    }

    /// The argument's name when the event gives none: `arg1` to `arg6`.
    pub fn default_name(self) -> &'static str {
        ["arg1", "arg2", "arg3", "arg4", "arg5", "arg6"][self as usize]
    }
}

impl fmt::Display for FetchArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name != self.source.default_name() {
            write!(f, "{}=", self.name)?;
        }
        write!(f, "${}", self.source.default_name())
    }
}
