//! Entry or return.

/// Point of execution at which an event happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum At {
    /// `p`: before the instruction at the place is executed.
    Entry,
    /// `r`, `%return`, `uretprobe:`: when the function that begins there has returned.
    Return,
}
