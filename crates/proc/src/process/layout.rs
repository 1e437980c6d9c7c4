//! Facts about a process that decide where memory may be mapped.

use super::Process;
use crate::maps::{Layout, NULL_END, mmap_min_addr};

impl Layout {
    /// Reads the layout of a process; values that cannot be read count as unknown.
    #[must_use]
    pub fn of(process: &Process) -> Layout {
        Layout {
            min_address: mmap_min_addr().max(NULL_END),
            start_brk: process.stat().ok().and_then(|stat| stat.start_brk),
            stack_limit: process.stack_limit(),
        }
    }
}
