//! Reports values that were not read because the program filters its system calls (seccomp).

use capriole_patch::attach::Attached;
use capriole_ring::layout::header;
use serde_json::Value;

/// Values that were not read because the program may forbid the necessary system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filtered {
    /// Number of reads that were skipped; a field can take several.
    pub not_read: u64,
    /// True if these reads are skipped from the start of the session on.
    from_start: bool,
}

impl Filtered {
    /// Reads the session's count, over all processes that share it.
    pub fn of(attached: &Attached) -> Filtered {
        Filtered {
            not_read: attached.memory.memory.counted(header::NOT_CALLED),
            from_start: attached.unguarded,
        }
    }

    /// Adds the count to the session's JSON.
    pub fn put_into(self, value: &mut Value) {
        value["not_read"] = self.not_read.into();
    }

    /// Returns the warning for the user, if any.
    pub fn message(self) -> Option<String> {
        let count = capriole_text::units::counted(self.not_read, "time", "times");
        let text = format!(
            "memory or a thread's name was NOT READ {count}, since the program filters its system \
             calls (seccomp, or PR_SET_SYSCALL_USER_DISPATCH), or tried to; some of the pointers may \
             have been invalid as well"
        );
        (self.not_read > 0 && !self.from_start).then_some(text)
    }
}
