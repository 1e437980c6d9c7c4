//! Parser for events: where to probe, and what to record there.
//!
//! ```text
//! [KIND] OBJECT:PLACE [ARGUMENT|AGGREGATE]... [by KEY[,] KEY...] [if FILTER]
//!
//! KIND      p  r  p:EVENT  p:GROUP/EVENT  r:GROUP/        as in the kernel's uprobe_events
//! OBJECT    PATH, the start of a library's file name, or nothing for the main program
//! PLACE     SYMBOL[+OFFSET]  GLOB  0xOFFSET[(COUNTER)]  FILE:LINE, all but the last [%return]
//! ARGUMENT  [NAME=]VALUE[:TYPE]
//!           stack[(SIZE)]
//! VALUE     %REG  $argN  $arg*  $retval  $stack  $stackN  $comm  @ADDR  @+OFFSET
//!           \NUMBER  \"TEXT"  VARIABLE  +|-[u]OFFSET(VALUE)
//! TYPE      u8..u64  s8..s64  x8..x64  char  string  ustring  symbol  bWIDTH@OFFSET/SIZE
//!           TYPE[COUNT]
//! AGGREGATE count()  sum(X)  min(X)  max(X)  avg(X)  hist(X)
//! X         ARGUMENT, or the name of one that stands before
//! KEY       X  tid  comm  cpu
//! FILTER    FIELD OPERATOR NUMBER|"TEXT", with && || ! ( )
//!
//! uprobe:PATH:SYMBOL[+OFFSET]   uretprobe:PATH:SYMBOL   usdt:PATH:PROVIDER:NAME
//! ```
//!
//! `PATH` contains a `/`. Symbols may be written the way a demangler prints them, blanks and
//! colons included. `docs/events.md` and `docs/events-reference.md` are the pages for users.
//!
//! ```
//! use capriole_event::{Base, EventSpec, Gpr, ObjectRef};
//!
//! let spec = EventSpec::parse("libc:malloc size=%di:u64 if size > 4096").unwrap();
//! assert_eq!(spec.object, ObjectRef::Name("libc".to_string()));
//! assert_eq!(spec.arguments[0].name, "size");
//! assert_eq!(spec.arguments[0].fetch.base, Base::Register(Gpr::Rdi));
//!
//! let error = EventSpec::parse("libc:malloc %foo").unwrap_err();
//! assert_eq!(error.column, 12);
//! ```
//!
//! This crate reads no process and no file: it is a function of the text. Errors use the words of
//! the kernel's `error_log` where it has them.

#![forbid(unsafe_code)]

mod aggregation;
mod at;
mod definitions;
mod error;
mod fetch;
mod field_type;
mod filter;
mod glob;
mod gpr;
mod names;
mod number;
mod parse;
mod spec;
mod symbol;

pub use aggregation::{Aggregate, Aggregation, Function, Key, KeyKind};
pub use at::At;
pub use definitions::{
    Definition, DefinitionError, DefinitionErrors, definition_lines, definitions,
};
pub use error::{Instead, ParseError};
pub use fetch::{Base, Deref, EntryValue, Fetch, FetchArg};
pub use field_type::{Bits, Element, FieldType, Shown};
pub use filter::{Comparison, Filter, Operand};
pub use glob::glob_match;
pub use gpr::Gpr;
pub use names::automatic_name;
pub use spec::{EventSpec, ObjectRef, Place};
