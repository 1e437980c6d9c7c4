//! Jump displacements with some fixed bytes.

use std::ops::Range;

/// A 32-bit displacement, little endian, with some fixed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mask {
    /// 0xff for a fixed byte, 0 for a free one.
    fixed: u32,
    /// The fixed bytes; 0 elsewhere.
    value: u32,
}

impl Mask {
    /// Creates a mask from the four bytes, lowest first; `None` is free.
    pub(crate) fn new(bytes: [Option<u8>; 4]) -> Self {
        let word = |byte: fn(Option<u8>) -> u8| u32::from_le_bytes(bytes.map(byte));
        Self {
            fixed: word(|b| if b.is_some() { 0xff } else { 0 }),
            value: word(|b| b.unwrap_or(0)),
        }
    }

    /// Returns the range from the lowest displacement of this form, as unsigned numbers, to just
    /// past the highest. Not all numbers in it are of this form.
    pub(crate) fn window(self) -> Range<u64> {
        u64::from(self.value)..u64::from(self.value | !self.fixed) + 1
    }

    /// Returns the lowest displacement of this form that is not below `from`.
    pub(crate) fn next(self, from: u32) -> Option<u32> {
        // The highest byte in which `from` and the form differ decides.
        for shift in [24, 16, 8, 0] {
            let fixed = self.fixed >> shift & 0xff != 0;
            let (have, want) = (from >> shift & 0xff, self.value >> shift & 0xff);
            if !fixed || have == want {
                continue;
            }
            let above = (0xffff_fffe_u64 << (shift + 7)) as u32;
            if have < want {
                // `from` is lower here: keep the bytes above, take the lowest below.
                return Some(from & above & !self.fixed | self.value & above | self.below(shift));
            }
            // `from` is higher here: raise a free byte above.
            return self.raised(from, shift);
        }
        Some(from)
    }

    /// Returns the fixed byte at `shift`, and the lowest bytes below it.
    fn below(self, shift: u32) -> u32 {
        self.value & (0xffff_ffff_u64 >> (24 - shift)) as u32
    }

    /// Returns the lowest displacement of this form whose bytes above `shift` exceed those of
    /// `from`, which are of this form.
    fn raised(self, from: u32, shift: u32) -> Option<u32> {
        for higher in [8, 16, 24] {
            if higher <= shift || self.fixed >> higher & 0xff != 0 {
                continue;
            }
            let byte = from >> higher & 0xff;
            if byte < 0xff {
                let above = (0xffff_fffe_u64 << (higher + 7)) as u32;
                let below = self.value & !(above | 0xff << higher);
                return Some(from & above | (byte + 1) << higher | below);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_next_one_of_a_form() {
        let low = Mask::new([Some(0xe9), None, None, None]);
        assert_eq!(low.next(0), Some(0xe9));
        assert_eq!(low.next(0xe9), Some(0xe9));
        assert_eq!(low.next(0xea), Some(0x1e9));
        assert_eq!(low.next(0xffff_ffea), None);
        let middle = Mask::new([None, Some(0x10), None, Some(0x20)]);
        assert_eq!(middle.next(0), Some(0x2000_1000));
        assert_eq!(middle.next(0x2000_1100), Some(0x2001_1000));
        assert_eq!(middle.next(0x20ff_1100), None);
        assert_eq!(middle.next(0x2005_0fff), Some(0x2005_1000));
        assert_eq!(Mask::new([None; 4]).next(77), Some(77));
        assert_eq!(middle.window(), 0x2000_1000..0x20ff_1100);
        assert_eq!(Mask::new([None; 4]).window(), 0..0x1_0000_0000);
    }

    proptest! {
        #[test]
        fn it_is_the_lowest(
            bytes in proptest::array::uniform4(proptest::option::of(any::<u8>())),
            from: u32,
            other: u32,
        ) {
            let mask = Mask::new(bytes);
            let is = |d: u32| d & mask.fixed == mask.value;
            if let Some(next) = mask.next(from) {
                prop_assert!(is(next) && next >= from);
            }
            let other = other & !mask.fixed | mask.value;
            if other >= from {
                prop_assert!(mask.next(from).is_some_and(|next| next <= other));
            }
        }
    }
}
