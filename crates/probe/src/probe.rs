//! Probes of single instructions.

use crate::error::{Error, checked};
use crate::guard::{self, Closure, Guard};
use crate::place::{Place, Placed, placed};
use crate::{Registers, ffi};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong};

/// What a handler before the instruction decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Action {
    /// The instruction is executed, unless the handler has changed `ip`: then the program goes on there.
    #[default]
    Continue,
    /// The instruction is skipped: the program goes on at `ip` if the handler has changed that, otherwise
    /// behind the instruction. Handlers of the same instruction that were registered later, and those after
    /// the instruction, are not called.
    Skip,
}

/// What is done about a fault in a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is the program's affair, which it usually ends.
    Leave,
    /// The handler is abandoned where it is; the program goes on as if it had returned
    /// [`Action::Continue`]. Nothing that the handler owns is dropped.
    Abandon,
}

/// A probe of an instruction, before it is registered.
///
/// ```no_run
/// use capriole_probe::{Action, Probe};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// static OPENED: AtomicU64 = AtomicU64::new(0);
///
/// let probe = Probe::symbol("libc", "open64").before(|_| {
///     OPENED.fetch_add(1, Ordering::Relaxed);
///     Action::Continue
/// });
/// // SAFETY: the handler adds to an atomic number.
/// let registered = unsafe { probe.register() }?;
/// # Ok::<(), capriole_probe::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a probe does nothing before it is registered"]
pub struct Probe {
    place: Place,
    pre: ffi::capriole_pre_handler,
    post: ffi::capriole_post_handler,
    fault: ffi::capriole_fault_handler,
    closures: [Option<Closure>; 3],
    flags: c_uint,
}

const BEFORE: usize = 0;
const AFTER: usize = 1;
const FAULT: usize = 2;

placed!(Probe);

impl Probe {
    /// At a place.
    pub fn new(place: Place) -> Probe {
        Probe {
            place,
            pre: None,
            post: None,
            fault: None,
            closures: [None, None, None],
            flags: 0,
        }
    }

    /// At a source line of the program, see [`Place::line`].
    pub fn line(line: &str) -> Probe {
        Probe::new(Place::line(line))
    }

    /// At the same line or function of a library, see [`Place::object`].
    pub fn object(mut self, object: &str) -> Probe {
        self.place = self.place.object(object);
        self
    }

    /// That many bytes behind the start of the function, or behind the address.
    pub fn offset(mut self, bytes: usize) -> Probe {
        self.place = self.place.offset(bytes);
        self
    }

    /// Calls a closure before the instruction.
    pub fn before<F>(mut self, handler: F) -> Probe
    where
        F: Fn(&mut Registers) -> Action + Send + Sync + 'static,
    {
        self.pre = Some(before::<F>);
        self.closures[BEFORE] = Some(Closure::new(handler));
        self
    }

    /// Calls a closure after the instruction, with the registers as it has left them: after a jump, call or
    /// return `ip` is where it leads. Not if the instruction faults.
    pub fn after<F>(mut self, handler: F) -> Probe
    where
        F: Fn(&mut Registers) + Send + Sync + 'static,
    {
        self.post = Some(after::<F>);
        self.closures[AFTER] = Some(Closure::new(handler));
        self
    }

    /// Calls a closure when one of the two above runs into a fault, with the number of the signal, and in
    /// the signal's handler.
    pub fn on_fault<F>(mut self, handler: F) -> Probe
    where
        F: Fn(&mut Registers, i32) -> Fault + Send + Sync + 'static,
    {
        self.fault = Some(fault::<F>);
        self.closures[FAULT] = Some(Closure::new(handler));
        self
    }

    /// Registers it disabled.
    pub fn disabled(mut self) -> Probe {
        self.flags |= ffi::CAPRIOLE_DISABLED;
        self
    }

    /// Keeps the breakpoint: does not replace it by a jump.
    pub fn no_optimize(mut self) -> Probe {
        self.flags |= ffi::CAPRIOLE_NO_OPTIMIZE;
        self
    }

    /// Does not save vector and x87 registers, without a look at the closures. They must not change any,
    /// which the compiler does not check; [`Probe::register`] makes that the caller's promise.
    pub fn no_vector(mut self) -> Probe {
        self.flags |= ffi::CAPRIOLE_NO_VECTOR;
        self
    }

    /// Saves these registers, without a look at the closures.
    pub fn save_vector(mut self) -> Probe {
        self.flags |= ffi::CAPRIOLE_SAVE_VECTOR;
        self
    }

    fn state(self) -> Result<Box<guard::State<ffi::capriole_probe>>, Error> {
        let (placed, mut probe) = Placed::new(&self.place)?;
        probe.pre = self.pre;
        probe.post = self.post;
        probe.fault = self.fault;
        probe.flags = self.flags;
        Ok(Guard::state(probe, self.closures, placed))
    }

    /// Registers it: when the function returns, it is hit.
    ///
    /// # Errors
    /// As of capriole_probe_register(), in capriole-probe(3).
    ///
    /// # Safety
    /// As the crate's documentation says [of handlers](crate#what-is-unsafe).
    pub unsafe fn register(self) -> Result<Registered, Error> {
        let (put_in, take_out) = (
            ffi::capriole_probe_register as unsafe extern "C" fn(_) -> _,
            ffi::capriole_probe_unregister as unsafe extern "C" fn(_) -> _,
        );
        // SAFETY: the state is whole, and the caller vouches for the handlers.
        unsafe { Guard::register(self.state()?, put_in, take_out) }.map(Registered)
    }

    /// Registers several probes: all of them, or none.
    ///
    /// # Errors
    /// As [`Probe::register`].
    ///
    /// # Safety
    /// As [`Probe::register`].
    pub unsafe fn register_all(
        probes: impl IntoIterator<Item = Probe>,
    ) -> Result<Vec<Registered>, Error> {
        let states: Result<Vec<_>, Error> = probes.into_iter().map(Probe::state).collect();
        let put_in = ffi::capriole_probes_register;
        // SAFETY: the states are whole, and the caller vouches for the handlers.
        let guards =
            unsafe { Guard::register_all(states?, put_in, ffi::capriole_probe_unregister) }?;
        Ok(guards.into_iter().map(Registered).collect())
    }
}

unsafe extern "C" fn before<F>(probe: *mut ffi::capriole_probe, regs: *mut Registers) -> c_int
where
    F: Fn(&mut Registers) -> Action,
{
    // SAFETY: the probe was registered with this function and a closure of this type.
    let handler: &F = unsafe { guard::closure(probe, BEFORE) };
    // SAFETY: the registers are those of this hit, for us alone.
    match handler(unsafe { &mut *regs }) {
        Action::Continue => 0,
        Action::Skip => 1,
    }
}

unsafe extern "C" fn after<F>(probe: *mut ffi::capriole_probe, regs: *mut Registers, _: c_ulong)
where
    F: Fn(&mut Registers),
{
    // SAFETY: the probe was registered with this function and a closure of this type.
    let handler: &F = unsafe { guard::closure(probe, AFTER) };
    // SAFETY: the registers are those of this hit, for us alone.
    handler(unsafe { &mut *regs });
}

unsafe extern "C" fn fault<F>(
    probe: *mut ffi::capriole_probe,
    regs: *mut Registers,
    signal: c_int,
) -> c_int
where
    F: Fn(&mut Registers, i32) -> Fault,
{
    // SAFETY: the probe was registered with this function and a closure of this type.
    let handler: &F = unsafe { guard::closure(probe, FAULT) };
    // SAFETY: the registers are those of this hit; the handler that has them is not running.
    match handler(unsafe { &mut *regs }, signal) {
        Fault::Leave => 0,
        Fault::Abandon => 1,
    }
}

/// How a probe is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// It is not registered.
    Unregistered,
    /// By a breakpoint.
    Breakpoint,
    /// By a breakpoint that is going to be replaced by a jump.
    Waiting,
    /// By a jump.
    Optimized,
    /// Not: it is disabled, or [all probes are disarmed](crate::disarm_all).
    Disabled,
    /// Not any more: its library is unmapped, or another tool has changed the place.
    Gone,
    /// Not yet: a thread is inside the bytes that change.
    Occupied,
}

/// State of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// How it is reached.
    pub state: State,
    /// The same in words, and why not by a jump.
    pub why: String,
}

/// Asks for the state of a probe, by a function of the library.
pub(crate) fn status<T>(
    probe: *const T,
    ask: unsafe extern "C" fn(*const T, *mut c_char, usize) -> c_int,
) -> Result<Status, Error> {
    let mut why = [0 as c_char; 1024];
    // SAFETY: the probe is registered, and the text has this size.
    let state = checked(unsafe { ask(probe, why.as_mut_ptr(), why.len()) })?;
    let state = match state {
        ffi::CAPRIOLE_BREAKPOINT => State::Breakpoint,
        ffi::CAPRIOLE_WAITING => State::Waiting,
        ffi::CAPRIOLE_OPTIMIZED => State::Optimized,
        ffi::CAPRIOLE_OFF => State::Disabled,
        ffi::CAPRIOLE_GONE => State::Gone,
        ffi::CAPRIOLE_OCCUPIED => State::Occupied,
        _ => State::Unregistered,
    };
    // SAFETY: the library ends the text with a zero byte, and it was filled with them.
    let why = unsafe { CStr::from_ptr(why.as_ptr()) };
    let why = why.to_string_lossy().into_owned();
    Ok(Status { state, why })
}

/// A probe that is registered. It is taken out when this is dropped.
#[derive(Debug)]
#[must_use = "the probe is taken out when this is dropped"]
pub struct Registered(Guard<ffi::capriole_probe>);

impl Registered {
    /// Address of the probed instruction.
    #[must_use]
    pub fn address(&self) -> usize {
        guard::address(self.0.outer())
    }

    /// Stops the calls of its handlers.
    ///
    /// # Errors
    /// As of capriole_probe_disable(), in capriole-probe(3).
    pub fn disable(&self) -> Result<(), Error> {
        // SAFETY: it is registered.
        checked(unsafe { ffi::capriole_probe_disable(self.0.outer()) }).map(drop)
    }

    /// Resumes them.
    ///
    /// # Errors
    /// As of capriole_probe_enable(), in capriole-probe(3).
    pub fn enable(&self) -> Result<(), Error> {
        // SAFETY: it is registered.
        checked(unsafe { ffi::capriole_probe_enable(self.0.outer()) }).map(drop)
    }

    /// How it is reached.
    ///
    /// # Errors
    /// The helper process has ended, or this is called by a handler.
    pub fn status(&self) -> Result<Status, Error> {
        status(self.0.outer(), ffi::capriole_probe_status)
    }

    /// Number of hits at which no handler was called. Handlers may ask for it.
    #[must_use]
    pub fn missed(&self) -> u64 {
        // SAFETY: it is registered.
        unsafe { ffi::capriole_probe_missed(self.0.outer()) }
    }

    /// Takes it out: when the function returns, no handler runs or will run.
    ///
    /// # Errors
    /// As of capriole_probe_unregister(), in capriole-probe(3). The probe, and what its handlers own, then
    /// stays in memory for good.
    pub fn unregister(self) -> Result<(), Error> {
        self.0.unregister()
    }
}
