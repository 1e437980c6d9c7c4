//! Follows parameters from the places where the caller passes them to the places where the
//! function keeps them.
//!
//! Debug information describes a parameter kept in the frame as if it were there from the
//! first instruction, but the function's first instructions put it there (in all functions at
//! `-O0`, and for parameters whose address is taken). perf and gdb leave it to the user to
//! probe after those instructions. That would make a probe at the entry, the usual place,
//! useless.
//!
//! So this module executes these instructions symbolically, with register names for values:
//! the value that they store into the later place of the parameter is the parameter. This
//! needs no calling convention, which depends on more than the debug information shows (C++
//! classes passed by the address of a copy, results for which the caller provides memory,
//! empty classes, other languages). If the instructions cannot be followed to the end, the
//! variable is refused.

use std::collections::BTreeMap;

use capriole_event::Gpr;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory};

use crate::place::{Start, Sum};

mod arrival;
mod execute;

/// Size of a vector register in bytes.
const VECTOR: usize = 64;
/// Maximum number of instructions followed.
const MOST: usize = 1024;
/// Maximum number of pending branches.
const BRANCHES: usize = 32;

/// A value that existed when the function was entered, or that is derived from such values.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    /// Relative to a general register or to memory at the entry.
    Number(Sum),
    /// An address at this distance from the stack pointer after the stack pointer was rounded
    /// down.
    Rounded(i64),
    Vector(u8),
    /// The lowest bit of a general register.
    Bit(Gpr),
}

/// Origin of a byte, if known: index of the source, and byte within it.
type Byte = Option<(u16, u8)>;

/// A byte of the stack, by its distance from the stack pointer: at the entry, or after the
/// stack pointer was rounded down (frames aligned to more than 16 bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    Entry(i64),
    Rounded(i64),
}

impl At {
    fn add(self, bytes: i64) -> At {
        match self {
            At::Entry(at) => At::Entry(at.wrapping_add(bytes)),
            At::Rounded(at) => At::Rounded(at.wrapping_add(bytes)),
        }
    }
}

#[derive(Clone)]
struct State {
    general: [[Byte; 8]; 16],
    vectors: Vec<[Byte; VECTOR]>,
    /// Stack bytes that were written, and true if a push wrote them: a push saves a register or
    /// makes room, but does not store a parameter in its place.
    stack: BTreeMap<At, (Byte, bool)>,
}

impl State {
    /// Keeps only the bytes that are equal in both states.
    fn merge(&mut self, other: &State) {
        let keep = |own: &mut Byte, other: &Byte| {
            if own != other {
                *own = None;
            }
        };
        let own = self.general.iter_mut().flatten();
        let own = own.chain(self.vectors.iter_mut().flatten());
        let others = other.general.iter().flatten();
        let others = others.chain(other.vectors.iter().flatten());
        own.zip(others).for_each(|(own, other)| keep(own, other));
        for (at, own) in &mut self.stack {
            if other.stack.get(at) != Some(own) {
                *own = (None, own.1);
            }
        }
    }
}

/// Symbolic execution of a function's first instructions.
pub struct Prologue<'b> {
    decoder: Decoder<'b>,
    code: &'b [u8],
    start: u64,
    /// The first statement.
    body: u64,
    sources: Vec<Source>,
    state: State,
    /// States at the targets of forward branches.
    waiting: Vec<(u64, State)>,
    /// True if the stack pointer was rounded down.
    rounded: bool,
    left: usize,
    info: InstructionInfoFactory,
}

impl<'b> Prologue<'b> {
    /// Starts before the first instruction of `code`, which is at address `start`.
    #[must_use]
    pub fn new(code: &'b [u8], start: u64, body: u64) -> Prologue<'b> {
        let mut prologue = Prologue {
            decoder: Decoder::with_ip(64, code, start, DecoderOptions::NONE),
            code,
            start,
            body,
            sources: Vec::new(),
            state: State {
                general: [[None; 8]; 16],
                vectors: vec![[None; VECTOR]; 16],
                stack: BTreeMap::new(),
            },
            waiting: Vec::new(),
            rounded: false,
            left: MOST,
            info: InstructionInfoFactory::new(),
        };
        for (number, register) in Gpr::ALL.into_iter().enumerate() {
            let source = Source::Number(Sum::of(Start::Register(register)));
            prologue.state.general[number] = prologue.whole(source);
        }
        for number in 0..16u8 {
            let source = prologue.intern(Source::Vector(number));
            let register = &mut prologue.state.vectors[usize::from(number)];
            for (at, byte) in register.iter_mut().enumerate() {
                *byte = Some((source, at as u8));
            }
        }
        prologue
    }

    /// Advances to the instruction at `until`; false if control may reach it on a path that cannot
    /// be followed.
    pub fn follow(&mut self, until: u64) -> bool {
        while self.decoder.ip() < until {
            if self.left == 0 || !self.decoder.can_decode() || !self.one() {
                return false;
            }
            self.left -= 1;
        }
        self.arrive();
        self.decoder.ip() == until
    }

    /// Follows one more instruction of straight-line code; false if control may branch there.
    fn straight(&mut self) -> bool {
        if self.left == 0 || !self.decoder.can_decode() || !self.waiting.is_empty() {
            return false;
        }
        self.left -= 1;
        let instruction = self.decoder.decode();
        self.plain(&instruction)
    }

    /// Follows an instruction that continues to the next one; false if it may not.
    fn plain(&mut self, instruction: &Instruction) -> bool {
        match instruction.flow_control() {
            _ if instruction.is_invalid() => return false,
            FlowControl::Next => self.execute(instruction),
            FlowControl::Call | FlowControl::IndirectCall => self.call(instruction),
            _ => return false,
        }
        true
    }

    /// Merges the states of branches to this instruction.
    fn arrive(&mut self) {
        let ip = self.decoder.ip();
        for (_, state) in self.waiting.extract_if(.., |waiting| waiting.0 == ip) {
            self.state.merge(&state);
        }
    }

    /// Follows one instruction; false if that cannot be done.
    fn one(&mut self) -> bool {
        self.arrive();
        let instruction = self.decoder.decode();
        match instruction.flow_control() {
            FlowControl::ConditionalBranch => self.branch(&instruction),
            _ => self.plain(&instruction),
        }
    }

    /// Forgets the result registers of a call. A compiler does not store a parameter from a
    /// register after a call that changes the register, but it may store the call's result. Calls
    /// before the first statement are the exception: they have no result (`mcount`,
    /// `__fentry__`), or an address in rax.
    fn call(&mut self, instruction: &Instruction) {
        self.state.general[Gpr::Rax as usize] = [None; 8];
        if instruction.ip() >= self.body {
            self.state.general[Gpr::Rdx as usize] = [None; 8];
            for vector in &mut self.state.vectors[..2] {
                *vector = [None; VECTOR];
            }
        }
    }

    fn branch(&mut self, instruction: &Instruction) -> bool {
        let target = instruction.near_branch_target();
        if target > instruction.ip() {
            self.waiting.push((target, self.state.clone()));
            return self.waiting.len() <= BRANCHES;
        }
        // A loop, such as one that touches each page of a large frame: forget everything that it
        // changes.
        let Some(distance) = target.checked_sub(self.start) else {
            return false;
        };
        let from = usize::try_from(distance).unwrap_or(usize::MAX);
        let Some(code) = self.code.get(from..) else {
            return false;
        };
        let mut decoder = Decoder::with_ip(64, code, target, DecoderOptions::NONE);
        while decoder.can_decode() && decoder.ip() < instruction.ip() {
            let inner = decoder.decode();
            if inner.flow_control() != FlowControl::Next {
                return false;
            }
            self.forget(&inner);
        }
        decoder.ip() == instruction.ip()
    }

    fn intern(&mut self, source: Source) -> u16 {
        let known = self.sources.iter().position(|known| *known == source);
        // Each instruction adds at most a few sources, so the index fits into 16 bits.
        known.unwrap_or_else(|| {
            self.sources.push(source);
            self.sources.len() - 1
        }) as u16
    }

    fn whole(&mut self, source: Source) -> [Byte; 8] {
        let source = self.intern(source);
        std::array::from_fn(|at| Some((source, at as u8)))
    }

    fn set(&mut self, number: usize, source: Option<Source>) {
        self.state.general[number] = match source {
            Some(source) => self.whole(source),
            None => [None; 8],
        };
    }

    fn register_source(&self, number: usize) -> Option<Source> {
        self.source(&self.state.general[number])
    }

    /// Returns the source if the bytes are exactly that source, from its first byte on.
    fn source(&self, bytes: &[Byte]) -> Option<Source> {
        let (source, _) = bytes.first().copied().flatten()?;
        let is_whole = (0u8..)
            .zip(bytes)
            .all(|(at, &byte)| byte == Some((source, at)));
        is_whole.then(|| self.sources[usize::from(source)].clone())
    }
}

fn add(source: Source, offset: i64) -> Option<Source> {
    match source {
        Source::Number(sum) => Some(Source::Number(sum.shift(offset))),
        Source::Rounded(at) => Some(Source::Rounded(at.wrapping_add(offset))),
        _ if offset == 0 => Some(source),
        _ => None,
    }
}

/// Returns the stack byte at an address.
fn at(address: &Source) -> Option<At> {
    match address {
        Source::Number(Sum {
            start: Start::Register(Gpr::Rsp),
            reads,
            plus,
        }) if reads.is_empty() => Some(At::Entry(*plus)),
        Source::Rounded(at) => Some(At::Rounded(*at)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;

    const START: u64 = 0x1000;

    /// Returns the place at the entry of an object of four bytes that is at `offset` from rbp once
    /// the instructions before `body` have run.
    fn arrival(code: &[u8], body: u64, offset: i64) -> Option<Place> {
        let mut prologue = Prologue::new(code, START, START + body);
        assert!(prologue.follow(START + body));
        let place = Place::Memory(Sum::of(Start::Register(Gpr::Rbp)).shift(offset));
        prologue.arrival(&place, 4, false)
    }

    #[test]
    fn what_is_stored_in_the_frame_was_passed_in_a_register() {
        let code = [
            0x55, // push %rbp
            0x48, 0x89, 0xe5, // mov %rsp,%rbp
            0x89, 0x7d, 0xec, // mov %edi,-0x14(%rbp)
            0x89, 0x75, 0xe8, // mov %esi,-0x18(%rbp)
        ];
        for (offset, wanted) in [(-0x14, Gpr::Rdi), (-0x18, Gpr::Rsi)] {
            let place = arrival(&code, 4, offset);
            let is_wanted =
                matches!(place, Some(Place::Register { register, at: 0 }) if register == wanted);
            assert!(is_wanted, "{place:?}");
        }
    }

    #[test]
    fn what_the_caller_put_on_the_stack_is_there_already() {
        let code = [
            0x55, // push %rbp
            0x48, 0x89, 0xe5, // mov %rsp,%rbp
            0x5d, // pop %rbp
        ];
        let Some(Place::Memory(sum)) = arrival(&code, 4, 0x10) else {
            panic!("it is in memory");
        };
        assert_eq!(sum, Sum::of(Start::Register(Gpr::Rsp)).shift(8));
    }

    #[test]
    fn what_is_never_stored_has_no_place_at_the_entry() {
        let code = [
            0x55, // push %rbp
            0x48, 0x89, 0xe5, // mov %rsp,%rbp
            0x5d, // pop %rbp
            0xc3, // ret
        ];
        assert!(arrival(&code, 4, -0x14).is_none());
    }

    #[test]
    fn a_register_is_unknown_after_it_was_written() {
        let code = [
            0x55, // push %rbp
            0x48, 0x89, 0xe5, // mov %rsp,%rbp
            0x31, 0xff, // xor %edi,%edi
            0x89, 0x7d, 0xec, // mov %edi,-0x14(%rbp)
        ];
        let place = arrival(&code, 4, -0x14);
        assert!(place.is_none(), "{place:?}");
    }
}
