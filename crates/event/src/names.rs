//! Names of groups, events and arguments: validation, and automatic names.

use crate::at::At;
use crate::error::ParseError;
use crate::symbol::is_word;

/// The longest name of a group or event, in bytes; the kernel's 64 count its NUL.
pub(crate) const MAX_EVENT: usize = 63;
/// The longest name of an argument.
const MAX_ARGUMENT: usize = 32;
/// Field names that every kernel event has.
const RESERVED: [&str; 8] = [
    "common_type",
    "common_flags",
    "common_preempt_count",
    "common_pid",
    "common_tgid",
    "__probe_ip",
    "__probe_ret_ip",
    "__probe_func",
];

const RULES: &str = "a name has letters, digits and underscores, and no digit first";

/// Kind of name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Group,
    Event,
}

/// Checks the name of a group or event at byte `at`. Groups may have dashes, as in the kernel.
pub(crate) fn event(text: &str, at: usize, name: &str, kind: Kind) -> Result<(), ParseError> {
    let what = match kind {
        Kind::Group => "group",
        Kind::Event => "event",
    };
    if name.is_empty() {
        let help = "write p:GROUP/EVENT, p:EVENT, p:GROUP/, or leave out the colon";
        let message = format!("{what} name is not specified");
        return Err(ParseError::at(text, at, message, help));
    }
    if name.len() > MAX_EVENT {
        let message = format!("{what} name is too long");
        let help = format!(
            "it has {} bytes, at most {MAX_EVENT} are allowed",
            name.len()
        );
        return Err(ParseError::at(text, at, message, help));
    }
    if let Some(c) = misplaced(name, kind == Kind::Group) {
        let message = format!("{what} name must be an identifier: `{c}` cannot stand there");
        return Err(ParseError::at(text, at, message, RULES));
    }
    Ok(())
}

/// Checks the name of an argument at byte `at`.
pub(crate) fn argument(text: &str, at: usize, name: &str) -> Result<(), ParseError> {
    let (message, help) = if name.is_empty() {
        (
            "argument name is not specified".to_string(),
            RULES.to_string(),
        )
    } else if name.len() > MAX_ARGUMENT {
        let help = format!(
            "it has {} bytes, at most {MAX_ARGUMENT} are allowed",
            name.len()
        );
        ("argument name is too long".to_string(), help)
    } else if let Some(c) = misplaced(name, false) {
        let message = format!("argument name must be an identifier: `{c}` cannot stand there");
        (message, RULES.to_string())
    } else if RESERVED.contains(&name) {
        let help = "the kernel has a field of this name in every event";
        (
            format!("the argument name {name} is already used"),
            help.to_string(),
        )
    } else {
        return Ok(());
    };
    Err(ParseError::at(text, at, message, help))
}

/// Returns the first character that an identifier cannot have at its position.
fn misplaced(name: &str, dash: bool) -> Option<char> {
    name.char_indices()
        .find(|(at, c)| {
            let allowed = (is_word(*c) && c.is_ascii()) || (dash && *at > 0 && *c == '-');
            !allowed || (*at == 0 && c.is_ascii_digit())
        })
        .map(|(_, c)| c)
}

/// Returns the automatic name of a field: an identifier made from its expression, such as
/// `req_list_2_name` for `req->list[2].name`. `None` if nothing is left.
pub fn identifier(path: &str) -> Option<String> {
    let words = path.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let mut name = words.join("_");
    name.truncate(MAX_ARGUMENT);
    (!name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit())).then_some(name)
}

/// Returns the kernel's name for an event without one: the file's name up to its first dot, dash or
/// underscore, and the offset in the file: `p_libc_0x2a2f0`.
///
/// For an event at a return the name starts with `r_`; the kernel uses `p_` there as well, so that
/// it cannot have both events of one function.
pub fn automatic_name(at: At, path: &str, file_offset: u64) -> String {
    let letter = match at {
        At::Entry => 'p',
        At::Return => 'r',
    };
    let file = path.rsplit('/').next().unwrap_or(path);
    let file = file.split(['.', '-', '_']).next().unwrap_or(file);
    let file = file.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    let offset = format!("{file_offset:#x}");
    let room = MAX_EVENT - offset.len() - 3;
    format!("{letter}_{}_{offset}", &file[..file.len().min(room)])
}
