//! What a parsed event says.

use crate::aggregation::Aggregation;
use crate::at::At;
use crate::error::ParseError;
use crate::fetch::FetchArg;
use crate::filter::Filter;
use crate::glob::glob_match;
use crate::{parse, symbol};

/// An event as it was asked for: which places of which object, and what to record there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EventSpec {
    /// The text it was parsed from, for messages.
    pub text: String,
    /// Before the place is executed, or at the function's return.
    pub at: At,
    /// Whether it is the entry or the exits of calls that are followed from one to the other:
    /// then the name of a function means its own code only, not the copies that compilers make
    /// of it. No text says so.
    pub of_calls: bool,
    /// If it only begins calls, at a function's entry: how many of its arguments, from the first
    /// on, are kept for the event behind it, which is at the exits; the others are for the filter.
    /// No text says so.
    pub keeps: Option<usize>,
    /// Whether nobody wrote it: what cannot be probed of it is no error. No text says so.
    pub implied: bool,
    /// `GROUP` of `p:GROUP/EVENT`; see [`EventSpec::DEFAULT_GROUP`].
    pub group: Option<String>,
    /// `EVENT` of `p:GROUP/EVENT`.
    pub name: Option<String>,
    /// The file that holds the code.
    pub object: ObjectRef,
    /// The place, or places, in that file.
    pub place: Place,
    /// Where in the file a 16-bit counter is that has to be more than zero for the program to
    /// come here: `PATH:OFFSET(COUNTER)`.
    pub reference_counter: Option<u64>,
    /// What to record at each hit, in the order given; at most 128, with different names. Of a
    /// static marker for which nothing was written, `$arg*`.
    pub arguments: Vec<FetchArg>,
    /// What is made of all hits together. Every field that it names is in `arguments`, also if
    /// it was written inside an aggregate or behind `by`.
    pub aggregation: Aggregation,
    /// What a hit must meet to be recorded. Every field that it names is in `arguments` or in
    /// [`Filter::COMMON`], unless there is `$arg*` among the arguments.
    pub filter: Option<Filter>,
}

/// Which file the code is in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ObjectRef {
    /// The main program: nothing stands before the colon.
    Main,
    /// A file by its path; contains a `/`.
    Path(String),
    /// A library, or the main program, by the start of its file name, such as `libc`.
    Name(String),
}

/// Which code in that file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// One function, or all that match.
    Symbol {
        /// The symbol's name as written, mangled or demangled; maybe with wildcards, see
        /// [`EventSpec::is_glob`].
        pattern: String,
        /// Bytes from the start of the function to the instruction meant.
        offset: u64,
    },
    /// Bytes from the start of the file.
    FileOffset(u64),
    /// Where the code of a line of source begins.
    Line {
        /// The file's name as debug information has it, or the end of its path.
        file: String,
        /// From 1.
        line: u32,
    },
    /// A marker that the program's author put there (`sys/sdt.h`).
    Static {
        /// Whose marker it is; may be a pattern.
        provider: String,
        /// Its name; may be a pattern.
        name: String,
        /// The format that its arguments are expected to have, if one was given.
        format: Option<String>,
    },
}

impl EventSpec {
    /// The group of events that name none.
    pub const DEFAULT_GROUP: &str = "uprobes";

    /// The longest text of an event, in bytes without blanks around it. Where a symbol ends is
    /// found in a time that grows with its square.
    pub const MAX_LENGTH: usize = 1 << 14;

    /// Parses the text of one event.
    ///
    /// # Errors
    ///
    /// What is wrong, at which column, and what to write instead. Never panics.
    pub fn parse(text: &str) -> Result<EventSpec, ParseError> {
        parse::event(text)
    }

    /// Whether the symbol has wildcards, so that it stands for any number of functions.
    ///
    /// `*`, `?` and `[...]` are wildcards except where they belong to a demangled name:
    /// pointers (`f(char const*)`, `void (*)(int)`), `operator*`, `operator[]`, slices
    /// (`<[u8]>`), `[abi:cxx11]` and `[clone .cold]`. A backslash takes the meaning away.
    pub fn is_glob(&self) -> bool {
        match &self.place {
            Place::Symbol { pattern, .. } => symbol::has_wildcards(pattern),
            _ => false,
        }
    }

    /// Whether a static marker is meant: provider and name are those, or match the patterns.
    /// Always false for a place that is none.
    pub fn matches_marker(&self, of: &str, called: &str) -> bool {
        match &self.place {
            Place::Static { provider, name, .. } => {
                let matches =
                    |pattern: &str, name: &str| pattern == name || glob_match(pattern, name);
                matches(provider, of) && matches(name, called)
            }
            _ => false,
        }
    }

    /// Whether a symbol of this name is meant: it is the name itself, or matches the pattern.
    /// Always false for a place that is no symbol.
    pub fn matches(&self, name: &str) -> bool {
        match &self.place {
            Place::Symbol { pattern, .. } => {
                pattern == name
                    || ((symbol::has_wildcards(pattern) || pattern.contains('\\'))
                        && glob_match(pattern, name))
            }
            _ => false,
        }
    }
}
