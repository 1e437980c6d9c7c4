//! Converts DWARF expressions (DWARF 5, chapters 2.5 and 2.6) into places that a probe can
//! read.
//!
//! No expression is evaluated at run time, so the result is a sum of offsets with reads in
//! between, or a refusal. Jumps are refused, so each evaluation ends.

use std::rc::Rc;

use capriole_prologue::registers::{general, vector};
use capriole_prologue::{Place, Start, Sum, Window};
use gimli::{
    AttributeValue, DieReference, Expression, Operation, RawLocListEntry, constants as dw,
};

use super::die::Die;
use super::error::{DebugError, Refusal};
use super::types::{Shape, is_signed};
use super::units::{Bytes, Debug, DieKey};

/// Context in which an expression is evaluated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'n> {
    /// Link address of the site.
    pub address: u64,
    /// The function that contains the code; `None` for a global variable.
    pub function: Option<DieKey>,
    /// True if the site is the function's first instruction, apart from no-ops.
    pub at_entry: bool,
    /// The function's first statement; before it the frame is being set up.
    pub body: u64,
    /// The first instruction of the function or copy that the variable belongs to, if the site is that
    /// instruction or follows only no-ops after it.
    pub entry: Option<u64>,
    /// Name of the variable.
    pub name: &'n str,
    /// Name of the function that contains the code.
    pub entered: &'n str,
    /// True if the variable belongs to a copy inlined into that function.
    pub inlined: bool,
}

impl Context<'_> {
    /// Returns the context of the first statement.
    pub(super) fn at_body(self) -> Self {
        Context {
            address: self.body,
            at_entry: false,
            entry: None,
            ..self
        }
    }

    fn entry_value(&self) -> NoPlace {
        NoPlace::Refusal(Refusal::EntryValue {
            name: self.name.to_owned(),
            function: self.entered.to_owned(),
            inlined: self.inlined,
        })
    }
}

/// Reason why a variable has no place. The source lines for the message are looked up later.
pub(super) enum NoPlace {
    Refusal(Refusal),
    /// Not at this address, but in these ranges.
    Elsewhere(Vec<(u64, u64)>),
}

impl<E: Into<Refusal>> From<E> for NoPlace {
    fn from(error: E) -> NoPlace {
        NoPlace::Refusal(error.into())
    }
}

/// Maximum number of ranges of a location list that are kept for the message.
const RANGES: usize = 64;

impl<'a> Debug<'a> {
    /// Returns where a variable is, and true if that is a constant or comes from a location list.
    /// Optimising compilers write location lists; each entry is valid for a range of addresses.
    pub(super) fn locate(
        &self,
        die: &Die<'a>,
        context: Context<'_>,
    ) -> Result<(Place, bool), NoPlace> {
        let (place, listed) = self.stated(die, context)?;
        if die.language() != Some(dw::DW_LANG_Go) {
            return Ok((place, listed));
        }
        let place = self.without_lost(die, place, context)?;
        Ok((self.go_place(die, place, listed, context)?, listed))
    }

    /// Returns where a variable is as the debug information says.
    pub(super) fn stated(
        &self,
        die: &Die<'a>,
        context: Context<'_>,
    ) -> Result<(Place, bool), NoPlace> {
        let dies = self.with_origins(die);
        for die in &dies {
            if let Some(value) = die.attr(dw::DW_AT_location) {
                return self.attribute(die, value, context);
            }
            if let Some(value) = die.attr(dw::DW_AT_const_value) {
                // The value with which a static member begins.
                if die.flag(dw::DW_AT_declaration) && !self.is_constant(self.type_of(die)?)? {
                    break;
                }
                return Ok((constant(value, context.name)?, true));
            }
        }
        Err(NoPlace::Elsewhere(Vec::new()))
    }

    fn attribute(
        &self,
        die: &Die<'a>,
        value: AttributeValue<Bytes<'a>>,
        context: Context<'_>,
    ) -> Result<(Place, bool), NoPlace> {
        if let AttributeValue::Exprloc(expression) = value {
            return Ok((self.place(die, expression, context)?, false));
        }
        let (dwarf, unit) = (&die.unit.dwarf, &die.unit.unit);
        let list = dwarf
            .attr_locations(unit, value)
            .map_err(DebugError::from)?;
        let Some(mut list) = list else {
            return Err(unclear(context.name, "an unknown form"));
        };
        let mut entries = Vec::new();
        while let Some(raw) = list.next_raw().map_err(DebugError::from)? {
            self.spend(1)?;
            let (raw, is_empty) = kept_if_empty(raw);
            let entry = list.convert_raw(raw).map_err(DebugError::from)?;
            entries.extend(
                entry.map(|entry| (entry.range.begin, entry.range.end, is_empty, entry.data)),
            );
        }
        // Nothing has changed since the entry of the function or copy. GCC's range of no instructions
        // there has what the caller passed, of a variable that gets another value first (as in gdb).
        for address in context.entry.into_iter().chain([context.address]) {
            for (begin, end, is_empty, expression) in &entries {
                let is_entry = Some(address) == context.entry;
                if *begin <= address && address < *end && (is_entry || !is_empty) {
                    let place = self.place(die, *expression, context)?;
                    if !matches!(place, Place::Missing) {
                        return Ok((place, true));
                    }
                }
            }
        }
        let elsewhere = entries.iter().filter(|(begin, end, is_empty, expression)| {
            let is_here = *begin <= context.address && context.address < *end;
            !is_here && !is_empty && !expression.0.is_empty()
        });
        let ranges = elsewhere.map(|&(begin, end, ..)| (begin, end));
        Err(NoPlace::Elsewhere(ranges.take(RANGES).collect()))
    }

    fn place(
        &self,
        die: &Die<'a>,
        expression: Expression<Bytes<'a>>,
        context: Context<'_>,
    ) -> Result<Place, NoPlace> {
        let name = context.name;
        let mut machine = Machine {
            debug: self,
            die,
            context,
            stack: Vec::new(),
            vector: None,
        };
        let mut operations = expression.operations(die.unit.unit.encoding());
        let mut pieces: Vec<(u64, Place)> = Vec::new();
        let mut current: Option<Place> = None;
        while let Some(operation) = operations.next().map_err(DebugError::from)? {
            self.spend(1)?;
            match operation {
                Operation::Register { register } => {
                    current = Some(match general(register.0) {
                        Some(register) => Place::Register { register, at: 0 },
                        None => Place::Vector(vector(register.0)),
                    });
                }
                Operation::StackValue => {
                    current = Some(match machine.vector.take() {
                        Some(register) => Place::Vector(register),
                        None => {
                            let Number { value, bits, .. } = machine.shifted()?;
                            Place::Value { value, bits, at: 0 }
                        }
                    });
                }
                Operation::ImplicitValue { data } => {
                    current = Some(bytes(data.slice(), name)?);
                }
                Operation::ImplicitPointer { .. } => {
                    return Err(Refusal::ImplicitPointer(name.to_owned()).into());
                }
                Operation::Piece {
                    size_in_bits,
                    bit_offset,
                } => {
                    if size_in_bits % 8 != 0 || bit_offset.is_some_and(|offset| offset != 0) {
                        return Err(Refusal::Pieces(name.to_owned()).into());
                    }
                    let place = match current.take() {
                        Some(place) => place,
                        None => machine.memory()?,
                    };
                    pieces.push((size_in_bits / 8, place));
                }
                operation => machine.step(operation)?,
            }
        }
        if !pieces.is_empty() {
            return Ok(Place::Pieces {
                pieces: Rc::from(pieces),
                at: 0,
            });
        }
        match current {
            Some(place) => Ok(place),
            None => machine.memory(),
        }
    }

    /// Returns the canonical frame address at the site.
    fn frame_address(&self, context: Context<'_>) -> Result<Sum, NoPlace> {
        self.cfa(context.address)
            .ok_or_else(|| unclear(context.name, "the call frame information does not cover it"))
    }

    /// Returns the base of `DW_OP_fbreg`: the function's `DW_AT_frame_base`.
    fn frame_base(&self, context: Context<'_>) -> Result<Sum, NoPlace> {
        let missing = || unclear(context.name, "the function has no frame base");
        let function = self.die(context.function.ok_or_else(missing)?)?;
        let dies = self.with_origins(&function);
        let found = dies
            .iter()
            .find_map(|die| Some((die, die.attr(dw::DW_AT_frame_base)?)));
        let (die, value) = found.ok_or_else(missing)?;
        if let AttributeValue::Exprloc(expression) = &value {
            let mut operations = expression.operations(die.unit.unit.encoding());
            let first = operations.next().map_err(DebugError::from)?;
            let only = operations.next().map_err(DebugError::from)?.is_none();
            match first {
                Some(Operation::CallFrameCFA) if only => return self.frame_address(context),
                Some(Operation::Register { register }) if only => {
                    return self.register_base(register, context);
                }
                // Refuse a frame base that is relative to the frame base itself.
                Some(Operation::FrameOffset { .. }) => return Err(missing()),
                _ => {}
            }
        }
        let context = Context {
            function: None,
            ..context
        };
        match self.attribute(die, value, context) {
            // Here a register is not a location: its value is the frame base.
            Ok((Place::Register { register, .. }, _)) => Ok(Sum::of(Start::Register(register))),
            Ok((Place::Memory(sum), _)) => Ok(sum),
            Ok(_) => Err(missing()),
            Err(error) => Err(error),
        }
    }

    /// Returns a frame base that is in a register once the frame is set up. Before that, derives
    /// the later value of the register from the canonical frame address, which does not change.
    fn register_base(
        &self,
        register: gimli::Register,
        context: Context<'_>,
    ) -> Result<Sum, NoPlace> {
        let base = general(register.0).map(Start::Register);
        let set_up = |address| {
            self.cfa(address)
                .filter(|cfa| Some(cfa.start) == base && cfa.reads.is_empty())
        };
        let early = context.address < context.body;
        // The same applies after the instruction that restores the caller's register.
        if (early || set_up(context.address).is_none())
            && let Some(then) = set_up(context.body)
        {
            return Ok(self.frame_address(context)?.shift(then.plus.wrapping_neg()));
        }
        match general(register.0) {
            Some(register) => Ok(Sum::of(Start::Register(register))),
            None => Err(unclear(context.name, "the frame base is a vector register")),
        }
    }
}

/// Makes an entry of a location list for no instruction, which gimli would leave out, one for one byte,
/// and returns true for it.
fn kept_if_empty<'a>(raw: RawLocListEntry<Bytes<'a>>) -> (RawLocListEntry<Bytes<'a>>, bool) {
    use RawLocListEntry as Raw;
    match raw {
        Raw::AddressOrOffsetPair { begin, end, data } if begin == end => {
            let end = end.wrapping_add(1);
            (Raw::AddressOrOffsetPair { begin, end, data }, true)
        }
        Raw::OffsetPair { begin, end, data } if begin == end => {
            let end = end.wrapping_add(1);
            (Raw::OffsetPair { begin, end, data }, true)
        }
        Raw::StartEnd { begin, end, data } if begin == end => {
            let end = end.wrapping_add(1);
            (Raw::StartEnd { begin, end, data }, true)
        }
        Raw::StartLength {
            begin,
            length: 0,
            data,
        } => (
            Raw::StartLength {
                begin,
                length: 1,
                data,
            },
            true,
        ),
        Raw::StartxLength {
            begin,
            length: 0,
            data,
        } => (
            Raw::StartxLength {
                begin,
                length: 1,
                data,
            },
            true,
        ),
        Raw::StartxEndx { begin, end, data } if begin == end => (
            Raw::StartxLength {
                begin,
                length: 1,
                data,
            },
            true,
        ),
        raw => (raw, false),
    }
}

/// A number on the expression stack: the bits `bits` of `value`, multiplied by 2 to the power of
/// `left`.
struct Number {
    value: Sum,
    bits: Window,
    left: u32,
}

impl Number {
    fn of(value: Sum) -> Number {
        Number {
            value,
            bits: Window::WHOLE,
            left: 0,
        }
    }

    fn constant(&self) -> Option<u64> {
        let plain = self.bits.is_whole() && self.left == 0;
        self.value.constant().filter(|_| plain)
    }
}

struct Machine<'d, 'a, 'n> {
    debug: &'d Debug<'a>,
    die: &'d Die<'a>,
    context: Context<'n>,
    stack: Vec<Number>,
    /// A vector register that was pushed; it can only be used as the final value.
    vector: Option<Option<u8>>,
}

/// Maximum depth of the expression stack.
const STACK: usize = 64;

impl<'a> Machine<'_, 'a, '_> {
    fn number(&mut self) -> Result<Number, NoPlace> {
        let empty = DebugError::Damaged("an expression takes more than it has");
        self.stack.pop().ok_or_else(|| empty.into())
    }

    /// Pops a number that is not shifted to the left.
    fn shifted(&mut self) -> Result<Number, NoPlace> {
        let number = self.number()?;
        match number.left {
            0 => Ok(number),
            _ => Err(self.computed()),
        }
    }

    /// Pops a whole word.
    fn pop(&mut self) -> Result<Sum, NoPlace> {
        let number = self.shifted()?;
        match number.bits.is_whole() {
            true => Ok(number.value),
            false => Err(self.computed()),
        }
    }

    fn memory(&mut self) -> Result<Place, NoPlace> {
        match self.stack.is_empty() {
            true => Ok(Place::Missing),
            false => self.pop().map(Place::Memory),
        }
    }

    fn push(&mut self, number: Number) -> Result<(), NoPlace> {
        if self.stack.len() == STACK {
            return Err(self.computed());
        }
        self.stack.push(number);
        Ok(())
    }

    /// Combines two constants into one; other numbers can only be shifted and masked.
    fn combine(&mut self, operation: &Operation<Bytes<'a>>) -> Result<Number, NoPlace> {
        let (top, mut below) = (self.number()?, self.number()?);
        let constant = |value| Ok(Number::of(Sum::of(Start::Constant(value))));
        if let (Some(b), Some(a)) = (top.constant(), below.constant()) {
            let shift = u32::try_from(b).unwrap_or(u32::MAX);
            match operation {
                Operation::And => return constant(a & b),
                Operation::Or => return constant(a | b),
                Operation::Xor => return constant(a ^ b),
                Operation::Mul => return constant(a.wrapping_mul(b)),
                Operation::Shl => return constant(a.checked_shl(shift).unwrap_or(0)),
                Operation::Shr => return constant(a.checked_shr(shift).unwrap_or(0)),
                Operation::Shra => return constant((a as i64 >> shift.min(63)) as u64),
                _ => {}
            }
        }
        if let (Operation::And, Some(mask), None) = (operation, below.constant(), top.constant()) {
            return self.masked(top, mask);
        }
        let right = top.constant().ok_or_else(|| self.computed())?;
        let amount = u32::try_from(right).map_err(|_| self.computed());
        match operation {
            Operation::And => self.masked(below, right),
            Operation::Shl if below.left == 0 => {
                below.left = amount?;
                Ok(below)
            }
            Operation::Shr | Operation::Shra => {
                let arithmetic = matches!(operation, Operation::Shra);
                let bits = below.bits.shifted(below.left, amount?, arithmetic);
                Ok(Number {
                    bits: bits.ok_or_else(|| self.computed())?,
                    left: 0,
                    value: below.value,
                })
            }
            _ => Err(self.computed()),
        }
    }

    fn masked(&self, number: Number, mask: u64) -> Result<Number, NoPlace> {
        let ones = mask.trailing_ones();
        let low = ones + mask.leading_zeros() == 64 && number.left == 0;
        let bits = number.bits.low(ones).filter(|_| low);
        Ok(Number {
            bits: bits.ok_or_else(|| self.computed())?,
            ..number
        })
    }

    /// Converts a number to a base type. Offset 0 means no base type: the type of addresses.
    fn converted(&self, number: Number, base_type: gimli::UnitOffset) -> Result<Number, NoPlace> {
        if base_type.0 == 0 {
            return Ok(number);
        }
        let key = DieKey {
            unit: self.die.unit.key,
            offset: base_type,
        };
        let Shape::Base { encoding, size, .. } = self.debug.shape(Some(key))? else {
            return Err(self.computed());
        };
        let is_float = matches!(
            encoding,
            dw::DW_ATE_float | dw::DW_ATE_complex_float | dw::DW_ATE_decimal_float
        );
        let width = u32::try_from(size.saturating_mul(8)).unwrap_or(u32::MAX);
        if is_float || number.left != 0 {
            return Err(self.computed());
        }
        let bits = match number.bits {
            bits if width >= 64 => Some(bits),
            bits if width > bits.width && bits.signed && is_signed(encoding) => Some(bits),
            bits => bits.low(width).map(|low| Window {
                signed: width <= bits.width && is_signed(encoding),
                ..low
            }),
        };
        Ok(Number {
            bits: bits.ok_or_else(|| self.computed())?,
            ..number
        })
    }

    fn computed(&self) -> NoPlace {
        Refusal::Computed(self.context.name.to_owned()).into()
    }

    fn register(&self, register: gimli::Register) -> Result<Sum, NoPlace> {
        match general(register.0) {
            Some(register) => Ok(Sum::of(Start::Register(register))),
            None => Err(Refusal::VectorRegister(self.context.name.to_owned()).into()),
        }
    }

    /// Evaluates one operation that is not a location by itself.
    fn step(&mut self, operation: Operation<Bytes<'a>>) -> Result<(), NoPlace> {
        let (debug, context) = (self.debug, self.context);
        let unit = &self.die.unit;
        let name = || context.name.to_owned();
        if self.vector.is_some() {
            return Err(Refusal::VectorRegister(name()).into());
        }
        let pushed = match operation {
            Operation::Nop | Operation::Uninitialized => return Ok(()),
            Operation::Address { address } => Sum::of(Start::Link(address)),
            Operation::AddressIndex { index } => {
                let address = unit.dwarf.address(&unit.unit, index);
                Sum::of(Start::Link(address.map_err(DebugError::from)?))
            }
            Operation::ConstantIndex { index } => {
                let value = unit.dwarf.address(&unit.unit, index);
                Sum::of(Start::Constant(value.map_err(DebugError::from)?))
            }
            Operation::UnsignedConstant { value } => Sum::of(Start::Constant(value)),
            Operation::SignedConstant { value } => Sum::of(Start::Constant(value as u64)),
            Operation::RegisterOffset {
                register,
                offset: 0,
                ..
            } if general(register.0).is_none() => {
                self.vector = Some(vector(register.0));
                return Ok(());
            }
            Operation::RegisterOffset {
                register,
                offset,
                base_type,
            } => {
                let number = Number::of(self.register(register)?.shift(offset));
                let number = self.converted(number, base_type)?;
                return self.push(number);
            }
            Operation::Convert { base_type } => {
                let number = self.number()?;
                let number = self.converted(number, base_type)?;
                return self.push(number);
            }
            Operation::And
            | Operation::Or
            | Operation::Xor
            | Operation::Mul
            | Operation::Shl
            | Operation::Shr
            | Operation::Shra => {
                let number = self.combine(&operation)?;
                return self.push(number);
            }
            Operation::Not | Operation::Neg => {
                let constant = self.pop()?.constant().ok_or_else(|| self.computed())?;
                Sum::of(Start::Constant(match operation {
                    Operation::Not => !constant,
                    _ => constant.wrapping_neg(),
                }))
            }
            Operation::FrameOffset { offset } => debug.frame_base(context)?.shift(offset),
            Operation::CallFrameCFA => debug.frame_address(context)?,
            Operation::PlusConstant { value } => self.pop()?.shift(value as i64),
            Operation::Plus => {
                let (top, below) = (self.pop()?, self.pop()?);
                match (top.constant(), below.constant()) {
                    (Some(value), _) => below.shift(value as i64),
                    (_, Some(value)) => top.shift(value as i64),
                    _ => return Err(self.computed()),
                }
            }
            Operation::Minus => {
                let (top, below) = (self.pop()?, self.pop()?);
                match top.constant() {
                    Some(value) => below.shift((value as i64).wrapping_neg()),
                    None => return Err(self.computed()),
                }
            }
            Operation::Deref {
                size: size @ 1..=8,
                space: false,
                base_type,
            } => {
                let read = self.pop()?.read().ok_or_else(|| self.computed())?;
                let mut number = Number::of(read);
                let bits = number.bits.low(u32::from(size) * 8);
                number.bits = bits.ok_or_else(|| self.computed())?;
                let number = self.converted(number, base_type)?;
                return self.push(number);
            }
            Operation::Drop => {
                self.number()?;
                return Ok(());
            }
            Operation::Pick { index } => {
                let at = self.stack.len().checked_sub(1 + usize::from(index));
                let found = at.and_then(|at| self.stack.get(at));
                let found =
                    found.ok_or(DebugError::Damaged("an expression takes more than it has"))?;
                let copy = Number {
                    value: found.value.clone(),
                    ..*found
                };
                return self.push(copy);
            }
            Operation::Swap => {
                let (top, below) = (self.number()?, self.number()?);
                self.push(top)?;
                return self.push(below);
            }
            Operation::EntryValue { expression } => {
                return self.entry_value(Expression(expression));
            }
            Operation::TLS => return Err(Refusal::ThreadLocal(name()).into()),
            Operation::Call {
                offset: DieReference::UnitRef(_) | DieReference::DebugInfoRef(_),
            } => return Err(unclear(context.name, "it calls another expression")),
            Operation::WasmLocal { .. }
            | Operation::WasmGlobal { .. }
            | Operation::WasmStack { .. } => {
                return Err(unclear(context.name, "it is for another processor"));
            }
            Operation::ParameterRef { .. } if !context.at_entry => {
                return Err(context.entry_value());
            }
            // At the entry this is the argument that the caller would have passed if the
            // compiler had not removed it.
            Operation::ParameterRef { .. } => return Err(NoPlace::Elsewhere(Vec::new())),
            _ => return Err(self.computed()),
        };
        self.push(Number::of(pushed))
    }

    /// Pushes the value that a register had when the function was entered. Refused except at the
    /// entry, where the register still holds that value.
    fn entry_value(&mut self, expression: Expression<Bytes<'a>>) -> Result<(), NoPlace> {
        if !self.context.at_entry {
            return Err(self.context.entry_value());
        }
        let mut operations = expression.operations(self.die.unit.unit.encoding());
        let first = operations.next().map_err(DebugError::from)?;
        let only = operations.next().map_err(DebugError::from)?.is_none();
        match first {
            Some(Operation::Register { register }) if only => {
                self.step(Operation::RegisterOffset {
                    register,
                    offset: 0,
                    base_type: gimli::UnitOffset(0),
                })
            }
            Some(operation @ Operation::RegisterOffset { .. }) if only => self.step(operation),
            _ => Err(self.computed()),
        }
    }
}

fn unclear(name: &str, why: &'static str) -> NoPlace {
    Refusal::Location(name.to_owned(), why).into()
}

/// Returns a constant from its bytes in memory order.
fn bytes(data: &[u8], name: &str) -> Result<Place, NoPlace> {
    if data.len() > 8 {
        return Err(unclear(name, "it is a constant of more than 8 bytes"));
    }
    let mut word = [0; 8];
    word[..data.len()].copy_from_slice(data);
    Ok(Place::Value {
        value: Sum::of(Start::Constant(u64::from_le_bytes(word))),
        bits: Window::WHOLE,
        at: 0,
    })
}

fn constant(value: AttributeValue<Bytes<'_>>, name: &str) -> Result<Place, NoPlace> {
    if let AttributeValue::Block(data) = value {
        return bytes(data.slice(), name);
    }
    // Forms of a fixed size are not sign-extended (as in gdb).
    let number = value
        .udata_value()
        .or_else(|| value.sdata_value().map(|value| value as u64));
    match number {
        Some(number) => Ok(Place::Value {
            value: Sum::of(Start::Constant(number)),
            bits: Window::WHOLE,
            at: 0,
        }),
        None => Err(unclear(name, "it is a constant of an unknown form")),
    }
}
