//! Events whose fields are in memory, as programs that the resident runs.
//!
//! A pointer that the program under test has may lead nowhere, and a signal handler for
//! the fault of a load is no help: the program may have one of its own, install one later,
//! or block the signal, in which case the kernel ends it. So memory is read by the kernel
//! (`process_vm_readv` on the process itself), which says that it cannot, and costs a
//! system call; only what lies in the page of the stack pointer, above it, is there
//! anyway. Such an event is recorded by the resident, which fetches, formats and filters
//! as a list of steps says:
//!
//! ```text
//! name=+0(+8(%di)):string  if name ~ "/etc/*"
//!
//! register rdi, pointer +8, string +0     the field
//! test text "/etc/*", bit 0               the filter
//! when bit 0 skip 1, reject
//! ```
//!
//! All steps go forward, so a program ends. What registers alone decide is asked first, by
//! straight code in the detour; and of an event of which all fields are registers or constants,
//! all of it is straight code. What a filter asks of a constant is decided here.

mod tally;

pub use tally::{Amount, KEY_TEXT_LIMIT, Tally, histogram};

use crate::condition::{Condition, Exit, Normal, Relation, Subject, Test, Tree, Width, normal};
use crate::detour::{Compare, Filter, Long, Operand, Record, Word, Work};
use capriole_insn::RegSet;
use capriole_ring::layout::frame;
use iced_x86::{ConditionCode, Register};
use std::collections::BTreeSet;
use std::sync::Arc;
use thiserror::Error;

/// Most bytes of a string that are recorded.
pub const STRING_LIMIT: u16 = 1024;
/// Bytes before the fields.
const HEADER: u64 = capriole_ring::layout::record::FIELDS as u64;

/// Where a field starts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// A 64-bit general register, as it is at the site.
    Register(Register),
    /// The low 64 bits of a vector register, xmm0 to xmm15, as it is at the site.
    Vector(u8),
    /// A number to which a register is added, multiplied: the address of an element, as an
    /// instruction's operand says it.
    Indexed {
        /// A 64-bit general register, as it is at the site.
        base: Option<Register>,
        /// Another one.
        index: Register,
        /// The power of two by which that is multiplied, 0 to 3.
        shift: u8,
        /// What is added to both.
        offset: u64,
    },
    /// A number.
    Immediate(u64),
    /// The name of the thread.
    Comm,
    /// The id of the thread, as the program's own namespace has it.
    Thread,
    /// The number of the CPU.
    Cpu,
    /// How long ago the call of this function began that is left here: time stamps, less
    /// than 2^48; in a record, at the time of the record. The function is a number below 2^16,
    /// and above it that of the area where its calls stand. It can be read at the function's
    /// exits if [`Work::Enter`] is done at its entry; a call of which nothing is known is one
    /// that cannot be read.
    Latency(u32),
    /// A word that the call of this function has kept since its entry, where [`Fetch::enter`]
    /// was done; a call of which nothing is known is one that cannot be read.
    Kept {
        /// The function, as for [`Source::Latency`].
        call: u32,
        /// Which of the fields at the entry, from 0 on.
        word: u16,
    },
    /// A text, at most 65,535 bytes.
    Text(Vec<u8>),
}

/// What stands at the end of a field's pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Content {
    /// A number.
    Number(Width),
    /// `count` numbers of `bytes` each.
    Numbers {
        /// Bytes of one: 1, 2, 4 or 8.
        bytes: u8,
        /// How many, at least 1.
        count: u16,
    },
    /// A string that ends with NUL.
    Text,
    /// `count` pointers to such strings.
    Texts {
        /// How many, at least 1.
        count: u16,
    },
    /// What unwinding needs, of a field that is the stack pointer: that, rbp, and what lies
    /// above the stack pointer, as far as it can be read. There is always some of it in the
    /// record, though it may be nothing of the stack.
    CallStack {
        /// How much of the stack, at most.
        bytes: u16,
    },
}

/// A field: from the source, by the pointers, to the content.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Field {
    /// Where it starts.
    pub source: Source,
    /// For each pointer on the way what is added to it. The content stands at the last
    /// one, the others lead to pointers. Without any, the source itself is the content.
    pub pointers: Vec<i64>,
    /// What it is.
    pub content: Content,
}

/// What an event records, and when.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Fetch {
    /// All fields that are needed.
    pub fields: Vec<Field>,
    /// How many of them, from the first on, are recorded; the rest is for the condition.
    pub recorded: usize,
    /// When the event is wanted; always, if there is none.
    pub condition: Option<Condition>,
    /// What the flags have to be at the site, besides: at a conditional jump, whether it is
    /// going to be taken.
    pub flags: Option<ConditionCode>,
}

/// A program for the resident, as it stands in memory at a multiple of 8.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Program {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Bytes of the longest record, header included; never more than 65,535.
    pub size: u64,
    /// Whether the record begins with the mask of fields that could not be read.
    pub faults: bool,
}

impl Program {
    /// Whether the resident may make a system call for it, in the program's own thread.
    #[must_use]
    pub fn may_call(&self) -> bool {
        use step::{COMM, POINTER, READ, STACK, STRING, STRINGS, THREAD};
        let calls = [COMM, POINTER, READ, STACK, STRING, STRINGS, THREAD];
        self.steps().any(|step| calls.contains(&step[0]))
    }

    /// The general registers that it looks at.
    pub(crate) fn registers(&self) -> RegSet {
        let reads = |step: &&[u8]| matches!(step[0], step::REGISTER | step::INDEX);
        let numbers = self.steps().filter(reads).map(|step| step[1]);
        RegSet(numbers.fold(0, |set, number| set | 1 << number))
    }

    /// Its steps, [`STEP_SIZE`] bytes each.
    fn steps(&self) -> impl Iterator<Item = &[u8]> {
        let count = self.bytes.first_chunk();
        let count = count.map_or(0, |n| u32::from_le_bytes(*n) as usize);
        let steps = self.bytes.get(PROGRAM_HEADER..).unwrap_or_default();
        steps.chunks_exact(STEP_SIZE).take(count)
    }
}

/// Why an event cannot be recorded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FetchError {
    /// A string has no length in a register.
    #[error("field {0} is a text or an array, which is in memory, not in a register")]
    NotInMemory(usize),
    /// A comparison of a text with a number, or of an array.
    #[error("field {0} cannot be compared like this")]
    NotComparable(usize),
    /// What a call keeps are words of eight bytes.
    #[error("field {0} is not kept from entry to exit: only numbers are")]
    NotKept(usize),
    /// There is room for so many words.
    #[error("a call keeps at most {most} values from its entry to its exit, not {0}", most = MOST_WORDS)]
    TooManyKept(usize),
    /// A key or a value that no table takes.
    #[error("field {0} cannot be added up: only numbers can")]
    NotANumber(usize),
    /// An array is no key.
    #[error("field {0} cannot be a key: it is an array")]
    NotAKey(usize),
    /// A program has bits for 64 comparisons.
    #[error("the filter has more than 64 comparisons")]
    TooManyComparisons,
    /// More than a packet should hold.
    #[error("the event could take {0} bytes, more than the 32,768 that there may be")]
    TooLarge(u64),
}

impl FetchError {
    /// The message, with the fields by their names.
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

/// Most words that a call keeps.
const MOST_WORDS: usize = frame::MOST_WORDS as usize;
/// Most registers that the straight code of an entry can look at.
const MOST_AT_ENTRY: usize = 8;
/// Most bytes of a record.
const MOST: u64 = 1 << 15;
/// Most registers that straight code can look at: it needs some to work with.
const MOST_REGISTERS: usize = 11;
/// Bytes before the steps, and of one.
const PROGRAM_HEADER: usize = 16;
const STEP_SIZE: usize = 16;

mod step {
    pub const REGISTER: u8 = 0;
    pub const IMMEDIATE: u8 = 1;
    pub const POINTER: u8 = 2;
    pub const KEEP: u8 = 3;
    pub const READ: u8 = 4;
    pub const STRING: u8 = 5;
    pub const STRINGS: u8 = 6;
    pub const COMM: u8 = 7;
    pub const TEXT: u8 = 8;
    pub const TEST: u8 = 9;
    pub const TEST_THREAD: u8 = 10;
    pub const TEST_CPU: u8 = 11;
    pub const TEST_TEXT: u8 = 12;
    pub const UNLESS: u8 = 13;
    pub const WHEN: u8 = 14;
    pub const DROP_CONTENT: u8 = 15;
    pub const REJECT: u8 = 16;
    pub const THREAD: u8 = 17;
    pub const CPU: u8 = 18;
    pub const KEY: u8 = 19;
    pub const ROW: u8 = 20;
    pub const TALLY: u8 = 21;
    pub const UNREADABLE: u8 = 22;
    pub const NARROW: u8 = 23;
    pub const LATENCY: u8 = 24;
    pub const VECTOR: u8 = 25;
    pub const STACK: u8 = 26;
    pub const KEPT: u8 = 27;
    pub const FORGET: u8 = 28;
    pub const ENTER: u8 = 29;
    pub const INDEX: u8 = 30;
}

/// The numbers of this format, by their names in the resident's header: (name, value).
pub const NUMBERS: [(&str, u64); 47] = [
    ("STEP_SIZE", STEP_SIZE as u64),
    ("PROGRAM_FAULTS", FAULTS as u64),
    ("STEP_REGISTER", step::REGISTER as u64),
    ("STEP_IMMEDIATE", step::IMMEDIATE as u64),
    ("STEP_POINTER", step::POINTER as u64),
    ("STEP_KEEP", step::KEEP as u64),
    ("STEP_READ", step::READ as u64),
    ("STEP_STRING", step::STRING as u64),
    ("STEP_STRINGS", step::STRINGS as u64),
    ("STEP_COMM", step::COMM as u64),
    ("STEP_TEXT", step::TEXT as u64),
    ("STEP_TEST", step::TEST as u64),
    ("STEP_TEST_THREAD", step::TEST_THREAD as u64),
    ("STEP_TEST_CPU", step::TEST_CPU as u64),
    ("STEP_TEST_TEXT", step::TEST_TEXT as u64),
    ("STEP_UNLESS", step::UNLESS as u64),
    ("STEP_WHEN", step::WHEN as u64),
    ("STEP_DROP_CONTENT", step::DROP_CONTENT as u64),
    ("STEP_REJECT", step::REJECT as u64),
    ("TEST_SIGNED", SIGNED as u64),
    ("TEST_EQUAL", 0),
    ("TEST_LESS", 32),
    ("TEST_LESS_OR_EQUAL", 64),
    ("TEST_BITS", 96),
    ("PROGRAM_TALLY", TALLIES as u64),
    ("STEP_THREAD", step::THREAD as u64),
    ("STEP_CPU", step::CPU as u64),
    ("STEP_KEY", step::KEY as u64),
    ("STEP_ROW", step::ROW as u64),
    ("STEP_TALLY", step::TALLY as u64),
    ("STEP_UNREADABLE", step::UNREADABLE as u64),
    ("STEP_NARROW", step::NARROW as u64),
    ("STEP_LATENCY", step::LATENCY as u64),
    ("STEP_VECTOR", step::VECTOR as u64),
    ("STEP_STACK", step::STACK as u64),
    ("STACK_HEAD", STACK_HEAD),
    ("STEP_KEPT", step::KEPT as u64),
    ("STEP_FORGET", step::FORGET as u64),
    ("STEP_ENTER", step::ENTER as u64),
    ("STEP_INDEX", step::INDEX as u64),
    ("TALLY_ONE", tally::ONE as u64),
    ("TALLY_SUM", tally::SUM as u64),
    ("TALLY_MAXIMUM", tally::MAXIMUM as u64),
    ("TALLY_BUCKET", tally::BUCKET as u64),
    ("BUCKET_BITS", histogram::BITS as u64),
    ("BUCKETS", histogram::BUCKETS as u64),
    ("TABLE_SIZE", tally::TABLE_SIZE as u64),
];

/// Bytes before the copy of the stack: two registers, and how many bytes of it there are.
const STACK_HEAD: u64 = 20;
const FAULTS: u32 = 1;
const TALLIES: u32 = 2;
const SIGNED: u8 = 16;

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
    fn new(op: u8) -> Step {
        Step {
            op,
            ..Step::default()
        }
    }

    /// A step on a number of this width.
    fn made(op: u8, how: u8, width: Width) -> Step {
        let bits = |(offset, width)| u16::from(offset) << 8 | u16::from(width);
        let signed = if width.is_signed() { SIGNED } else { 0 };
        Step {
            a: width.bytes | how | signed,
            count: width.bits.map_or(0, bits),
            ..Step::new(op)
        }
    }
}

/// A comparison as the resident makes it: the bit that it sets, and what that has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bit {
    bit: u8,
    result: bool,
}

struct Builder<'a> {
    fetch: &'a Fetch,
    steps: Vec<Step>,
    /// Texts behind the steps; of a step in `to_place` the value is an offset in here.
    texts: Vec<u8>,
    to_place: Vec<usize>,
    /// Comparisons that are to be made when a field has been fetched: (field, step, text).
    tests: Vec<(usize, Step, &'a [u8])>,
    /// How many bits of the truth are in use.
    bits: u8,
}

impl Field {
    /// Bytes that its content takes in a record, at most.
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

    /// The word that is its content, if that is a number and all there at the site.
    fn recordable(&self) -> Option<(Word, Width)> {
        let Content::Number(width) = self.content else {
            return None;
        };
        let word = match self.source {
            _ if !self.pointers.is_empty() => return None,
            Source::Register(register) => Word::Register(register),
            Source::Vector(number) => Word::Register(Register::XMM0 + u32::from(number)),
            Source::Immediate(value) => Word::Constant(value),
            _ => return None,
        };
        Some((word, width))
    }

    /// The same, for code that calculates with registers as they are. The stack pointer has
    /// moved in a detour; a record has what it was.
    fn register(&self) -> Option<(Register, Width)> {
        let (word, width) = self.recordable()?;
        let register = word.register();
        let register = register.filter(|r| *r != Register::RSP && !r.is_xmm());
        Some((register?, width))
    }

    /// The number that it is whenever it is asked for, in 64 bits, and how it is compared then.
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

    /// Whether it may turn out not to be readable.
    #[must_use]
    pub fn can_fault(&self) -> bool {
        let of_call = matches!(self.source, Source::Latency(_) | Source::Kept { .. });
        !self.pointers.is_empty() || of_call
    }

    /// Whether its content is a text.
    fn is_text(&self) -> bool {
        matches!(self.source, Source::Comm | Source::Text(_)) || self.content == Content::Text
    }
}

impl Fetch {
    /// The number of a field, if it is one, as it is compared.
    fn width(&self, field: usize) -> Option<Width> {
        let field = self.fields.get(field).filter(|field| !field.is_text())?;
        match field.content {
            Content::Number(width) => Some(width),
            _ => None,
        }
    }

    /// Whether a field that is recorded may turn out not to be readable.
    #[must_use]
    pub fn can_fault(&self) -> bool {
        self.fields[..self.recorded].iter().any(Field::can_fault)
    }

    /// What records this event.
    ///
    /// # Errors
    /// The fields do not fit together, or into a packet.
    pub fn work(&self, event: u32) -> Result<Work, FetchError> {
        let (straight, rest) = self.split();
        let words = self.fields[..self.recorded].iter().map(Field::recordable);
        let fields: Option<Vec<Word>> = words.map(|word| word.map(|(word, _)| word)).collect();
        if let (Some(fields), None) = (fields, &rest) {
            // A detour needs some registers to work with.
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
        // A time that is not known would not be less than `least`. No time is more than this.
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

    /// The registers that fields start at.
    fn registers(&self) -> Vec<Register> {
        let registers = self.fields.iter().flat_map(|field| match field.source {
            Source::Register(register) => [Some(register), None],
            Source::Indexed { base, index, .. } => [base, Some(index)],
            _ => [None, None],
        });
        let registers = registers.flatten().filter(|r| *r != Register::RSP);
        registers.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The shortest time of a call that a condition takes, if it asks for that and whatever
    /// else it asks for.
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

    /// What begins a call of function `call` that is to be timed, and keeps the fields that
    /// are recorded; see [`Source::Latency`]. At an entry there are no flags to ask for.
    ///
    /// # Errors
    /// A field is no number, or there are too many.
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

    /// The program that begins a call.
    fn entry_program(&self, call: u32) -> Result<Program, FetchError> {
        let mut builder = Builder::new(self);
        builder.steps.push(Step {
            value: call.into(),
            ..Step::new(step::FORGET)
        });
        let tree = builder.condition(self.condition.as_ref())?;
        for index in 0..self.fields.len() {
            builder.field(index, STRING_LIMIT)?;
        }
        builder.conclude(&tree);
        builder.steps.push(Step {
            value: call.into(),
            count: self.recorded as u16,
            ..Step::new(step::ENTER)
        });
        // Nothing is recorded.
        builder.finish(TALLIES)
    }

    /// Parts the condition into what straight code can ask, the flags among it, and the rest.
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

    /// A condition as straight code asks it.
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
                    // What a thread says of its CPU need not be true any more.
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

    /// Whether a comparison holds, if it is one of a constant.
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

    /// The program that records the event if `condition` holds.
    fn program(&self, condition: Option<&Condition>) -> Result<Program, FetchError> {
        let mut builder = Builder::new(self);
        let tree = builder.condition(condition)?;
        for index in 0..self.fields.len() {
            builder.field(index, STRING_LIMIT)?;
        }
        builder.conclude(&tree);
        builder.finish(if self.can_fault() { FAULTS } else { 0 })
    }
}

/// What a condition asks of a call's time.
struct Shortest {
    /// The field that is the time.
    time: usize,
    /// The call.
    call: u32,
    /// The least time, in time stamps.
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

    /// Gives every comparison of a condition its bit. Those that ask for no field are made
    /// at once.
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
                        (step::TEST, width)
                    }
                    Subject::Thread => (step::TEST_THREAD, Width::WORD),
                    Subject::Cpu => (step::TEST_CPU, Width::WORD),
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
                    ..Step::new(step::TEST_TEXT)
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

    /// A text, to stand behind the steps.
    fn text(&mut self, bytes: &[u8]) -> (u16, u64) {
        let at = self.texts.len() as u64;
        self.texts.extend_from_slice(bytes);
        self.to_place.push(self.steps.len());
        (bytes.len() as u16, at)
    }

    /// Fetches a field, compares it, and drops it if it is not recorded.
    /// Of strings at most `limit` bytes are kept.
    fn field(&mut self, index: usize, limit: u16) -> Result<(), FetchError> {
        let field = &self.fetch.fields[index];
        let number = u8::try_from(index).unwrap_or(u8::MAX);
        let recorded = index < self.fetch.recorded;
        let step = |op| Step {
            // One that is not recorded has no place in the mask.
            field: if recorded { number } else { u8::MAX },
            ..Step::new(op)
        };
        match &field.source {
            Source::Comm => self.steps.push(step(step::COMM)),
            Source::Thread => self.steps.push(step(step::THREAD)),
            Source::Cpu => self.steps.push(step(step::CPU)),
            Source::Latency(call) => self.steps.push(Step {
                value: u64::from(*call),
                ..step(step::LATENCY)
            }),
            Source::Kept { call, word } => self.steps.push(Step {
                value: u64::from(*call),
                count: *word,
                ..step(step::KEPT)
            }),
            Source::Text(bytes) => {
                let (count, value) = self.text(bytes);
                self.steps.push(Step {
                    count,
                    value,
                    ..step(step::TEXT)
                });
            }
            Source::Register(register) => self.steps.push(Step {
                a: register.number() as u8,
                ..step(step::REGISTER)
            }),
            Source::Vector(number) => self.steps.push(Step {
                a: *number,
                ..step(step::VECTOR)
            }),
            Source::Indexed {
                base,
                index,
                shift,
                offset,
            } => {
                self.steps.push(Step {
                    value: *offset,
                    ..step(step::IMMEDIATE)
                });
                let base = base.map(|base| (base, 0));
                for (register, shift) in base.into_iter().chain([(*index, *shift)]) {
                    self.steps.push(Step {
                        a: register.number() as u8,
                        bit: shift,
                        ..step(step::INDEX)
                    });
                }
            }
            Source::Immediate(value) => self.steps.push(Step {
                value: *value,
                ..step(step::IMMEDIATE)
            }),
        }
        if !matches!(field.source, Source::Comm | Source::Text(_)) {
            self.content(field, index, limit, step)?;
        }
        for (_, mut step, text) in self
            .tests
            .extract_if(.., |(f, ..)| *f == index)
            .collect::<Vec<_>>()
        {
            if step.op == step::TEST_TEXT {
                (step.count, step.value) = self.text(text);
            }
            self.steps.push(step);
        }
        if !recorded {
            self.steps.push(step(step::DROP_CONTENT));
        }
        Ok(())
    }

    /// From the source to the content.
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
                ..step(step::STACK)
            });
            return Ok(());
        }
        let Some((last, pointers)) = field.pointers.split_last() else {
            if !matches!(field.content, Content::Number(_)) {
                return Err(FetchError::NotInMemory(index));
            }
            self.steps.push(step(step::KEEP));
            return Ok(());
        };
        for pointer in pointers {
            self.steps.push(Step {
                value: *pointer as u64,
                ..step(step::POINTER)
            });
        }
        let last = *last as u64;
        self.steps.push(match field.content {
            Content::Number(width) => Step {
                a: width.bytes,
                count: 1,
                value: last,
                ..step(step::READ)
            },
            Content::Numbers { bytes, count } => Step {
                a: bytes,
                count,
                value: last,
                ..step(step::READ)
            },
            Content::Text => Step {
                limit,
                value: last,
                ..step(step::STRING)
            },
            Content::Texts { count } => Step {
                count,
                limit,
                value: last,
                ..step(step::STRINGS)
            },
            Content::CallStack { .. } => return Err(FetchError::NotInMemory(index)),
        });
        Ok(())
    }

    /// Rejects the event unless the condition holds.
    fn conclude(&mut self, tree: &Tree<Bit>) {
        let reject = Step::new(step::REJECT);
        match tree {
            Tree::Constant(true) => {}
            Tree::Constant(false) => self.steps.push(reject),
            tree => {
                let branches = tree.branches(true);
                for (index, branch) in branches.iter().enumerate() {
                    // Behind the last branch stands the rejection.
                    let to = match branch.exit {
                        Exit::Branch(to) => to,
                        Exit::Decided(true) => branches.len() + 1,
                        Exit::Decided(false) => branches.len(),
                    };
                    let set = branch.leaf.result == branch.when;
                    self.steps.push(Step {
                        count: (to - index - 1) as u16,
                        bit: branch.leaf.bit,
                        ..Step::new(if set { step::WHEN } else { step::UNLESS })
                    });
                }
                self.steps.push(reject);
            }
        }
    }

    fn finish(mut self, flags: u32) -> Result<Program, FetchError> {
        let texts = PROGRAM_HEADER + STEP_SIZE * self.steps.len();
        for index in self.to_place {
            self.steps[index].value += texts as u64;
        }
        let faults = flags & FAULTS != 0;
        let (recorded, hidden) = self.fetch.fields.split_at(self.fetch.recorded);
        // What is not recorded takes room for a moment, and so does a pointer.
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
            bytes.extend([step.op, step.a]);
            bytes.extend(step.count.to_le_bytes());
            bytes.extend(step.limit.to_le_bytes());
            bytes.extend([step.field, step.bit]);
            bytes.extend(step.value.to_le_bytes());
        }
        bytes.extend(&self.texts);
        Ok(Program {
            bytes,
            size,
            faults,
        })
    }
}

/// How the resident is asked for a comparison.
fn how(test: Test) -> u8 {
    match test {
        Test::Equal => 0,
        Test::Less => 32,
        Test::LessOrEqual => 64,
        Test::Bits => 96,
    }
}

#[cfg(test)]
mod tests;
