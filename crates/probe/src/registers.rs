//! The general registers at a probe.

/// The general registers at a probe, in the order and with the names of the kernel's `struct pt_regs`.
///
/// A handler may change each of them; the program goes on with what it leaves here. That is why
/// registering a probe is unsafe. A changed `sp` must leave 128 bytes below it unused, and may be at
/// most 64 bytes lower than it was.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "registers of the processor")]
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub bp: u64,
    pub bx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub ax: u64,
    pub cx: u64,
    pub dx: u64,
    pub si: u64,
    pub di: u64,
    /// Address of the probed instruction; after it, of the one that comes next.
    pub ip: u64,
    pub flags: u64,
    pub sp: u64,
}

impl Registers {
    /// Returns an argument of the function at whose entry the probe is: integers and pointers of the
    /// calling convention of C, from 0. Floating point numbers do not count. `None` from 6 on, which are
    /// on the stack.
    #[inline]
    #[must_use]
    pub fn argument(&self, number: usize) -> Option<u64> {
        match number {
            0 => Some(self.di),
            1 => Some(self.si),
            2 => Some(self.dx),
            3 => Some(self.cx),
            4 => Some(self.r8),
            5 => Some(self.r9),
            _ => None,
        }
    }

    /// Returns the value that a function returns, at its return.
    #[inline]
    #[must_use]
    pub fn result(&self) -> u64 {
        self.ax
    }
}
