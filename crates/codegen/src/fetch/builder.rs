//! Builds the program that fetches an event's fields and tests its condition.

use super::{Case, Content, Fetch, FetchError, Field, Length, STRING_LIMIT, Source};
use crate::condition::{Condition, Exit, Normal, Subject, Test, Tree, Width, normal};
use crate::program::{Program, Step};
use capriole_ring::intervals::Intervals;
use capriole_ring::numbers::{frame, interval, op, program, record, step, test};

/// Bytes of a record before its fields.
const HEADER: u64 = record::FIELDS as u64;
/// Maximum size of a record in bytes.
const MOST: u64 = 1 << 15;

/// A comparison in a program: the bit that the resident sets, and the bit's value if the
/// comparison holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bit {
    bit: u8,
    result: bool,
}

pub(super) struct Builder<'a> {
    fetch: &'a Fetch,
    pub(super) steps: Vec<Step>,
    /// Strings placed after the steps; for a step in `to_place`, `value` is an offset in here.
    pub(super) texts: Vec<u8>,
    pub(super) to_place: Vec<usize>,
    /// Comparisons to make once a field has been fetched: (field, step, string).
    tests: Vec<(usize, Step, &'a [u8])>,
    /// Number of result bits in use.
    bits: u8,
}

impl<'a> Builder<'a> {
    pub(super) fn new(fetch: &'a Fetch) -> Builder<'a> {
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
    pub(super) fn condition(
        &mut self,
        condition: Option<&'a Condition>,
    ) -> Result<Tree<Bit>, FetchError> {
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
                let leaf = Tree::Leaf(Bit { bit, result });
                match subject {
                    Subject::Field(index) => {
                        self.tests.push((*index, step, &[]));
                        match result {
                            // No test of an unknown time holds; then neither may its opposite.
                            false if self.is_time(*index) => {
                                Tree::All(vec![self.known(*index)?, leaf])
                            }
                            _ => leaf,
                        }
                    }
                    Subject::Thread | Subject::Cpu => {
                        self.steps.push(step);
                        leaf
                    }
                }
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

    /// True if a field is the duration of a call.
    fn is_time(&self, index: usize) -> bool {
        let field = &self.fetch.fields[index];
        matches!(field.source, Source::Latency(_)) && field.pointers.is_empty()
    }

    /// Adds the test that a duration is known: then it is less than this constant.
    fn known(&mut self, index: usize) -> Result<Tree<Bit>, FetchError> {
        let bit = self.bit()?;
        let step = Step {
            bit,
            value: 1 << frame::TIME_SHIFT,
            ..Step::made(op::TEST, how(Test::Less), Width::unsigned(8))
        };
        self.tests.push((index, step, &[]));
        Ok(Tree::Leaf(Bit { bit, result: true }))
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
    pub(super) fn field(&mut self, index: usize, limit: u16) -> Result<(), FetchError> {
        self.fetched(index, limit, index < self.fetch.recorded)
    }

    /// Fetches the field if the condition compares it, compares it, and drops it.
    pub(super) fn compared(&mut self, index: usize) -> Result<(), FetchError> {
        match self.tests.iter().any(|(field, ..)| *field == index) {
            true => self.fetched(index, STRING_LIMIT, false),
            false => Ok(()),
        }
    }

    fn fetched(&mut self, index: usize, limit: u16, recorded: bool) -> Result<(), FetchError> {
        let field = &self.fetch.fields[index];
        let number = u8::try_from(index).unwrap_or(u8::MAX);
        let step = |op| Step {
            // A field that is not recorded has no bit in the mask.
            field: if recorded { number } else { u8::MAX },
            ..Step::new(op)
        };
        match field.length.as_deref() {
            Some(Length::Cases(cases)) => self.cases(field, cases, index, limit, step)?,
            _ => self.whole(field, index, limit, step)?,
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
        if let Some(word) = self.fetch.words.iter().position(|field| *field == index) {
            let width = self.fetch.width(index);
            let width = Width {
                signed: false,
                ..width.ok_or(FetchError::NotAWord(index))?
            };
            self.steps.push(Step {
                limit: word as u16,
                ..Step::made(op::WORD, 0, width)
            });
        }
        if !recorded {
            self.steps.push(step(op::DROP_CONTENT));
        }
        Ok(())
    }

    /// Adds the steps that fetch a field that lies in one way only.
    fn whole(
        &mut self,
        field: &Field,
        index: usize,
        limit: u16,
        step: impl Fn(u8) -> Step + Copy,
    ) -> Result<(), FetchError> {
        match field.length.as_deref() {
            None => {}
            Some(Length::Number { of, less }) => self.length(field, (of, *less), index, step)?,
            Some(Length::Cases(_)) => return Err(FetchError::NoLength(index)),
        }
        self.source(&field.source, step);
        if !field.source.is_text() {
            self.content(field, index, limit, step)?;
        }
        Ok(())
    }

    /// Adds the steps that fetch a text that lies in one of several ways:
    ///
    /// ```text
    /// register rdi, load 1 byte               the number that tells
    /// case bits 0..1 are 1, else skip 3       a short text: its length, its bytes
    ///   length bits 1..8 less 1, register rdi, bytes +1
    ///   skip to the end
    /// length none, bytes                      no such case, or the number could not be read
    /// ```
    fn cases(
        &mut self,
        field: &Field,
        cases: &[Case],
        index: usize,
        limit: u16,
        step: impl Fn(u8) -> Step + Copy,
    ) -> Result<(), FetchError> {
        let Some((last, pointers)) = field.pointers.split_last() else {
            return Err(FetchError::NotInMemory(index));
        };
        self.source(&field.source, step);
        self.pointers(pointers, step);
        self.steps.push(Step {
            a: 1,
            value: *last as u64,
            ..step(op::LOAD)
        });
        let distance = |from: usize, to: usize| {
            u16::try_from(to - from - 1).map_err(|_| FetchError::NoLength(index))
        };
        let mut to_end = Vec::new();
        for case in cases {
            let begin = self.steps.len();
            self.steps.push(Step {
                value: case.equal,
                ..Step::made(op::CASE, test::EQUAL, case.bits)
            });
            match &case.text {
                Some(text) => self.whole(text, index, limit, step)?,
                None => self.unreadable(limit, step),
            }
            to_end.push(self.steps.len());
            self.steps.push(Step::new(op::SKIP));
            self.steps[begin].limit = distance(begin, self.steps.len())?;
        }
        self.unreadable(limit, step);
        for skip in to_end {
            self.steps[skip].limit = distance(skip, self.steps.len())?;
        }
        Ok(())
    }

    /// Adds the steps for a text that cannot be read.
    fn unreadable(&mut self, limit: u16, step: impl Fn(u8) -> Step) {
        self.steps.push(Step {
            a: 0,
            ..step(op::LENGTH)
        });
        self.steps.push(Step {
            limit,
            ..step(op::BYTES)
        });
    }

    /// Adds the steps that fetch the length of a text, a number less what it counts beyond the text.
    fn length(
        &mut self,
        field: &Field,
        (length, less): (&Field, u64),
        index: usize,
        step: impl Fn(u8) -> Step + Copy,
    ) -> Result<(), FetchError> {
        let (width, swapped) = match length.content {
            _ if length.source.is_text() || length.length.is_some() => {
                return Err(FetchError::NoLength(index));
            }
            Content::Number(width) => (width, false),
            Content::Network { bytes } => (Width::unsigned(bytes), true),
            Content::Numbers { .. }
            | Content::Text
            | Content::Texts { .. }
            | Content::Callers { .. } => return Err(FetchError::NoLength(index)),
        };
        if !field.is_text() || field.source.is_text() {
            return Err(FetchError::NoLength(index));
        }
        self.source(&length.source, step);
        if let Some((last, pointers)) = length.pointers.split_last() {
            self.pointers(pointers, step);
            self.steps.push(Step {
                a: width.bytes,
                value: *last as u64,
                ..step(op::LOAD)
            });
        }
        self.steps.push(Step {
            field: step(op::LENGTH).field,
            bit: u8::from(swapped),
            value: less,
            ..Step::made(op::LENGTH, 0, width)
        });
        Ok(())
    }

    /// Adds the steps that follow pointers.
    fn pointers(&mut self, pointers: &[i64], step: impl Fn(u8) -> Step) {
        for pointer in pointers {
            self.steps.push(Step {
                value: *pointer as u64,
                ..step(op::POINTER)
            });
        }
    }

    /// Adds the steps that fetch the start of a field, or all of it.
    fn source(&mut self, source: &Source, step: impl Fn(u8) -> Step) {
        match source {
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
            Source::Interval => self.steps.push(step(op::INTERVAL)),
            Source::Started { word } => self.steps.push(Step {
                count: *word,
                ..step(op::STARTED)
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
    }

    /// Adds the steps from the source to the content.
    fn content(
        &mut self,
        field: &Field,
        index: usize,
        limit: u16,
        step: impl Fn(u8) -> Step,
    ) -> Result<(), FetchError> {
        if let Content::Callers { most, site, on_top } = field.content {
            self.steps.push(Step {
                a: u8::from(on_top),
                count: most,
                value: site,
                ..step(op::CHAIN)
            });
            return Ok(());
        }
        let swap = |bytes| Step {
            a: bytes,
            ..step(op::SWAP)
        };
        let Some((last, pointers)) = field.pointers.split_last() else {
            self.steps.push(step(op::KEEP));
            match field.content {
                Content::Number(_) => {}
                Content::Network { bytes } => self.steps.push(swap(bytes)),
                Content::Numbers { .. }
                | Content::Text
                | Content::Texts { .. }
                | Content::Callers { .. } => return Err(FetchError::NotInMemory(index)),
            }
            return Ok(());
        };
        self.pointers(pointers, &step);
        let last = *last as u64;
        self.steps.push(match field.content {
            Content::Number(width) => Step {
                a: width.bytes,
                count: 1,
                value: last,
                ..step(op::READ)
            },
            Content::Network { bytes } => Step {
                a: bytes,
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
                ..step(match field.length {
                    Some(_) => op::BYTES,
                    None => op::STRING,
                })
            },
            Content::Texts { count } => Step {
                count,
                limit,
                value: last,
                ..step(op::STRINGS)
            },
            Content::Callers { .. } => return Err(FetchError::NotInMemory(index)),
        });
        if let Content::Network { bytes } = field.content {
            self.steps.push(swap(bytes));
        }
        Ok(())
    }

    /// Adds a step that starts or ends an interval.
    pub(super) fn interval(&mut self, op: u8, intervals: &Intervals) {
        // The resident reads its description where it is.
        self.texts.resize(self.texts.len().next_multiple_of(8), 0);
        let at = self.texts.len();
        self.texts.resize(at + interval::SIZE, 0);
        let mut put = |to: usize, value: &[u8]| {
            self.texts[at + to..at + to + value.len()].copy_from_slice(value);
        };
        put(interval::STATES, &intervals.states.to_le_bytes());
        for (to, word) in [
            (interval::MASK, intervals.slots - 1),
            (interval::SHIFT, intervals.shift()),
            (interval::KEYS, intervals.keys),
            (interval::WORDS, intervals.words()),
            (interval::FIRST_COUNTER, intervals.first_counter),
        ] {
            put(to, &word.to_le_bytes());
        }
        self.to_place.push(self.steps.len());
        self.steps.push(Step {
            value: at as u64,
            ..Step::new(op)
        });
    }

    /// Rejects the event unless the condition holds.
    pub(super) fn conclude(&mut self, tree: &Tree<Bit>) {
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

    pub(super) fn finish(mut self, flags: u32) -> Result<Program, FetchError> {
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
