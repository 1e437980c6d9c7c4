//! A reader that counts records and writes no trace.

use capriole_patch::attach::Attached;
use capriole_ring::Reader;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// A reader that takes the packets of a session as `record` does, but only counts.
pub struct Reading {
    count: Arc<Mutex<Count>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

struct Count {
    reader: Reader,
    bytes: u64,
    record_bytes: u64,
}

impl Count {
    fn collect(&mut self) {
        let bytes = &mut self.bytes;
        let counted = self.reader.collect::<Infallible>(false, |packet| {
            *bytes += packet.content.len() as u64;
            Ok(())
        });
        match counted {
            Ok(_) => {}
            Err(never) => match never {},
        }
    }
}

fn lock(count: &Mutex<Count>) -> MutexGuard<'_, Count> {
    count.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reading {
    /// Starts the reader, for records of `record_bytes` bytes.
    pub fn start(attached: &Attached, record_bytes: usize) -> Reading {
        let memory = &attached.memory;
        let reader = Reader::new(memory.memory.clone(), memory.geometry);
        let count = Arc::new(Mutex::new(Count {
            reader,
            bytes: 0,
            record_bytes: record_bytes as u64,
        }));
        let stop = Arc::new(AtomicBool::new(false));
        let (counting, stopping) = (count.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !stopping.load(Ordering::Relaxed) {
                let mut count = lock(&counting);
                count.collect();
                count.reader.wait(Duration::from_millis(5));
            }
        });
        Reading {
            count,
            stop,
            thread,
        }
    }

    /// Returns the number of events recorded so far, plus those lost for lack of room.
    pub fn hits(&self) -> u64 {
        let mut count = lock(&self.count);
        count.collect();
        let bytes = count.bytes + count.reader.pending();
        bytes / count.record_bytes + count.reader.lost()
    }

    /// Stops the reader.
    ///
    /// # Errors
    /// The reader's thread has panicked.
    pub fn end(self) -> Result<(), String> {
        self.stop.store(true, Ordering::Relaxed);
        let joined = self.thread.join();
        joined.map_err(|_| "the reader failed".to_owned())
    }
}
