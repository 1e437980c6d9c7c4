//! What is registered, and the closures that it calls.

use crate::error::{Error, checked};
use crate::ffi;
use crate::place::Placed;
use std::ffi::c_int;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// A closure that the library calls, without its type.
pub(crate) struct Closure {
    /// Leads to the closure.
    pub(crate) data: *const (),
    _owner: Arc<dyn Send + Sync>,
}

impl Closure {
    pub(crate) fn new<F: Send + Sync + 'static>(closure: F) -> Closure {
        let owner = Arc::new(closure);
        Closure {
            data: Arc::as_ptr(&owner).cast(),
            _owner: owner,
        }
    }

    /// The pointer to the closure, if there is one.
    pub(crate) fn data(closure: &Option<Closure>) -> *const () {
        closure.as_ref().map_or(ptr::null(), |closure| closure.data)
    }
}

impl fmt::Debug for Closure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closure")
    }
}

/// A structure of the library's, and all that it points to.
#[repr(C)]
pub(crate) struct State<T> {
    /// What the library knows. First, so that a pointer to it is one to the whole.
    pub(crate) outer: T,
    /// The closures by their number, null where there is none.
    pub(crate) data: [*const (); 3],
    closures: [Option<Closure>; 3],
    placed: Placed,
}

/// Returns the closure with a number, of what is registered.
///
/// # Safety
/// `outer` is that of a [`State`] that is registered, and its closure with this number has the type `F`.
#[inline]
pub(crate) unsafe fn closure<'a, T, F>(outer: *mut T, number: usize) -> &'a F {
    // SAFETY: the caller says so. The field is not written after the registration.
    let data = unsafe { (*outer.cast::<State<T>>()).data[number] };
    // SAFETY: the closure is dropped when the probe is not registered any more.
    unsafe { &*data.cast::<F>() }
}

/// Takes something out when it is dropped.
///
/// The library changes what is behind the pointer at any time, so there is never a reference to it.
pub(crate) struct Guard<T> {
    state: NonNull<State<T>>,
    take_out: unsafe extern "C" fn(*mut T) -> c_int,
}

// SAFETY: all functions of the library may be called by any thread, and what the state owns is `Send` and
// `Sync`.
unsafe impl<T> Send for Guard<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Guard<T> {}

impl<T> Guard<T> {
    /// Makes a state that is not registered yet: `put_in` of [`Guard::register`] does that.
    pub(crate) fn state(outer: T, closures: [Option<Closure>; 3], placed: Placed) -> Box<State<T>> {
        let data = [0, 1, 2].map(|number| Closure::data(&closures[number]));
        Box::new(State {
            outer,
            data,
            closures,
            placed,
        })
    }

    /// Registers a state by a function of the library.
    ///
    /// # Safety
    /// That function may be called with it.
    pub(crate) unsafe fn register(
        state: Box<State<T>>,
        put_in: unsafe extern "C" fn(*mut T) -> c_int,
        take_out: unsafe extern "C" fn(*mut T) -> c_int,
    ) -> Result<Guard<T>, Error> {
        let state = Box::into_raw(state);
        // SAFETY: the caller says so, and the memory stays until the guard is dropped.
        let result = checked(unsafe { put_in(state.cast()) });
        // SAFETY: the pointer is that of a box.
        unsafe { Guard::adopt(state, result, take_out) }
    }

    /// Registers several states by a function of the library: all of them, or none.
    ///
    /// # Safety
    /// That function may be called with all of them.
    pub(crate) unsafe fn register_all(
        states: Vec<Box<State<T>>>,
        put_in: unsafe extern "C" fn(*mut *mut T, usize) -> c_int,
        take_out: unsafe extern "C" fn(*mut T) -> c_int,
    ) -> Result<Vec<Guard<T>>, Error> {
        let states: Vec<_> = states.into_iter().map(Box::into_raw).collect();
        let mut pointers: Vec<*mut T> = states.iter().map(|state| state.cast()).collect();
        // SAFETY: the caller says so, and the memory stays until the guards are dropped.
        let result = checked(unsafe { put_in(pointers.as_mut_ptr(), pointers.len()) });
        let adopt = |state| {
            // SAFETY: the pointer is that of a box, all of which the library knows, or none.
            unsafe { Guard::adopt(state, result.clone(), take_out) }
        };
        // All of them, so that all are dropped if it has failed.
        let guards: Vec<_> = states.into_iter().map(adopt).collect();
        guards.into_iter().collect()
    }

    /// Makes the guard of a state that was registered, or drops the state if that has failed.
    ///
    /// # Safety
    /// The pointer is that of a box, which belongs to nobody else. The library knows it if `result` is no
    /// error, and has it taken out by this function.
    pub(crate) unsafe fn adopt(
        state: *mut State<T>,
        result: Result<c_int, Error>,
        take_out: unsafe extern "C" fn(*mut T) -> c_int,
    ) -> Result<Guard<T>, Error> {
        if let Err(error) = result {
            const EDEADLK: i32 = 35;
            const EINVAL: i32 = 22;
            // Usually it was not registered, and that is what the library answers here. But where the last of
            // several steps has failed it is.
            let still = match error.code() {
                EDEADLK => false,
                // SAFETY: the memory is there, registered or not.
                _ => checked(unsafe { take_out(state.cast()) })
                    .is_err_and(|error| error.code() != EINVAL),
            };
            if !still {
                // SAFETY: the library does not know it any more.
                drop(unsafe { Box::from_raw(state) });
            }
            return Err(error);
        }
        // SAFETY: a box is not null.
        let state = unsafe { NonNull::new_unchecked(state) };
        Ok(Guard { state, take_out })
    }

    /// The library's structure.
    pub(crate) fn outer(&self) -> *mut T {
        self.state.as_ptr().cast()
    }

    /// Takes it out now.
    pub(crate) fn unregister(self) -> Result<(), Error> {
        let result = self.take();
        std::mem::forget(self);
        result
    }

    fn take(&self) -> Result<(), Error> {
        // SAFETY: it is registered.
        checked(unsafe { (self.take_out)(self.outer()) })?;
        // SAFETY: nobody uses it any more, as the function has returned without an error.
        drop(unsafe { Box::from_raw(self.state.as_ptr()) });
        Ok(())
    }
}

impl<T> Drop for Guard<T> {
    fn drop(&mut self) {
        // What could not be taken out may still be called, and stays in memory for good.
        let _ = self.take();
    }
}

impl<T> fmt::Debug for Guard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({:p})", self.state)
    }
}

/// Reads a field of a structure that the library changes.
macro_rules! field {
    ($pointer:expr, $($field:tt)+) => {{
        let pointer = $pointer;
        // SAFETY: the structure is registered, so it is there; no reference to it is made.
        let field = unsafe { &raw const (*pointer).$($field)+ };
        // SAFETY: it is aligned and initialised.
        unsafe { field.read_volatile() }
    }};
}
pub(crate) use field;

/// The address of a probe, once it is registered.
pub(crate) fn address(probe: *mut ffi::capriole_probe) -> usize {
    field!(probe, address).addr()
}
