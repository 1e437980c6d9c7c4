//! The parsed event.

use crate::aggregation::Aggregation;
use crate::at::At;
use crate::fetch::FetchArg;
use crate::filter::Filter;
use crate::glob::glob_match;
use crate::symbol;

/// An event: places in an object, and what to record there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EventSpec {
    /// Source text of the event, for messages.
    pub text: String,
    /// Before the place is executed, or at the function's return.
    pub at: At,
    /// True for the entry or the exits of calls that are paired with each other. A function's name
    /// then means its own code only, not the copies that compilers make of it. Has no syntax.
    pub of_calls: bool,
    /// For an event that only begins calls, at a function's entry: how many of its arguments, from
    /// the first on, are kept for the following event, at the exits; the others are for the filter.
    /// Has no syntax.
    pub keeps: Option<usize>,
    /// True if the event was added implicitly; places that cannot be probed are then no error, and
    /// no session is created for such events alone. Has no syntax.
    pub implied: bool,
    /// `GROUP` of `p:GROUP/EVENT`; see [`EventSpec::DEFAULT_GROUP`].
    pub group: Option<String>,
    /// `EVENT` of `p:GROUP/EVENT`.
    pub name: Option<String>,
    /// The file that holds the code.
    pub object: ObjectRef,
    /// The place, or places, in that file.
    pub place: Place,
    /// File offset of a 16-bit counter that must be greater than zero for the program to reach the
    /// place: `PATH:OFFSET(COUNTER)`.
    pub reference_counter: Option<u64>,
    /// Values to record at each hit, in the given order; at most 128, with distinct names. For a
    /// static marker without arguments in the event, `$arg*`.
    pub arguments: Vec<FetchArg>,
    /// Aggregation over all hits. Every field that it names is in `arguments`, also if it was
    /// written inside an aggregate or after `by`.
    pub aggregation: Aggregation,
    /// Condition for recording a hit. Every field that it names is in `arguments` or in
    /// [`Filter::COMMON`], unless `$arg*` is among the arguments.
    pub filter: Option<Filter>,
}

/// Object that contains the code.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ObjectRef {
    /// The main program: nothing before the colon.
    Main,
    /// A file by its path; contains a `/`.
    Path(String),
    /// A library, or the main program, by the start of its file name, such as `libc`.
    Name(String),
}

/// Place in the object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// One function, or all that match.
    Symbol {
        /// The symbol's name as written, mangled or demangled; maybe with wildcards, see
        /// [`EventSpec::is_glob`].
        pattern: String,
        /// Byte offset of the instruction from the start of the function.
        offset: u64,
    },
    /// Byte offset in the file.
    FileOffset(u64),
    /// Start of the code of a source line.
    Line {
        /// The file's name as debug information has it, or the end of its path.
        file: String,
        /// Line number, from 1.
        line: u32,
    },
    /// A static marker (`sys/sdt.h`) in the program's source.
    Static {
        /// The marker's provider; may be a pattern.
        provider: String,
        /// The marker's name; may be a pattern.
        name: String,
        /// Expected format of its arguments, if given.
        format: Option<String>,
    },
}

impl EventSpec {
    /// Group of events without one.
    pub const DEFAULT_GROUP: &str = "uprobes";

    /// Maximum length of an event's text, in bytes without surrounding blanks. Finding the end of a
    /// symbol takes time quadratic in its length.
    pub const MAX_LENGTH: usize = 1 << 14;

    /// True if the symbol has wildcards, so that it can match any number of functions.
    ///
    /// `*`, `?` and `[...]` are wildcards except where they belong to a demangled name: pointers
    /// (`f(char const*)`, `void (*)(int)`), `operator*`, `operator[]`, slices (`<[u8]>`),
    /// `[abi:cxx11]` and `[clone .cold]`. A backslash makes them literal.
    pub fn is_glob(&self) -> bool {
        match &self.place {
            Place::Symbol { pattern, .. } => symbol::has_wildcards(pattern),
            _ => false,
        }
    }

    /// True if the event means this static marker: provider and name are equal to, or match, the
    /// event's. Always false if the place is not a static marker.
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

    /// True if the event means a symbol of this name: it is the name itself, or matches the
    /// pattern. Always false if the place is not a symbol.
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
