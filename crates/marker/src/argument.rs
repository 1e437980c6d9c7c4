//! Types of marker arguments.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// A value that can be passed to a marker: integers of up to 64 bits, `bool`, `char`, `f32`, `f64`,
/// pointers and references (as addresses), and strings ([`CStr`], and pointers to bytes).
pub trait Argument: sealed::Sealed {
    /// Format conversions that fit the type.
    #[doc(hidden)]
    const KIND: Kind;
    /// Size and sign, for the assembler: the logarithm of the size, plus 4 if it is signed.
    #[doc(hidden)]
    const CODE: u8;
    /// The value in the low bytes of a register; the other bytes are undefined.
    #[doc(hidden)]
    fn word(self) -> MaybeUninit<u64>;
}

mod sealed {
    pub trait Sealed {}
}

/// Class of format conversions that fit a type.
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

/// Mask of the floating point arguments: bit 0 for the first argument. They are passed in general
/// registers, so the notes cannot say it in another way that all tools understand.
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

/// Puts a value into the low bytes of a word, without extending it to 64 bits, which would cost an
/// instruction.
#[inline(always)]
fn low_bytes<T: Copy>(value: T) -> MaybeUninit<u64> {
    const { assert!(size_of::<T>() <= size_of::<u64>()) };
    let mut word = MaybeUninit::<u64>::uninit();
    // SAFETY: the word is at least as large as T (just checked), its alignment is the largest of
    // all argument types, and nothing else refers to it.
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

/// Kind of a pointer: one to bytes may point to a string.
const fn pointer<T>() -> Kind {
    if size_of::<T>() == 1 {
        Kind::Text
    } else {
        Kind::Pointer
    }
}
