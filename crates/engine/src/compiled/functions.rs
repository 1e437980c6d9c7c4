//! The functions at addresses of compiled code.

use super::Function;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of pieces: a large program has some 100,000 functions.
const MOST: usize = 1 << 20;

/// Function at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing.
    Nothing,
    /// The function, and the offset of the address in it.
    Function(Arc<str>, u64),
    /// Different functions were there.
    Several,
}

/// Functions by their addresses. Later ones take the place of earlier ones.
#[derive(Debug, Default)]
pub(super) struct Functions(BTreeMap<u64, Piece>);

/// Addresses from the key to `end`, of one function.
#[derive(Debug, Clone)]
struct Piece {
    end: u64,
    /// `None` if there were different functions.
    function: Option<Function>,
}

impl Functions {
    /// Adds a function. What was there before is forgotten if it was `replaced` before any event; else it is not
    /// known which of both is there. Returns these addresses; `None` if there are too many functions.
    pub fn add(&mut self, new: Function, replaced: bool) -> Option<Vec<Range<u64>>> {
        let range = new.addresses.clone();
        let mut several: Vec<Range<u64>> = Vec::new();
        for (start, piece) in self.overlapping(&range) {
            self.0.remove(&start);
            if piece.function.as_ref() != Some(&new) && !replaced {
                several.push(start.max(range.start)..piece.end.min(range.end));
            }
            if start < range.start {
                let before = Piece {
                    end: range.start,
                    ..piece.clone()
                };
                self.0.insert(start, before);
            }
            if range.end < piece.end {
                self.0.insert(range.end, piece);
            }
        }
        let mut at = range.start;
        let end = range.end..range.end;
        for gap in several.iter().chain([&end]) {
            if at < gap.start {
                let piece = Piece {
                    end: gap.start,
                    function: Some(new.clone()),
                };
                self.0.insert(at, piece);
            }
            if gap.start < gap.end {
                let piece = Piece {
                    end: gap.end,
                    function: None,
                };
                self.0.insert(gap.start, piece);
            }
            at = gap.end;
        }
        (self.0.len() <= MOST).then_some(several)
    }

    /// Returns the pieces with some of these addresses, ascending.
    fn overlapping(&self, range: &Range<u64>) -> Vec<(u64, Piece)> {
        let before = self.0.range(..range.end).rev();
        let mut pieces: Vec<(u64, Piece)> = before
            .take_while(|(_, piece)| range.start < piece.end)
            .map(|(start, piece)| (*start, piece.clone()))
            .collect();
        pieces.reverse();
        pieces
    }

    /// Finds the function at an address.
    pub fn at(&self, address: u64) -> Found {
        let piece = self.0.range(..=address).next_back();
        match piece.filter(|(_, piece)| address < piece.end) {
            None => Found::Nothing,
            Some((_, Piece { function: None, .. })) => Found::Several,
            Some((
                _,
                Piece {
                    function: Some(function),
                    ..
                },
            )) => {
                let offset = address - function.addresses.start;
                Found::Function(Arc::clone(&function.name), offset)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(addresses: Range<u64>, name: &str) -> Function {
        Function {
            addresses,
            name: Arc::from(name),
        }
    }

    fn found(name: &str, offset: u64) -> Found {
        Found::Function(Arc::from(name), offset)
    }

    #[test]
    fn before_events_later_functions_replace_earlier_ones() {
        let mut functions = Functions::default();
        functions.add(function(0x100..0x200, "whole"), true);
        functions.add(function(0x140..0x160, "inner"), true);
        functions.add(function(0x1f0..0x210, "end"), true);
        let at = |address| functions.at(address);
        assert_eq!(at(0xff), Found::Nothing);
        assert_eq!(at(0x100), found("whole", 0));
        assert_eq!(at(0x13f), found("whole", 0x3f));
        assert_eq!(at(0x140), found("inner", 0));
        assert_eq!(at(0x160), found("whole", 0x60));
        assert_eq!(at(0x1ef), found("whole", 0xef));
        assert_eq!(at(0x1f0), found("end", 0));
        assert_eq!(at(0x20f), found("end", 0x1f));
        assert_eq!(at(0x210), Found::Nothing);
    }

    #[test]
    fn different_functions_at_an_address_are_none() {
        let mut functions = Functions::default();
        let mut add = |addresses, name| functions.add(function(addresses, name), false);
        assert_eq!(add(0x100..0x200, "one"), Some(vec![]));
        assert_eq!(add(0x300..0x400, "two"), Some(vec![]));
        assert_eq!(add(0x100..0x200, "one"), Some(vec![]), "the same once more");
        let both = vec![0x180..0x200, 0x300..0x310];
        assert_eq!(add(0x180..0x310, "new"), Some(both));
        let shorter = add(0x100..0x110, "one");
        assert_eq!(
            shorter.as_deref(),
            Some(std::slice::from_ref(&(0x100..0x110)))
        );
        let at = |address| functions.at(address);
        assert_eq!(at(0x10f), Found::Several);
        assert_eq!(at(0x110), found("one", 0x10));
        assert_eq!(at(0x180), Found::Several);
        assert_eq!(at(0x200), found("new", 0x80));
        assert_eq!(at(0x300), Found::Several);
        assert_eq!(at(0x310), found("two", 0x10));
    }

    /// As an array with all functions of each address.
    #[test]
    fn pieces_are_as_if_each_address_had_its_own() {
        const SIZE: u64 = 64;
        let mut number = 1u64;
        let mut random = |below: u64| {
            number = number
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (number >> 33) % below
        };
        for _ in 0..200 {
            let mut functions = Functions::default();
            let mut all: Vec<Vec<Function>> = vec![Vec::new(); SIZE as usize];
            for _ in 0..20 {
                let start = random(SIZE - 1);
                let end = start + 1 + random(SIZE - start - 1).min(12);
                let new = function(start..end, ["a", "b"][random(2) as usize]);
                let replaced = random(4) == 0;
                functions.add(new.clone(), replaced);
                for there in &mut all[start as usize..end as usize] {
                    there.retain(|_| !replaced);
                    there.push(new.clone());
                }
            }
            for (address, there) in all.iter().enumerate() {
                let address = address as u64;
                let expected = match &there[..] {
                    [] => Found::Nothing,
                    [first, rest @ ..] if rest.iter().all(|other| other == first) => {
                        found(&first.name, address - first.addresses.start)
                    }
                    _ => Found::Several,
                };
                assert_eq!(functions.at(address), expected, "{address}: {there:?}");
            }
        }
    }
}
