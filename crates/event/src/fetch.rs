//! Values that a probe reads when it is hit.

use crate::field_type::FieldType;
use crate::gpr::Gpr;
use crate::names;
use std::fmt;

/// Source of a value, before any dereference.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Base {
    /// `%di`, `%rdi`: all 64 bits of the register.
    Register(Gpr),
    /// `%xmm0` to `%xmm15`: the low 64 bits of the vector register, which hold a floating point
    /// number. Never dereferenced. (The kernel does not support them.)
    Vector(u8),
    /// `$arg1` and so on, from 1: an integer or pointer argument of the function. The first six
    /// are in registers, see [`Gpr::of_argument`], the others on the stack.
    Argument(u8),
    /// `$arg*`: all arguments, named by debug information.
    AllArguments,
    /// `$retval`: the return value. Only for an event at the return.
    Retval,
    /// The same, but without a type it is a number even if debug information says that it is a text:
    /// the address of a `std::string`, for example. Has no syntax of its own: `--graph` uses it,
    /// because reading a text costs more than recording a call. Never dereferenced.
    RetvalWord,
    /// `$entry:arg1`, `$entry:NAME`: the value at the function's entry. Only for an event at the
    /// return, where `$arg1` means the same. Enclosing dereferences are done at the return.
    Entry(Box<Value>),
    /// `$stack`: the stack pointer at the site.
    StackPointer,
    /// `$stackN`: the 8-byte word at `8 * N` above the stack pointer.
    StackWord(u16),
    /// Duration of the call that ends here. Has no syntax of its own: `latency(EVENT)` implies it.
    /// Never dereferenced.
    Latency,
    /// Time since the start of the interval that ends here. Has no syntax of its own:
    /// `latency(EVENT -> EVENT)` implies it. Never dereferenced.
    Interval,
    /// The value with this number among those that the start of the interval keeps, see
    /// [`Pairing::kept`](crate::Pairing::kept). Has no syntax of its own. Never dereferenced.
    Started(u8),
    /// `stack`, `stack(FUNCTIONS)`: the call stack, up to this many addresses. Never dereferenced.
    CallStack(u16),
    /// `$comm`: the name of the thread. Never dereferenced.
    Comm,
    /// `\IMM`: a number, as two's complement.
    Immediate(u64),
    /// `\"string"`: a string constant. Never dereferenced.
    Text(String),
    /// `@ADDR`: the memory at this run-time address.
    Address(u64),
    /// `@+OFFSET`: the memory that this offset of the probed file is mapped to.
    FileOffset(u64),
    /// A variable or parameter from debug information, maybe with a member path:
    /// `req->list[2].name`.
    Variable(String),
}

/// A value and its type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Value {
    /// Location of the value. Inside a [`Base::Entry`], the one at the entry, and never a
    /// [`Base::Entry`] itself.
    pub fetch: Fetch,
    /// Type of the value, if given. Inside a [`Base::Entry`], `None` if the type of the whole
    /// expression determines it.
    pub field_type: Option<FieldType>,
}

/// One dereference `+|-[u]OFFS( ... )`: the memory at the inner value plus the offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Deref {
    /// Offset in bytes.
    pub offset: i64,
    /// `u` was given: user memory. No effect, since a program has no other memory.
    pub user: bool,
}

/// A base value and its dereferences.
///
/// `Display` and [`FromStr`](std::str::FromStr) use the kernel's syntax: `+8(+0(%di))`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fetch {
    /// The innermost value.
    pub base: Base,
    /// Dereferences, innermost first; at most [`Fetch::MAX_DEREFS`].
    pub derefs: Vec<Deref>,
}

/// A value with its name and type, in the kernel's words a fetch argument.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FetchArg {
    /// Name of the field in the trace: the name before `=`, or an automatic one. Always an
    /// identifier, and unique within its event, except for `$arg*`, whose name is `arg*` until the
    /// names of the arguments replace it.
    pub name: String,
    /// The name was given (`NAME=`), so that messages show it.
    pub named: bool,
    /// The value.
    pub fetch: Fetch,
    /// The type after the colon, if given.
    pub field_type: Option<FieldType>,
    /// Length in bytes of a text that does not end with NUL, `string[LENGTH]`: a number, negative
    /// for no bytes. Only with the type `string` or `ustring`.
    pub length: Option<Box<Value>>,
}

impl Value {
    /// Creates a value of the default type.
    pub fn new(base: Base) -> Value {
        Value {
            fetch: Fetch {
                base,
                derefs: Vec::new(),
            },
            field_type: None,
        }
    }

    /// `$arg1` and so on, from 1: see [`Base::Argument`].
    pub fn argument(number: u8) -> Value {
        Value::new(Base::Argument(number))
    }

    /// `$retval`: the result, with its type from debug information; at a return only.
    pub fn result() -> Value {
        Value::new(Base::Retval)
    }

    /// The result as a number, see [`Base::RetvalWord`]; at a return only.
    pub fn result_word() -> Value {
        Value::new(Base::RetvalWord)
    }

    /// A variable or parameter from debug information, maybe with a member path:
    /// `req->list[2].name`.
    pub fn variable(path: impl Into<String>) -> Value {
        Value::new(Base::Variable(path.into()))
    }

    /// Duration of the call that ends here, in ticks of the time stamp counter; a histogram of it
    /// has nanoseconds. At a return only.
    pub fn latency() -> Value {
        Value::new(Base::Latency).typed(FieldType::U64)
    }

    /// Time since the start of the interval that ends here, in ticks of the time stamp counter; a
    /// histogram of it has nanoseconds. Only at the end of a [`Pairing`](crate::Pairing).
    pub fn interval() -> Value {
        Value::new(Base::Interval).typed(FieldType::U64)
    }

    /// Value that this one has at the function's entry, kept until the return; at a return only.
    pub fn at_entry(self) -> Value {
        Value::new(Base::Entry(Box::new(self)))
    }

    /// Memory at this address plus `offset` bytes.
    pub fn deref(mut self, offset: i64) -> Value {
        self.fetch.derefs.push(Deref {
            offset,
            user: false,
        });
        self
    }

    /// Gives the value a type.
    pub fn typed(self, field_type: FieldType) -> Value {
        Value {
            field_type: Some(field_type),
            ..self
        }
    }
}

impl From<Base> for Value {
    fn from(base: Base) -> Value {
        Value::new(base)
    }
}

impl From<Value> for FetchArg {
    /// Gives the value no name yet.
    fn from(Value { fetch, field_type }: Value) -> FetchArg {
        FetchArg {
            name: String::new(),
            named: false,
            fetch,
            field_type,
            length: None,
        }
    }
}

impl Fetch {
    /// Maximum nesting of dereferences, as in the kernel.
    pub const MAX_DEREFS: usize = 14;

    /// True if the fetched value lies in memory, at an address: only then can it be a string or an
    /// array.
    pub fn is_memory(&self) -> bool {
        !self.derefs.is_empty()
            || match self.base {
                Base::Address(_) | Base::FileOffset(_) | Base::Variable(_) => true,
                Base::Register(_)
                | Base::Vector(_)
                | Base::Argument(_)
                | Base::AllArguments
                | Base::Retval
                | Base::RetvalWord
                | Base::Entry(_)
                | Base::StackPointer
                | Base::StackWord(_)
                | Base::Latency
                | Base::Interval
                | Base::Started(_)
                | Base::CallStack(_)
                | Base::Comm
                | Base::Immediate(_)
                | Base::Text(_) => false,
            }
    }

    /// The type if none is given: `string` for `$comm` and string constants, `f64` for `%xmm0` and
    /// so on, `stack(FUNCTIONS)` for call stacks, else `x64`. `None` if debug information determines it.
    pub fn default_type(&self) -> Option<FieldType> {
        match &self.base {
            Base::Comm | Base::Text(_) => Some(FieldType::STRING),
            Base::Vector(_) => Some(FieldType::F64),
            Base::AllArguments => None,
            Base::CallStack(frames) => Some(FieldType::call_stack(*frames)),
            Base::Variable(_) if self.derefs.is_empty() => None,
            Base::Entry(entry) if self.derefs.is_empty() => {
                entry.field_type.or_else(|| entry.fetch.default_type())
            }
            Base::Register(_)
            | Base::Argument(_)
            | Base::Retval
            | Base::RetvalWord
            | Base::Entry(_)
            | Base::StackPointer
            | Base::StackWord(_)
            | Base::Latency
            | Base::Interval
            | Base::Started(_)
            | Base::Immediate(_)
            | Base::Address(_)
            | Base::FileOffset(_)
            | Base::Variable(_) => Some(FieldType::X64),
        }
    }
}

impl FetchArg {
    /// The given type, or else the default; see [`Fetch::default_type`].
    pub fn known_type(&self) -> Option<FieldType> {
        self.field_type.or_else(|| self.fetch.default_type())
    }

    /// Returns the length of its text as an argument of its own, if it has one.
    #[must_use]
    pub fn length_argument(&self) -> Option<FetchArg> {
        let length = self.length.as_deref()?;
        Some(FetchArg {
            name: self.name.clone(),
            ..length.clone().into()
        })
    }

    /// True if it, or the length of its text, starts from a base that is `wanted`.
    pub fn starts_from(&self, wanted: impl Fn(&Base) -> bool) -> bool {
        let length = self.length.as_deref();
        wanted(&self.fetch.base) || length.is_some_and(|length| wanted(&length.fetch.base))
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Base::Register(register) => write!(f, "{register}"),
            Base::Vector(number) => write!(f, "%xmm{number}"),
            Base::Argument(number) => write!(f, "$arg{number}"),
            Base::AllArguments => f.write_str("$arg*"),
            Base::Retval | Base::RetvalWord => f.write_str("$retval"),
            Base::Entry(entry) => match &entry.fetch {
                Fetch { base, derefs } if derefs.is_empty() => {
                    write!(f, "$entry:{}", base.to_string().trim_start_matches('$'))
                }
                fetch => write!(f, "$entry:{fetch}"),
            },
            Base::StackPointer => f.write_str("$stack"),
            Base::StackWord(number) => write!(f, "$stack{number}"),
            Base::Latency => f.write_str("latency"),
            Base::Interval => f.write_str("interval"),
            Base::Started(number) => write!(f, "started{number}"),
            Base::CallStack(FieldType::USUAL_FRAMES) => f.write_str("stack"),
            Base::CallStack(frames) => write!(f, "stack({frames})"),
            Base::Comm => f.write_str("$comm"),
            Base::Immediate(value) => write!(f, "\\{value}"),
            Base::Text(text) => {
                let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
                write!(f, "\\\"{escaped}\"")
            }
            Base::Address(address) => write!(f, "@{address:#x}"),
            Base::FileOffset(offset) => match offset.cast_signed() {
                before @ ..0 => write!(f, "@+-{:#x}", before.unsigned_abs()),
                _ => write!(f, "@+{offset:#x}"),
            },
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

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fetch.fmt(f)?;
        match &self.field_type {
            Some(field_type) => write!(f, ":{field_type}"),
            None => Ok(()),
        }
    }
}

impl Base {
    /// True for the result of a function.
    #[must_use]
    pub fn is_result(&self) -> bool {
        matches!(self, Base::Retval | Base::RetvalWord)
    }

    /// True for what is a pointer if its type is one of memory: `$arg1:string` is
    /// `+0($arg1):string`.
    pub(crate) fn may_point(&self) -> bool {
        match self {
            Base::Argument(_)
            | Base::Register(_)
            | Base::Retval
            | Base::Entry(_)
            | Base::StackPointer
            | Base::StackWord(_) => true,
            Base::Vector(_)
            | Base::AllArguments
            | Base::RetvalWord
            | Base::Latency
            | Base::Interval
            | Base::Started(_)
            | Base::CallStack(_)
            | Base::Comm
            | Base::Immediate(_)
            | Base::Text(_)
            | Base::Address(_)
            | Base::FileOffset(_)
            | Base::Variable(_) => false,
        }
    }
}

impl Fetch {
    /// Name of a field without one, from the variable or from `$arg1`. Other fields are called by
    /// their numbers.
    pub(crate) fn own_name(&self) -> Option<String> {
        match &self.base {
            Base::AllArguments => Some("arg*".to_string()),
            _ if !self.derefs.is_empty() => None,
            Base::Argument(number) => Some(format!("arg{number}")),
            Base::Entry(entry) => entry.fetch.own_name(),
            Base::Variable(path) => names::identifier(path),
            _ => None,
        }
    }
}

impl FetchArg {
    /// Returns the argument or register that points to the text or array, if the field is called
    /// after it: `$arg2` of `$arg2:string`. `+0($arg2):string` is called by its number.
    fn pointer(&self) -> Option<Fetch> {
        const AT_START: [Deref; 1] = [Deref {
            offset: 0,
            user: false,
        }];
        let is_in_memory = self.field_type.is_some_and(|found| found.is_in_memory());
        if self.named
            || !is_in_memory
            || !self.fetch.base.may_point()
            || self.fetch.derefs != AT_START
        {
            return None;
        }
        let pointer = Fetch {
            base: self.fetch.base.clone(),
            derefs: Vec::new(),
        };
        let is_called_so = pointer.own_name().is_none_or(|name| name == self.name);
        is_called_so.then_some(pointer)
    }
}

impl fmt::Display for FetchArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.named {
            write!(f, "{}=", self.name)?;
        }
        match self.pointer() {
            Some(pointer) => pointer.fmt(f)?,
            None => self.fetch.fmt(f)?,
        }
        if let Some(field_type) = &self.field_type {
            write!(f, ":{field_type}")?;
        }
        match &self.length {
            Some(length) => write!(f, "[{length}]"),
            None => Ok(()),
        }
    }
}
