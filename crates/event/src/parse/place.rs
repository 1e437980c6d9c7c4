//! Parsing the object, and the place in it.

use crate::error::ParseError;
use crate::number;
use crate::parse::fetch::{closing_quote, unescaped};
use crate::parse::{FORM, first_word};
use crate::place::{ObjectRef, Place};
use crate::symbol::{
    assigned, is_open, is_word, lone_colon, offset_sign, starts_argument, symbol_end,
};

/// Object and place.
pub(super) struct Site {
    pub object: ObjectRef,
    pub place: Place,
    pub reference_counter: Option<u64>,
    /// `%return` follows the place.
    pub returns: bool,
    /// Byte offset of the arguments.
    pub end: usize,
    /// Byte offset of the place.
    start: usize,
}

/// Parses `OBJECT:PLACE`.
pub(super) fn site(
    text: &str,
    start: usize,
    end: usize,
    bpftrace: bool,
) -> Result<Site, ParseError> {
    // `::name` is `name`, as in C++.
    let scoped = text[start..end].starts_with("::") && !text[start..end].starts_with(":::");
    let start = match scoped {
        true => end - text[start..end].trim_start_matches("::").len(),
        false => start,
    };
    let colon = separator(text, start, end);
    if scoped && let Some(colon) = colon {
        let message = "there is a second colon";
        let help = "write OBJECT:ns::name";
        return Err(ParseError::at(text, colon, message, help));
    }
    let is_line = colon.is_some_and(|colon| is_source_line(&text[start..end], colon - start));
    let (object, place_at) = match colon {
        Some(_) if is_line => (ObjectRef::Any, start),
        Some(colon) => (object(text, start, colon)?, colon + 1),
        None => (ObjectRef::Any, start),
    };
    let mut site = Site {
        object,
        place: Place::FileOffset(0),
        reference_counter: None,
        returns: false,
        end: place_at,
        start: place_at,
    };
    let rest = &text[place_at..end];
    if rest.is_empty() || rest.starts_with(char::is_whitespace) {
        let message = "there is no symbol after the colon";
        return Err(ParseError::at(text, place_at, message, FORM));
    }
    let is_argument = |text: &str| text.starts_with(['$', '%', '@']);
    if is_argument(rest) || assigned(rest).is_some_and(is_argument) {
        let message = "there is no symbol before the argument";
        return Err(ParseError::at(text, place_at, message, FORM));
    }
    let word = first_word(rest);
    if site.object == ObjectRef::Any
        && !is_line
        && (word.contains('/') || rest.starts_with(|c: char| c.is_ascii_digit()))
    {
        let message = "there is no colon between a file and a symbol";
        return Err(ParseError::at(text, place_at + word.len(), message, FORM));
    }
    if !rest.starts_with(|c: char| c.is_ascii_digit()) {
        symbol(text, end, &mut site)?;
        // Its end, and whether a colon behind it belongs to it, would be a guess.
        let written = text[place_at..site.end].trim_end();
        if site.object == ObjectRef::Any && is_open(written) {
            let message = "a bracket of the symbol is not closed";
            return Err(ParseError::at(
                text,
                place_at + written.len(),
                message,
                FORM,
            ));
        }
    } else if bpftrace {
        let message = "bpftrace means an address here, and not an offset in the file";
        let help = "write p PATH:OFFSET with the offset in the file, or uprobe:PATH:SYMBOL+OFFSET";
        return Err(ParseError::at(text, place_at, message, help));
    } else {
        file_offset(text, end, &mut site)?;
    }
    Ok(site)
}

/// Rejects a place that is not a function's start and so has no return, in an event whose object
/// begins at `start`.
pub(super) fn can_return(text: &str, start: usize, site: &Site) -> Result<(), ParseError> {
    let (at, help) = match &site.place {
        Place::Symbol { offset: 0, .. } | Place::FileOffset(_) => return Ok(()),
        Place::Symbol { .. } => (site.start, "leave out the offset"),
        Place::Line { .. } => (site.start, "write the function's name"),
        Place::Static { .. } => (start, "a static marker has no return"),
    };
    let message = "retprobe address must be a function entry";
    Err(ParseError::at(text, at, message, help))
}

/// Parses `PATH:PROVIDER:NAME ["FORMAT"]`; `PATH:*` is short for `PATH:*:*`.
pub(super) fn static_marker(text: &str, start: usize, end: usize) -> Result<Site, ParseError> {
    let word = first_word(&text[start..end]);
    let parts: Vec<&str> = word.split(':').collect();
    let word_end = start + word.len();
    let help = "write usdt:PATH:PROVIDER:NAME; * stands for any provider or name";
    let error = |at, message: &str| Err(ParseError::at(text, at, message, help));
    let parts = match parts[..] {
        [path, "*"] => vec![path, "*", "*"],
        _ => parts,
    };
    let [path, provider, name] = parts[..] else {
        return match parts.get(3) {
            Some(_) => error(
                word_end - parts[3..].join(":").len() - 1,
                "there is something behind the marker's name",
            ),
            None => error(word_end, "the marker's provider or name is missing"),
        };
    };
    let provider_at = start + path.len() + 1;
    if provider.is_empty() {
        return error(provider_at, "the marker's provider is missing");
    }
    if name.is_empty() {
        return error(word_end, "the marker's name is missing");
    }
    let behind = text[word_end..end].trim_start();
    let (mut format, mut site_end) = (None, word_end);
    if let Some(inside) = behind.strip_prefix('"') {
        let at = end - behind.len();
        let Some(length) = closing_quote(inside, '"') else {
            let help =
                "write the marker's format in double quotes, as a list of the markers shows it";
            let message = "the format is not closed";
            return Err(ParseError::at(text, at, message, help));
        };
        site_end = at + length + 2;
        if !text[site_end..end].is_empty() && !text[site_end..end].starts_with(char::is_whitespace)
        {
            let help = "a blank stands behind the format";
            let message = "there is something behind the format";
            return Err(ParseError::at(text, site_end, message, help));
        }
        format = Some(unescaped(&inside[..length], &['"', '\\']));
    }
    Ok(Site {
        object: object(text, start, start + path.len())?,
        place: Place::Static {
            provider: provider.to_string(),
            name: name.to_string(),
            format,
        },
        reference_counter: None,
        returns: false,
        end: site_end,
        start: provider_at,
    })
}

/// Beginning of the names and paths of libraries that are in memory (memfd_create(2)).
const MEMFD: &str = "memfd:";
const MEMFD_PATH: &str = "/memfd:";

/// Finds the colon between file and place: the first that is not part of `::`.
fn separator(text: &str, start: usize, end: usize) -> Option<usize> {
    let word = first_word(&text[start..end]);
    if word.starts_with('/')
        && let Some(colon) = word.rfind(':')
        && is_offset(&word[colon + 1..])
    {
        return Some(start + colon); // the path itself may have a colon
    }
    // A library without a file, as lists and messages name it: `memfd:NAME:SYMBOL`.
    let written = &text[start..end];
    let prefix = [MEMFD, MEMFD_PATH]
        .into_iter()
        .find(|prefix| written.starts_with(prefix));
    if let Some(prefix) = prefix
        && let name = &written[prefix.len()..]
        && let Some(colon) = name.find(':')
        && !name[..colon].contains(['$', '%', '@', '='])
        && !name[colon..].starts_with("::")
    {
        return Some(start + prefix.len() + colon);
    }
    // Behind the place, a colon is in front of a type. Paths may contain blanks.
    let end = match word.contains('/') {
        true => end,
        false => start + symbol_end(&text[start..end]),
    };
    let mut at = start;
    while let Some(found) = text[at..end].find(':') {
        let colon = at + found;
        let run = text[colon..end].bytes().take_while(|b| *b == b':').count();
        // C++ has `{lambda(auto:1)#1}`.
        let of_auto = text[start..colon].ends_with("auto") && is_open(&text[start..colon]);
        // So it has for functions with an ABI tag: `f[abi:cxx11]`.
        let of_tag = text[start..colon].ends_with("[abi");
        if run % 2 == 1 && !of_auto && !of_tag {
            return Some(colon);
        }
        at = colon + run;
    }
    None
}

/// Endings of the names of source files.
const SOURCES: [&str; 25] = [
    "c", "cc", "cpp", "cxx", "c++", "C", "h", "hh", "hpp", "hxx", "tcc", "ipp", "inl", "rs", "go",
    "s", "S", "m", "d", "zig", "nim", "cr", "f90", "adb", "ml",
];

/// True for `FILE:LINE` without an object, as debuggers read it: `server.c:120`, `encoding/mod.rs:40`.
fn is_source_line(place: &str, colon: usize) -> bool {
    let file = &place[..colon];
    let ending = file.rsplit_once('.').map(|(_, ending)| ending);
    let line = first_word(&place[colon + 1..]);
    ending.is_some_and(|ending| SOURCES.contains(&ending))
        && !line.is_empty()
        && line.bytes().all(|byte| byte.is_ascii_digit())
}

/// Kinds of probes in the kernel, as bpftrace writes them.
const KERNEL: [&str; 9] = [
    "kprobe",
    "kretprobe",
    "fentry",
    "fexit",
    "kfunc",
    "kretfunc",
    "tracepoint",
    "rawtracepoint",
    "syscall",
];

/// True if `place` can only be an offset, hexadecimal or octal. A decimal number may be a source
/// line.
fn is_offset(place: &str) -> bool {
    let digits = place.strip_prefix('0');
    digits.is_some_and(|digits| digits.starts_with(|c: char| c == 'x' || c.is_ascii_digit()))
}

/// Parses the object, before the colon.
fn object(text: &str, start: usize, colon: usize) -> Result<ObjectRef, ParseError> {
    let object = &text[start..colon];
    if object.is_empty() {
        return Ok(ObjectRef::Main);
    }
    let stands_around = object.find('(').map(|open| &object[..open]);
    if let Some(word) = stands_around.filter(|w| !w.is_empty() && w.chars().all(is_word)) {
        let message = format!("`{word}(...)` does not stand around an event");
        let help = "latency(EVENT) measures calls; aggregates follow the function, as in \
                    :FUNCTION count(), or :FUNCTION hist(VALUE)";
        return Err(ParseError::at(text, start, message, help));
    }
    let is_path = object.contains('/');
    let may_have_blanks = is_path || object.starts_with(MEMFD);
    let is_end = |at: usize| !may_have_blanks || starts_argument(object[at..].trim_start());
    let mut blanks = object.char_indices().filter(|(_, c)| c.is_whitespace());
    if let Some((blank, _)) = blanks.find(|(at, _)| is_end(*at)) {
        let message = "there is no colon before the first blank";
        return Err(ParseError::at(text, start + blank, message, FORM));
    }
    if is_path {
        let root = match object.starts_with(MEMFD) {
            true => "/",
            false => "",
        };
        return Ok(ObjectRef::Path(format!("{root}{object}")));
    }
    if KERNEL.contains(&object) {
        let message = "functions of the kernel are not traced";
        let help = "name a function of the program or of a library, as in libc:read";
        return Err(ParseError::at(text, start, message, help));
    }
    if let Some(wildcard) = object.find(['*', '?']) {
        return Err(ParseError::at(
            text,
            start + wildcard,
            "a library is not named by a pattern",
            "the start of its file name is enough, such as libpython for libpython3.11.so.1.0",
        ));
    }
    Ok(ObjectRef::Name(object.to_string()))
}

/// Parses `OFFSET[(REFERENCE_COUNTER)][%return]`, the latter two in either order.
fn file_offset(text: &str, end: usize, site: &mut Site) -> Result<(), ParseError> {
    let start = site.start;
    let word = first_word(&text[start..end]);
    let digits = word.find(['%', '(']).unwrap_or(word.len());
    site.place = Place::FileOffset(number::unsigned(&word[..digits]).map_err(|why| {
        let help = "a symbol does not start with a digit; an offset is in bytes from the start of \
             the file, decimal or after 0x";
        ParseError::at(text, start, format!("invalid uprobe offset: {why}"), help)
    })?);
    let (mut at, word_end) = (start + digits, start + word.len());
    while at < word_end {
        let rest = &text[at..word_end];
        if let Some(inside) = rest.strip_prefix('(') {
            if site.reference_counter.is_some() {
                let message = "reference counter has wrong suffix";
                return Err(ParseError::at(text, at, message, "it is given once"));
            }
            let Some(close) = inside.find(')') else {
                let message = "reference counter brace is not closed";
                let help = "write PATH:OFFSET(OFFSET_OF_THE_COUNTER)";
                return Err(ParseError::at(text, word_end, message, help));
            };
            let what = "reference counter offset";
            let counter = number::with_plus(&inside[..close])
                .map_err(|why| number::bad(text, at + 1, what, &why))?;
            site.reference_counter = Some(counter);
            at += close + 2;
        } else if site.reference_counter.is_some() && !rest.starts_with('%') {
            let message = "reference counter has wrong suffix";
            let help = "behind it come a blank and the arguments";
            return Err(ParseError::at(text, at, message, help));
        } else {
            let suffix = rest.find('(').unwrap_or(rest.len());
            return_suffix(text, at, &rest[..suffix], site)?;
            at += suffix;
        }
    }
    site.end = word_end;
    Ok(())
}

/// Parses `%return`.
fn return_suffix(text: &str, at: usize, suffix: &str, site: &mut Site) -> Result<(), ParseError> {
    if suffix != "%return" || site.returns {
        let message = format!("invalid probed address suffix `{suffix}`");
        let help = "there is only %return";
        return Err(ParseError::at(text, at, message, help));
    }
    site.returns = true;
    Ok(())
}

/// Parses `SYMBOL[+OFFSET][%return]` or `FILE:LINE`.
fn symbol(text: &str, end: usize, site: &mut Site) -> Result<(), ParseError> {
    let start = site.start;
    let mut symbol = &text[start..end];
    symbol = &symbol[..symbol_end(symbol)];
    site.end = start + symbol.len();
    let before = symbol.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '%');
    if let Some(percent) = symbol[before.len()..].find('%').map(|at| before.len() + at)
        && !symbol[..percent].ends_with(|c: char| c.is_whitespace() || c == '\\')
    {
        return_suffix(text, start + percent, &symbol[percent..], site)?;
        symbol = &symbol[..percent];
    }
    if let Some(colon) = lone_colon(symbol) {
        if let Some(place) = line(text, start, symbol, colon)? {
            site.place = place;
            return Ok(());
        }
        let message = "there is a second colon";
        let help = "a line of source is PATH:FILE:LINE; other than that one colon stands between \
             file and symbol";
        return Err(ParseError::at(text, start + colon, message, help));
    }
    if let Some((at, message, help)) = foreign_function(symbol) {
        return Err(ParseError::at(text, start + at, message, help));
    }
    let (pattern, offset) = match offset_sign(symbol) {
        Some(0) => {
            let message = "there is no symbol before the offset";
            return Err(ParseError::at(text, start, message, FORM));
        }
        Some(sign) if symbol[..sign].ends_with(char::is_whitespace) => {
            let message = "there is a blank before the offset";
            let help = "write SYMBOL+OFFSET in one word";
            return Err(ParseError::at(text, start + sign, message, help));
        }
        Some(sign) => {
            let offset = number::parse(text, start + sign + 1, &symbol[sign + 1..], "offset")?;
            (&symbol[..sign], offset)
        }
        None => (symbol, 0),
    };
    site.place = Place::Symbol {
        pattern: pattern.to_string(),
        offset,
    };
    Ok(())
}

/// Functions of other tracers for aggregates, and for texts.
const AGGREGATES: [&str; 16] = [
    "quantize",
    "lquantize",
    "lhist",
    "histogram",
    "mean",
    "median",
    "average",
    "stats",
    "stddev",
    "total",
    "p50",
    "p90",
    "p95",
    "p99",
    "percentile",
    "quantile",
];
const TEXTS: [&str; 6] = ["str", "string", "ustring", "strlen", "buf", "printf"];

/// Returns a function of another tracer that follows a symbol like an argument: its position, a message
/// and help. No type of a demangled name has such a name and parentheses.
fn foreign_function(symbol: &str) -> Option<(usize, String, &'static str)> {
    let blanks = symbol.char_indices().filter(|(_, c)| c.is_whitespace());
    let mut starts = blanks.map(|(at, blank)| at + blank.len_utf8());
    starts.find_map(|at| {
        let word = symbol[at..].split(|c| !is_word(c)).next()?;
        if !symbol[at + word.len()..].starts_with('(') {
            return None;
        }
        if AGGREGATES.contains(&word) {
            let help = "the aggregates are count(), sum(X), min(X), max(X), avg(X) and hist(X)";
            return Some((at, format!("unknown aggregate `{word}`"), help));
        }
        let help = "a text has the type string: write VALUE:string";
        TEXTS
            .contains(&word)
            .then(|| (at, format!("`{word}(...)` is no value"), help))
    })
}

/// Parses `FILE:LINE`, if digits follow the colon.
fn line(text: &str, start: usize, place: &str, colon: usize) -> Result<Option<Place>, ParseError> {
    let (file, digits) = (&place[..colon], &place[colon + 1..]);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(None);
    }
    let error = |at, message, help| Err(ParseError::at(text, start + at, message, help));
    if file.is_empty() {
        return error(
            0,
            "there is no source file before the line",
            "write PATH:FILE:LINE",
        );
    }
    match digits.parse() {
        Ok(line @ 1..) => Ok(Some(Place::Line {
            file: file.to_string(),
            line,
        })),
        Ok(0) => error(colon + 1, "there is no line 0", "lines count from 1"),
        Err(_) => error(colon + 1, "the line does not fit into 32 bits", ""),
    }
}
