//! Events with fields in memory, compiled to programs that the resident runs.
//!
//! A pointer of the traced program may be invalid, and a signal handler for the fault of a load
//! does not help: the program may have one of its own, install one later, or block the signal,
//! in which case the kernel kills the program. So the kernel reads the memory
//! (`process_vm_readv` on the process itself); it reports a failure, but costs a system call.
//! Only data in the page of the stack pointer, above it, is certainly present. Such an event is
//! recorded by the resident, which fetches, formats and filters according to a list of steps:
//!
//! ```text
//! name=+0(+8(%di)):string  if name ~ "/etc/*"
//!
//! register rdi, pointer +8, string +0     the field
//! test text "/etc/*", bit 0               the filter
//! when bit 0 skip 1, reject
//! ```
//!
//! All steps go forward, so a program terminates. Conditions on registers alone are tested
//! first, by straight code in the detour; and if all fields of an event are registers or
//! constants, the whole event is straight code. Conditions on constants are decided at compile
//! time.
//!
//! Fields are read directly into the packet of a locked lane; all registers and flags are saved
//! meanwhile. A field that cannot be read sets a bit in the record's mask. A filter over such
//! fields is decided before the commit. The price is one system call for each pointer on the
//! way: 0.5 to 1 us on a virtual machine, a fifth of a uprobe's trap.

mod tally;

pub use tally::{Amount, KEY_TEXT_LIMIT, Tally, histogram};

use crate::condition::{Condition, Exit, Normal, Relation, Subject, Test, Tree, Width, normal};
use crate::detour::{Compare, Filter, Long, Operand, Record, Word, Work};
use capriole_insn::RegSet;
use capriole_ring::numbers::op::Effect;
use capriole_ring::numbers::session::STACK_HEAD;
use capriole_ring::numbers::{frame, op, program, record, step, test};
use iced_x86::{ConditionCode, Register};
use std::collections::BTreeSet;
use std::sync::Arc;
use thiserror::Error;

/// Maximum number of bytes recorded of a string.
pub const STRING_LIMIT: u16 = 1024;
/// Bytes of a record before its fields.
const HEADER: u64 = record::FIELDS as u64;

/// Start of a field: the value that its pointers, if any, start from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// A 64-bit general register, as it is at the site.
    Register(Register),
    /// The low 64 bits of a vector register, xmm0 to xmm15, as it is at the site.
    Vector(u8),
    /// A number plus registers, one of them scaled: the address of an element, as in an
    /// instruction's memory operand.
    Indexed {
        /// A 64-bit general register, as it is at the site.
        base: Option<Register>,
        /// Another 64-bit general register, which is scaled.
        index: Register,
        /// Power of two by which the index is multiplied, 0 to 3.
        shift: u8,
        /// Number added to both registers.
        offset: u64,
    },
    /// A number.
    Immediate(u64),
    /// The name of the thread.
    Comm,
    /// The thread's id in the program's own PID namespace.
    Thread,
    /// The CPU's number.
    Cpu,
    /// Time elapsed in the call of this function that ends here: time stamp counter ticks, less
    /// than 2^48; in a record, up to the time of the record. The function is a number below 2^16,
    /// with the number of the area of its calls above it. It can be read at the function's exits if
    /// [`Work::Enter`] is done at its entry; for an unknown call it counts as unreadable.
    Latency(u32),
    /// A word that the call of this function has kept since its entry, where the work of
    /// [`Fetch::enter`] was done; for an unknown call it counts as unreadable.
    Kept {
        /// The function, as for [`Source::Latency`].
        call: u32,
        /// Index of the field at the entry, counted from 0.
        word: u16,
    },
    /// A constant string, at most 65,535 bytes.
    Text(Vec<u8>),
}

/// Type of the data at the end of a field's pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Content {
    /// A number.
    Number(Width),
    /// `count` numbers of `bytes` each.
    Numbers {
        /// Size of each number in bytes: 1, 2, 4 or 8.
        bytes: u8,
        /// How many numbers there are, at least 1.
        count: u16,
    },
    /// A string that ends with NUL.
    Text,
    /// `count` pointers to such strings.
    Texts {
        /// Number of strings, at least 1.
        count: u16,
    },
    /// Data for unwinding, of a field that is the stack pointer: that register, rbp, and a copy of
    /// the memory above the stack pointer, as far as it can be read. The record always contains
    /// this field, possibly with an empty copy.
    CallStack {
        /// Maximum number of bytes of the stack to copy.
        bytes: u16,
    },
}

/// A field: a source, pointers to follow from it, and the content at their end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Field {
    /// Its start.
    pub source: Source,
    /// Offsets added to each pointer on the way. The last address holds the content, the others
    /// hold pointers. If empty, the source itself is the content.
    pub pointers: Vec<i64>,
    /// Type of its content.
    pub content: Content,
}

/// Fields of an event, and the conditions for recording it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Fetch {
    /// All required fields.
    pub fields: Vec<Field>,
    /// Number of fields, from the first on, that are recorded; the others serve the condition.
    pub recorded: usize,
    /// Condition for recording; `None` records always.
    pub condition: Option<Condition>,
    /// Additional condition on the flags at the site: at a conditional jump, the flags decide
    /// whether it will be taken.
    pub flags: Option<ConditionCode>,
}

/// A program for the resident, as placed in memory at a multiple of 8.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Program {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Size in bytes of the longest record, header included; never more than 65,535.
    pub size: u64,
    /// True if the record begins with the mask of fields that could not be read.
    pub faults: bool,
}

impl Program {
    /// True if the resident may make a system call for it, in the program's own thread.
    #[must_use]
    pub fn may_call(&self) -> bool {
        self.steps().any(|step| match op::effect(step[step::OP]) {
            Some(Effect::Call) | None => true,
            Some(Effect::Register | Effect::Neither) => false,
        })
    }

    /// Returns the general registers that the program reads.
    pub(crate) fn registers(&self) -> RegSet {
        let reads = |step: &&[u8]| op::effect(step[step::OP]) == Some(Effect::Register);
        let numbers = self.steps().filter(reads).map(|step| step[step::A]);
        RegSet(numbers.fold(0, |set, number| set | 1 << number))
    }

    /// Returns the steps, [`step::SIZE`] bytes each.
    fn steps(&self) -> impl Iterator<Item = &[u8]> {
        let count = self.bytes.first_chunk();
        let count = count.map_or(0, |n| u32::from_le_bytes(*n) as usize);
        let steps = self.bytes.get(program::HEADER..).unwrap_or_default();
        steps.chunks_exact(step::SIZE).take(count)
    }
}

/// Reason why an event cannot be recorded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FetchError {
    /// A string or array whose source is a register, not memory.
    #[error("field {0} is a text or an array, which is in memory, not in a register")]
    NotInMemory(usize),
    /// A comparison of a string with a number, or of an array.
    #[error("field {0} cannot be compared like this")]
    NotComparable(usize),
    /// A field that is not a number: calls keep words of eight bytes.
    #[error("field {0} is not kept from entry to exit: only numbers are")]
    NotKept(usize),
    /// More words than a call can keep.
    #[error("a call keeps at most {most} values from its entry to its exit, not {0}", most = MOST_WORDS)]
    TooManyKept(usize),
    /// A field that a table cannot aggregate.
    #[error("field {0} cannot be added up: only numbers can")]
    NotANumber(usize),
    /// An array used as a key.
    #[error("field {0} cannot be a key: it is an array")]
    NotAKey(usize),
    /// More comparisons than the 64 for which a program has bits.
    #[error("the filter has more than 64 comparisons")]
    TooManyComparisons,
    /// The record could be larger than a packet should hold.
    #[error("the event could take {0} bytes, more than the 32,768 that there may be")]
    TooLarge(u64),
}

impl FetchError {
    /// Returns the message, with fields given by name.
    #[must_use]
    pub fn with_names<'a>(&self, name: impl Fn(usize) -> &'a str) -> String {
        match self {
            FetchError::NotInMemory(index) => format!(
                "field `{}` is a text or an array, which is in memory: put +0( ) around a pointer",
                name(*index)
            ),
            FetchError::NotComparable(index) => {
                format!("field `{}` cannot be compared like this", name(*index))
            }
            FetchError::NotANumber(index) => {
                format!(
                    "field `{}` cannot be added up: only numbers can",
                    name(*index)
                )
            }
            FetchError::NotKept(index) => {
                format!(
                    "field `{}` is not kept from entry to exit: only numbers are; at the exit \
                     +0($entry:ARGUMENT) reads memory by a pointer that was kept",
                    name(*index)
                )
            }
            FetchError::NotAKey(index) => {
                format!("field `{}` cannot be a key: it is an array", name(*index))
            }
            other => other.to_string(),
        }
    }
}

/// Maximum number of words that a call keeps.
const MOST_WORDS: usize = frame::MOST_WORDS as usize;
/// Maximum number of registers that the straight code of an entry can read.
const MOST_AT_ENTRY: usize = 8;
/// Maximum size of a record in bytes.
const MOST: u64 = 1 << 15;
/// Maximum number of registers that straight code can read: it needs the others as scratch
/// registers.
const MOST_REGISTERS: usize = 11;
#[derive(Debug, Clone, Copy, Default)]
struct Step {
    op: u8,
    a: u8,
    count: u16,
    limit: u16,
    field: u8,
    bit: u8,
    value: u64,
}

impl Step {
    /// Encodes the step.
    fn bytes(&self) -> [u8; step::SIZE] {
        let mut bytes = [0; step::SIZE];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(step::OP, &[self.op]);
        put(step::A, &[self.a]);
        put(step::COUNT, &self.count.to_le_bytes());
        put(step::LIMIT, &self.limit.to_le_bytes());
        put(step::FIELD, &[self.field]);
        put(step::BIT, &[self.bit]);
        put(step::VALUE, &self.value.to_le_bytes());
        bytes
    }

    fn new(op: u8) -> Step {
        Step {
            op,
            ..Step::default()
        }
    }

    /// Creates a step that operates on a number of this width.
    fn made(op: u8, how: u8, width: Width) -> Step {
        let bits = |(offset, width)| u16::from(offset) << 8 | u16::from(width);
        let signed = if width.is_signed() { test::SIGNED } else { 0 };
        Step {
            a: width.bytes | how | signed,
            count: width.bits.map_or(0, bits),
            ..Step::new(op)
        }
    }
}

/// A comparison in a program: the bit that the resident sets, and the bit's value if the
/// comparison holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bit {
    bit: u8,
    result: bool,
}

struct Builder<'a> {
    fetch: &'a Fetch,
    steps: Vec<Step>,
    /// Strings placed after the steps; for a step in `to_place`, `value` is an offset in here.
    texts: Vec<u8>,
    to_place: Vec<usize>,
    /// Comparisons to make once a field has been fetched: (field, step, string).
    tests: Vec<(usize, Step, &'a [u8])>,
    /// Number of result bits in use.
    bits: u8,
}

impl Source {
    /// True if the source itself is a whole string, with nothing to follow or to read.
    fn is_text(&self) -> bool {
        match self {
            Source::Comm | Source::Text(_) => true,
            Source::Register(_)
            | Source::Vector(_)
            | Source::Indexed { .. }
            | Source::Immediate(_)
            | Source::Thread
            | Source::Cpu
            | Source::Latency(_)
            | Source::Kept { .. } => false,
        }
    }
}

impl Field {
    /// Returns the maximum number of bytes that its content takes in a record.
    fn size(&self) -> u64 {
        let text = |length: u64| (4 + length).next_multiple_of(8);
        match (&self.source, self.content) {
            (Source::Comm, _) => text(16),
            (Source::Text(bytes), _) => text(bytes.len() as u64),
            (_, Content::Number(_)) => 8,
            (_, Content::Numbers { bytes, count }) => {
                (u64::from(bytes) * u64::from(count)).next_multiple_of(8)
            }
            (_, Content::Text) => text(STRING_LIMIT.into()),
            (_, Content::Texts { count }) => u64::from(count) * text(STRING_LIMIT.into()),
            (_, Content::CallStack { bytes }) => {
                (STACK_HEAD + u64::from(bytes)).next_multiple_of(8)
            }
        }
    }

    /// Returns the word that is the field's content, if that is a number available at the site
    /// without a load.
    fn recordable(&self) -> Option<(Word, Width)> {
        let Content::Number(width) = self.content else {
            return None;
        };
        let word = match self.source {
            _ if !self.pointers.is_empty() => return None,
            Source::Register(register) => Word::Register(register),
            Source::Vector(number) => Word::Register(Register::XMM0 + u32::from(number)),
            Source::Immediate(value) => Word::Constant(value),
            Source::Indexed { .. }
            | Source::Comm
            | Source::Thread
            | Source::Cpu
            | Source::Latency(_)
            | Source::Kept { .. }
            | Source::Text(_) => return None,
        };
        Some((word, width))
    }

    /// Like `recordable`, but for code that computes with the current registers. It excludes the
    /// stack pointer, which has moved in a detour (a record has its earlier value).
    fn register(&self) -> Option<(Register, Width)> {
        let (word, width) = self.recordable()?;
        let register = word.register();
        let register = register.filter(|r| *r != Register::RSP && !r.is_xmm());
        Some((register?, width))
    }

    /// Returns the constant value, extended to 64 bits, and the width with which it is compared.
    fn constant(&self) -> Option<(u64, Width)> {
        match self.recordable()? {
            (Word::Constant(value), width) => {
                let whole = Width {
                    bytes: 8,
                    signed: width.is_signed(),
                    bits: None,
                };
                Some((width.number(value) as u64, whole))
            }
            (Word::Register(_), _) => None,
        }
    }

    /// True if the field may turn out to be unreadable.
    #[must_use]
    pub fn can_fault(&self) -> bool {
        let of_call = match self.source {
            Source::Latency(_) | Source::Kept { .. } => true,
            Source::Register(_)
            | Source::Vector(_)
            | Source::Indexed { .. }
            | Source::Immediate(_)
            | Source::Comm
            | Source::Thread
            | Source::Cpu
            | Source::Text(_) => false,
        };
        !self.pointers.is_empty() || of_call
    }

    /// True if its content is a string.
    fn is_text(&self) -> bool {
        self.source.is_text() || self.content == Content::Text
    }
}

impl Fetch {
    /// Returns the width with which a field is compared, if it is a number.
    fn width(&self, field: usize) -> Option<Width> {
        let field = self.fields.get(field).filter(|field| !field.is_text())?;
        match field.content {
            Content::Number(width) => Some(width),
            Content::Numbers { .. }
            | Content::Text
            | Content::Texts { .. }
            | Content::CallStack { .. } => None,
        }
    }

    /// True if a recorded field may turn out to be unreadable.
    #[must_use]
    pub fn can_fault(&self) -> bool {
        self.fields[..self.recorded].iter().any(Field::can_fault)
    }

    /// Returns the work that records this event.
    ///
    /// # Errors
    /// The fields cannot be combined, or do not fit into a packet.
    pub fn work(&self, event: u32) -> Result<Work, FetchError> {
        let (straight, rest) = self.split();
        let words = self.fields[..self.recorded].iter().map(Field::recordable);
        let fields: Option<Vec<Word>> = words.map(|word| word.map(|(word, _)| word)).collect();
        if let (Some(fields), None) = (fields, &rest) {
            // A detour needs some scratch registers.
            let asked = straight.iter().flat_map(Filter::registers);
            let registers = fields.iter().filter_map(|word| word.register());
            let all: BTreeSet<Register> = registers.chain(asked).collect();
            let all = all.iter().filter(|register| !register.is_xmm());
            if all.count() <= MOST_REGISTERS {
                return Ok(Work::Record(Record {
                    event,
                    fields,
                    filter: straight,
                }));
            }
        }
        let shortest = rest.as_ref().and_then(|rest| self.shortest(rest));
        let Some(Shortest { time, call, least }) = shortest else {
            return Ok(Work::Run {
                event,
                program: Arc::new(self.program(rest.as_ref())?),
                filter: straight,
            });
        };
        // An unknown time would not be less than `least`. Known times are always below this
        // constant, so the test rejects unknown ones.
        let known = Condition::Number {
            subject: Subject::Field(time),
            relation: Relation::Less,
            with: 1 << frame::TIME_SHIFT,
        };
        let condition = Condition::All([known].into_iter().chain(rest).collect());
        Ok(Work::Long(Long {
            event,
            call,
            least,
            program: Arc::new(self.program(Some(&condition))?),
            registers: self.registers(),
            filter: straight,
        }))
    }

    /// Returns the registers that fields start from.
    fn registers(&self) -> Vec<Register> {
        let registers = self.fields.iter().flat_map(|field| match field.source {
            Source::Register(register) => [Some(register), None],
            Source::Indexed { base, index, .. } => [base, Some(index)],
            Source::Vector(_)
            | Source::Immediate(_)
            | Source::Comm
            | Source::Thread
            | Source::Cpu
            | Source::Latency(_)
            | Source::Kept { .. }
            | Source::Text(_) => [None, None],
        });
        let registers = registers.flatten().filter(|r| *r != Register::RSP);
        registers.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Finds the lower limit that a condition sets for a call's time, if the condition is such a
    /// limit, alone or in conjunction with other conditions.
    fn shortest(&self, condition: &Condition) -> Option<Shortest> {
        match condition {
            Condition::All(all) => all.iter().find_map(|one| self.shortest(one)),
            Condition::Number {
                subject: Subject::Field(index),
                relation: Relation::GreaterOrEqual,
                with,
            } => match self.fields.get(*index)? {
                Field {
                    source: Source::Latency(call),
                    pointers,
                    ..
                } if pointers.is_empty() => Some(Shortest {
                    time: *index,
                    call: *call,
                    least: u64::try_from(*with).ok()?,
                }),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the work that begins a timed call of function `call`, and keeps the recorded fields;
    /// see [`Source::Latency`]. At an entry there must be no condition on flags.
    ///
    /// # Errors
    /// A field is not a number, or there are too many.
    pub fn enter(&self, call: u32) -> Result<Work, FetchError> {
        debug_assert!(self.flags.is_none(), "a function is entered with any flags");
        let kept = &self.fields[..self.recorded];
        if kept.len() > MOST_WORDS {
            return Err(FetchError::TooManyKept(kept.len()));
        }
        if let Some(index) = (0..kept.len()).find(|index| self.width(*index).is_none()) {
            return Err(FetchError::NotKept(index));
        }
        let (filter, rest) = self.split();
        let general = |word: &Word| !word.register().is_some_and(Register::is_xmm);
        let words: Option<Vec<Word>> = kept
            .iter()
            .map(|field| field.recordable().map(|(word, _)| word))
            .map(|word| word.filter(general))
            .collect();
        if let (Some(kept), None) = (words, rest) {
            let asked = filter.iter().flat_map(Filter::registers);
            let registers = kept.iter().filter_map(|word| word.register());
            let all: BTreeSet<Register> = registers.chain(asked).collect();
            if all.len() <= MOST_AT_ENTRY {
                return Ok(Work::Enter { call, kept, filter });
            }
        }
        Ok(Work::Run {
            event: 0,
            program: Arc::new(self.entry_program(call)?),
            filter: None,
        })
    }

    /// Builds the program that begins a call.
    fn entry_program(&self, call: u32) -> Result<Program, FetchError> {
        let mut builder = Builder::new(self);
        builder.steps.push(Step {
            value: call.into(),
            ..Step::new(op::FORGET)
        });
        let tree = builder.condition(self.condition.as_ref())?;
        for index in 0..self.fields.len() {
            builder.field(index, STRING_LIMIT)?;
        }
        builder.conclude(&tree);
        builder.steps.push(Step {
            value: call.into(),
            count: self.recorded as u16,
            ..Step::new(op::ENTER)
        });
        // Nothing is recorded.
        builder.finish(program::TALLY)
    }

    /// Splits the condition into the part that straight code can test, including the flags, and the
    /// rest.
    fn split(&self) -> (Option<Filter>, Option<Condition>) {
        let all = match &self.condition {
            None => Vec::new(),
            Some(Condition::All(all)) => all.clone(),
            Some(condition) => vec![condition.clone()],
        };
        let (mut straight, mut rest) = (Vec::new(), Vec::new());
        for condition in all {
            match self.straight(&condition) {
                Some(filter) => straight.push(filter),
                None => rest.push(condition),
            }
        }
        let straight = Filter {
            flags: self.flags,
            tree: Tree::All(straight).fold(),
        };
        let straight = straight.asks().then_some(straight);
        (straight, (!rest.is_empty()).then_some(Condition::All(rest)))
    }

    /// Returns a condition in the form that straight code tests, if possible.
    fn straight(&self, condition: &Condition) -> Option<Tree<Compare>> {
        let all = |of: &[Condition]| -> Option<Vec<Tree<Compare>>> {
            of.iter().map(|c| self.straight(c)).collect()
        };
        Some(match condition {
            Condition::Number {
                subject,
                relation,
                with,
            } => {
                if let Some(holds) = self.decided(*subject, *relation, *with) {
                    return Some(Tree::Constant(holds));
                }
                let (operand, width) = match subject {
                    Subject::Field(index) => {
                        let (register, width) = self.fields.get(*index)?.register()?;
                        (Operand::Register(register), width)
                    }
                    Subject::Thread => (Operand::Thread, Width::WORD),
                    // A CPU number read by the thread may be outdated.
                    Subject::Cpu => return None,
                };
                match normal(*relation, *with, width) {
                    Normal::Constant(holds) => Tree::Constant(holds),
                    Normal::Test { .. } if width.bits.is_some() => return None,
                    Normal::Test { test, with, result } => Tree::Leaf(Compare {
                        operand,
                        width,
                        test,
                        with,
                        result,
                    }),
                }
            }
            Condition::Text { .. } => return None,
            Condition::Not(inner) => Tree::Not(Box::new(self.straight(inner)?)),
            Condition::All(of) => Tree::All(all(of)?),
            Condition::Any(of) => Tree::Any(all(of)?),
        })
    }

    /// Returns the result of a comparison if the compared field is a constant.
    fn decided(&self, subject: Subject, relation: Relation, with: i128) -> Option<bool> {
        let Subject::Field(index) = subject else {
            return None;
        };
        match self.fields.get(index)?.recordable()? {
            (Word::Constant(value), width) => {
                Some(normal(relation, with, width).holds(width.number(value), width))
            }
            (Word::Register(_), _) => None,
        }
    }

    /// Builds the program that records the event if `condition` holds.
    fn program(&self, condition: Option<&Condition>) -> Result<Program, FetchError> {
        let mut builder = Builder::new(self);
        let tree = builder.condition(condition)?;
        for index in 0..self.fields.len() {
            builder.field(index, STRING_LIMIT)?;
        }
        builder.conclude(&tree);
        builder.finish(if self.can_fault() { program::FAULTS } else { 0 })
    }
}

/// The lower limit that a condition sets for a call's time.
struct Shortest {
    /// The field that is the time.
    time: usize,
    /// The call.
    call: u32,
    /// The least time, in time stamp counter ticks.
    least: u64,
}

impl<'a> Builder<'a> {
    fn new(fetch: &'a Fetch) -> Builder<'a> {
        Builder {
            fetch,
            steps: Vec::new(),
            texts: Vec::new(),
            to_place: Vec::new(),
            tests: Vec::new(),
            bits: 0,
        }
    }

    /// Prepares the comparisons of a condition.
    fn condition(&mut self, condition: Option<&'a Condition>) -> Result<Tree<Bit>, FetchError> {
        match condition {
            Some(condition) => Ok(self.collect(condition)?.fold()),
            None => Ok(Tree::Constant(true)),
        }
    }

    /// Assigns a bit to every comparison of a condition. Comparisons that involve no field become
    /// steps immediately.
    fn collect(&mut self, condition: &'a Condition) -> Result<Tree<Bit>, FetchError> {
        Ok(match condition {
            Condition::Not(inner) => Tree::Not(Box::new(self.collect(inner)?)),
            Condition::All(of) => Tree::All(self.collect_all(of)?),
            Condition::Any(of) => Tree::Any(self.collect_all(of)?),
            Condition::Number {
                subject,
                relation,
                with,
            } => {
                if let Some(holds) = self.fetch.decided(*subject, *relation, *with) {
                    return Ok(Tree::Constant(holds));
                }
                let (op, width) = match subject {
                    Subject::Field(index) => {
                        let width = self.fetch.width(*index);
                        let width = width.ok_or(FetchError::NotComparable(*index))?;
                        (op::TEST, width)
                    }
                    Subject::Thread => (op::TEST_THREAD, Width::WORD),
                    Subject::Cpu => (op::TEST_CPU, Width::WORD),
                };
                let (test, with, result) = match normal(*relation, *with, width) {
                    Normal::Constant(holds) => return Ok(Tree::Constant(holds)),
                    Normal::Test { test, with, result } => (test, with, result),
                };
                let bit = self.bit()?;
                let step = Step {
                    bit,
                    value: with,
                    ..Step::made(op, how(test), width)
                };
                match subject {
                    Subject::Field(index) => self.tests.push((*index, step, &[])),
                    Subject::Thread | Subject::Cpu => self.steps.push(step),
                }
                Tree::Leaf(Bit { bit, result })
            }
            Condition::Text { field, pattern } => {
                let found = self.fetch.fields.get(*field);
                if !found.is_some_and(Field::is_text) {
                    return Err(FetchError::NotComparable(*field));
                }
                let bit = self.bit()?;
                let step = Step {
                    bit,
                    ..Step::new(op::TEST_TEXT)
                };
                self.tests.push((*field, step, pattern));
                Tree::Leaf(Bit { bit, result: true })
            }
        })
    }

    fn collect_all(&mut self, of: &'a [Condition]) -> Result<Vec<Tree<Bit>>, FetchError> {
        of.iter().map(|part| self.collect(part)).collect()
    }

    fn bit(&mut self) -> Result<u8, FetchError> {
        let bit = self.bits;
        self.bits += 1;
        match bit < 64 {
            true => Ok(bit),
            false => Err(FetchError::TooManyComparisons),
        }
    }

    /// Appends a string, which will be placed after the steps.
    fn text(&mut self, bytes: &[u8]) -> (u16, u64) {
        let at = self.texts.len() as u64;
        self.texts.extend_from_slice(bytes);
        self.to_place.push(self.steps.len());
        (bytes.len() as u16, at)
    }

    /// Fetches a field, compares it, and drops it if it is not recorded. At most `limit` bytes of a
    /// string are kept.
    fn field(&mut self, index: usize, limit: u16) -> Result<(), FetchError> {
        let field = &self.fetch.fields[index];
        let number = u8::try_from(index).unwrap_or(u8::MAX);
        let recorded = index < self.fetch.recorded;
        let step = |op| Step {
            // A field that is not recorded has no bit in the mask.
            field: if recorded { number } else { u8::MAX },
            ..Step::new(op)
        };
        match &field.source {
            Source::Comm => self.steps.push(step(op::COMM)),
            Source::Thread => self.steps.push(step(op::THREAD)),
            Source::Cpu => self.steps.push(step(op::CPU)),
            Source::Latency(call) => self.steps.push(Step {
                value: u64::from(*call),
                ..step(op::LATENCY)
            }),
            Source::Kept { call, word } => self.steps.push(Step {
                value: u64::from(*call),
                count: *word,
                ..step(op::KEPT)
            }),
            Source::Text(bytes) => {
                let (count, value) = self.text(bytes);
                self.steps.push(Step {
                    count,
                    value,
                    ..step(op::TEXT)
                });
            }
            Source::Register(register) => self.steps.push(Step {
                a: register.number() as u8,
                ..step(op::REGISTER)
            }),
            Source::Vector(number) => self.steps.push(Step {
                a: *number,
                ..step(op::VECTOR)
            }),
            Source::Indexed {
                base,
                index,
                shift,
                offset,
            } => {
                self.steps.push(Step {
                    value: *offset,
                    ..step(op::IMMEDIATE)
                });
                let base = base.map(|base| (base, 0));
                for (register, shift) in base.into_iter().chain([(*index, *shift)]) {
                    self.steps.push(Step {
                        a: register.number() as u8,
                        bit: shift,
                        ..step(op::INDEX)
                    });
                }
            }
            Source::Immediate(value) => self.steps.push(Step {
                value: *value,
                ..step(op::IMMEDIATE)
            }),
        }
        if !field.source.is_text() {
            self.content(field, index, limit, step)?;
        }
        for (_, mut step, text) in self
            .tests
            .extract_if(.., |(f, ..)| *f == index)
            .collect::<Vec<_>>()
        {
            if step.op == op::TEST_TEXT {
                (step.count, step.value) = self.text(text);
            }
            self.steps.push(step);
        }
        if !recorded {
            self.steps.push(step(op::DROP_CONTENT));
        }
        Ok(())
    }

    /// Adds the steps from the source to the content.
    fn content(
        &mut self,
        field: &Field,
        index: usize,
        limit: u16,
        step: impl Fn(u8) -> Step,
    ) -> Result<(), FetchError> {
        if let Content::CallStack { bytes } = field.content {
            self.steps.push(Step {
                limit: bytes,
                ..step(op::STACK)
            });
            return Ok(());
        }
        let Some((last, pointers)) = field.pointers.split_last() else {
            self.steps.push(step(op::KEEP));
            match field.content {
                Content::Number(_) => {}
                Content::Numbers { .. }
                | Content::Text
                | Content::Texts { .. }
                | Content::CallStack { .. } => return Err(FetchError::NotInMemory(index)),
            }
            return Ok(());
        };
        for pointer in pointers {
            self.steps.push(Step {
                value: *pointer as u64,
                ..step(op::POINTER)
            });
        }
        let last = *last as u64;
        self.steps.push(match field.content {
            Content::Number(width) => Step {
                a: width.bytes,
                count: 1,
                value: last,
                ..step(op::READ)
            },
            Content::Numbers { bytes, count } => Step {
                a: bytes,
                count,
                value: last,
                ..step(op::READ)
            },
            Content::Text => Step {
                limit,
                value: last,
                ..step(op::STRING)
            },
            Content::Texts { count } => Step {
                count,
                limit,
                value: last,
                ..step(op::STRINGS)
            },
            Content::CallStack { .. } => return Err(FetchError::NotInMemory(index)),
        });
        Ok(())
    }

    /// Rejects the event unless the condition holds.
    fn conclude(&mut self, tree: &Tree<Bit>) {
        let reject = Step::new(op::REJECT);
        match tree {
            Tree::Constant(true) => {}
            Tree::Constant(false) => self.steps.push(reject),
            tree => {
                let branches = tree.branches(true);
                for (index, branch) in branches.iter().enumerate() {
                    // The rejection follows the last branch.
                    let to = match branch.exit {
                        Exit::Branch(to) => to,
                        Exit::Decided(true) => branches.len() + 1,
                        Exit::Decided(false) => branches.len(),
                    };
                    let set = branch.leaf.result == branch.when;
                    self.steps.push(Step {
                        count: (to - index - 1) as u16,
                        bit: branch.leaf.bit,
                        ..Step::new(if set { op::WHEN } else { op::UNLESS })
                    });
                }
                self.steps.push(reject);
            }
        }
    }

    fn finish(mut self, flags: u32) -> Result<Program, FetchError> {
        let texts = program::HEADER + step::SIZE * self.steps.len();
        for index in self.to_place {
            self.steps[index].value += texts as u64;
        }
        let faults = flags & program::FAULTS != 0;
        let (recorded, hidden) = self.fetch.fields.split_at(self.fetch.recorded);
        // Fields that are not recorded take space temporarily, and so does a pointer.
        let spare = hidden.iter().map(Field::size).max().unwrap_or(0) + 8;
        let fields: u64 = recorded.iter().map(Field::size).sum();
        let size = HEADER + if faults { 8 } else { 0 } + fields + spare;
        if size > MOST {
            return Err(FetchError::TooLarge(size));
        }
        let mut bytes = Vec::with_capacity(texts + self.texts.len());
        bytes.extend((self.steps.len() as u32).to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        for step in &self.steps {
            bytes.extend(step.bytes());
        }
        bytes.extend(&self.texts);
        Ok(Program {
            bytes,
            size,
            faults,
        })
    }
}

/// Returns the code of a comparison, as a step encodes it.
fn how(test: Test) -> u8 {
    match test {
        Test::Equal => test::EQUAL,
        Test::Less => test::LESS,
        Test::LessOrEqual => test::LESS_OR_EQUAL,
        Test::Bits => test::BITS,
    }
}

#[cfg(test)]
mod tests;
