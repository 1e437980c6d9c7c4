//! Types of functions.

mod sealed {
    pub trait Sealed {}
}

/// A function pointer: `fn`, `extern "C" fn`, both also `unsafe`, with up to twelve parameters.
///
/// Types with references in them (`fn(&str)`) are not among these, as they are many types, one for each
/// lifetime; pointers in their place are.
pub trait Function: Copy + sealed::Sealed {
    /// Number of 8-byte words on the stack that the parameters take, at most.
    #[doc(hidden)]
    const STACK_WORDS: u32;

    /// Address of the function.
    #[doc(hidden)]
    fn address(self) -> *const ();

    /// The function at an address.
    ///
    /// # Safety
    /// There is a function of this type.
    #[doc(hidden)]
    unsafe fn from_address(address: *const ()) -> Self;
}

/// Returns the number of words on the stack of parameters with these sizes, at most: of each kind of small
/// parameters at least six are in registers, and of larger ones maybe none.
const fn stack_words(sizes: &[usize], result: usize) -> u32 {
    // A large result is written through a pointer, which is the first parameter.
    let (mut words, mut any_large, mut at) = ((result > 8) as usize, false, 0);
    while at < sizes.len() {
        any_large |= sizes[at] > 8;
        words += sizes[at].div_ceil(8) + (sizes[at] > 8) as usize; // alignment
        at += 1;
    }
    if any_large {
        words as u32
    } else {
        words.saturating_sub(6) as u32
    }
}

macro_rules! implement {
    ($type:ty, $result:ident $(, $argument:ident)*) => {
        impl<$result $(, $argument)*> sealed::Sealed for $type {}
        impl<$result $(, $argument)*> Function for $type {
            const STACK_WORDS: u32 = stack_words(&[$(size_of::<$argument>()),*], size_of::<$result>());
            fn address(self) -> *const () {
                self as *const ()
            }
            unsafe fn from_address(address: *const ()) -> Self {
                // SAFETY: the caller says that it is one.
                unsafe { std::mem::transmute::<*const (), Self>(address) }
            }
        }
    };
}

macro_rules! implement_all {
    ($($argument:ident)*) => {
        implement!(fn($($argument),*) -> Z, Z $(, $argument)*);
        implement!(unsafe fn($($argument),*) -> Z, Z $(, $argument)*);
        implement!(extern "C" fn($($argument),*) -> Z, Z $(, $argument)*);
        implement!(unsafe extern "C" fn($($argument),*) -> Z, Z $(, $argument)*);
    };
}

implement_all!();
implement_all!(A);
implement_all!(A B);
implement_all!(A B C);
implement_all!(A B C D);
implement_all!(A B C D E);
implement_all!(A B C D E F);
implement_all!(A B C D E F G);
implement_all!(A B C D E F G H);
implement_all!(A B C D E F G H I);
implement_all!(A B C D E F G H I J);
implement_all!(A B C D E F G H I J K);
implement_all!(A B C D E F G H I J K L);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_on_the_stack_are_enough() {
        type Six = extern "C" fn(u8, u64, i32, f64, *const u8, u64) -> u64;
        type Eight = fn(u64, u64, u64, u64, u64, u64, u64, u64);
        type Text = fn(&'static str, u64) -> u64;
        assert_eq!(Six::STACK_WORDS, 0);
        assert_eq!(Eight::STACK_WORDS, 2);
        assert_eq!(Text::STACK_WORDS, 4);
        assert_eq!(<fn(u64) -> [u64; 4]>::STACK_WORDS, 0);
        assert_eq!(<fn([u64; 4]) -> ()>::STACK_WORDS, 5);
    }
}
