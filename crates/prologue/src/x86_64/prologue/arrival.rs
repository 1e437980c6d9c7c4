//! Maps the place that holds a parameter to its place at the entry.

use std::rc::Rc;

use capriole_event::Gpr;

use crate::place::{Place, Start, Sum};

use super::super::registers::PARAMETERS;
use super::{At, Byte, Prologue, Source, State, add, at};

/// Maximum bytes of an object examined: a function's first instructions store no more.
const OBJECT: u64 = 256;

impl Prologue<'_> {
    /// Expresses the current value of `sum` in terms of the state at the entry.
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

    /// Returns the current value of a register in terms of the state at the entry.
    #[must_use]
    pub fn value(&self, register: Gpr) -> Option<Sum> {
        match self.register_source(register as usize)? {
            Source::Number(sum) => Some(sum),
            _ => None,
        }
    }

    /// Returns where the object of `size` bytes, now at `place`, was at the entry. `truth` is
    /// true for a boolean.
    pub fn arrival(&mut self, place: &Place, size: u64, truth: bool) -> Option<Place> {
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
                let stack = &self.state.stack;
                let bytes: Vec<_> = places(size)
                    .map(|at| stack.get(&at).map(|known| known.0))
                    .collect();
                self.of_bytes(&bytes, truth)
            }
            Place::Register { register, at } => {
                let from = usize::try_from(*at).ok()?;
                let bytes = self.state.general[*register as usize].map(Some);
                self.of_bytes(bytes.get(from..from.checked_add(size)?)?, truth)
            }
            Place::Vector(Some(number)) => {
                let bytes = self.state.vectors.get(usize::from(*number))?.map(Some);
                self.of_bytes(bytes.get(..size)?, truth)
            }
            Place::VectorPart { register, at } => {
                let from = usize::try_from(*at).ok()?;
                let bytes = self.state.vectors.get(usize::from(*register))?.map(Some);
                self.of_bytes(bytes.get(from..from.checked_add(size)?)?, truth)
            }
            Place::Value { value, bits, at } => match self.at_entry(value)? {
                Source::Number(value) => Some(Place::Value {
                    value,
                    bits: *bits,
                    at: *at,
                }),
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
            Place::Vector(None) | Place::Lost | Place::Missing => None,
        }
    }

    /// Returns the address after the next instruction that stores to the object at `sum` (in the
    /// current state), if nothing was stored to it yet.
    pub fn next_store(&mut self, sum: &Sum) -> Option<u64> {
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

    /// Returns the place of an object with these bytes, some of which may not be stored at all.
    /// `None` if no byte has a known place.
    fn of_bytes(&self, bytes: &[Option<Byte>], truth: bool) -> Option<Place> {
        let mut pieces: Vec<(u64, Place)> = Vec::new();
        let mut before = None;
        for byte in bytes {
            let goes_on = match (before, byte) {
                (Some(Some(Some((source, at)))), Some(Some((next, after)))) => {
                    source == *next && at + 1 == *after
                }
                (Some(Some(None)), Some(None)) | (Some(None), None) => true,
                _ => false,
            };
            before = Some(*byte);
            match pieces.last_mut() {
                Some(last) if goes_on => last.0 += 1,
                _ => pieces.push((1, self.of_byte(*byte, truth))),
            }
        }
        let is_known = |place: &Place| !matches!(place, Place::Missing | Place::Pieces { .. });
        if !pieces.iter().any(|piece| is_known(&piece.1)) {
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

    fn of_byte(&self, byte: Option<Byte>, truth: bool) -> Place {
        // Put together from several places.
        let several = || Place::Pieces {
            pieces: Rc::from([]),
            at: 0,
        };
        let (source, at) = match byte {
            Some(Some(known)) => known,
            Some(None) => return several(),
            // Padding is not written.
            None => return Place::Missing,
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
                    .shift(i64::from(at)),
                ),
                _ => several(),
            },
            Source::Vector(number) => Place::Vector((at == 0).then_some(*number)),
            Source::Bit(register) if truth => Place::Register {
                register: *register,
                at: 0,
            },
            Source::Bit(_) | Source::Rounded(_) => several(),
        }
    }
}

/// Returns the register that a parameter was passed in.
pub(super) fn argument(sum: &Sum) -> Option<Gpr> {
    match sum.start {
        Start::Register(register) if sum.reads.is_empty() && sum.plus == 0 => {
            PARAMETERS.contains(&register).then_some(register)
        }
        _ => None,
    }
}
