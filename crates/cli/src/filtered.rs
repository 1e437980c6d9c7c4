//! Programs that filter their own system calls (seccomp), while they are recorded.

use crate::output::tell;
use capriole_ring::layout::header;
use capriole_target::attach::Attached;
use serde_json::Value;

/// What was not read because the program may forbid the system call for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filtered {
    /// How often; a field can take several calls.
    pub not_read: u64,
    /// From the start of the session on.
    from_start: bool,
}

impl Filtered {
    /// What a session has counted, in all processes that share it.
    pub fn of(attached: &Attached) -> Filtered {
        Filtered {
            not_read: attached.memory.memory.counted(header::NOT_CALLED),
            from_start: attached.unguarded,
        }
    }

    /// Adds it to what is told of a session as JSON.
    pub fn put_into(self, value: &mut Value) {
        value["not_read"] = self.not_read.into();
    }

    /// What a person has to be told, once.
    pub fn message(self) -> Option<String> {
        let count = crate::units::counted(self.not_read, "time", "times");
        let text = format!(
            "memory or a thread's name was NOT READ {count}, since the program has installed a \
             seccomp filter, or tried to"
        );
        (self.not_read > 0 && !self.from_start).then_some(text)
    }

    /// Tells it.
    pub fn say(self) {
        if let Some(text) = self.message() {
            tell!("capriole: {text}");
        }
    }
}
