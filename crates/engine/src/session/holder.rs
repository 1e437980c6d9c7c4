//! The thread that holds a launched program until it runs.
//!
//! ```text
//!  Session (any thread)          holder thread: tracer of the program
//!  launch           ───────────▶ starts the program, stops it, makes its `Inner`
//!  add, remove, ... ──request──▶ runs the request on its `Inner`
//!                   ◀──result──
//!  run              ──close────▶ releases the program, returns its `Inner`, ends
//! ```
//!
//! To the kernel a tracer is a thread, not a process: no other thread can do anything with a
//! stopped program, or let it run. A session may be moved to other threads, and the thread that
//! launched it may end (which would let the program run at once). So a thread of our own is the
//! tracer, and whatever the session does until the program runs is done there. Afterwards nobody
//! traces the program, and any thread may work on it.

use super::Options;
use super::inner::Inner;
use crate::error::{Result, err};
use crate::program::Program;
use std::ffi::OsString;
use std::panic::resume_unwind;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;

type Request = Box<dyn FnOnce(&mut Inner) + Send>;

/// A thread that holds a program, and the session's parts that depend on that.
pub(super) struct Holder {
    requests: Sender<Request>,
    thread: JoinHandle<Option<Inner>>,
}

impl Holder {
    /// Starts a program, and stops it before its first own instruction.
    ///
    /// # Errors
    /// The program cannot be started, or the clock cannot be used.
    pub(super) fn launch(words: Vec<OsString>, options: Options) -> Result<Holder> {
        let (requests, waiting) = channel::<Request>();
        let (tell, started) = sync_channel(1);
        let thread = std::thread::Builder::new().name("capriole".to_owned());
        let thread = thread.spawn(move || {
            let found = Program::find(None, &words).and_then(|program| {
                let (process, child, hold) = program.parts();
                // If this fails, the program is killed with its session.
                Ok((Inner::of(process, child, options)?, hold))
            });
            let (mut inner, hold) = match found {
                Ok(found) => found,
                Err(error) => {
                    let _ = tell.send(Err(error));
                    return None;
                }
            };
            let _ = tell.send(Ok(()));
            // Ends when the session drops its sender.
            for request in waiting {
                request(&mut inner);
            }
            drop(hold);
            Some(inner)
        });
        let thread =
            thread.map_err(|error| err!(NoResources, "cannot create a thread: {error}"))?;
        match started.recv() {
            Ok(Ok(())) => Ok(Holder { requests, thread }),
            Ok(Err(error)) => Err(error),
            Err(_) => match thread.join() {
                Err(panic) => resume_unwind(panic),
                Ok(_) => unreachable!("the thread tells how the start went"),
            },
        }
    }

    /// Runs a request on the thread, and returns its result. `None` if this or an earlier request
    /// has panicked.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Inner) -> T + Send + 'static,
    ) -> Option<T> {
        let (tell, result) = sync_channel(1);
        let request = Box::new(move |inner: &mut Inner| {
            let _ = tell.send(work(inner));
        });
        // A thread that has panicked has dropped its end of both channels.
        let _ = self.requests.send(request);
        result.recv().ok()
    }

    /// Lets the program run, and returns the session's parts. `None` if the thread has panicked.
    pub(super) fn release(self) -> Option<Inner> {
        drop(self.requests);
        self.thread.join().ok().flatten()
    }
}
