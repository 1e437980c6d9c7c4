//! Errors of the library.

use crate::ffi;
use std::ffi::{CStr, c_int};
use std::fmt;

/// An error: an errno(3) code, and what the library says about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    code: i32,
    message: String,
}

impl Error {
    /// The code, as in errno(3).
    #[must_use]
    pub fn code(&self) -> i32 {
        self.code
    }

    /// The message, in one line.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Makes an error of an argument that the library cannot be given.
    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        const EINVAL: i32 = 22;
        let message = message.into();
        Error {
            code: EINVAL,
            message,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        let kind = std::io::Error::from_raw_os_error(error.code).kind();
        std::io::Error::new(kind, error)
    }
}

/// Turns what a function of the library returns into a result.
pub(crate) fn checked(result: c_int) -> Result<c_int, Error> {
    if result >= 0 {
        return Ok(result);
    }
    // SAFETY: the function may always be called.
    let message = unsafe { ffi::capriole_error() };
    // SAFETY: it is a text that ends with a zero byte, and stays until this thread calls the library again.
    let message = unsafe { CStr::from_ptr(message) };
    Err(Error {
        code: -result,
        message: message.to_string_lossy().into_owned(),
    })
}
