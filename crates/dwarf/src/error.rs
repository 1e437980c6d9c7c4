//! Errors of debug information queries.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use capriole_event::FieldType;

/// A file examined for debug information, and the reason why it cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub why: NotUsed,
}

/// Reason why a file cannot be used as debug information of another one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotUsed {
    /// The file does not exist, or may not be read.
    #[error("not there")]
    Absent,
    /// The build ids differ.
    #[error("of another build")]
    OtherBuild,
    /// The checksum in `.gnu_debuglink` does not match the file.
    #[error("check sum differs")]
    CheckSum,
    /// The file has no `.debug_info`.
    #[error("without .debug_info")]
    Empty,
    /// Not an ELF file, or a damaged one.
    #[error("damaged: {0}")]
    Damaged(&'static str),
}

/// Reason why debug information did not come from a debuginfod server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotFetched {
    /// No server is configured.
    #[error("no server is set in DEBUGINFOD_URLS")]
    NoServer,
    /// The file has no build id, or an implausible one.
    #[error("it has no build id, by which a debuginfod server would find them")]
    NoBuildId,
    /// The client is missing.
    #[error(
        "DEBUGINFOD_URLS is set, but `debuginfod-find` is not installed (Debian: the package debuginfod)"
    )]
    NotInstalled,
    /// No server has it.
    #[error("the servers in DEBUGINFOD_URLS do not have them")]
    NotFound,
    /// The client has given up.
    #[error("the servers in DEBUGINFOD_URLS did not answer in time (DEBUGINFOD_TIMEOUT)")]
    TimedOut,
    /// The client did not end, and was killed.
    #[error("`debuginfod-find` was stopped: it had not ended after {} s", .0.as_secs())]
    Stopped(Duration),
    /// The user interrupted it.
    #[error("`debuginfod-find` was interrupted")]
    Interrupted,
    /// The client failed, with this message.
    #[error("`debuginfod-find` failed: {0}")]
    Failed(String),
    /// The client returned a file that cannot be used.
    #[error("`debuginfod-find` returned {}, which cannot be used ({})", .0.path.display(), .0.why)]
    Unusable(Tried),
    /// The file was fetched, but not the common file of dwz(1) that it refers to.
    #[error("they refer to {}: {why}", .name.display())]
    Common {
        /// The name of the common file.
        name: PathBuf,
        /// Why that was not fetched.
        why: Box<NotFetched>,
    },
}

/// Error of the debug information as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DebugError {
    /// There is no debug information.
    #[error("{}", none(.path, .tried, .not_fetched.as_ref()))]
    None {
        /// The program or library.
        path: PathBuf,
        /// Other files that were tried, besides the file itself.
        tried: Vec<Tried>,
        /// Why it did not come from a server, if it was to.
        not_fetched: Option<NotFetched>,
    },
    /// The debug information contradicts itself or ends too early.
    #[error("damaged debug information: {0}; install or build it anew")]
    Damaged(&'static str),
    /// Damaged debug information, as reported by `gimli`.
    #[error("damaged debug information: {0}; install or build it anew")]
    Dwarf(gimli::Error),
    /// A `.dwo` or `.dwp` file that is named but not found.
    #[error(
        "its debug information is split off into {}, which was not found: keep that file where the compiler put it, or make a .dwp of it", .0.display()
    )]
    SplitMissing(PathBuf),
    /// A `.dwo` file that cannot be used.
    #[error(
        "its debug information is split off into {}, which is not usable ({}): build it anew", .0.path.display(), .0.why
    )]
    SplitDamaged(Tried),
    /// A common file of dwz(1) that is named but not found.
    #[error(
        "its debug information refers to {}, which was not found: install the debug package as a whole", .0.display()
    )]
    SupplementMissing(PathBuf),
    /// The query would take more work than any undamaged file needs.
    #[error("the debug information is too involved (damaged?)")]
    TooMuch,
    /// The debug information describes no function at the address.
    #[error(
        "no debug information about the code at {0:#x}: compile that source file with -g (-g1 may not be enough)"
    )]
    NoFunction(u64),
    /// The address belongs to a unit with debug information, but to none of its functions.
    #[error(
        "the code at {0:#x} is in no function of the source: the compiler has added it (such as a \
         thunk, which corrects `this` and goes on in the virtual function itself), and it has no \
         variables: probe the function by its name, or use registers"
    )]
    Added(u64),
    /// The unit of the function has no types, so nothing is known about its variables.
    #[error(
        "the debug information about `{0}` is without variables and types: compile its source file with -g (-g1 is not enough)"
    )]
    NoVariables(String),
    /// No function has this name.
    #[error(
        "no function `{0}` in the debug information: compile its source file with -g, or use the symbol"
    )]
    UnknownFunction(String),
}

impl From<gimli::Error> for DebugError {
    fn from(error: gimli::Error) -> DebugError {
        DebugError::Dwarf(error)
    }
}

fn none(path: &Path, tried: &[Tried], not_fetched: Option<&NotFetched>) -> String {
    let mut text = format!(
        "no debug information for {}: compile it with -g, or install its debug symbols (Debian: the package whose name ends in -dbgsym)",
        path.display()
    );
    match not_fetched {
        None => {}
        Some(NotFetched::NoServer) => text += ", or set DEBUGINFOD_URLS to a server that has them",
        Some(why) => _ = write!(text, "; {why}"),
    }
    for (index, Tried { path, why }) in tried.iter().enumerate() {
        let start = if index == 0 { "; looked for " } else { ", " };
        let _ = write!(text, "{start}{} ({why})", path.display());
    }
    text
}

/// Reason why a variable cannot be recorded at a site, and the column of the mistake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{refusal}")]
pub struct VariableError {
    /// Byte offset of the faulty part in the expression (`req->name`).
    pub at: usize,
    /// The reason.
    pub refusal: Refusal,
}

impl VariableError {
    pub(super) fn new(at: usize, refusal: impl Into<Refusal>) -> VariableError {
        VariableError {
            at,
            refusal: refusal.into(),
        }
    }
}

/// A later place in the same function.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Onward {
    /// This source line; none of its code comes earlier.
    #[error("at line {0}")]
    Line(u64),
    /// Function name, and byte offset from its start.
    #[error("{0}+{1:#x}")]
    Offset(String, u64),
    /// Path of the file, and byte offset in it.
    #[error("{0}:{1:#x}")]
    File(String, u64),
}

fn onward(place: Option<&Onward>) -> String {
    place.map_or_else(|| "a later place".to_owned(), ToString::to_string)
}

/// Reason why a variable cannot be recorded at a site.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Error of the debug information as a whole.
    #[error("{0}")]
    Debug(#[from] DebugError),
    /// The expression is not a `name` with `*` before it and `->name`, `.name` or `[number]`
    /// after it, all optional.
    #[error("expected {0}")]
    Syntax(&'static str),
    /// No such parameter or variable.
    #[error("no variable `{name}` here{}", there_are(.there))]
    Unknown {
        /// The requested name.
        name: String,
        /// The visible names.
        there: Vec<String>,
    },
    /// Several variables have the name, and none of them takes precedence.
    #[error("`{name}` names {} variables; {}", .candidates.len(), choice(.candidates))]
    Ambiguous {
        /// The requested name.
        name: String,
        /// An unambiguous name for each.
        candidates: Vec<String>,
    },
    /// A parameter pack as a whole.
    #[error("`{name}` is a parameter pack; name an element: {}", listed(.elements))]
    Pack {
        /// The requested name.
        name: String,
        /// Its elements.
        elements: Vec<String>,
    },
    /// A member of a class, in a function that has no object of that class.
    #[error(
        "`{name}` is a member of {class}, and this function has no object of it; of an object write OBJECT.{name}"
    )]
    NoObject {
        /// The requested name.
        name: String,
        /// The class.
        class: String,
    },
    /// The name of a member function.
    #[error("`{name}` is a member function of {class}; a global variable of that name is ::{name}")]
    MemberFunction {
        /// The requested name.
        name: String,
        /// The class.
        class: String,
    },
    /// Several base classes have the member.
    #[error("{c_type} has several members `{name}`; {}", qualified(.candidates))]
    AmbiguousMember {
        /// The struct.
        c_type: String,
        /// The requested name.
        name: String,
        /// The whole expression, with the name qualified with each of the base classes; empty if that
        /// is not enough.
        candidates: Vec<String>,
    },
    /// A member of a virtual base class: its place is known only from the object at run time.
    #[error(
        "`{name}` is a member of {base}, a virtual base class of {c_type}: only the program knows where it is; record it where the object is known as a {base}"
    )]
    VirtualBase {
        /// The requested name.
        name: String,
        /// The virtual base class.
        base: String,
        /// The struct.
        c_type: String,
    },
    /// A variable of the function, in a block that does not contain the site.
    #[error("`{name}` is not visible here; it is declared {}", at_line(*.line))]
    OutOfScope {
        /// The variable.
        name: String,
        /// Source line of its declaration.
        line: Option<u64>,
    },
    /// A variable of another of the functions that contain the site.
    #[error(
        "`{name}` is a variable of `{of}`, {}, not of `{own}`; probe a line of `{of}` for it",
        if *.inlined { "which is inlined here" } else { "which this copy is inlined into" }
    )]
    OtherFunction {
        /// The variable.
        name: String,
        /// The function in which names are resolved here.
        own: String,
        /// The function that the variable belongs to.
        of: String,
        /// True if `of` is inlined into `own`, rather than the other way round.
        inlined: bool,
    },
    /// The variable is optimised out at the site.
    #[error("`{name}` is optimised out here{}", live(.lines, *.optimised))]
    OptimisedOut {
        /// The variable.
        name: String,
        /// Source lines at which it is available, ascending; empty if there are none.
        lines: Vec<u64>,
        /// True if the function is known to be compiled with optimisation.
        optimised: bool,
    },
    /// The function has not stored the variable in its place yet.
    #[error("`{name}` has no value yet here; probe {} instead", onward(.from.as_ref()))]
    NotYetStored {
        /// The variable.
        name: String,
        /// The first place at which it has a value, if one is known.
        from: Option<Onward>,
    },
    /// A parameter of Go, in a register that the function does not save while its stack grows.
    #[error(
        "the function does not use `{0}`, so its register is not saved when the stack grows, and may hold something else"
    )]
    NotSaved(String),
    /// The value is known only in terms of the registers at the entry of a function.
    #[error(
        "`{name}` is known here only by what registers held at the entry of `{function}`{}",
        if *.inlined { ", which this copy is inlined into; probe another line" } else { "; probe that" }
    )]
    EntryValue {
        /// The variable.
        name: String,
        /// The function whose entry it is.
        function: String,
        /// True if the variable belongs to a copy inlined into that function.
        inlined: bool,
    },
    /// The variable is in several pieces, none of which holds the whole requested part.
    #[error("`{0}` is in several places here, which cannot be put together; probe another line")]
    Pieces(String),
    /// An optimised-out pointer to an object that still exists.
    #[error(
        "the pointer `{0}` is optimised out here, only what it points to is known; probe another line"
    )]
    ImplicitPointer(String),
    /// A large structure of Rust that was passed on the stack.
    #[error(
        "`{name}` was passed on the stack, as a value or as a pointer to it, which debug information of Rust does not tell apart; at the function's entry $stack{word} is the pointer, or the first word"
    )]
    ValueOrPointer {
        /// The variable.
        name: String,
        /// The word of the stack at the function's entry.
        word: i64,
    },
    /// The value is not in memory or a register; it would have to be calculated.
    #[error("`{0}` would have to be calculated here; probe another line, or fetch its registers")]
    Computed(String),
    /// The variable is in a vector or x87 register.
    #[error(
        "`{0}` is in a vector or x87 register here, of which only numbers in the lowest 8 bytes of xmm0 to xmm15 are read; probe a line where it is in memory"
    )]
    VectorRegister(String),
    /// The variable is in thread-local storage.
    #[error("`{0}` is thread-local, which is not supported; record a pointer to it")]
    ThreadLocal(String),
    /// The location has an unsupported form.
    #[error("where `{0}` is cannot be understood: {1}")]
    Location(String, &'static str),
    /// A type that has no members was followed by `.` or `->`.
    #[error("`{of}` has no members: its type is {c_type}")]
    NoMembers {
        /// The expression before the operator.
        of: String,
        /// Its type.
        c_type: String,
    },
    /// The struct has no such member.
    #[error("{c_type} has no member `{name}`{}", there_are(.there))]
    NoMember {
        /// The struct.
        c_type: String,
        /// The requested name.
        name: String,
        /// Its members.
        there: Vec<String>,
    },
    /// `->`, `*` or `[` is applied to something that is not a pointer.
    #[error("`{of}` is not a pointer{}: its type is {c_type}", if *.brackets { " or array" } else { "; use `.`" })]
    NotAPointer {
        /// The expression before the operator.
        of: String,
        /// Its type.
        c_type: String,
        /// True if the operator is `[`.
        brackets: bool,
    },
    /// `[` is applied to a slice, a pointer with a length.
    #[error("`{of}` is {c_type}, a pointer with a length: an element is {element}")]
    Slice {
        /// The expression before the operator.
        of: String,
        /// Its type.
        c_type: String,
        /// The element's expression.
        element: String,
    },
    /// A pointer to an object of unknown size.
    #[error("what `{of}` points to is not known here ({c_type}); use an offset, +8(%di)")]
    Incomplete {
        /// The expression before the operator.
        of: String,
        /// Its type.
        c_type: String,
    },
    /// The index is outside of the array's bounds.
    #[error("{}", bounds(*.lower, *.count))]
    OutOfBounds {
        /// The first index.
        lower: i64,
        /// Number of elements, if it is known.
        count: Option<u64>,
    },
    /// An array with a descriptor, or with gaps between its elements.
    #[error(
        "only the program knows where the elements of `{of}` ({c_type}) are: its address, bounds or steps are in a descriptor; pass it to a function that takes it with fixed bounds, and probe that"
    )]
    DescribedAtRunTime {
        /// The array.
        of: String,
        /// Its type.
        c_type: String,
    },
    /// A whole struct, union or class.
    #[error("`{of}` is {c_type}; name a member{}", there_are(.members))]
    Whole {
        /// The requested expression.
        of: String,
        /// Its type.
        c_type: String,
        /// Its members.
        members: Vec<String>,
    },
    /// A Rust enum with data.
    #[error(
        "`{of}` is {c_type}, an enum with data: which variant it holds only the program knows; of a pointer to it, +0(...) reads the bytes"
    )]
    Variants {
        /// The requested expression, or the part before a member.
        of: String,
        /// Its type.
        c_type: String,
    },
    /// A Rust slice, `&str` or `String`: pointer and length, no NUL at the end.
    #[error(
        "`{of}` is {c_type}, a pointer and a length without a NUL at the end; record its members{}", there_are(.members)
    )]
    RustSlice {
        /// The requested expression.
        of: String,
        /// Its type.
        c_type: String,
        /// Its members.
        members: Vec<String>,
    },
    /// More elements than one field may have, or elements that are not numbers.
    #[error("`{of}` is {c_type}; at most 64 numbers fit into a field: name an element, {of}[0]")]
    Array {
        /// The requested expression.
        of: String,
        /// Its type.
        c_type: String,
    },
    /// Floating point without an explicit type.
    #[error("`{of}` is {c_type}; ask for its bits with {of}:x{}", .size * 8)]
    FloatingPoint {
        /// The requested expression.
        of: String,
        /// Its type.
        c_type: String,
        /// Bytes.
        size: u64,
    },
    /// The size of the type is not a field size.
    #[error("`{of}` is {c_type} of {}; fields have 1, 2, 4 or 8", bytes(*size))]
    Size {
        /// The requested expression.
        of: String,
        /// Its type.
        c_type: String,
        /// Bytes.
        size: u64,
    },
    /// The explicit type is larger than the object.
    #[error(
        "`{of}` is {c_type}, which has {}: {wanted} would read what is behind it; leave the type out, or ask for fewer bits",
        bytes(*size)
    )]
    Wider {
        /// The requested expression.
        of: String,
        /// Its type.
        c_type: String,
        /// Bytes.
        size: u64,
        /// The requested type.
        wanted: FieldType,
    },
    /// The explicit type does not fit.
    #[error("`{of}` is {c_type}, which cannot be recorded as {wanted}")]
    Mismatch {
        /// The requested expression.
        of: String,
        /// Its type.
        c_type: String,
        /// The requested kind of field.
        wanted: &'static str,
    },
}

fn bounds(lower: i64, count: Option<u64>) -> String {
    let last = |count: u64| {
        i64::try_from(count)
            .ok()?
            .checked_sub(1)?
            .checked_add(lower)
    };
    match (lower, count) {
        (0, Some(count)) => format!("the array has {count} elements"),
        (0, None) => "the array has 0 elements".to_owned(),
        (lower, count) => match count.and_then(last) {
            Some(last) => format!("indices of the array are {lower} to {last}"),
            None => format!("the first index of the array is {lower}"),
        },
    }
}

fn there_are(names: &[String]) -> String {
    match names.len() {
        0 => String::new(),
        _ => format!(": there are {}", listed(names)),
    }
}

fn listed(names: &[String]) -> String {
    const SHOWN: usize = 12;
    match names.len() > SHOWN {
        true => format!("{}, ...", names[..SHOWN].join(", ")),
        false => names.join(", "),
    }
}

/// Tells how to choose one of several variables, some of which may only differ by their lines.
fn choice(candidates: &[String]) -> String {
    let plain = |text: &String| text.split(" (line ").next().map(str::to_owned);
    let mut names: Vec<_> = candidates.iter().filter_map(plain).collect();
    names.sort_unstable();
    match names.windows(2).any(|pair| pair[0] == pair[1]) {
        false => format!("write one of {}", listed(candidates)),
        true => format!(
            "they are {}: probe a line where one of them is visible, and write its plain name",
            listed(candidates)
        ),
    }
}

fn qualified(candidates: &[String]) -> String {
    match candidates {
        [] => "their classes are base classes more than once, so no name selects one: write \
               +OFFSET(POINTER)"
            .to_owned(),
        _ => format!("write one of {}", listed(candidates)),
    }
}

fn at_line(line: Option<u64>) -> String {
    match line {
        Some(line) => format!("at line {line}"),
        None => "further on in the function".to_owned(),
    }
}

fn live(lines: &[u64], optimised: bool) -> String {
    match lines {
        [] if !optimised => "; the compiler keeps it nowhere".to_owned(),
        [] => "; compile with -Og or -O0 to keep it".to_owned(),
        [line] => format!("; it is kept at line {line}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(u64::to_string).collect();
            format!("; it is kept at lines {} and {last}", first.join(", "))
        }
    }
}

/// Reason why a source line cannot be probed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Error of the debug information as a whole.
    #[error("{0}")]
    Debug(#[from] DebugError),
    /// No source file has this name or ends in this path.
    #[error("no source file `{file}` in the debug information{}", there_are(.near))]
    UnknownFile {
        /// The requested file.
        file: String,
        /// Files with a similar name.
        near: Vec<String>,
    },
    /// Several source files end in this path.
    #[error("several source files end in `{file}`: {}; name more of the path", .of.join(", "))]
    Ambiguous {
        /// The requested file.
        file: String,
        /// Paths of the matching files.
        of: Vec<String>,
    },
    /// No instruction belongs to the line.
    #[error("no code at line {line} of {file}{}", nearest(.near))]
    NoCode {
        /// The file.
        file: String,
        /// The line.
        line: u64,
        /// The nearest lines with code, ascending: up to two before and two after.
        near: Vec<u64>,
    },
}

fn nearest(near: &[u64]) -> String {
    if near.is_empty() {
        return ", nor at any other".to_owned();
    }
    let lines: Vec<String> = near.iter().map(u64::to_string).collect();
    format!("; the nearest with code: {}", lines.join(", "))
}

fn bytes(count: u64) -> String {
    match count {
        1 => "1 byte".to_owned(),
        count => format!("{count} bytes"),
    }
}
