//! Reasons why an event cannot be resolved, and what to write instead.

use std::fmt;
use std::path::{Path, PathBuf};

use capriole_object::ObjectError;

/// One of several functions to which a name may refer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The demangled name.
    pub symbol: String,
    /// The linkage name.
    pub linkage_name: String,
    /// The object's file.
    pub object: PathBuf,
    /// Offset of the function's start in that file.
    pub file_offset: u64,
}

impl fmt::Display for Candidate {
    /// Writes the function's place, as an event must give it to select the function, and its name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{:#x}  {}",
            self.object.display(),
            self.file_offset,
            self.symbol
        )?;
        if self.linkage_name != self.symbol {
            write!(f, "  [{}]", self.linkage_name)?;
        }
        Ok(())
    }
}

/// One of several functions without symbols to which a name may refer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namesake {
    /// The demangled name.
    pub symbol: String,
    /// Source file and line of the function's declaration, as in debug information.
    pub declared: Option<(String, u64)>,
    /// The object's file.
    pub object: PathBuf,
    /// Offsets in that file of the function's entries (own code and inlined copies).
    pub file_offsets: Vec<u64>,
}

/// Maximum number of functions that a message lists.
const LISTED: usize = 16;

/// Maximum number of places that a message lists for one function.
const PLACES: usize = 4;

impl fmt::Display for Namesake {
    /// Writes the function's name, its declaration, and its places in event syntax.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.symbol)?;
        if let Some((file, line)) = &self.declared {
            write!(f, "  declared at {file}:{line}")?;
        }
        for (index, offset) in self.file_offsets.iter().take(PLACES).enumerate() {
            let before = if index == 0 { ", code at" } else { "," };
            write!(f, "{before} {}:{offset:#x}", self.object.display())?;
        }
        match self.file_offsets.len().saturating_sub(PLACES) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Reason why the place of an event was not found.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ResolveError {
    /// A line was requested, but there is no debug information.
    #[error("{0}")]
    Debug(#[from] capriole_dwarf::DebugError),
    /// The source line has no code.
    #[error("{0}")]
    Line(#[from] capriole_dwarf::LineError),
    /// No static marker matches.
    #[error("no marker `{wanted}` in {}{}", object.display(), no_marker_help(*markers, *unusable, nearest))]
    NoMarker {
        /// The `PROVIDER:NAME` that was given.
        wanted: String,
        /// The object searched.
        object: PathBuf,
        /// Number of markers in it.
        markers: usize,
        /// Number of notes that could not be used.
        unusable: usize,
        /// Markers with similar names.
        nearest: Vec<String>,
    },
    /// The program or library cannot be used.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// No loaded object has this path, or a name that starts with this name.
    #[error("no program or library `{name}` is loaded{}", loaded(nearest))]
    NoSuchObject {
        /// The requested name.
        name: String,
        /// Similar names of loaded objects.
        nearest: Vec<String>,
    },
    /// Without a process, an event can refer only to the one file.
    #[error("`{name}` is not {}; without a process only that file can be looked at", file.display())]
    OtherFile {
        /// The requested name.
        name: String,
        /// The file that was given.
        file: PathBuf,
    },
    /// The names of several objects start with this name.
    #[error("{}", which(name, candidates))]
    AmbiguousObject {
        /// The requested name.
        name: String,
        /// The objects.
        candidates: Vec<PathBuf>,
    },
    /// The object has no function of that name.
    #[error("no function `{symbol}` in {}{}", object.display(), no_symbol_help(symbol, nearest, defined_in.as_deref(), *stripped))]
    NoSuchSymbol {
        /// The requested name.
        symbol: String,
        /// The object searched.
        object: PathBuf,
        /// Functions with similar names.
        nearest: Vec<String>,
        /// Name of another loaded object that defines the function.
        defined_in: Option<String>,
        /// True if the object has no symbol names at all.
        stripped: bool,
    },
    /// The function has only copies that are inlined into others, and the event is not of their entries.
    #[error(
        "no function `{symbol}` with code of its own in {}: it is only inlined, and copies have no returns or offsets that can be probed; probe their entries (`:{symbol}`), or the functions that they are inlined into",
        object.display()
    )]
    OnlyInlined {
        /// The requested name.
        symbol: String,
        /// The object searched.
        object: PathBuf,
    },
    /// No function matches the pattern.
    #[error("{}", no_match(pattern, object, *functions))]
    NoMatch {
        /// The pattern that was given.
        pattern: String,
        /// The object searched.
        object: PathBuf,
        /// Number of functions compared with the pattern.
        functions: usize,
    },
    /// Several functions have the name: overloads, or `static` functions of
    /// several source files.
    #[error("`{symbol}` names {} functions; choose one:{}{}", candidates.len(), list(candidates.iter().take(LISTED)), more(candidates.len().min(LISTED), candidates.len()))]
    AmbiguousSymbol {
        /// The requested name.
        symbol: String,
        /// The functions.
        candidates: Vec<Candidate>,
    },
    /// The symbol is an `STT_GNU_IFUNC` resolver.
    #[error("`{symbol}` is an indirect function (IFUNC), and {}{}", indirect_cause(*running), indirect_help(implementations))]
    Indirect {
        /// The requested name.
        symbol: String,
        /// Functions whose names look like those of implementations.
        implementations: Vec<String>,
        /// True if a process was looked at, in which no call of the function is bound.
        running: bool,
    },
    /// No object has the place, which was given without one.
    #[error("{}", nowhere(place, main, *libraries, *stripped, nearest))]
    Nowhere {
        /// The place that was given.
        place: String,
        /// The main program.
        main: PathBuf,
        /// Number of libraries searched as well.
        libraries: usize,
        /// True if the main program has no symbol names at all.
        stripped: bool,
        /// Similar functions, as events.
        nearest: Vec<String>,
    },
    /// The name is that of a library, not of a function.
    #[error(
        "`{name}` is no function; {object} is loaded: write {name}:FUNCTION, or {name}:* for all of its functions"
    )]
    IsObject {
        /// The name that was given.
        name: String,
        /// File name of the object.
        object: String,
    },
    /// Several libraries have the place, and it is not known which one the program uses.
    #[error("`{symbol}` is in several libraries; choose one:{}{}", list(places), more(places.len(), *all))]
    SeveralObjects {
        /// The place that was given.
        symbol: String,
        /// The places with their objects, as events; some of them, if there are many.
        places: Vec<String>,
        /// Number of libraries that have it.
        all: usize,
    },
    /// The symbol is a variable.
    #[error("`{symbol}` in {} is data, not a function", object.display())]
    Data {
        /// The requested name.
        symbol: String,
        /// The object that contains it.
        object: PathBuf,
    },
    /// The symbol is a label inside of a function.
    #[error("`{symbol}` in {} is a label, not a function; write :{place}", object.display())]
    Label {
        /// The requested name.
        symbol: String,
        /// The object that contains it.
        object: PathBuf,
        /// Its place: `function+0x8`.
        place: String,
    },
    /// The object uses the function but does not define it.
    #[error("`{symbol}` is used but not defined in {}{}", object.display(), definer_help(symbol, defined_in.as_deref()))]
    Imported {
        /// The requested name.
        symbol: String,
        /// The object that uses it.
        object: PathBuf,
        /// A loaded object that defines it.
        defined_in: Option<String>,
    },
    /// The returns of a named function cannot be probed.
    #[error(
        "the returns of `{function}` cannot be probed: {reason}; its entry can: leave out `r` and `%return`"
    )]
    NoExits {
        /// The function.
        function: String,
        /// The reason.
        reason: String,
    },
    /// The event asks for calls of a function, from entry to exit, but the function's returns
    /// cannot be probed.
    #[error(
        "calls of `{function}` cannot be followed to their end: {reason}; their beginnings can be \
         recorded and counted"
    )]
    NoCalls {
        /// The function.
        function: String,
        /// The reason.
        reason: String,
    },
    /// A return was requested at a place that is not the start of a function.
    #[error("no function begins at file offset {offset:#x} of {}: returns are those of a function", object.display())]
    NotAnEntry {
        /// The requested offset.
        offset: u64,
        /// The file.
        object: PathBuf,
    },
    /// The offset is outside the function.
    #[error("`{symbol}` has {size} bytes: offset {offset:#x} is outside of it")]
    OffsetOutside {
        /// The function.
        symbol: String,
        /// Its size in bytes.
        size: u64,
        /// The requested offset.
        offset: u64,
    },
    /// There is no code at the file offset.
    #[error("there is no code at file offset {offset:#x} of {} (this is an offset in the file, not an address)", object.display())]
    NotInText {
        /// The requested offset.
        offset: u64,
        /// The file.
        object: PathBuf,
    },
    /// The name belongs to several functions without symbols: overloads, or local functions of
    /// several source files, that were inlined at all of their calls.
    #[error("`{symbol}` names {} functions; choose one{}:{}", candidates.len(), namesake_help(candidates), list(candidates))]
    AmbiguousCopies {
        /// The requested name.
        symbol: String,
        /// The functions.
        candidates: Vec<Namesake>,
    },
}

fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    items
        .into_iter()
        .map(|item| format!("\n  {item}"))
        .collect()
}

fn quoted(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// Returns advice on how to choose; local C functions with the same name differ only in their
/// code.
fn namesake_help(candidates: &[Namesake]) -> &'static str {
    let mut names: Vec<&str> = candidates.iter().map(|c| c.symbol.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).any(|pair| pair[0] == pair[1]) {
        true => " by a line of its code (FILE:LINE) or by offset",
        false => "",
    }
}

fn no_marker_help(markers: usize, unusable: usize, nearest: &[String]) -> String {
    let damaged = match unusable {
        0 => String::new(),
        1 => ", and one note that is damaged or of no code".to_owned(),
        n => format!(", and {n} notes that are damaged or of no code"),
    };
    match (markers, nearest) {
        (0, _) => format!(", which has no static markers{damaged}"),
        (_, []) => format!(" among its {markers}{damaged}"),
        (_, names) => format!(" among its {markers}{damaged}; similar: {}", quoted(names)),
    }
}

fn which(name: &str, candidates: &[PathBuf]) -> String {
    let is_same = |pair: &[PathBuf]| pair[0] == pair[1];
    match candidates.windows(2).all(is_same) {
        true => format!(
            "{} libraries in memory have the name of `{name}`, and nothing tells them apart; the program can give \
             each a name of its own",
            candidates.len()
        ),
        false => format!(
            "`{name}` may be any of these; write more of the name, or a path:{}",
            list(candidates.iter().map(|path| path.display()))
        ),
    }
}

fn loaded(nearest: &[String]) -> String {
    match nearest {
        [] => String::new(),
        names => format!("; loaded are, among others, {}", quoted(names)),
    }
}

fn no_match(pattern: &str, object: &Path, functions: usize) -> String {
    let object = object.display();
    match functions {
        0 => format!("nothing in {object} matches `{pattern}`: it {NAMELESS}"),
        _ => {
            format!("none of the {functions} functions with names in {object} matches `{pattern}`")
        }
    }
}

/// Cause and workaround for an object without symbol names; follows "it" or "which" in a
/// message.
const NAMELESS: &str = "was stripped of all names: use PATH:0xOFFSET, or a build with symbols";

fn no_symbol_help(
    symbol: &str,
    nearest: &[String],
    defined_in: Option<&str>,
    stripped: bool,
) -> String {
    let mut help = String::new();
    if stripped {
        help += &format!(", which {NAMELESS}");
    }
    if let Some(object) = defined_in {
        help += &format!("; {object} has it: write {object}:{symbol}");
    }
    if !nearest.is_empty() {
        help += &format!("; similar: {}", quoted(nearest));
    }
    help
}

fn definer_help(symbol: &str, defined_in: Option<&str>) -> String {
    match defined_in {
        Some(object) => format!("; write {object}:{symbol}"),
        None => "; write LIBRARY:SYMBOL with the library that defines it".to_owned(),
    }
}

fn indirect_cause(running: bool) -> &'static str {
    match running {
        true => {
            "this process has not chosen an implementation yet, because nothing has called it (or it is one in the vDSO, such as of `time`, where nothing can be probed)"
        }
        false => "a process chooses the implementation",
    }
}

fn indirect_help(implementations: &[String]) -> String {
    match implementations {
        [] => String::new(),
        names => format!("; implementations are {}", quoted(names)),
    }
}

fn nowhere(
    place: &str,
    main: &Path,
    libraries: usize,
    stripped: bool,
    nearest: &[String],
) -> String {
    let mut message = format!("no function `{place}` in {}", main.display());
    if stripped {
        message += &format!(", which {NAMELESS}");
    }
    match libraries {
        0 => {}
        1 => message += ", nor in its library",
        n => message += &format!(", nor in its {n} libraries"),
    }
    if !nearest.is_empty() {
        message += &format!("; similar: {}", quoted(nearest));
    }
    message
}

fn more(listed: usize, all: usize) -> String {
    match all - listed {
        0 => String::new(),
        more => format!("\n  and {more} more"),
    }
}
