//! Fields of an event, and the work that fetches them: straight code, or programs for the
//! resident.
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

mod builder;
mod tally;

pub use tally::{Amount, KEY_TEXT_LIMIT, TIMES_CELLS, Tally};

use self::builder::Builder;
use crate::arch::registers::{
    ConditionCode, MOST_AT_ENTRY, MOST_IN_RECORD, Register, STACK_POINTER, is_vector, vector,
};
use crate::condition::{Condition, Normal, Relation, Subject, Tree, Width, normal};
use crate::program::{Program, Step};
use crate::work::{Compare, Filter, Long, Operand, Record, Word, Work};
use capriole_ring::intervals::Intervals;
use capriole_ring::numbers::{chain, frame, op, program};
use std::collections::BTreeSet;
use std::sync::Arc;
use thiserror::Error;

/// Maximum number of bytes recorded of a string.
pub const STRING_LIMIT: u16 = 1024;
/// Maximum number of words that a call keeps.
const MOST_WORDS: usize = frame::MOST_WORDS as usize;

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
    /// Time since the start of the interval that ends here, in ticks of the time stamp counter. Only
    /// where [`Tally::ends`] is set.
    Interval,
    /// A word that the start of the interval has kept; unreadable if it was so there. Only where
    /// [`Tally::ends`] is set.
    Started {
        /// Its number among the [words](Fetch::words), those of the key included.
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
    /// A number in network byte order. The record has it in the processor's byte order.
    Network {
        /// Its size in bytes: 2, 4 or 8.
        bytes: u8,
    },
    /// `count` numbers of `bytes` each.
    Numbers {
        /// Size of each number in bytes: 1, 2, 4 or 8; 16 for an address, which can be a key.
        bytes: u8,
        /// How many numbers there are, at least 1.
        count: u16,
    },
    /// A string that ends with NUL, or has the field's [length](Field::length).
    Text,
    /// `count` pointers to such strings.
    Texts {
        /// Number of strings, at least 1.
        count: u16,
    },
    /// The chain of callers, of a field that is rbp, found by the session's
    /// [table](capriole_ring::numbers::unwinding).
    Callers {
        /// Maximum number of addresses, the site's included: 1 to [`chain::MOST`].
        most: u16,
        /// The first address: the site's, or for an exit the function's.
        site: u64,
        /// True if the return address is on top of the stack, whatever the table says.
        on_top: bool,
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
    /// Length of a [`Content::Text`] that does not end with NUL. At most [`STRING_LIMIT`] bytes are
    /// recorded, those before the first that cannot be read.
    pub length: Option<Box<Length>>,
}

/// How long a text is that does not end with NUL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Length {
    /// As many bytes as a number says, negative for none.
    Number {
        /// The number.
        of: Field,
        /// Bytes to subtract from the number: those of a header that it includes.
        less: u64,
    },
    /// A number tells where the text is and how long, as libc++ and PostgreSQL have them. The
    /// pointers of the field lead to that number, a byte.
    Cases(Vec<Case>),
}

/// One of the ways in which a text may lie in memory. The first applies whose bits are as it says; if
/// none does, the text cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Case {
    /// The number's bits that tell.
    pub bits: Width,
    /// Their value.
    pub equal: u64,
    /// The text, which has no further cases. `None`: it cannot be read, for example because it is
    /// compressed.
    pub text: Option<Field>,
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
    /// Fields, none of them recorded, that are the words of an interval: its key, and behind it, at its
    /// start, what is kept for its end.
    pub words: Vec<usize>,
}

/// Reason why an event cannot be recorded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FetchError {
    /// A string or array whose source is a register, not memory.
    #[error("field {0} is a text or an array, which is in memory, not in a register")]
    NotInMemory(usize),
    /// The length of a string is not a number, or it is the length of something else.
    #[error("field {0} has no length that is a number")]
    NoLength(usize),
    /// A comparison of a string with a number, or of an array.
    #[error("field {0} cannot be compared like this")]
    NotComparable(usize),
    /// A field that is not a number: calls keep words of eight bytes.
    #[error("field {0} is not kept from entry to exit: only numbers are")]
    NotKept(usize),
    /// More words than a call can keep.
    #[error("a call keeps at most {most} values from its entry to its exit, not {0}", most = MOST_WORDS)]
    TooManyKept(usize),
    /// A field that is not a number, and so no word of an interval.
    #[error("field {0} is not a number: only numbers pair events, or are kept from start to end")]
    NotAWord(usize),
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
            FetchError::NoLength(index) => {
                format!("field `{}` has no length that is a number", name(*index))
            }
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
                    "field `{}` is not kept from entry to exit: only numbers are",
                    name(*index)
                )
            }
            FetchError::NotAWord(index) => format!(
                "field `{}` is not a number: only numbers pair events, or are kept from start to end",
                name(*index)
            ),
            FetchError::NotAKey(index) => {
                format!("field `{}` cannot be a key: it is an array", name(*index))
            }
            other => other.to_string(),
        }
    }
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
            | Source::Interval
            | Source::Started { .. }
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
            (_, Content::Number(_) | Content::Network { .. }) => 8,
            (_, Content::Numbers { bytes, count }) => {
                (u64::from(bytes) * u64::from(count)).next_multiple_of(8)
            }
            (_, Content::Text) => text(STRING_LIMIT.into()),
            (_, Content::Texts { count }) => u64::from(count) * text(STRING_LIMIT.into()),
            (_, Content::Callers { most, .. }) => chain::HEAD as u64 + 8 * u64::from(most),
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
            Source::Vector(number) => Word::Register(vector(number)),
            Source::Immediate(value) => Word::Constant(value),
            Source::Indexed { .. }
            | Source::Comm
            | Source::Thread
            | Source::Cpu
            | Source::Latency(_)
            | Source::Kept { .. }
            | Source::Interval
            | Source::Started { .. }
            | Source::Text(_) => return None,
        };
        Some((word, width))
    }

    /// Like `recordable`, but for code that computes with the current registers. It excludes the
    /// stack pointer, which has moved in a detour (a record has its earlier value).
    fn register(&self) -> Option<(Register, Width)> {
        let (word, width) = self.recordable()?;
        let register = word.register();
        let register = register.filter(|r| *r != STACK_POINTER && !is_vector(*r));
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
            Source::Latency(_) | Source::Kept { .. } | Source::Started { .. } => true,
            Source::Register(_)
            | Source::Vector(_)
            | Source::Indexed { .. }
            | Source::Immediate(_)
            | Source::Comm
            | Source::Thread
            | Source::Cpu
            | Source::Interval
            | Source::Text(_) => false,
        };
        !self.pointers.is_empty() || of_call
    }

    /// Adds the field, and those that it is fetched by.
    fn parts<'a>(&'a self, all: &mut Vec<&'a Field>) {
        all.push(self);
        match self.length.as_deref() {
            None => {}
            Some(Length::Number { of, .. }) => of.parts(all),
            Some(Length::Cases(cases)) => {
                for text in cases.iter().filter_map(|case| case.text.as_ref()) {
                    text.parts(all);
                }
            }
        }
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
            Content::Network { bytes } => Some(Width {
                bytes,
                signed: false,
                bits: None,
            }),
            Content::Numbers { .. }
            | Content::Text
            | Content::Texts { .. }
            | Content::Callers { .. } => None,
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
            let all = all.iter().filter(|register| !is_vector(**register));
            if all.count() <= MOST_IN_RECORD {
                return Ok(Work::Record(Record {
                    event,
                    fields,
                    filter: straight,
                }));
            }
        }
        let program = self.program(rest.as_ref())?;
        Ok(self.run(event, program, straight, rest.as_ref()))
    }

    /// Returns the work that runs a program, which tests the condition `rest`, if `filter` holds. If
    /// a call has to take long for `rest`, straight code finds that out.
    fn run(
        &self,
        event: u32,
        program: Program,
        filter: Option<Filter>,
        rest: Option<&Condition>,
    ) -> Work {
        let program = Arc::new(program);
        match rest.and_then(|rest| self.shortest(rest)) {
            None => Work::Run {
                event,
                program,
                filter,
            },
            Some(Shortest { call, least }) => Work::Long(Long {
                event,
                call,
                least,
                program,
                registers: self.registers(),
                filter,
            }),
        }
    }

    /// Returns the registers that fields start from.
    fn registers(&self) -> Vec<Register> {
        let mut all = Vec::new();
        for field in &self.fields {
            field.parts(&mut all);
        }
        let registers = all.into_iter().flat_map(|field| match field.source {
            Source::Register(register) => [Some(register), None],
            Source::Indexed { base, index, .. } => [base, Some(index)],
            Source::Vector(_)
            | Source::Immediate(_)
            | Source::Comm
            | Source::Thread
            | Source::Cpu
            | Source::Latency(_)
            | Source::Kept { .. }
            | Source::Interval
            | Source::Started { .. }
            | Source::Text(_) => [None, None],
        });
        let registers = registers.flatten().filter(|r| *r != STACK_POINTER);
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
                    length: None,
                    ..
                } if pointers.is_empty() => Some(Shortest {
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
        let general = |word: &Word| !word.register().is_some_and(is_vector);
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
            ..Step::new(op::REJECTED)
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

    /// Returns the widths of the [words](Fetch::words).
    ///
    /// # Errors
    /// A word is not a number.
    pub fn word_widths(&self) -> Result<Vec<Width>, FetchError> {
        let width = |index: &usize| self.width(*index).ok_or(FetchError::NotAWord(*index));
        self.words.iter().map(width).collect()
    }

    /// Returns the work that starts an interval with the [words](Fetch::words). No field is recorded.
    ///
    /// # Errors
    /// A word is not a number.
    ///
    /// # Panics
    /// If there are not as many words as the slots have.
    pub fn start(&self, event: u32, intervals: &Intervals) -> Result<Work, FetchError> {
        assert_eq!(
            self.words.len(),
            intervals.words() as usize,
            "words of a slot"
        );
        assert_eq!(self.recorded, 0, "nothing is recorded");
        let (filter, rest) = self.split();
        let mut builder = Builder::new(self);
        let tree = builder.condition(rest.as_ref())?;
        for index in 0..self.fields.len() {
            builder.field(index, STRING_LIMIT)?;
        }
        builder.conclude(&tree);
        builder.interval(op::START, intervals);
        let program = builder.finish(program::TALLY | program::INTERVAL)?;
        Ok(self.run(event, program, filter, rest.as_ref()))
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
    /// The call.
    call: u32,
    /// The least time, in time stamp counter ticks.
    least: u64,
}

#[cfg(test)]
mod tests;
