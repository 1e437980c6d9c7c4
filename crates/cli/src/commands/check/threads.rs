//! Facts about the program's threads that are known without stopping them.

use capriole_object::Objects;
use capriole_object::symbols::OtherSymbol;

/// Offsets of the thread data that detours read, in bytes from the thread pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Threads {
    /// Offset of `struct rseq`; `None` if the program registers none.
    pub(super) rseq_offset: Option<i32>,
    /// Offset of the thread id.
    pub(super) tid_offset: Option<i32>,
    /// Source of these offsets, for messages.
    pub(super) whose: &'static str,
}

impl Threads {
    /// Reads the offsets that a process's C library publishes for debuggers, without stopping the
    /// process. Attaching asks the kernel for each thread instead.
    pub(super) fn of(objects: &Objects) -> Threads {
        let usual = Threads {
            rseq_offset: Some(0x920),
            tid_offset: Some(0x2d0),
            whose: "glibc 2.36",
        };
        let Some(process) = objects.process() else {
            return usual;
        };
        let word = |name: &str, offset: u64| {
            let address = objects.all().find_map(|object| {
                match object.file().other_symbol(name).ok().flatten() {
                    Some(OtherSymbol::Data(link)) => Some(object.run_time(link) + offset),
                    _ => None,
                }
            })?;
            let mut bytes = [0; 4];
            (process.read_memory(address, &mut bytes).ok()? == 4)
                .then_some(u32::from_le_bytes(bytes))
        };
        // The lower half of a `ptrdiff_t`. The size is 0 if the kernel refused the registration.
        let rseq = word("__rseq_offset", 0).zip(word("__rseq_size", 0));
        // Layout for libthread_db: bits, count, offset; u32 each.
        let tid = word("_thread_db_pthread_tid", 8);
        match rseq {
            Some((offset, size)) => Threads {
                rseq_offset: (size > 0).then_some(offset as i32),
                tid_offset: tid.map(|offset| offset as i32),
                whose: "this process",
            },
            None => Threads {
                whose: "glibc 2.36 (this process does not tell)",
                ..usual
            },
        }
    }
}
