//! Places of values that a probe can reach: a register or a fixed address, and reads at fixed
//! offsets from there.

use std::rc::Rc;

use capriole_event::{Base, Deref, Fetch, Gpr};

/// Starting point of a calculation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The value of a register.
    Register(Gpr),
    /// Link address of something in the object.
    Link(u64),
    /// A number.
    Constant(u64),
}

/// A value: take `start`; for each of `reads`, read the word at that offset; then add `plus`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sum {
    /// The first value.
    pub start: Start,
    /// For each read, its offset from the value so far, in bytes.
    pub reads: Vec<i64>,
    /// Number added at the end.
    pub plus: i64,
}

/// Maximum number of reads in one sum.
const MOST_READS: usize = 64;

impl Sum {
    /// Creates the sum that is `start` itself.
    #[must_use]
    pub fn of(start: Start) -> Sum {
        Sum {
            start,
            reads: Vec::new(),
            plus: 0,
        }
    }

    /// Returns the value `offset` further on.
    #[must_use]
    pub fn shift(mut self, offset: i64) -> Sum {
        match &mut self.start {
            Start::Link(address) | Start::Constant(address) if self.reads.is_empty() => {
                *address = address.wrapping_add_signed(offset);
            }
            _ => self.plus = self.plus.wrapping_add(offset),
        }
        self
    }

    /// Returns the word at this address; `None` if that takes too many reads.
    #[must_use]
    pub fn read(mut self) -> Option<Sum> {
        self.reads.push(self.plus);
        self.plus = 0;
        (self.reads.len() <= MOST_READS).then_some(self)
    }

    /// Returns the number, if it does not depend on the program's state.
    #[must_use]
    pub fn constant(&self) -> Option<u64> {
        match self.start {
            Start::Constant(value) if self.reads.is_empty() => Some(value),
            _ => None,
        }
    }

    /// Returns the fetch of the value at this address, and true if its base is a link address.
    #[must_use]
    pub fn at(self) -> (Fetch, bool) {
        let mut offsets = self.reads;
        offsets.push(self.plus);
        let (base, is_link) = match self.start {
            Start::Register(register) => (Base::Register(register), false),
            Start::Constant(value) => (Base::Immediate(value), false),
            Start::Link(address) => {
                // This base already reads memory, so its first offset is added to the address.
                let first = offsets.remove(0);
                (Base::Address(address.wrapping_add_signed(first)), true)
            }
        };
        (fetch(base, offsets), is_link)
    }

    /// Moves the last read `bytes` further on; `None` if the sum does not end with a read.
    #[must_use]
    pub fn read_at(mut self, bytes: i64) -> Option<Sum> {
        let last = self.reads.last_mut().filter(|_| self.plus == 0)?;
        *last = last.wrapping_add(bytes);
        Some(self)
    }

    /// Returns the fetch of this number itself; `None` if that would need an addition.
    #[must_use]
    pub fn value(self) -> Option<(Fetch, bool)> {
        if self.plus != 0 {
            return None;
        }
        if self.reads.is_empty() {
            return Some(match self.start {
                Start::Register(register) => (fetch(Base::Register(register), vec![]), false),
                Start::Constant(value) => (fetch(Base::Immediate(value), vec![]), false),
                Start::Link(address) => (fetch(Base::Immediate(address), vec![]), true),
            });
        }
        let mut reads = self.reads;
        let plus = reads.pop()?;
        Some(
            Sum {
                reads,
                plus,
                ..self
            }
            .at(),
        )
    }
}

fn fetch(base: Base, offsets: Vec<i64>) -> Fetch {
    let derefs = offsets
        .into_iter()
        .map(|offset| Deref {
            offset,
            user: false,
        })
        .collect();
    Fetch { base, derefs }
}

/// A range of bits of a word that holds a number, zero-extended or sign-extended above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The lowest bit.
    pub shift: u32,
    /// Number of bits: 1 to 64.
    pub width: u32,
    /// True if the highest bit is copied above the number.
    pub signed: bool,
}

impl Window {
    /// All bits of the word.
    pub const WHOLE: Window = Window {
        shift: 0,
        width: 64,
        signed: false,
    };

    /// True if the number has all bits of the word.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.width == 64
    }

    /// Returns the number modulo 2 to the power of `width`; `None` if no window can express it.
    #[must_use]
    pub fn low(self, width: u32) -> Option<Window> {
        match width {
            0 => None,
            _ if width <= self.width => Some(Window {
                width,
                signed: false,
                ..self
            }),
            _ => (width >= 64 || !self.signed).then_some(self),
        }
    }

    /// Returns the number multiplied by 2 to the power of `left`, modulo 2 to the power of 64, and
    /// then divided by 2 to the power of `right` (signed if `arithmetic`). `None` if no window can
    /// express it.
    #[must_use]
    pub fn shifted(self, left: u32, right: u32, arithmetic: bool) -> Option<Window> {
        let width = self.width.min(64u32.checked_sub(left)?);
        let reaches_top = width + left == 64;
        if !reaches_top && self.signed && !arithmetic {
            return None;
        }
        let dropped = right.checked_sub(left)?;
        Some(Window {
            shift: self.shift + dropped,
            width: width.checked_sub(dropped).filter(|&width| width > 0)?,
            signed: if reaches_top { arithmetic } else { self.signed },
        })
    }
}

/// Place of an object of the program.
#[derive(Debug, Clone)]
pub enum Place {
    /// In a register.
    Register {
        /// The register.
        register: Gpr,
        /// The object's first byte, counted from the register's lowest.
        at: u64,
    },
    /// In memory at this address.
    Memory(Sum),
    /// Not stored anywhere, but its value is known.
    Value {
        /// The word that has the value in some of its bits.
        value: Sum,
        /// These bits.
        bits: Window,
        /// Number of the value's lowest bytes that do not belong to the object.
        at: u64,
    },
    /// In several pieces.
    Pieces {
        /// For each piece, its size in bytes and its place.
        pieces: Rc<[(u64, Place)]>,
        /// Where the object begins, in bytes from the first piece's start.
        at: u64,
    },
    /// In this vector register from its lowest byte on; `None` if elsewhere in a vector register,
    /// or in an x87 register.
    Vector(Option<u8>),
    /// In the middle of a vector register.
    VectorPart {
        /// The register.
        register: u8,
        /// The object's first byte, counted from the register's lowest: 1 to 7.
        at: u64,
    },
    /// In a register that other code may have changed.
    Lost,
    /// Optimised out.
    Missing,
}

impl Place {
    /// Returns the place `bytes` further on in the object.
    #[must_use]
    pub fn shift(self, bytes: i64) -> Place {
        let moved = |at: u64| at.saturating_add_signed(bytes);
        match self {
            Place::Register { register, at } => Place::Register {
                register,
                at: moved(at),
            },
            Place::Memory(sum) => Place::Memory(sum.shift(bytes)),
            Place::Value { value, bits, at } => Place::Value {
                value,
                bits,
                at: moved(at),
            },
            Place::Pieces { pieces, at } => Place::Pieces {
                pieces,
                at: moved(at),
            },
            Place::Vector(Some(register)) if (1..8).contains(&bytes) => Place::VectorPart {
                register,
                at: moved(0),
            },
            Place::VectorPart { register, at } if bytes >= 0 && moved(at) < 8 => {
                Place::VectorPart {
                    register,
                    at: moved(at),
                }
            }
            Place::Vector(_) | Place::VectorPart { .. } if bytes != 0 => Place::Vector(None),
            Place::Vector(_) | Place::VectorPart { .. } | Place::Lost | Place::Missing => self,
        }
    }

    /// Returns the piece that holds the next `size` bytes, if a single piece holds them all;
    /// [`Place::Missing`] if they lie past the last piece.
    #[must_use]
    pub fn narrow(self, size: u64) -> Place {
        let Place::Pieces { pieces, at } = &self else {
            return self;
        };
        let mut start: u64 = 0;
        for (length, place) in pieces.iter() {
            let end = start.saturating_add(*length);
            if *at < end {
                let fits = at.saturating_add(size) <= end;
                let distance = i64::try_from(at - start).unwrap_or(i64::MAX);
                // There are no pieces within pieces.
                return if fits {
                    place.clone().shift(distance)
                } else {
                    self
                };
            }
            start = end;
        }
        Place::Missing
    }
}
