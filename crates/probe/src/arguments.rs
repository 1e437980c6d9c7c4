//! Probes whose handler has the parameters of the probed function.

use crate::error::{Error, checked};
use crate::ffi;
use crate::function::Function;
use crate::guard::{self, Guard};
use crate::place::{Place, Placed};
use crate::probe::{Status, status};
use std::ffi::c_uint;

/// A function that is called at the entry of another one, with the same arguments. What it returns is
/// ignored. Before it is registered.
///
/// ```no_run
/// use capriole_probe::ArgumentProbe;
///
/// extern "C" fn area(width: u32, height: u32) -> u32 {
///     width * height
/// }
/// extern "C" fn seen(width: u32, height: u32) -> u32 {
///     assert!(width < 10_000 && height < 10_000); // else the program is aborted
///     0
/// }
/// let probe = ArgumentProbe::<extern "C" fn(u32, u32) -> u32>::new(area, seen);
/// // SAFETY: the handler compares numbers.
/// let registered = unsafe { probe.register() }?;
/// # Ok::<(), capriole_probe::Error>(())
/// ```
///
/// A handler of another type is a compile error:
///
/// ```compile_fail
/// # use capriole_probe::ArgumentProbe;
/// # extern "C" fn area(width: u32, height: u32) -> u32 { width * height }
/// extern "C" fn seen(width: u64, height: u64) -> u32 { 0 }
/// ArgumentProbe::<extern "C" fn(u32, u32) -> u32>::new(area, seen);
/// ```
#[derive(Debug)]
#[must_use = "a probe does nothing before it is registered"]
pub struct ArgumentProbe<F> {
    place: Place,
    handler: F,
    stack_words: u32,
    flags: c_uint,
}

impl<F: Function> ArgumentProbe<F> {
    /// At the entry of `function`. Calls of it that the compiler has put into their callers do not count.
    pub fn new(function: F, handler: F) -> ArgumentProbe<F> {
        ArgumentProbe::placed(Place::at(function.address().addr()), handler)
    }

    /// At the entry of the function at a place, which has the type of the handler; that is for the caller
    /// of [`ArgumentProbe::register`] to know.
    pub fn placed(place: Place, handler: F) -> ArgumentProbe<F> {
        ArgumentProbe {
            place,
            handler,
            stack_words: F::STACK_WORDS,
            flags: 0,
        }
    }

    /// Copies so many words of the stack for the handler, at most 32. Without this it is what parameters
    /// of these sizes may need at most.
    pub fn stack_words(mut self, words: u32) -> ArgumentProbe<F> {
        self.stack_words = words;
        self
    }

    /// Registers it disabled.
    pub fn disabled(mut self) -> ArgumentProbe<F> {
        self.flags |= ffi::CAPRIOLE_DISABLED;
        self
    }

    /// Does not save vector and x87 registers: the handler must not change any.
    pub fn no_vector(mut self) -> ArgumentProbe<F> {
        self.flags |= ffi::CAPRIOLE_NO_VECTOR;
        self
    }

    /// Registers it: when the function returns, the handler is called.
    ///
    /// # Errors
    /// As of capriole_argument_probe_register(), in capriole-probe(3).
    ///
    /// # Safety
    /// As the crate's documentation says [of handlers](crate#what-is-unsafe); and the function has the
    /// type of the handler.
    pub unsafe fn register(self) -> Result<RegisteredArguments, Error> {
        let put_in = ffi::capriole_argument_probe_register;
        let state = self.state()?;
        // SAFETY: the state is whole, and the caller vouches for the handler.
        unsafe { Guard::register(state, put_in, ffi::capriole_argument_probe_unregister) }
            .map(RegisteredArguments)
    }

    /// Registers several probes: all of them, or none.
    ///
    /// # Errors
    /// As [`ArgumentProbe::register`].
    ///
    /// # Safety
    /// As [`ArgumentProbe::register`].
    pub unsafe fn register_all(
        probes: impl IntoIterator<Item = ArgumentProbe<F>>,
    ) -> Result<Vec<RegisteredArguments>, Error> {
        let states: Result<Vec<_>, Error> = probes.into_iter().map(ArgumentProbe::state).collect();
        let (put_in, take_out) = (
            ffi::capriole_argument_probes_register,
            ffi::capriole_argument_probe_unregister,
        );
        // SAFETY: the states are whole, and the caller vouches for the handlers.
        let guards = unsafe { Guard::register_all(states?, put_in, take_out) }?;
        Ok(guards.into_iter().map(RegisteredArguments).collect())
    }

    fn state(self) -> Result<Box<guard::State<ffi::capriole_argument_probe>>, Error> {
        let (placed, mut probe) = Placed::new(&self.place)?;
        probe.flags = self.flags;
        // SAFETY: a function of another type, which is called as what it is.
        let handler = unsafe { Function::from_address(self.handler.address()) };
        let probe = ffi::capriole_argument_probe {
            probe,
            handler: Some(handler),
            stack_words: self.stack_words,
        };
        Ok(Guard::state(probe, [None, None, None], placed))
    }
}

/// An argument probe that is registered. It is taken out when this is dropped.
#[derive(Debug)]
#[must_use = "the probe is taken out when this is dropped"]
pub struct RegisteredArguments(Guard<ffi::capriole_argument_probe>);

impl RegisteredArguments {
    /// Address of the function's first probed instruction.
    #[must_use]
    pub fn address(&self) -> usize {
        guard::address(self.0.outer().cast())
    }

    /// Stops the calls of its handler.
    ///
    /// # Errors
    /// As of capriole_argument_probe_disable(), in capriole-probe(3).
    pub fn disable(&self) -> Result<(), Error> {
        // SAFETY: it is registered.
        checked(unsafe { ffi::capriole_argument_probe_disable(self.0.outer()) }).map(drop)
    }

    /// Resumes them.
    ///
    /// # Errors
    /// As of capriole_argument_probe_enable(), in capriole-probe(3).
    pub fn enable(&self) -> Result<(), Error> {
        // SAFETY: it is registered.
        checked(unsafe { ffi::capriole_argument_probe_enable(self.0.outer()) }).map(drop)
    }

    /// How it is reached.
    ///
    /// # Errors
    /// The helper process has ended, or this is called by a handler.
    pub fn status(&self) -> Result<Status, Error> {
        status(self.0.outer(), ffi::capriole_argument_probe_status)
    }

    /// Number of hits at which the handler was not called. Handlers may ask for it.
    #[must_use]
    pub fn missed(&self) -> u64 {
        // SAFETY: it is registered, and begins with a probe.
        unsafe { ffi::capriole_probe_missed(self.0.outer().cast()) }
    }

    /// Takes it out: when the function returns, the handler neither runs nor will run.
    ///
    /// # Errors
    /// As of capriole_probe_unregister(), in capriole-probe(3).
    pub fn unregister(self) -> Result<(), Error> {
        self.0.unregister()
    }
}
