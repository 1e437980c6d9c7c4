//! The place of a probe: the object, and the code in it.

use crate::glob::glob_match;
use crate::symbol;

/// Object that contains the code.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ObjectRef {
    /// The main program if it has the place, else a library that has: no colon.
    Any,
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
        /// [`Place::is_glob`].
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

impl From<&str> for ObjectRef {
    /// Reads the object as in an event's text: nothing is the main program, and a path contains a
    /// `/`.
    fn from(text: &str) -> ObjectRef {
        match text {
            "" => ObjectRef::Main,
            path if path.contains('/') => ObjectRef::Path(path.to_owned()),
            name => ObjectRef::Name(name.to_owned()),
        }
    }
}

impl std::fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ObjectRef::Any | ObjectRef::Main => Ok(()),
            ObjectRef::Path(name) | ObjectRef::Name(name) => f.write_str(name),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Symbol { pattern, offset: 0 } => f.write_str(pattern),
            Place::Symbol { pattern, offset } => write!(f, "{pattern}+{offset:#x}"),
            Place::FileOffset(offset) => write!(f, "{offset:#x}"),
            Place::Line { file, line } => write!(f, "{file}:{line}"),
            Place::Static { provider, name, .. } => write!(f, "{provider}:{name}"),
        }
    }
}

impl Place {
    /// Entry of a function, or of all that match; see [`Place::is_glob`].
    pub fn function(name: impl Into<String>) -> Place {
        Place::Symbol {
            pattern: name.into(),
            offset: 0,
        }
    }

    /// True if the symbol has wildcards, so that it can match any number of functions.
    ///
    /// `*`, `?` and `[...]` are wildcards except where they belong to a demangled name: pointers
    /// (`f(char const*)`, `void (*)(int)`), `operator*`, `operator[]`, slices (`<[u8]>`),
    /// `[abi:cxx11]` and `[clone .cold]`. A backslash makes them literal.
    pub fn is_glob(&self) -> bool {
        match self {
            Place::Symbol { pattern, .. } => symbol::has_wildcards(pattern),
            _ => false,
        }
    }

    /// True if it means this static marker: provider and name are equal to, or match, the
    /// place's. Always false if it is not a static marker.
    pub fn matches_marker(&self, of: &str, called: &str) -> bool {
        match self {
            Place::Static { provider, name, .. } => {
                let matches =
                    |pattern: &str, name: &str| pattern == name || glob_match(pattern, name);
                matches(provider, of) && matches(name, called)
            }
            _ => false,
        }
    }

    /// Returns a function that is true for the names of symbols that are meant: the name itself, and
    /// what matches the pattern. It is always false if no symbol is meant.
    pub fn matcher(&self) -> impl Fn(&str) -> bool + use<'_> {
        let pattern = match self {
            Place::Symbol { pattern, .. } => Some(pattern),
            _ => None,
        };
        let special = |pattern: &String| symbol::has_wildcards(pattern) || pattern.contains('\\');
        let is_special = pattern.is_some_and(special);
        move |name| {
            pattern
                .is_some_and(|pattern| pattern == name || is_special && glob_match(pattern, name))
        }
    }
}
