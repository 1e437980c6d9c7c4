//! Probes in their intermediate form, and the parser of events that makes it.
//!
//! A [`Probe`] says where to probe, which values to read there, and what to do with them: record
//! them, update a [`Map`], or keep them for the exits of the call. It is plain data without text and
//! columns, and all that the crates above this one work on. It is built in code, or from the text of
//! an event:
//!
//! ```
//! use capriole_event::{EventSpec, Guard, Probe, Value};
//!
//! let text = "libc:malloc size=$arg1 if size > 4096";
//! let parsed = Probe::from(EventSpec::parse(text).unwrap());
//! let built = Probe::at_function("libc", "malloc")
//!     .value("size", Value::argument(1))
//!     .when(Guard::greater("size", 4096))
//!     .record();
//! assert_eq!(parsed, built.labelled(text));
//! ```
//!
//! # Grammar
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
//! TYPE      u8..u64  s8..s64  x8..x64  f32  f64  be16  be32  be64  port  ipv4  ipv6  fd  char
//!           string  ustring  symbol  bWIDTH@OFFSET/SIZE  TYPE[COUNT]  string[VALUE[:TYPE]]
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
mod glob;
mod gpr;
mod guard;
mod names;
mod number;
mod parse;
mod place;
mod probe;
mod spec;
mod symbol;

pub use aggregation::{Aggregate, Aggregation, Function, KeyKind};
pub use at::At;
pub use definitions::{
    Definition, DefinitionError, DefinitionErrors, definition_lines, definitions,
};
pub use error::{Instead, ParseError};
pub use fetch::{Base, Deref, Fetch, FetchArg, Value};
pub use field_type::{Bits, Element, FieldType, Shown};
pub use glob::glob_match;
pub use gpr::Gpr;
pub use guard::{Comparison, Guard, Operand};
pub use names::{automatic_name, identifier};
pub use parse::Fields;
pub use place::{ObjectRef, Place};
pub use probe::{Action, Call, Entry, Map, Pairing, Probe, ProbeError, Side};
pub use spec::EventSpec;
pub use symbol::template_width;
