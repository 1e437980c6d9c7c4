//! Processor time of this thread, which limits repeated checks to a share of it.
//!
//! Elapsed time will not do: a thread that waits for a processor on a busy machine would put its
//! next check off by a multiple of that wait.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Start of some work of this thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work(Duration);

impl Work {
    /// Begins to count.
    pub fn begin() -> Work {
        Work(now())
    }

    /// Returns the processor time that this thread has used since the beginning.
    pub fn spent(self) -> Duration {
        now().saturating_sub(self.0)
    }
}

fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn waiting_is_no_work() {
        let (work, began) = (Work::begin(), Instant::now());
        std::thread::sleep(Duration::from_millis(50));
        assert!(work.spent() < began.elapsed() / 2, "{:?}", work.spent());
        let mut sum = 0u64;
        while work.spent() < Duration::from_millis(5) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(work.spent() <= began.elapsed());
    }
}
