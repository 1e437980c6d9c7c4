//! Aggregation that straight code can do: one change to one cell of a table.

use super::Filter;
use crate::arch::registers::Register;
use crate::condition::Width;
use crate::program::Program;
use std::sync::Arc;

/// A cell that straight code adds to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Straight {
    /// The event's id.
    pub(crate) event: u32,
    /// The cell's counter; with keys, the first row's.
    pub(crate) counter: u32,
    pub(crate) row: Option<StraightRow>,
    pub(crate) amount: StraightAmount,
    /// Program that does the same whatever the state of the table and the thread.
    program: Arc<Program>,
    filter: Option<Filter>,
    registers: Vec<Register>,
}

/// Lookup of a table's row by key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StraightRow {
    /// The key to look up.
    pub key: Key,
    /// Width of the key.
    pub width: Width,
    /// Offset of the table's directory from the first one.
    pub directory: u64,
    /// Right shift that turns the hash into the number of a set.
    pub shift: u32,
    /// Number of cells in a row.
    pub cells: u32,
}

/// The key of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// A 64-bit general register, or as much of its lower part as the width says.
    Register(Register),
    /// The thread's id.
    Thread,
    /// A number, extended as its width says.
    Constant(u64),
}

/// Amount to add: see [`Amount`](crate::fetch::Amount).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum StraightAmount {
    One,
    Of(Function, Value, Width),
}

/// The way in which a number changes a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Function {
    Sum,
    /// Maximum, with these bits inverted.
    Maximum(u64),
    Bucket,
    /// All that is kept of durations: their sum, the maxima of them and of their complements, in the
    /// three cells before the first bucket, and the bucket.
    Times,
}

impl Function {
    /// True if it computes the number of a bucket.
    fn is_bucket(self) -> bool {
        match self {
            Function::Bucket | Function::Times => true,
            Function::Sum | Function::Maximum(_) => false,
        }
    }
}

/// A number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    Register(Register),
    /// A constant, extended as its width says.
    Constant(u64),
    /// Duration of the call that ends here, of the function with this number.
    Latency(u32),
}

impl StraightAmount {
    fn number(self) -> Option<(Value, Width)> {
        match self {
            StraightAmount::One => None,
            StraightAmount::Of(_, value, width) => Some((value, width)),
        }
    }
}

impl Straight {
    pub(crate) fn new(
        event: u32,
        counter: u32,
        row: Option<StraightRow>,
        amount: StraightAmount,
        program: Arc<Program>,
        filter: Option<Filter>,
    ) -> Straight {
        let key = row.and_then(|row| match row.key {
            Key::Register(register) => Some(register),
            Key::Thread | Key::Constant(_) => None,
        });
        let number = amount.number().and_then(|(value, _)| match value {
            Value::Register(register) => Some(register),
            Value::Constant(_) | Value::Latency(_) => None,
        });
        let registers = key.into_iter().chain(number);
        Straight {
            registers: registers.collect(),
            event,
            counter,
            row,
            amount,
            program,
            filter,
        }
    }

    /// Returns the program that does the same in any state.
    pub(crate) fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Returns the number of the function being left, if the call is timed.
    pub(crate) fn call(&self) -> u32 {
        match self.amount.number() {
            Some((Value::Latency(call), _)) => call,
            _ => 0,
        }
    }

    /// Returns the registers that the code reads.
    pub(crate) fn registers(&self) -> &[Register] {
        &self.registers
    }

    /// Returns the filter guarding this work.
    pub(crate) fn filter(&self) -> Option<&Filter> {
        self.filter.as_ref()
    }

    /// True if a key or number is a bit field, for which there is no straight code.
    pub(crate) fn has_bits(&self) -> bool {
        let key = self.row.map(|row| row.width);
        let number = self.amount.number().map(|(_, width)| width);
        key.into_iter().chain(number).any(|w| w.bits.is_some())
    }

    /// True if the code looks up a row.
    pub(crate) fn is_keyed(&self) -> bool {
        self.row.is_some()
    }

    /// True if the code needs a register for the amount.
    pub(crate) fn has_amount(&self) -> bool {
        self.amount != StraightAmount::One
    }

    /// True if the code reads the clock.
    pub(crate) fn is_timed(&self) -> bool {
        matches!(self.amount.number(), Some((Value::Latency(_), _)))
    }

    /// True if the code needs rcx as a shift count.
    pub(crate) fn shifts(&self) -> bool {
        matches!(self.amount, StraightAmount::Of(function, ..) if function.is_bucket())
    }
}
