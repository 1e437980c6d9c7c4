//! The connection to the program: requests come in, and while one is answered, the thread that has made
//! it can be asked to make system calls.

use crate::message;
use capriole_host::host::Routines;
use capriole_host::volunteer;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Bytes of a descriptor among ancillary data, with room to spare.
const CONTROL: usize = 64;

/// The connection, while requests are answered.
#[derive(Debug)]
pub struct Line {
    connection: Mutex<UnixStream>,
    /// True while a thread of the program waits for an answer.
    open: AtomicBool,
    scratch: AtomicU64,
    routines: OnceLock<Routines>,
    copied: OnceLock<Vec<u64>>,
    memory: Option<File>,
}

impl Line {
    /// Makes the line of a connection, over which the program sends its memory first.
    ///
    /// # Errors
    /// It is closed.
    pub fn new(connection: UnixStream) -> io::Result<Line> {
        let mut byte = [0];
        let mut room = [std::mem::MaybeUninit::uninit(); CONTROL];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let mut parts = [IoSliceMut::new(&mut byte)];
        let received = recvmsg(
            &connection,
            &mut parts,
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let memory = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        Ok(Line {
            connection: Mutex::new(connection),
            open: AtomicBool::new(false),
            scratch: AtomicU64::new(0),
            routines: OnceLock::new(),
            copied: OnceLock::new(),
            memory: memory.map(File::from),
        })
    }

    /// Sets the address of the memory that is for us.
    pub fn set_scratch(&self, address: u64) {
        self.scratch.store(address, Ordering::Relaxed);
    }

    /// Sets, once, what the program says about its routines, and the addresses of instructions whose
    /// copies by earlier helpers it may call.
    pub fn set_routines(&self, routines: Routines, copied: Vec<u64>) {
        let _ = self.routines.set(routines);
        let _ = self.copied.set(copied);
    }

    /// Notes whether a thread waits for an answer.
    pub fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::Release);
    }
}

impl volunteer::Line for Line {
    fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    fn call(&self, number: i64, arguments: [u64; 6]) -> io::Result<i64> {
        if !self.is_open() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let connection = self.connection.lock();
        let mut connection = connection.unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Vec::with_capacity(8 + 7 * 8);
        bytes.extend((7 * 8u32).to_le_bytes());
        bytes.extend(message::CALL.to_le_bytes());
        bytes.extend(number.to_le_bytes());
        for argument in arguments {
            bytes.extend(argument.to_le_bytes());
        }
        connection.write_all(&bytes)?;
        let mut answer = [0; 16];
        connection.read_exact(&mut answer)?;
        let (head, result) = answer.split_at(8);
        let mut wanted = [0; 8];
        wanted[..4].copy_from_slice(&8u32.to_le_bytes());
        wanted[4..].copy_from_slice(&message::CALL.to_le_bytes());
        match result.try_into() {
            Ok(result) if head == wanted => Ok(i64::from_le_bytes(result)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn scratch(&self) -> u64 {
        self.scratch.load(Ordering::Relaxed)
    }

    fn routines(&self) -> Option<Routines> {
        self.routines.get().cloned()
    }

    fn copied(&self) -> Vec<u64> {
        self.copied.get().cloned().unwrap_or_default()
    }

    fn memory(&self) -> Option<File> {
        self.memory.as_ref()?.try_clone().ok()
    }
}
