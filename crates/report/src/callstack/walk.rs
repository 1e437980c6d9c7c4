//! Unwinds from the place of an event outwards, call by call.

use framehop::x86_64::UnwindRegsX86_64;
use framehop::{FrameAddress, Unwinder as _};

use super::{CallStacks, End};
use capriole_trace::CallStack;
use capriole_trace::{EventInfo, Role};

/// Maximum number of calls in a backtrace: more than fit into the largest copy.
const MOST_CALLS: usize = 4096;

/// An address in the chain of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub address: u64,
    /// True if the program was at exactly this instruction; false for a return address.
    exact: bool,
}

impl Place {
    /// Returns an address within the instruction that was executed: a call may be the last
    /// instruction of its function.
    pub(super) fn lookup(self) -> u64 {
        match self.exact {
            true => self.address,
            false => self.address.wrapping_sub(1),
        }
    }
}

/// Offsets of the registers in a signal frame, from the stack pointer at the `rt_sigreturn`
/// system call: `ucontext.uc_mcontext.gregs` of REG_RBP, REG_RSP and REG_RIP.
const SIGNAL_RBP: u64 = 120;
const SIGNAL_RSP: u64 = 160;
const SIGNAL_RIP: u64 = 168;

/// Result of one unwinding step.
enum Step {
    /// The caller, or the interrupted code.
    To(Place),
    End(End),
}

/// A copy of the stack.
struct Copy<'a> {
    stack: &'a CallStack<'a>,
    /// True if an address outside the copy was read.
    too_short: bool,
}

impl Copy<'_> {
    fn read(&mut self, address: u64) -> Result<u64, ()> {
        let Some(at) = address.checked_sub(self.stack.stack_pointer) else {
            return Err(());
        };
        let word = usize::try_from(at).ok().and_then(|at| {
            let bytes = self.stack.bytes.get(at..at.checked_add(8)?)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        });
        self.too_short |= word.is_none();
        word.ok_or(())
    }

    /// Returns the reason to end the backtrace after a failed read.
    fn end(&self) -> End {
        match self.too_short {
            true => End::Truncated,
            false => End::Unknown,
        }
    }
}

impl CallStacks {
    /// Returns the places of a backtrace, innermost first, and the reason for its end.
    pub(super) fn walk(&mut self, event: &EventInfo, stack: &CallStack<'_>) -> (Vec<Place>, End) {
        let mut copy = Copy {
            stack,
            too_short: false,
        };
        let mut registers =
            UnwindRegsX86_64::new(event.address, stack.stack_pointer, stack.frame_pointer);
        let mut place = Place {
            address: event.address,
            exact: true,
        };
        let mut places = vec![place];
        let mut at_return_address = self.is_at_return_address(event);
        loop {
            let before = registers.sp();
            let step = match std::mem::take(&mut at_return_address) {
                true => leave(&mut registers, &mut copy),
                false => self.step(place, &mut registers, &mut copy),
            };
            place = match step {
                Step::To(next) => next,
                Step::End(end) => return (places, end),
            };
            // Only a signal handler may run on a different stack from the code it interrupted.
            if !place.exact && registers.sp() <= before || places.len() == MOST_CALLS {
                return (places, End::Unknown);
            }
            places.push(place);
        }
    }

    /// Returns the places of a chain that was found already, as far as they can be right, and the
    /// reason for its end.
    pub(super) fn follow(&mut self, addresses: &[u64], end: End) -> (Vec<Place>, End) {
        let mut places: Vec<Place> = Vec::new();
        for &address in addresses {
            let exact = match places.last() {
                None => true,
                Some(last) => self.returns_from_signal(last.address),
            };
            // The first one is where the site has it.
            if !exact && places.len() > 1 && !self.may_be_returned_to(address) {
                return (places, End::Unknown);
            }
            // The rules by which the next callers were found may be those of a file that was unloaded.
            if !places.is_empty() && self.was_replaced(address) {
                return (places, End::Unknown);
            }
            places.push(Place { address, exact });
        }
        (places, end)
    }

    /// True if the stack pointer points to the return address at this event, whatever the call
    /// frame information says: at events on entries and exits, and at points on the entry of a
    /// function without such information.
    fn is_at_return_address(&mut self, event: &EventInfo) -> bool {
        match event.role {
            Role::Entry | Role::Return | Role::TailCall => return true,
            Role::Point => {}
        }
        let start = event.address.wrapping_sub(event.symbol_offset);
        let Some(module) = self.module(event.address) else {
            return event.symbol.is_some() && event.symbol_offset == 0;
        };
        let is_entry = match event.symbol_offset {
            _ if event.symbol.is_none() => false,
            0 => true,
            4 => module.begins_with_endbr(start),
            offset => module.stack_check(start) == Some(offset),
        };
        is_entry && !module.is_described(event.address)
    }

    fn step(
        &mut self,
        place: Place,
        registers: &mut UnwindRegsX86_64,
        copy: &mut Copy<'_>,
    ) -> Step {
        if self.module(place.lookup()).is_none() {
            return Step::End(End::Unknown);
        }
        if self.returns_from_signal(place.address) {
            return interrupted(registers, copy);
        }
        let address = match place.exact {
            true => FrameAddress::from_instruction_pointer(place.address),
            false => match FrameAddress::from_return_address(place.address) {
                Some(address) => address,
                None => return Step::End(End::Outermost),
            },
        };
        let mut read = |address| copy.read(address);
        let next = self
            .unwinder
            .unwind_frame(address, registers, &mut self.cache, &mut read);
        match next {
            Ok(Some(address)) if self.may_be_returned_to(address) => Step::To(Place {
                address,
                exact: false,
            }),
            Ok(Some(_)) => Step::End(End::Unknown),
            Ok(None) | Err(framehop::Error::ReturnAddressIsNull) => {
                let module = self.module(place.lookup());
                let outermost = module.is_some_and(|m| m.can_be_outermost(place.lookup()));
                Step::End(match outermost {
                    true => End::Outermost,
                    false => End::Unknown,
                })
            }
            Err(_) => Step::End(copy.end()),
        }
    }

    fn returns_from_signal(&mut self, address: u64) -> bool {
        if let Some(known) = self.from_signals.get(&address) {
            return *known;
        }
        let module = self.module(address);
        let found = module.is_some_and(|module| module.returns_from_signal(address));
        self.from_signals.insert(address, found);
        found
    }

    /// True if an address may be a return address. Addresses outside all files may.
    fn may_be_returned_to(&mut self, address: u64) -> bool {
        if let Some(known) = self.plausible.get(&address) {
            return *known;
        }
        let module = self.module(address.wrapping_sub(1));
        let plausible = match module {
            None => true,
            Some(module) => {
                module.may_be_returned_to(address) || module.returns_from_signal(address)
            }
        };
        self.plausible.insert(address, plausible);
        plausible
    }
}

/// Unwinds a frame whose stack pointer points to the return address.
fn leave(registers: &mut UnwindRegsX86_64, copy: &mut Copy<'_>) -> Step {
    let Ok(address) = copy.read(registers.sp()) else {
        return Step::End(copy.end());
    };
    registers.set_ip(address);
    registers.set_sp(registers.sp().wrapping_add(8));
    Step::To(Place {
        address,
        exact: false,
    })
}

/// Unwinds a signal frame, to the interrupted code.
fn interrupted(registers: &mut UnwindRegsX86_64, copy: &mut Copy<'_>) -> Step {
    let context = registers.sp();
    let mut read = |offset: u64| copy.read(context.wrapping_add(offset));
    let (Ok(rbp), Ok(rsp), Ok(rip)) = (read(SIGNAL_RBP), read(SIGNAL_RSP), read(SIGNAL_RIP)) else {
        return Step::End(copy.end());
    };
    *registers = UnwindRegsX86_64::new(rip, rsp, rbp);
    Step::To(Place {
        address: rip,
        exact: true,
    })
}
