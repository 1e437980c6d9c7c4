//! Functions in the place of others.

use crate::error::{Error, checked};
use crate::ffi;
use crate::function::Function;
use crate::guard::{self, Guard};
use crate::place::{Place, Placed};
use crate::probe::{Status, status};
use std::ffi::c_uint;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The way from a replacement to the function that it replaces: a `static` that is filled when the
/// replacement is registered, and stays so.
#[derive(Debug)]
pub struct Original<F>(AtomicPtr<()>, PhantomData<F>);

impl<F: Function> Original<F> {
    /// One that leads nowhere yet.
    #[must_use]
    pub const fn new() -> Original<F> {
        Original(AtomicPtr::new(ptr::null_mut()), PhantomData)
    }

    /// Code that does what the function did. `None` before the replacement is registered. It stays valid
    /// when the replacement is taken off, until [`finish`](crate::finish).
    #[inline]
    #[must_use]
    pub fn get(&self) -> Option<F> {
        let address = self.0.load(Ordering::Acquire);
        if address.is_null() {
            return None;
        }
        // SAFETY: the library has put the function's own code there, which stays.
        Some(unsafe { F::from_address(address) })
    }
}

impl<F: Function> Default for Original<F> {
    fn default() -> Original<F> {
        Original::new()
    }
}

/// A function that is called instead of another one, before it is registered.
///
/// ```no_run
/// use capriole_probe::{Original, Replacement};
///
/// type Abs = extern "C" fn(i32) -> i32;
/// unsafe extern "C" {
///     safe fn abs(number: i32) -> i32;
/// }
/// static ORIGINAL: Original<Abs> = Original::new();
///
/// extern "C" fn absolute(number: i32) -> i32 {
///     match number {
///         i32::MIN => i32::MAX,
///         _ => ORIGINAL.get().map_or(0, |abs| abs(number)),
///     }
/// }
/// let replacement = Replacement::<Abs>::new(abs, absolute).original(&ORIGINAL);
/// // SAFETY: who calls abs gets a number that is not negative, as before.
/// let replaced = unsafe { replacement.register() }?;
/// # Ok::<(), capriole_probe::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a replacement does nothing before it is registered"]
pub struct Replacement<F: 'static> {
    place: Place,
    replacement: F,
    original: Option<&'static Original<F>>,
    flags: c_uint,
}

impl<F: Function> Replacement<F> {
    /// `replacement` instead of `function`. Calls of it that the compiler has put into their callers stay
    /// as they are.
    pub fn new(function: F, replacement: F) -> Replacement<F> {
        Replacement::placed(Place::at(function.address().addr()), replacement)
    }

    /// Instead of the function at a place, which has the type of the replacement; that is for the caller of
    /// [`Replacement::register`] to know.
    pub fn placed(place: Place, replacement: F) -> Replacement<F> {
        Replacement {
            place,
            replacement,
            original: None,
            flags: 0,
        }
    }

    /// Fills the way to the function itself.
    pub fn original(mut self, original: &'static Original<F>) -> Replacement<F> {
        self.original = Some(original);
        self
    }

    /// Registers it disabled: the function itself is called, until [`Replaced::enable`].
    pub fn disabled(mut self) -> Replacement<F> {
        self.flags |= ffi::CAPRIOLE_DISABLED;
        self
    }

    /// Keeps a breakpoint: does not replace it by a jump.
    pub fn no_optimize(mut self) -> Replacement<F> {
        self.flags |= ffi::CAPRIOLE_NO_OPTIMIZE;
        self
    }

    /// Registers it: when the function returns, the replacement is called.
    ///
    /// # Errors
    /// As of capriole_replace(), in capriole-replace(3).
    ///
    /// # Safety
    /// The replacement does what those who call the function rely on, and has the type of the function. It
    /// is called as any function, so the rules of handlers do not hold for it; a panic in it goes where a
    /// panic in a function of this type goes.
    pub unsafe fn register(self) -> Result<Replaced, Error> {
        let (placed, mut probe) = Placed::new(&self.place)?;
        probe.flags = self.flags;
        // SAFETY: a function of another type, which is called as what it is.
        let replacement = unsafe { Function::from_address(self.replacement.address()) };
        let original = self.original.map_or(ptr::null_mut(), |way| way.0.as_ptr());
        let replacement = ffi::capriole_replacement {
            probe,
            replacement: Some(replacement),
            original: original.cast(),
        };
        let state = Guard::state(replacement, [None, None, None], placed);
        // SAFETY: the state is whole, and the caller vouches for the replacement.
        unsafe { Guard::register(state, ffi::capriole_replace, ffi::capriole_restore) }
            .map(Replaced)
    }
}

/// A replacement that is registered. It is taken off when this is dropped; threads may be in it then.
#[derive(Debug)]
#[must_use = "the replacement is taken off when this is dropped"]
pub struct Replaced(Guard<ffi::capriole_replacement>);

impl Replaced {
    /// Address of the function's first probed instruction.
    #[must_use]
    pub fn address(&self) -> usize {
        guard::address(self.0.outer().cast())
    }

    /// How the function is reached.
    ///
    /// # Errors
    /// The helper process has ended, or this is called by a handler.
    pub fn status(&self) -> Result<Status, Error> {
        status(self.0.outer(), ffi::capriole_replacement_status)
    }

    /// Has the function itself called.
    ///
    /// # Errors
    /// As of capriole_replacement_disable(), in capriole-replace(3).
    pub fn disable(&self) -> Result<(), Error> {
        // SAFETY: it is registered.
        checked(unsafe { ffi::capriole_replacement_disable(self.0.outer()) }).map(drop)
    }

    /// Has the replacement called again.
    ///
    /// # Errors
    /// As of capriole_replacement_enable(), in capriole-replace(3).
    pub fn enable(&self) -> Result<(), Error> {
        // SAFETY: it is registered.
        checked(unsafe { ffi::capriole_replacement_enable(self.0.outer()) }).map(drop)
    }

    /// Takes it off: when the function returns, who calls the function calls the function.
    ///
    /// # Errors
    /// As of capriole_restore(), in capriole-replace(3).
    pub fn restore(self) -> Result<(), Error> {
        self.0.unregister()
    }
}
