//! How parameters get from where the caller put them to where the function keeps them.
//!
//! A function that keeps a parameter in its frame is described as if it were there from the
//! first instruction, but its first instructions put it there (all functions at `-O0`, and
//! parameters whose address is taken). What perf and gdb leave to the user, to probe behind
//! those, would make a probe at the entry, the usual place, useless.
//!
//! So these instructions are followed here, with the names of registers for their numbers:
//! what they store into the place that holds the parameter later on is the parameter. That
//! needs no calling convention, which depends on more than debug information tells (C++
//! classes that are passed by the address of a copy, results that the caller makes room for,
//! empty classes, other languages). What is not followed to its end is refused.

use std::collections::BTreeMap;
use std::rc::Rc;

use capriole_event::Gpr;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};

use super::place::{Place, Start, Sum};

/// Registers in which something is passed to a function: six parameters, and what a nested
/// function of GCC needs to know of the one around it.
pub(super) const ARGUMENTS: [Gpr; 7] = [
    Gpr::Rdi,
    Gpr::Rsi,
    Gpr::Rdx,
    Gpr::Rcx,
    Gpr::R8,
    Gpr::R9,
    Gpr::R10,
];
const GENERAL: [Gpr; 16] = [
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
/// Bytes of a vector register.
const VECTOR: usize = 64;
/// Instructions that are followed.
const MOST: usize = 1024;
/// Branches that are waited for.
const BRANCHES: usize = 32;
/// Bytes of an object that are looked at: more is not stored by first instructions.
const OBJECT: u64 = 256;

/// A value that was there when the function was entered, or that follows from such ones.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    /// Counted from a general register or from memory at the entry.
    Number(Sum),
    /// An address so far from the stack pointer after it was rounded down.
    Rounded(i64),
    Vector(u8),
    /// The lowest bit of a general register.
    Bit(Gpr),
}

/// Which byte of which source a byte is, if it is known.
type Byte = Option<(u16, u8)>;

/// A byte of the stack: so far from the stack pointer at the entry, or after it was rounded
/// down (frames that are aligned to more than 16 bytes).
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
    /// Bytes of the stack that were written to, and whether they were pushed: so registers
    /// are saved and room is made, but no parameter gets its place.
    stack: BTreeMap<At, (Byte, bool)>,
}

impl State {
    /// Keeps what is the same in both.
    fn merge(&mut self, other: &State) {
        let keep = |own: &mut Byte, other: &Byte| {
            if own != other {
                *own = None;
            }
        };
        let general = self.general.iter_mut().flatten();
        general
            .zip(other.general.iter().flatten())
            .for_each(|(own, other)| keep(own, other));
        let vectors = self.vectors.iter_mut().flatten();
        vectors
            .zip(other.vectors.iter().flatten())
            .for_each(|(own, other)| keep(own, other));
        for (at, own) in &mut self.stack {
            if other.stack.get(at) != Some(own) {
                *own = (None, own.1);
            }
        }
    }
}

/// A function's first instructions, followed as far as they go.
pub(super) struct Prologue<'b> {
    decoder: Decoder<'b>,
    code: &'b [u8],
    start: u64,
    /// The first statement.
    body: u64,
    sources: Vec<Source>,
    state: State,
    /// States at the targets of branches further on.
    waiting: Vec<(u64, State)>,
    /// The stack pointer was rounded down.
    rounded: bool,
    left: usize,
    info: InstructionInfoFactory,
}

impl<'b> Prologue<'b> {
    /// Before the first instruction of `code`, which is at `start`.
    pub(super) fn new(code: &'b [u8], start: u64, body: u64) -> Prologue<'b> {
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
        for (number, register) in GENERAL.into_iter().enumerate() {
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

    /// Goes on to the instruction at `until`; false if control may get there in a way that is
    /// not followed.
    pub(super) fn follow(&mut self, until: u64) -> bool {
        while self.decoder.ip() < until {
            if self.left == 0 || !self.decoder.can_decode() || !self.one() {
                return false;
            }
            self.left -= 1;
        }
        self.arrive();
        self.decoder.ip() == until
    }

    /// Follows one more instruction, if control cannot leave the straight line there.
    fn straight(&mut self) -> bool {
        if self.left == 0 || !self.decoder.can_decode() || !self.waiting.is_empty() {
            return false;
        }
        self.left -= 1;
        let instruction = self.decoder.decode();
        match instruction.flow_control() {
            _ if instruction.is_invalid() => return false,
            FlowControl::Next => self.execute(&instruction),
            FlowControl::Call | FlowControl::IndirectCall => self.call(&instruction),
            _ => return false,
        }
        true
    }

    /// Takes in the states that branches to here have.
    fn arrive(&mut self) {
        let ip = self.decoder.ip();
        let (here, other) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| waiting.0 == ip);
        self.waiting = other;
        let here: Vec<(u64, State)> = here;
        for (_, state) in &here {
            self.state.merge(state);
        }
    }

    /// Follows one instruction; false if that cannot be done.
    fn one(&mut self) -> bool {
        self.arrive();
        let instruction = self.decoder.decode();
        if instruction.is_invalid() {
            return false;
        }
        match instruction.flow_control() {
            FlowControl::Next => self.execute(&instruction),
            FlowControl::ConditionalBranch => return self.branch(&instruction),
            FlowControl::Call | FlowControl::IndirectCall => self.call(&instruction),
            _ => return false,
        }
        true
    }

    /// A compiler does not store what it was passed in a register behind a call that changes
    /// it, but it may store a result. Only calls before the first statement have none
    /// (`mcount`, `__fentry__`), or an address in rax.
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
        // A loop (that touches each page of a large frame): what it changes is not known.
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

    fn execute(&mut self, i: &Instruction) {
        use Mnemonic as M;
        let two = i.op_count() == 2 && !i.has_op_mask();
        match i.mnemonic() {
            M::Mov
            | M::Movzx
            | M::Movsx
            | M::Movsxd
            | M::Movd
            | M::Movq
            | M::Movss
            | M::Movsd
            | M::Movlps
            | M::Movlpd
            | M::Movaps
            | M::Movups
            | M::Movapd
            | M::Movupd
            | M::Movdqa
            | M::Movdqu
            | M::Vmovd
            | M::Vmovq
            | M::Vmovss
            | M::Vmovsd
            | M::Vmovlps
            | M::Vmovlpd
            | M::Vmovaps
            | M::Vmovups
            | M::Vmovapd
            | M::Vmovupd
            | M::Vmovdqa
            | M::Vmovdqu
            | M::Vmovdqa32
            | M::Vmovdqa64
            | M::Vmovdqu8
            | M::Vmovdqu16
            | M::Vmovdqu32
            | M::Vmovdqu64
                if two =>
            {
                self.copy(i, 0);
            }
            M::Movhps | M::Movhpd | M::Vmovhps | M::Vmovhpd
                if two && i.op0_kind() == OpKind::Memory =>
            {
                self.copy(i, 8);
            }
            M::Push => self.push(i),
            M::Pop if general(i.op0_register()).is_some_and(|g| g.1 == 8) => {
                let top = self.register_source(Gpr::Rsp as usize);
                let value = top.as_ref().map_or([None; 8], |at| {
                    let mut bytes = [None; 8];
                    bytes.copy_from_slice(&self.load(at, 8));
                    bytes
                });
                let raised = top.and_then(|at| add(at, 8));
                self.set(Gpr::Rsp as usize, raised);
                if let Some((number, _)) = general(i.op0_register()) {
                    self.state.general[number] = value;
                }
            }
            M::Lea if general(i.op0_register()).is_some_and(|g| g.1 == 8) => {
                let address = self.address(i);
                if let Some((number, _)) = general(i.op0_register()) {
                    self.set(number, address);
                }
            }
            M::Add | M::Sub | M::And | M::Shr | M::Sar if i.op0_kind() == OpKind::Register => {
                self.calculate(i);
            }
            _ => self.forget(i),
        }
    }

    /// Arithmetic with a constant.
    fn calculate(&mut self, i: &Instruction) {
        use Mnemonic as M;
        let (Some((number, size)), Some(value)) = (general(i.op0_register()), immediate(i)) else {
            return self.forget(i);
        };
        let before = self.state.general[number];
        let source = self.register_source(number);
        self.forget(i);
        match (i.mnemonic(), size) {
            (M::Add, 8) => self.set(number, source.and_then(|s| add(s, value))),
            (M::Sub, 8) => self.set(number, source.and_then(|s| add(s, value.wrapping_neg()))),
            // The stack pointer is aligned, once.
            (M::And, 8) if value < 0 && !self.rounded && source.as_ref().is_some_and(is_entry) => {
                self.rounded = true;
                self.set(number, Some(Source::Rounded(0)));
            }
            // A truth value, as clang stores it.
            (M::And, 1) if value == 1 => {
                if let Some((source, 0)) = before[0]
                    && let Source::Number(sum) = &self.sources[usize::from(source)]
                    && let Some(register) = argument(sum)
                {
                    let bit = self.intern(Source::Bit(register));
                    self.state.general[number][0] = Some((bit, 0));
                }
            }
            // The rest of a struct of odd size.
            (M::Shr | M::Sar, 4 | 8) if value > 0 && value % 8 == 0 => {
                let by = (value / 8) as usize;
                for at in by..size {
                    self.state.general[number][at - by] = before[at];
                }
            }
            _ => {}
        }
    }

    fn push(&mut self, i: &Instruction) {
        let value = match (i.op0_kind(), general(i.op0_register())) {
            (OpKind::Register, Some((number, 8))) => self.state.general[number].to_vec(),
            (OpKind::Memory, _) => match self.address(i) {
                Some(address) => self.load(&address, 8),
                None => vec![None; 8],
            },
            _ => vec![None; 8],
        };
        let top = self.register_source(Gpr::Rsp as usize);
        let lowered = top.and_then(|at| add(at, -8));
        if let Some(at) = lowered.as_ref().and_then(at) {
            self.store(at, &value, true);
        }
        self.set(Gpr::Rsp as usize, lowered);
    }

    /// A plain copy from one operand to the other; of a vector register from byte `skip` on.
    fn copy(&mut self, i: &Instruction, skip: usize) {
        let to_memory = i.op0_kind() == OpKind::Memory;
        let from_memory = i.op1_kind() == OpKind::Memory;
        let size = match (to_memory || from_memory, i.mnemonic()) {
            (true, _) => i.memory_size().size(),
            (false, Mnemonic::Movss | Mnemonic::Movd | Mnemonic::Vmovd) => 4,
            (false, Mnemonic::Movsd | Mnemonic::Movq | Mnemonic::Vmovq) => 8,
            (false, _) => match general(i.op1_register()) {
                Some((_, size)) => size,
                None => i.op1_register().size(),
            },
        };
        let value = match i.op1_kind() {
            OpKind::Memory => match self.address(i) {
                Some(address) => self.load(&address, size),
                None => vec![None; size],
            },
            OpKind::Register => match (general(i.op1_register()), vector(i.op1_register())) {
                (Some((number, _)), _) => self.state.general[number].to_vec(),
                (_, Some(number)) => self.state.vectors[number][skip..].to_vec(),
                _ => vec![None; size],
            },
            _ => vec![None; size],
        };
        let mut value = value;
        value.resize(size, None);
        if to_memory {
            match self.address(i).as_ref().and_then(at) {
                Some(at) => self.store(at, &value, false),
                None => self.forget(i),
            }
        } else if let Some((number, own)) = general(i.op0_register()) {
            let register = &mut self.state.general[number];
            // Of 1 or 2 bytes the others are kept.
            if own >= 4 {
                *register = [None; 8];
            }
            for (byte, &new) in register
                .iter_mut()
                .take(own)
                .zip(value.iter().chain(std::iter::repeat(&None)))
            {
                *byte = new;
            }
        } else if let Some(number) = vector(i.op0_register()) {
            let register = &mut self.state.vectors[number];
            *register = [None; VECTOR];
            for (byte, new) in register.iter_mut().zip(value) {
                *byte = new;
            }
        } else {
            self.forget(i);
        }
    }

    /// What an instruction writes to is not known any more.
    fn forget(&mut self, i: &Instruction) {
        let mut memory = Vec::new();
        let info = self.info.info(i);
        for used in info.used_memory().iter().filter(|m| writes(m.access())) {
            if used.index() == Register::None {
                let size = used.memory_size().size().max(1);
                memory.push((used.base(), used.displacement() as i64, size));
            }
        }
        for used in info.used_registers().iter().filter(|r| writes(r.access())) {
            if let Some((number, _)) = general(used.register().full_register()) {
                self.state.general[number] = [None; 8];
            } else if let Some(number) = vector(used.register()) {
                self.state.vectors[number] = [None; VECTOR];
            }
        }
        for (base, displacement, size) in memory {
            let base = general(base).and_then(|(number, _)| self.register_source(number));
            let address = base.and_then(|base| add(base, displacement));
            if let Some(at) = address.as_ref().and_then(at) {
                self.store(at, &vec![None; size], false);
            }
        }
    }

    /// The address of an instruction's memory operand.
    fn address(&self, i: &Instruction) -> Option<Source> {
        let plain = i.memory_index() == Register::None && i.segment_prefix() == Register::None;
        let (number, size) = general(i.memory_base())?;
        if !plain || size != 8 {
            return None;
        }
        add(
            self.register_source(number)?,
            i.memory_displacement64() as i64,
        )
    }

    /// Bytes of the stack.
    fn load(&mut self, address: &Source, size: usize) -> Vec<Byte> {
        let Some(start) = at(address) else {
            return vec![None; size];
        };
        // What the caller put there, if nothing was written over it.
        let caller = match address {
            Source::Number(sum) if matches!(start, At::Entry(8..)) => sum.clone().read(),
            _ => None,
        };
        let caller = caller.map(|sum| self.intern(Source::Number(sum)));
        (0..size)
            .map(
                |index| match self.state.stack.get(&start.add(index as i64)) {
                    Some((byte, _)) => *byte,
                    None => caller.and_then(|source| Some((source, u8::try_from(index).ok()?))),
                },
            )
            .collect()
    }

    /// Behind the first statement only what no parameter was stored to yet: what follows is
    /// the program's own.
    fn store(&mut self, at: At, value: &[Byte], pushed: bool) {
        let late = self.decoder.ip() > self.body;
        for (index, byte) in value.iter().enumerate() {
            let at = at.add(index as i64);
            let taken = self.state.stack.get(&at).is_some_and(|known| !known.1);
            if !(late && taken) {
                self.state.stack.insert(at, (*byte, pushed));
            }
        }
    }

    fn intern(&mut self, source: Source) -> u16 {
        let known = self.sources.iter().position(|known| *known == source);
        // Each instruction adds a few at most.
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

    /// The source that eight bytes are as a whole.
    fn source(&self, bytes: &[Byte]) -> Option<Source> {
        let (source, _) = bytes.first().copied().flatten()?;
        let is_whole = (0u8..)
            .zip(bytes)
            .all(|(at, &byte)| byte == Some((source, at)));
        is_whole.then(|| self.sources[usize::from(source)].clone())
    }

    /// What a number that is calculated here is in terms of the entry.
    fn at_entry(&mut self, sum: &Sum) -> Option<Source> {
        let mut source = match sum.start {
            Start::Register(register) => self.register_source(register as usize)?,
            Start::Link(_) | Start::Constant(_) => Source::Number(Sum::of(sum.start)),
        };
        for &offset in &sum.reads {
            let address = add(source, offset)?;
            source = match (&address, at(&address)) {
                (_, Some(_)) => {
                    let bytes = self.load(&address, 8);
                    self.source(&bytes)?
                }
                (Source::Number(sum), None) => Source::Number(sum.clone().read()?),
                _ => return None,
            };
        }
        add(source, sum.plus)
    }

    /// Where the object of `size` bytes that is at `place` here is at the entry. `truth` if it
    /// is a truth value.
    pub(super) fn arrival(&mut self, place: &Place, size: u64, truth: bool) -> Option<Place> {
        let size = usize::try_from(size.min(OBJECT)).ok()?;
        match place {
            Place::Memory(sum) => {
                let address = self.at_entry(sum)?;
                let Some(start) = at(&address) else {
                    return match address {
                        Source::Number(sum) => Some(Place::Memory(sum)),
                        _ => None,
                    };
                };
                let places = |size: usize| (0..size).map(move |index| start.add(index as i64));
                let stored = |state: &State| {
                    places(size).any(|at| state.stack.get(&at).is_some_and(|known| !known.1))
                };
                if !stored(&self.state) {
                    if let (At::Entry(8..), Source::Number(sum)) = (start, address) {
                        return Some(Place::Memory(sum));
                    }
                    while !stored(&self.state) && self.straight() {}
                    if !stored(&self.state) {
                        return None;
                    }
                }
                let bytes: Vec<Byte> = places(size)
                    .map(|at| self.state.stack.get(&at).and_then(|known| known.0))
                    .collect();
                self.of_bytes(&bytes, truth)
            }
            Place::Register { register, at } => {
                let from = usize::try_from(*at).ok()?;
                let bytes = self.state.general[*register as usize];
                self.of_bytes(bytes.get(from..from.checked_add(size)?)?, truth)
            }
            Place::Vector(Some(number)) => {
                let bytes = self.state.vectors.get(usize::from(*number))?;
                self.of_bytes(bytes.get(..size)?, truth)
            }
            Place::Value { value, at } => match self.at_entry(value)? {
                Source::Number(value) => Some(Place::Value { value, at: *at }),
                _ => None,
            },
            Place::Pieces { pieces, at } => {
                let mut found = Vec::new();
                for (size, place) in pieces.iter() {
                    let place = self.arrival(place, *size, truth);
                    found.push((*size, place.unwrap_or(Place::Missing)));
                }
                Some(Place::Pieces {
                    pieces: Rc::from(found),
                    at: *at,
                })
            }
            Place::Vector(None) | Place::Missing => None,
        }
    }

    /// The next instruction that stores to the object at `sum` here is before this address,
    /// if nothing was stored to it yet.
    pub(super) fn next_store(&mut self, sum: &Sum) -> Option<u64> {
        let at = match at(&self.at_entry(sum)?)? {
            At::Entry(0..) => return None,
            at => at,
        };
        let stored = |state: &State| state.stack.get(&at).is_some_and(|known| !known.1);
        if stored(&self.state) {
            return None;
        }
        while self.straight() {
            if stored(&self.state) {
                return Some(self.decoder.ip());
            }
        }
        None
    }

    /// Where an object is of which these are the bytes; `None` if that is not known of any.
    fn of_bytes(&self, bytes: &[Byte], truth: bool) -> Option<Place> {
        let mut pieces: Vec<(u64, Place)> = Vec::new();
        let mut before: Byte = None;
        for (index, &byte) in bytes.iter().enumerate() {
            let goes_on = match (before, byte) {
                (Some((source, at)), Some((next, after))) => source == next && at + 1 == after,
                (None, None) => index > 0,
                _ => false,
            };
            before = byte;
            match pieces.last_mut() {
                Some(last) if goes_on => last.0 += 1,
                _ => pieces.push((1, self.of_byte(byte, truth))),
            }
        }
        if pieces.iter().all(|piece| matches!(piece.1, Place::Missing)) {
            return None;
        }
        match &pieces[..] {
            [(_, place)] => Some(place.clone()),
            _ => Some(Place::Pieces {
                pieces: Rc::from(pieces),
                at: 0,
            }),
        }
    }

    fn of_byte(&self, byte: Byte, truth: bool) -> Place {
        let Some((source, at)) = byte else {
            return Place::Missing;
        };
        match &self.sources[usize::from(source)] {
            Source::Number(sum) => match (argument(sum), sum.reads.split_last()) {
                (Some(register), _) => Place::Register {
                    register,
                    at: u64::from(at),
                },
                (None, Some((&plus, reads))) if sum.plus == 0 => Place::Memory(
                    Sum {
                        start: sum.start,
                        reads: reads.to_vec(),
                        plus,
                    }
                    .add(i64::from(at)),
                ),
                _ => Place::Missing,
            },
            Source::Vector(number) => Place::Vector((at == 0).then_some(*number)),
            Source::Bit(register) if truth => Place::Register {
                register: *register,
                at: 0,
            },
            Source::Bit(_) | Source::Rounded(_) => Place::Missing,
        }
    }
}

/// The instructions that store to the memory at `base` plus `offset`: link addresses of them
/// and of those behind them.
pub(super) fn stores(
    code: &[u8],
    start: u64,
    base: Gpr,
    offset: i64,
) -> impl Iterator<Item = (u64, u64)> {
    let mut info = InstructionInfoFactory::new();
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    std::iter::from_fn(move || decoder.can_decode().then(|| decoder.decode())).filter_map(
        move |i| {
            let is_there = i.op0_kind() == OpKind::Memory
                && general(i.memory_base()) == Some((base as usize, 8))
                && i.memory_index() == Register::None
                && i.memory_displacement64() as i64 == offset
                && writes(info.info(&i).op0_access());
            is_there.then(|| (i.ip(), i.next_ip()))
        },
    )
}

fn writes(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

/// Number and size of (a part of) a general register.
fn general(register: Register) -> Option<(usize, usize)> {
    use Register::{AH, BH, CH, DH};
    if !register.is_gpr() || matches!(register, AH | BH | CH | DH) {
        return None;
    }
    let number = register.full_register().number();
    (number < 16).then(|| (number, register.size()))
}

fn vector(register: Register) -> Option<usize> {
    let number = register.is_vector_register().then(|| register.number());
    number.filter(|&number| number < 16)
}

fn immediate(i: &Instruction) -> Option<i64> {
    i.try_immediate(1).ok().map(|value| value as i64)
}

fn add(source: Source, offset: i64) -> Option<Source> {
    match source {
        Source::Number(sum) => Some(Source::Number(sum.add(offset))),
        Source::Rounded(at) => Some(Source::Rounded(at.wrapping_add(offset))),
        _ if offset == 0 => Some(source),
        _ => None,
    }
}

/// The byte of the stack at an address.
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

fn is_entry(source: &Source) -> bool {
    matches!(at(source), Some(At::Entry(_)))
}

/// The register that a parameter was passed in.
fn argument(sum: &Sum) -> Option<Gpr> {
    match sum.start {
        Start::Register(register) if sum.reads.is_empty() && sum.plus == 0 => {
            ARGUMENTS.contains(&register).then_some(register)
        }
        _ => None,
    }
}
