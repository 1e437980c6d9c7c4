//! Return probes.

use crate::error::{Error, checked};
use crate::guard::{self, Closure, Guard, field};
use crate::place::{Place, Placed, placed};
use crate::probe::{Status, status};
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

    /// Follows at most that many calls at a time; 0: as many as there is room for.
    pub fn max_active(mut self, calls: u32) -> ReturnProbe {
        self.max_active = calls;
        self
    }

    /// Replaces the return address instead of probing all exits.
    pub fn by_address(mut self) -> ReturnProbe {
        self.by_address = 1;
        self
    }

    /// Registers it disabled.
    pub fn disabled(mut self) -> ReturnProbe {
        self.flags |= ffi::CAPRIOLE_DISABLED;
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
        let put_in = ffi::capriole_return_probe_register;
        let state = self.state(entry, handler)?;
        // SAFETY: the state is whole, and the caller vouches for the handlers.
        unsafe { Guard::register(state, put_in, ffi::capriole_return_probe_unregister) }
            .map(RegisteredReturn)
    }

    /// Registers several probes with the same handlers: all of them, or none.
    ///
    /// # Errors
    /// As [`ReturnProbe::register`].
    ///
    /// # Safety
    /// As [`ReturnProbe::register`].
    pub unsafe fn register_all<T, E, H>(
        probes: impl IntoIterator<Item = ReturnProbe>,
        entry: E,
        handler: H,
    ) -> Result<Vec<RegisteredReturn>, Error>
    where
        T: Copy + 'static,
        E: Fn(&mut Registers) -> Option<T> + Clone + Send + Sync + 'static,
        H: Fn(T, &Call, &mut Registers) + Clone + Send + Sync + 'static,
    {
        let states: Result<Vec<_>, Error> = probes
            .into_iter()
            .map(|probe| probe.state(entry.clone(), handler.clone()))
            .collect();
        let (put_in, take_out) = (
            ffi::capriole_return_probes_register,
            ffi::capriole_return_probe_unregister,
        );
        // SAFETY: the states are whole, and the caller vouches for the handlers.
        let guards = unsafe { Guard::register_all(states?, put_in, take_out) }?;
        Ok(guards.into_iter().map(RegisteredReturn).collect())
    }

    fn state<T, E, H>(
        self,
        entry: E,
        handler: H,
    ) -> Result<Box<guard::State<ffi::capriole_return_probe>>, Error>
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
        Ok(Guard::state(probe, closures, placed))
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

    /// Stops the calls of its handlers. Calls that are going on are not followed any more.
    ///
    /// # Errors
    /// As of capriole_return_probe_disable(), in capriole-return-probe(3).
    pub fn disable(&self) -> Result<(), Error> {
        // SAFETY: it is registered.
        checked(unsafe { ffi::capriole_return_probe_disable(self.0.outer()) }).map(drop)
    }

    /// Resumes them.
    ///
    /// # Errors
    /// As of capriole_return_probe_enable(), in capriole-return-probe(3).
    pub fn enable(&self) -> Result<(), Error> {
        // SAFETY: it is registered.
        checked(unsafe { ffi::capriole_return_probe_enable(self.0.outer()) }).map(drop)
    }

    /// How the function's entry is reached.
    ///
    /// # Errors
    /// The helper process has ended, or this is called by a handler.
    pub fn status(&self) -> Result<Status, Error> {
        status(self.0.outer(), ffi::capriole_return_probe_status)
    }

    /// Number of calls that could not be followed. Handlers may ask for it.
    #[must_use]
    pub fn missed(&self) -> u64 {
        // SAFETY: it is registered.
        unsafe { ffi::capriole_return_probe_missed(self.0.outer()) }
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
