//! Fetch arguments: what a probe reads when it is hit.

use crate::error::ParseError;
use crate::field_type::FieldType;
use crate::gpr::Gpr;
use crate::parse;
use std::fmt;
use std::str::FromStr;

/// Where a value comes from, before anything is dereferenced.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Base {
    /// `%di`, `%rdi`: all 64 bits of the register.
    Register(Gpr),
    /// `%xmm0` to `%xmm15`: the low 64 bits of the vector register, in which a floating point
    /// number is. Never dereferenced. (The kernel does not read them.)
    Vector(u8),
    /// `$arg1` and so on, from 1: an integer or pointer argument of the function. The first six
    /// are in registers, see [`Gpr::of_argument`], the others on the stack.
    Argument(u8),
    /// `$arg*`: all arguments, as debug information names them.
    AllArguments,
    /// `$retval`: what the function returns. Only of an event at the return.
    Retval,
    /// `$entry:arg1`, `$entry:NAME`: what this was when the function was entered. Only of an
    /// event at the return, where `$arg1` means the same. What stands around it is read at the
    /// return.
    Entry(Box<EntryValue>),
    /// `$stack`: the stack pointer at the site.
    StackPointer,
    /// `$stackN`: the word of 8 bytes at `8 * N` above the stack pointer.
    StackWord(u16),
    /// How long the call has taken that ends here. It is not written: `latency(EVENT)` means
    /// it. Never dereferenced.
    Latency,
    /// `stack`, `stack(SIZE)`: who called whom, found out from a copy of so many bytes of the
    /// stack. Never dereferenced.
    CallStack(u16),
    /// `$comm`: the name of the thread. Never dereferenced.
    Comm,
    /// `\IMM`: a number, as two's complement.
    Immediate(u64),
    /// `\"string"`: a text. Never dereferenced.
    Text(String),
    /// `@ADDR`: the memory at this run-time address.
    Address(u64),
    /// `@+OFFSET`: the memory that this offset of the probed file was mapped to.
    FileOffset(u64),
    /// A variable or parameter from debug information, with the path to its part:
    /// `req->list[2].name`.
    Variable(String),
}

/// A value at a function's entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EntryValue {
    /// Where it is then. Never an [`Base::Entry`] itself.
    pub fetch: Fetch,
    /// What it is, if that is not told by the type of the whole.
    pub field_type: Option<FieldType>,
}

/// One `+|-[u]OFFS( ... )`: the memory at what is inside, plus the offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Deref {
    /// In bytes.
    pub offset: i64,
    /// `u` was given: user memory. In a program there is no other.
    pub user: bool,
}

/// A value and the way to it.
///
/// `Display` and [`FromStr`] are the kernel's spelling: `+8(+0(%di))`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fetch {
    /// Where it begins.
    pub base: Base,
    /// What is done with it, the innermost first; at most [`Fetch::MAX_DEREFS`].
    pub derefs: Vec<Deref>,
}

/// A fetch argument with its name and type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FetchArg {
    /// The field's name in the trace: what stands before the `=`, or an automatic one. Always
    /// an identifier, and different from the other names of its event, except that of `$arg*`,
    /// which is `arg*` until it is replaced by the names of the arguments.
    pub name: String,
    /// `NAME=` was given.
    pub named: bool,
    /// Where the value is.
    pub fetch: Fetch,
    /// The type behind the colon.
    pub field_type: Option<FieldType>,
    /// Where the value stands in the event's text: bytes from its start.
    pub at: usize,
}

impl Fetch {
    /// How deep dereferences may be nested, as in the kernel.
    pub const MAX_DEREFS: usize = 14;

    /// Whether what is fetched lies in memory, at an address: only then can it be a string or an
    /// array.
    pub fn is_memory(&self) -> bool {
        !self.derefs.is_empty()
            || matches!(
                self.base,
                Base::Address(_) | Base::FileOffset(_) | Base::Variable(_)
            )
    }

    /// The type if none is given: `string` for `$comm` and texts, `f64` for `%xmm0` and so on,
    /// `x64` for the others. `None`
    /// where debug information tells it.
    pub fn default_type(&self) -> Option<FieldType> {
        match &self.base {
            Base::Comm | Base::Text(_) => Some(FieldType::STRING),
            Base::Vector(_) => Some(FieldType::F64),
            Base::AllArguments => None,
            Base::CallStack(bytes) => Some(FieldType::call_stack(*bytes)),
            Base::Variable(_) if self.derefs.is_empty() => None,
            Base::Entry(entry) if self.derefs.is_empty() => {
                entry.field_type.or_else(|| entry.fetch.default_type())
            }
            _ => Some(FieldType::X64),
        }
    }
}

impl FetchArg {
    /// The type that was given, or else the default; see [`Fetch::default_type`].
    pub fn known_type(&self) -> Option<FieldType> {
        self.field_type.or_else(|| self.fetch.default_type())
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Base::Register(register) => write!(f, "{register}"),
            Base::Vector(number) => write!(f, "%xmm{number}"),
            Base::Argument(number) => write!(f, "$arg{number}"),
            Base::AllArguments => f.write_str("$arg*"),
            Base::Retval => f.write_str("$retval"),
            Base::Entry(entry) => match &entry.fetch {
                Fetch { base, derefs } if derefs.is_empty() => {
                    write!(f, "$entry:{}", base.to_string().trim_start_matches('$'))
                }
                fetch => write!(f, "$entry:{fetch}"),
            },
            Base::StackPointer => f.write_str("$stack"),
            Base::StackWord(number) => write!(f, "$stack{number}"),
            Base::Latency => f.write_str("latency"),
            Base::CallStack(FieldType::USUAL_STACK) => f.write_str("stack"),
            Base::CallStack(bytes) => write!(f, "stack({bytes})"),
            Base::Comm => f.write_str("$comm"),
            Base::Immediate(value) => write!(f, "\\{value}"),
            Base::Text(text) => {
                let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
                write!(f, "\\\"{escaped}\"")
            }
            Base::Address(address) => write!(f, "@{address:#x}"),
            Base::FileOffset(offset) => write!(f, "@+{offset:#x}"),
            Base::Variable(path) => f.write_str(path),
        }
    }
}

impl fmt::Display for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for deref in self.derefs.iter().rev() {
            let sign = if deref.offset < 0 { '-' } else { '+' };
            let user = if deref.user { "u" } else { "" };
            write!(f, "{sign}{user}{}(", deref.offset.unsigned_abs())?;
        }
        write!(f, "{}{}", self.base, ")".repeat(self.derefs.len()))
    }
}

impl fmt::Display for FetchArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.named {
            write!(f, "{}=", self.name)?;
        }
        self.fetch.fmt(f)?;
        match &self.field_type {
            Some(field_type) => write!(f, ":{field_type}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Fetch {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse::fetch::parse(text, 0, text.len())
    }
}
