//! What to record: the text of an event, parsed.
//!
//! ```text
//! PATH:SYMBOL[+OFFSET] [ARG]...    a function, or an instruction inside it
//! PATH:0xOFFSET [ARG]...           a place in the object, as a file offset
//! LIB:GLOB [ARG]...                many functions of a library
//! :GLOB [ARG]...                   many functions of the main program
//!
//! ARG = [NAME=]$arg1 ... $arg6
//! ```
//!
//! `PATH` contains a `/`; `LIB` is the start of a file name (`libc`, `libpython3.11`).
//! Symbols may be written the way a demangler prints them, blanks and colons included.
//!
//! ```
//! use capriole_event::{EventSpec, ObjectRef};
//!
//! let spec = EventSpec::parse("libc:malloc size=$arg1").unwrap();
//! assert_eq!(spec.object, ObjectRef::Name("libc".to_string()));
//! assert_eq!(spec.arguments[0].name, "size");
//!
//! let error = EventSpec::parse("libc:malloc $arg7").unwrap_err();
//! assert_eq!(error.column, 12);
//! ```
//!
//! Nothing here looks at a process or a file: it is a function of the text.

#![forbid(unsafe_code)]

mod argument;
mod error;
mod glob;
mod parse;
mod spec;
mod symbol;

pub use argument::{ArgRegister, FetchArg};
pub use error::ParseError;
pub use glob::glob_match;
pub use spec::{EventSpec, ObjectRef, Place};
