//! Events of the language of docs/events.md, and records that the program writes itself.

use crate::error::{Error, checked};
use crate::ffi;
use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_int, c_void};
use std::io::{PipeWriter, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

/// An event that is enabled. It is disabled when this is dropped.
///
/// ```no_run
/// use capriole_probe::Event;
///
/// let sizes = Event::enable("libc:malloc hist(size=$arg1)")?;
/// // ...
/// print!("{}", sizes.rows()?);
/// # Ok::<(), capriole_probe::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the event is disabled when this is dropped"]
pub struct Event(c_int);

impl Event {
    /// Enables an event. No handler is called, so this is safe.
    ///
    /// # Errors
    /// As of capriole_event_enable(), in capriole-event(3).
    pub fn enable(event: &str) -> Result<Event, Error> {
        let event =
            CString::new(event).map_err(|_| Error::invalid("there is a zero byte in the event"))?;
        // SAFETY: the text ends with a zero byte.
        checked(unsafe { ffi::capriole_event_enable(event.as_ptr()) }).map(Event)
    }

    /// Writes the table of an aggregated event to a file, one row a line.
    ///
    /// # Errors
    /// As of capriole_event_rows(), in capriole-event(3).
    pub fn rows_to(&self, file: impl AsFd) -> Result<(), Error> {
        let fd = file.as_fd().as_raw_fd();
        // SAFETY: the file is open.
        checked(unsafe { ffi::capriole_event_rows(self.0, fd) }).map(drop)
    }

    /// Returns the table of an aggregated event, one row a line.
    ///
    /// # Errors
    /// As [`Event::rows_to`], or no pipe can be made.
    pub fn rows(&self) -> Result<String, Error> {
        collected(|pipe| self.rows_to(pipe))
    }

    /// Disables it.
    ///
    /// # Errors
    /// As of capriole_event_disable(), in capriole-event(3).
    pub fn disable(self) -> Result<(), Error> {
        let result = self.remove();
        std::mem::forget(self);
        result
    }

    fn remove(&self) -> Result<(), Error> {
        // SAFETY: the function takes any number.
        checked(unsafe { ffi::capriole_event_disable(self.0) }).map(drop)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// Writes the records of all events that were made since the last call to a file, one a line.
///
/// # Errors
/// As of capriole_event_read(), in capriole-event(3).
pub fn read_records_to(file: impl AsFd) -> Result<(), Error> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the file is open.
    checked(unsafe { ffi::capriole_event_read(fd) }).map(drop)
}

/// Returns the records of all events that were made since the last call, one a line.
///
/// # Errors
/// As [`read_records_to`], or no pipe can be made.
pub fn read_records() -> Result<String, Error> {
    collected(|pipe| read_records_to(pipe))
}

/// Writes the records of all events into a trace directory from now on, which `capriole report` reads, until
/// [`stop_recording`], [`finish`](crate::finish) or the end of the program, however it ends.
///
/// # Errors
/// As of capriole_record_start(), in capriole-event(3).
pub fn record_to(directory: impl AsRef<Path>) -> Result<(), Error> {
    let directory = CString::new(directory.as_ref().as_os_str().as_bytes())
        .map_err(|_| Error::invalid("there is a zero byte in the path"))?;
    // SAFETY: the path ends with a zero byte.
    checked(unsafe { ffi::capriole_record_start(directory.as_ptr()) }).map(drop)
}

/// Completes the trace that [`record_to`] has begun.
///
/// # Errors
/// As of capriole_record_stop(), in capriole-event(3).
pub fn stop_recording() -> Result<(), Error> {
    // SAFETY: the function takes no arguments.
    checked(unsafe { ffi::capriole_record_stop() }).map(drop)
}

/// Returns what a function writes into a pipe. Another thread reads it, as the pipe's room is small.
pub(crate) fn collected(
    write: impl FnOnce(&PipeWriter) -> Result<(), Error>,
) -> Result<String, Error> {
    let failed = |error: std::io::Error| Error::invalid(format!("there is no pipe: {error}"));
    let (mut reader, writer) = std::io::pipe().map_err(failed)?;
    let thread = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = reader.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let result = write(&writer);
    drop(writer);
    let text = thread
        .join()
        .map_err(|_| Error::invalid("the text cannot be read"))?;
    result.map(|()| text)
}

/// A record that the program writes itself, from anywhere, also from handlers, at the price of a compiled
/// probe. It costs nothing much while it is not enabled.
///
/// ```no_run
/// use capriole_probe::Record;
///
/// static DONE: Record = Record::new(c"done", c"bytes=$arg1:u64 fd=$arg2:s32");
///
/// DONE.enable()?;
/// DONE.write([4096, 3]);
/// # Ok::<(), capriole_probe::Error>(())
/// ```
#[derive(Debug)]
pub struct Record(UnsafeCell<ffi::capriole_record>);

// SAFETY: the library changes it under its lock; `write` is read as a whole.
unsafe impl Sync for Record {}

impl Record {
    /// A record of this name, with fields as in an event: `NAME=$argN:TYPE ...`, N from 1 to 6.
    #[must_use]
    pub const fn new(name: &'static CStr, fields: &'static CStr) -> Record {
        Record(UnsafeCell::new(ffi::capriole_record {
            name: name.as_ptr(),
            fields: fields.as_ptr(),
            write: Some(ffi::capriole_record_nothing),
            number: 0,
        }))
    }

    /// Enables it: what is written from now on is recorded.
    ///
    /// # Errors
    /// As of capriole_record_enable(), in capriole-event(3).
    pub fn enable(&'static self) -> Result<(), Error> {
        // SAFETY: it stays for ever, and is changed by the library only.
        checked(unsafe { ffi::capriole_record_enable(self.0.get()) }).map(drop)
    }

    /// Disables it.
    ///
    /// # Errors
    /// As of capriole_record_disable(), in capriole-event(3).
    pub fn disable(&'static self) -> Result<(), Error> {
        // SAFETY: as above.
        checked(unsafe { ffi::capriole_record_disable(self.0.get()) }).map(drop)
    }

    /// Writes it, with at most six values. Handlers may do that.
    #[inline]
    pub fn write<const N: usize>(&self, values: [u64; N]) {
        const { assert!(N <= 6, "a record has at most six values") }
        let value = |at: usize| values.get(at).copied().unwrap_or(0);
        // SAFETY: the record is there. The field is one word, never null.
        let field = unsafe { &raw mut (*self.0.get()).write };
        // SAFETY: it is aligned, and written by the library only, in one store.
        let write = unsafe { AtomicPtr::from_ptr(field.cast::<*mut c_void>()) };
        let write = write.load(Ordering::Relaxed);
        // SAFETY: the library puts functions of this type there only.
        let write: ffi::capriole_write = unsafe { std::mem::transmute(write) };
        // SAFETY: it takes any values.
        unsafe { write(value(0), value(1), value(2), value(3), value(4), value(5)) };
    }
}
