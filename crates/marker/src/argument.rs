//! What can be given to a marker.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// A value that a marker can have: integers of up to 64 bits, `bool`, `char`, `f32`, `f64`,
/// pointers and references (as addresses), and texts ([`CStr`], and pointers to bytes).
pub trait Argument: sealed::Sealed {
    /// What conversions there are for it.
    #[doc(hidden)]
    const KIND: Kind;
    /// Size and sign, as the assembler is told them: the logarithm of the size, and 4 if it is
    /// signed.
    #[doc(hidden)]
    const CODE: u8;
    /// The value in the low bytes of a register; the others are whatever they were.
    #[doc(hidden)]
    fn word(self) -> MaybeUninit<u64>;
}

mod sealed {
    pub trait Sealed {}
}

/// What conversions of a format there are for a type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `%d %i %u %x %X %o %c`
    Integer,
    /// `%f %F %e %E %g %G %a %A`
    Float,
    /// `%p`
    Pointer,
    /// `%s`, and `%p`
    Text,
}

/// A bit for each argument, the lowest for the first: it is a floating point number. These are
/// in general registers, so notes cannot say it in another way that all tools understand.
pub const fn floats(kinds: &[Kind]) -> u32 {
    let (mut bits, mut index) = (0, 0);
    while index < kinds.len() {
        if matches!(kinds[index], Kind::Float) {
            bits |= 1 << index;
        }
        index += 1;
    }
    bits
}

/// Without the extension to 64 bits, which would cost an instruction.
#[inline(always)]
fn low_bytes<T: Copy>(value: T) -> MaybeUninit<u64> {
    const { assert!(size_of::<T>() <= size_of::<u64>()) };
    let mut word = MaybeUninit::<u64>::uninit();
    // SAFETY: the word is as large as T or larger (just checked), its alignment is the largest
    // of all types that are given, and nobody else has it.
    unsafe { word.as_mut_ptr().cast::<T>().write_unaligned(value) };
    word
}

macro_rules! arguments {
    ($([$($generic:tt)*] $type:ty, $kind:expr, $code:expr, $value:ident => $word:expr;)*) => {$(
        impl $($generic)* sealed::Sealed for $type {}
        impl $($generic)* Argument for $type {
            const KIND: Kind = $kind;
            const CODE: u8 = $code;
            #[inline(always)]
            fn word(self) -> MaybeUninit<u64> {
                let $value = self;
                low_bytes($word)
            }
        }
    )*};
}

arguments! {
    [] bool, Kind::Integer, 0, value => value;
    [] u8, Kind::Integer, 0, value => value;
    [] u16, Kind::Integer, 1, value => value;
    [] u32, Kind::Integer, 2, value => value;
    [] u64, Kind::Integer, 3, value => value;
    [] usize, Kind::Integer, 3, value => value;
    [] char, Kind::Integer, 2, value => value;
    [] i8, Kind::Integer, 4, value => value;
    [] i16, Kind::Integer, 5, value => value;
    [] i32, Kind::Integer, 6, value => value;
    [] i64, Kind::Integer, 7, value => value;
    [] isize, Kind::Integer, 7, value => value;
    [] f32, Kind::Float, 2, value => value.to_bits();
    [] f64, Kind::Float, 3, value => value.to_bits();
    [] &CStr, Kind::Text, 3, value => value.as_ptr();
    [<T>] *const T, pointer::<T>(), 3, value => value;
    [<T>] *mut T, pointer::<T>(), 3, value => value;
    [<T>] NonNull<T>, pointer::<T>(), 3, value => value.as_ptr();
    [<T>] &T, Kind::Pointer, 3, value => &raw const *value;
    [<T>] &mut T, Kind::Pointer, 3, value => &raw mut *value;
    [<T>] Option<&T>, Kind::Pointer, 3, to => to.map_or(core::ptr::null(), |to| &raw const *to);
}

/// A pointer to bytes may be one to a text.
const fn pointer<T>() -> Kind {
    if size_of::<T>() == 1 {
        Kind::Text
    } else {
        Kind::Pointer
    }
}
