//! Limits of control groups for memory: a process that comes to one is killed.

use super::Process;
use super::control_groups::{Group, groups_of};
use crate::files;

/// Limits of version 1 from here on mean that there is none: it is the largest multiple of a page.
const NONE: u64 = 1 << 62;

impl Process {
    /// True if a control group limits the memory of the process, and none limits ours. False if that cannot
    /// be found out.
    #[must_use]
    pub fn has_less_memory_than_we(&self) -> bool {
        let is_limited = |pid| groups_of(pid, "memory").iter().any(is_limited);
        is_limited(self.pid) && !is_limited(std::process::id())
    }
}

fn is_limited(group: &Group) -> bool {
    let file = match group.unified {
        true => "memory.max",
        false => "memory.limit_in_bytes",
    };
    let limit = |directory: &std::path::Path| {
        let text = files::read_pseudo_text(directory.join(file)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let mut limits = group.with_those_above().filter_map(limit);
    limits.any(|limit| limit < NONE)
}
