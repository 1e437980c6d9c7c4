//! Messages: words of 64 bits, and texts. `library/helper.c` draws them.

use crate::one_line::one_line;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// Number of bytes that a message may have: a hundred thousand probes with long names.
const MOST: u32 = 64 << 20;

pub const HELLO: u32 = 1;
pub const RESOLVE: u32 = 2;
pub const ADD: u32 = 3;
pub const ARM: u32 = 4;
pub const DISARM: u32 = 5;
pub const OPTIMIZE: u32 = 6;
pub const STATUS: u32 = 7;
pub const EXITS: u32 = 8;
pub const ANALYZE: u32 = 9;
pub const EVENT_ADD: u32 = 10;
pub const EVENT_REMOVE: u32 = 11;
pub const ROWS: u32 = 12;
pub const READ: u32 = 13;
pub const ALLOW: u32 = 14;
pub const GOODBYE: u32 = 15;
pub const PLACE: u32 = 16;
pub const FAULTS: u32 = 18;
pub const EXCLUDED: u32 = 19;
pub const RECORD_START: u32 = 20;
pub const RECORD_STOP: u32 = 21;
/// A system call that the program is asked for.
pub const CALL: u32 = 1000;

/// A request of the program.
#[derive(Debug)]
pub struct Request {
    pub kind: u32,
    bytes: Vec<u8>,
    at: usize,
}

/// A message that ends too early, or holds a number that makes no sense.
#[derive(Debug)]
pub struct Malformed;

impl Request {
    /// Takes the next word.
    pub fn word(&mut self) -> Result<u64, Malformed> {
        let bytes = self.bytes.get(self.at..self.at + 8).ok_or(Malformed)?;
        self.at += 8;
        Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| Malformed)?))
    }

    /// Takes the next text. One that is not UTF-8 comes from the program itself.
    pub fn text(&mut self) -> Result<String, Failure> {
        let len = usize::try_from(self.word()?).map_err(|_| Malformed)?;
        let end = self.at.checked_add(len).ok_or(Malformed)?;
        let bytes = self.bytes.get(self.at..end).ok_or(Malformed)?;
        self.at = end.next_multiple_of(8).min(self.bytes.len());
        String::from_utf8(bytes.to_vec()).map_err(|error| {
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            Failure {
                code: libc::EINVAL,
                message: one_line(&format!(
                    "`{text}` is not UTF-8, as all names and events are"
                )),
                recorder: None,
            }
        })
    }

    /// True if nothing is left.
    pub fn is_over(&self) -> bool {
        self.at >= self.bytes.len()
    }
}

/// The words of an answer.
#[derive(Debug, Default)]
pub struct Answer(Vec<u8>);

impl Answer {
    /// Appends a word.
    pub fn word(&mut self, word: u64) -> &mut Answer {
        self.0.extend(word.to_le_bytes());
        self
    }

    /// Appends a text.
    pub fn text(&mut self, text: &str) -> &mut Answer {
        self.word(text.len() as u64);
        self.0.extend(text.as_bytes());
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self
    }
}

/// An error, as the program gets it.
#[derive(Debug)]
pub struct Failure {
    /// An errno(3) code.
    pub code: i32,
    pub message: String,
    /// The process that has probes in the program already, if that is the error.
    pub recorder: Option<u32>,
}

impl From<Malformed> for Failure {
    fn from(_: Malformed) -> Failure {
        Failure {
            code: libc::EPROTO,
            message:
                "the helper process does not understand the library: are they of the same version?"
                    .to_owned(),
            recorder: None,
        }
    }
}

/// Receives a request; `None` at the end of the connection.
pub fn receive(connection: &mut UnixStream) -> io::Result<Option<Request>> {
    let mut head = [0; 8];
    match connection.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        // A program that was killed.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
        result => result?,
    }
    let [size, kind] =
        [0, 4].map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
    if size > MOST {
        return Err(io::Error::other("a message is too long"));
    }
    let mut bytes = vec![0; size as usize];
    connection.read_exact(&mut bytes)?;
    Ok(Some(Request { kind, bytes, at: 0 }))
}

/// Sends an answer.
pub fn send(connection: &mut UnixStream, answer: &Result<Answer, Failure>) -> io::Result<()> {
    let (kind, bytes) = match answer {
        Ok(answer) => (0, &answer.0),
        Err(failure) => {
            let mut text = Answer::default();
            text.text(&failure.message);
            (failure.code as u32, &{ text }.0)
        }
    };
    let mut all = Vec::with_capacity(8 + bytes.len());
    all.extend((bytes.len() as u32).to_le_bytes());
    all.extend(kind.to_le_bytes());
    all.extend(bytes);
    connection.write_all(&all)
}
