//! Return probes.

use crate::error::Error;
use crate::guard::{self, Closure, Guard, field};
use crate::place::{Place, Placed, placed};
use crate::{Registers, ffi};
use std::ffi::{c_int, c_uint};
use std::ptr;

/// A call that is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// Address that the function returns to.
    pub return_address: u64,
    /// The stack pointer at the entry: address of the return address.
    pub sp: u64,
}

/// A probe of a function's calls, before it is registered.
///
/// ```no_run
/// use capriole_probe::ReturnProbe;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// static SHORT: AtomicU64 = AtomicU64::new(0);
///
/// let read = ReturnProbe::symbol("libc", "read");
/// // SAFETY: the handlers compare and add numbers.
/// let registered = unsafe {
///     read.register(
///         |regs| Some(regs.dx), // the number of bytes that are wanted
///         |wanted, _call, regs| {
///             if regs.ax != wanted {
///                 SHORT.fetch_add(1, Ordering::Relaxed);
///             }
///         },
///     )
/// }?;
/// # Ok::<(), capriole_probe::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a probe does nothing before it is registered"]
pub struct ReturnProbe {
    place: Place,
    flags: c_uint,
    max_active: c_uint,
    by_address: c_uint,
}

const ENTRY: usize = 0;
const RETURN: usize = 1;

placed!(ReturnProbe);

impl ReturnProbe {
    /// Of the function at a place.
    pub fn new(place: Place) -> ReturnProbe {
        ReturnProbe {
            place,
            flags: 0,
            max_active: 0,
            by_address: 0,
        }
    }

    /// Follows at most that many calls at a time; 0: as many as there are.
    pub fn max_active(mut self, calls: u32) -> ReturnProbe {
        self.max_active = calls;
        self
    }

    /// Replaces the return address instead of probing all exits.
    pub fn by_address(mut self) -> ReturnProbe {
        self.by_address = 1;
        self
    }

    /// Keeps breakpoints: does not replace them by jumps.
    pub fn no_optimize(mut self) -> ReturnProbe {
        self.flags |= ffi::CAPRIOLE_NO_OPTIMIZE;
        self
    }

    /// Does not save vector and x87 registers, without a look at the closures. They must not change any,
    /// which the compiler does not check; [`ReturnProbe::register`] makes that the caller's promise.
    pub fn no_vector(mut self) -> ReturnProbe {
        self.flags |= ffi::CAPRIOLE_NO_VECTOR;
        self
    }

    /// Registers it. `entry` is called when the function is, and returns data for the call, or `None`
    /// if its return does not matter; `handler` is called at the return, with that data, and with the
    /// value that the function returns in `ax`.
    ///
    /// `T` is `Copy` because a call that ends in another way, by an exception or `longjmp`, drops nothing.
    ///
    /// # Errors
    /// As of capriole_return_probe_register(), in capriole-return-probe(3).
    ///
    /// # Safety
    /// As the crate's documentation says [of handlers](crate#what-is-unsafe).
    pub unsafe fn register<T, E, H>(self, entry: E, handler: H) -> Result<RegisteredReturn, Error>
    where
        T: Copy + 'static,
        E: Fn(&mut Registers) -> Option<T> + Send + Sync + 'static,
        H: Fn(T, &Call, &mut Registers) + Send + Sync + 'static,
    {
        const { assert!(size_of::<T>() <= 1024, "a call has room for 1024 bytes") }
        let (placed, mut probe) = Placed::new(&self.place)?;
        probe.flags = self.flags;
        let probe = ffi::capriole_return_probe {
            probe,
            entry: Some(enter::<T, E>),
            handler: Some(leave::<T, H>),
            data_size: size_of::<T>(),
            max_active: self.max_active,
            by_address: self.by_address,
            missed: 0,
            private_: [ptr::null_mut(); 4],
        };
        let closures = [Some(Closure::new(entry)), Some(Closure::new(handler)), None];
        let state = Guard::state(probe, closures, placed);
        let put_in = ffi::capriole_return_probe_register;
        // SAFETY: the state is whole, and the caller vouches for the handlers.
        unsafe { Guard::register(state, put_in, ffi::capriole_return_probe_unregister) }
            .map(RegisteredReturn)
    }
}

unsafe extern "C" fn enter<T, E>(call: *mut ffi::capriole_call, regs: *mut Registers) -> c_int
where
    T: Copy,
    E: Fn(&mut Registers) -> Option<T>,
{
    let (probe, data) = (field!(call, probe), field!(call, data));
    // SAFETY: the probe was registered with this function and a closure of this type.
    let handler: &E = unsafe { guard::closure(probe, ENTRY) };
    // SAFETY: the registers are those of this hit, for us alone.
    let Some(value) = handler(unsafe { &mut *regs }) else {
        return 1;
    };
    // SAFETY: the call has room for a value of this size, which nobody else uses.
    unsafe { data.cast::<T>().write_unaligned(value) };
    0
}

unsafe extern "C" fn leave<T, H>(call: *mut ffi::capriole_call, regs: *mut Registers) -> c_int
where
    T: Copy,
    H: Fn(T, &Call, &mut Registers),
{
    let (probe, data) = (field!(call, probe), field!(call, data));
    // SAFETY: the probe was registered with this function and a closure of this type.
    let handler: &H = unsafe { guard::closure(probe, RETURN) };
    // SAFETY: `enter` has written it.
    let value = unsafe { data.cast::<T>().read_unaligned() };
    let call = Call {
        return_address: field!(call, return_address),
        sp: field!(call, sp),
    };
    // SAFETY: the registers are those of this hit, for us alone.
    handler(value, &call, unsafe { &mut *regs });
    0
}

/// A return probe that is registered. It is taken out when this is dropped.
#[derive(Debug)]
#[must_use = "the probe is taken out when this is dropped"]
pub struct RegisteredReturn(Guard<ffi::capriole_return_probe>);

impl RegisteredReturn {
    /// Address of the function's first probed instruction.
    #[must_use]
    pub fn address(&self) -> usize {
        guard::address(self.0.outer().cast())
    }

    /// Number of calls that could not be followed.
    #[must_use]
    pub fn missed(&self) -> u64 {
        field!(self.0.outer(), missed)
    }

    /// Takes it out: when the function returns, no handler runs or will run.
    ///
    /// # Errors
    /// As of capriole_return_probe_unregister(), in capriole-return-probe(3). The probe, and what its
    /// handlers own, then stays in memory for good.
    pub fn unregister(self) -> Result<(), Error> {
        self.0.unregister()
    }
}
