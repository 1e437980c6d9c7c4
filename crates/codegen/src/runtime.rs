//! Facts about the session and the target that generated code needs.

/// Facts about the session and the target that the detours of one arena need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runtime {
    /// Address of the streams in the target. Each CPU has one, which holds the position of its next
    /// record; the streams for threads without a CPU precede the first.
    pub streams: u64,
    /// The largest position that is accepted from a stream, see
    /// [`Geometry::limit`](capriole_ring::layout::Geometry::limit).
    pub limit: u32,
    /// Location of the counters.
    pub counters: Counters,
    /// Address of the tables' directories in the target.
    pub directories: u64,
    /// Location of open calls.
    pub frames: Frames,
    /// Offset of `struct rseq` from the thread pointer, if every thread has one there.
    pub rseq_offset: Option<i32>,
    /// Offset of the thread id from the thread pointer, if every thread has it there.
    pub tid_offset: Option<i32>,
    /// True if the program runs with a shadow stack, which records only what calls push.
    pub shadow_stack: bool,
    /// Method of reading the time stamp counter.
    pub clock: ClockReading,
    /// Address of the resident's entry for a full packet.
    pub switch: u64,
    /// Address of the resident's entry for recording without restartable sequences.
    pub locked: u64,
    /// Address of the resident's entry for programs.
    pub run: u64,
}

/// Method of reading the time stamp counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClockReading {
    /// Reads only after all earlier loads of the thread are complete (`lfence`), so that times
    /// agree with the order of events across CPUs. Otherwise the processor reads it up to a few
    /// hundred ticks earlier.
    pub ordered: bool,
    /// Two readings may be equal: the counter advances in steps.
    pub coarse: bool,
    /// For tests: makes the counter appear to advance in steps of this many ticks. 0, 1: unchanged.
    pub step: u32,
}

impl ClockReading {
    /// Returns the constants for rounding a time down to a multiple of the step: the multiplier for
    /// its lower half, the number of bits by which the product is then shifted right, and the
    /// multiplier of the result.
    pub(crate) fn in_steps(self) -> Option<(u32, u8, u32)> {
        let bits = self.step.checked_sub(1).filter(|less| *less > 0)?.ilog2() + 1;
        let shift = 30 + bits;
        let factor = (1u64 << shift).div_ceil(u64::from(self.step));
        Some((factor as u32, shift as u8, self.step))
    }
}

/// Location of the counters: each CPU has a copy of all, and there is one shared copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Address, in the target, of the first CPU's copy.
    pub address: u64,
    /// Bytes from one CPU's copy to the next, less than 2 GiB; 0 if there are no counters.
    pub stride: u32,
    /// Number of CPUs that have a copy; the shared copy follows theirs.
    pub cpus: u32,
}

/// Location of the open calls that are timed, see [`capriole_ring::layout::frame`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Frames {
    /// Address of the first slot.
    pub address: u64,
    /// Number of slots in an area, a power of two; 0 if no calls are timed.
    pub slots: u32,
    /// Size of a slot in bytes, a power of two.
    pub size: u32,
}

impl Frames {
    /// Returns the size of an area of slots in bytes.
    pub(crate) fn area(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.size)
    }
}

impl Counters {
    /// Returns the address of the copy that is only changed with a `lock` prefix.
    pub(crate) fn shared(&self) -> u64 {
        self.address + u64::from(self.cpus) * u64::from(self.stride)
    }

    /// Returns the offset of a counter in a copy, in bytes.
    pub(crate) fn offset(&self, counter: u32) -> u32 {
        let offset = u64::from(counter) * 8;
        assert!(
            offset < u64::from(self.stride),
            "no room was made for counter {counter}"
        );
        offset as u32
    }
}
