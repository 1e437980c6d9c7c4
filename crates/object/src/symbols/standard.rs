//! Names of the C++ library's templates as programs write them.

use super::parts::group;

/// Inline namespaces of the implementations, which nobody writes.
const INLINE: [&str; 5] = [
    "std::__cxx11::",
    "std::__1::",
    "std::_V2::",
    "std::filesystem::__cxx11::",
    "std::chrono::_V2::",
];

/// Default argument of a template.
#[derive(Clone, Copy)]
enum Default {
    /// `std::NAME<T>` for the template's first argument `T`.
    Of(&'static str),
    /// `std::allocator<std::pair<K const, V> >` for its first two.
    OfPairs,
}

const ALLOCATOR: Default = Default::Of("allocator");

/// Class templates of `std`, their numbers of arguments without defaults, and the defaults.
const TEMPLATES: [(&str, usize, &[Default]); 28] = [
    ("vector", 1, &[ALLOCATOR]),
    ("deque", 1, &[ALLOCATOR]),
    ("list", 1, &[ALLOCATOR]),
    ("forward_list", 1, &[ALLOCATOR]),
    ("set", 1, &[Default::Of("less"), ALLOCATOR]),
    ("multiset", 1, &[Default::Of("less"), ALLOCATOR]),
    ("map", 2, &[Default::Of("less"), Default::OfPairs]),
    ("multimap", 2, &[Default::Of("less"), Default::OfPairs]),
    ("unordered_set", 1, &HASHED),
    ("unordered_multiset", 1, &HASHED),
    ("unordered_map", 2, &HASHED_PAIRS),
    ("unordered_multimap", 2, &HASHED_PAIRS),
    ("stack", 1, &[Default::Of("deque")]),
    ("queue", 1, &[Default::Of("deque")]),
    (
        "priority_queue",
        1,
        &[Default::Of("vector"), Default::Of("less")],
    ),
    ("unique_ptr", 1, &[Default::Of("default_delete")]),
    ("basic_string", 1, &[TRAITS, ALLOCATOR]),
    ("basic_string_view", 1, &[TRAITS]),
    ("basic_ios", 1, &[TRAITS]),
    ("basic_streambuf", 1, &[TRAITS]),
    ("basic_istream", 1, &[TRAITS]),
    ("basic_ostream", 1, &[TRAITS]),
    ("basic_iostream", 1, &[TRAITS]),
    ("basic_filebuf", 1, &[TRAITS]),
    ("basic_ifstream", 1, &[TRAITS]),
    ("basic_ofstream", 1, &[TRAITS]),
    ("basic_fstream", 1, &[TRAITS]),
    ("basic_stringbuf", 1, &[TRAITS, ALLOCATOR]),
];
/// More of them, of streams on strings.
const STRING_STREAMS: [&str; 3] = [
    "basic_istringstream",
    "basic_ostringstream",
    "basic_stringstream",
];
const TRAITS: Default = Default::Of("char_traits");
const HASHED: [Default; 3] = [Default::Of("hash"), Default::Of("equal_to"), ALLOCATOR];
const HASHED_PAIRS: [Default; 3] = [
    Default::Of("hash"),
    Default::Of("equal_to"),
    Default::OfPairs,
];

/// Prefixes of the names of `std::basic_NAME` for a type of characters.
const CHARACTERS: [(&str, &str); 5] = [
    ("char", ""),
    ("wchar_t", "w"),
    ("char8_t", "u8"),
    ("char16_t", "u16"),
    ("char32_t", "u32"),
];

/// Removes what nobody writes from the types of the C++ library in a name: inline namespaces and
/// default arguments. `std::basic_string<char>` becomes `std::string`. Names without such types are
/// returned as they are.
pub(super) fn simplified(name: &str) -> String {
    let decoded = decoded(name);
    let name = decoded.as_deref().unwrap_or(name);
    if !name.contains("std::") {
        return name.to_owned();
    }
    let mut plain = name.to_owned();
    for inline in INLINE {
        if plain.contains(inline) {
            let outer = inline.trim_end_matches("::");
            let outer = outer.rsplit_once("::").map_or("", |(outer, _)| outer);
            plain = plain.replace(inline, &format!("{outer}::"));
        }
    }
    rewritten(&plain, 0).unwrap_or(plain)
}

/// Undoes the encoding of characters in Rust's legacy names (`$LT$`), and removes the hash, where the
/// demangler did not recognise the name. `None` if there is nothing to undo.
fn decoded(name: &str) -> Option<String> {
    const CODES: [(&str, &str); 10] = [
        ("$LT$", "<"),
        ("$GT$", ">"),
        ("$LP$", "("),
        ("$RP$", ")"),
        ("$C$", ","),
        ("$RF$", "&"),
        ("$BP$", "*"),
        ("$u20$", " "),
        ("$u7b$", "{"),
        ("$u7d$", "}"),
    ];
    if !CODES.iter().any(|(code, _)| name.contains(code)) {
        return None;
    }
    let mut name = match name.rsplit_once("::h") {
        Some((outer, hash)) if hash.len() == 16 && hash.bytes().all(|c| c.is_ascii_hexdigit()) => {
            outer.to_owned()
        }
        _ => name.to_owned(),
    };
    for (code, character) in CODES {
        name = name.replace(code, character);
    }
    Some(name.replace("..", "::").replace("::_<", "::<"))
}

/// Maximum depth of brackets that are looked into.
const DEEPEST: u32 = 64;

/// Rewrites the template arguments in a name or type; `None` if its brackets do not match.
fn rewritten(name: &str, depth: u32) -> Option<String> {
    if depth > DEEPEST {
        return None;
    }
    let mut out = String::with_capacity(name.len());
    let mut at = 0;
    while let Some(c) = name[at..].chars().next() {
        let is_arguments = c == '<'
            && out.ends_with(|c: char| c.is_alphanumeric() || c == '_')
            && !out.ends_with("operator");
        if is_arguments {
            let length = group(&name[at..])?;
            let inner = &name[at + 1..at + length - 1];
            let arguments = split(inner)?.into_iter();
            let arguments: Option<Vec<String>> =
                arguments.map(|text| rewritten(text, depth + 1)).collect();
            put_arguments(&mut out, arguments?);
            at += length;
        } else {
            out.push(c);
            at += c.len_utf8();
        }
    }
    // Asked first, since almost no name has one.
    if !out.contains("basic_string") {
        return Some(out);
    }
    for (own, alias) in [
        ("::basic_string", "::string"),
        ("::~basic_string", "::~string"),
    ] {
        for (_, prefix) in CHARACTERS {
            // Its constructors and destructor.
            let class = format!("std::{prefix}string");
            let member = format!("{class}{own}");
            if out.contains(&member) {
                let alias = alias.replace("string", &format!("{prefix}string"));
                out = out.replace(&member, &format!("{class}{alias}"));
            }
        }
    }
    Some(out)
}

/// Splits template arguments at their commas.
fn split(inner: &str) -> Option<Vec<&str>> {
    let mut arguments = Vec::new();
    let (mut start, mut at) = (0, 0);
    while let Some(c) = inner[at..].chars().next() {
        match c {
            '<' | '(' | '[' | '{' if !inner[..at].ends_with("operator") => {
                at += group(&inner[at..])?;
                continue;
            }
            ',' => {
                arguments.push(inner[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        at += c.len_utf8();
    }
    arguments.push(inner[start..].trim());
    Some(arguments)
}

/// Adds the arguments of the template whose name `out` ends with.
fn put_arguments(out: &mut String, mut arguments: Vec<String>) {
    let start = out
        .char_indices()
        .rev()
        .take_while(|(_, c)| c.is_alphanumeric() || matches!(c, '_' | ':'))
        .last();
    let template = start.map_or("", |(start, _)| &out[start..]).to_owned();
    if let Some(name) = template.strip_prefix("std::") {
        drop_defaults(name, &mut arguments);
        if let ([character], Some(kind)) = (&arguments[..], name.strip_prefix("basic_")) {
            let found = CHARACTERS.iter().find(|(name, _)| name == character);
            if let Some((_, prefix)) = found {
                out.truncate(out.len() - name.len());
                out.push_str(prefix);
                out.push_str(kind);
                return;
            }
        }
    }
    out.push('<');
    out.push_str(&arguments.join(", "));
    // `A<&B::operator> >`
    if arguments
        .last()
        .is_some_and(|last| last.ends_with("operator<") || last.ends_with("operator>"))
    {
        out.push(' ');
    }
    out.push('>');
}

/// Removes the arguments at the end that are the defaults of `std::NAME`.
fn drop_defaults(name: &str, arguments: &mut Vec<String>) {
    let known = TEMPLATES.iter().find(|(template, ..)| *template == name);
    let (least, defaults): (usize, &[Default]) = match known {
        Some((_, least, defaults)) => (*least, defaults),
        None if STRING_STREAMS.contains(&name) => (1, &[TRAITS, ALLOCATOR]),
        None => return,
    };
    while arguments.len() > least
        && let Some(default) = defaults.get(arguments.len() - 1 - least)
    {
        let is_default = match default {
            Default::Of(template) => {
                arguments.last() == Some(&format!("std::{template}<{}>", arguments[0]))
            }
            Default::OfPairs => {
                let (key, value) = (&arguments[0], &arguments[1]);
                arguments.last()
                    == Some(&format!("std::allocator<std::pair<{key} const, {value}>>"))
            }
        };
        if !is_default {
            return;
        }
        arguments.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_as_programs_write_them() {
        const STRING: &str =
            "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";
        for (name, expected) in [
            (STRING.to_owned(), "std::string"),
            (format!("f({STRING} const&)"), "f(std::string const&)"),
            (format!("{STRING}::append(char const*)"), "std::string::append(char const*)"),
            (format!("{STRING}::basic_string()"), "std::string::string()"),
            (format!("{STRING}::~basic_string()"), "std::string::~string()"),
            (
                "std::basic_string_view<wchar_t, std::char_traits<wchar_t> >".to_owned(),
                "std::wstring_view",
            ),
            (
                format!("std::vector<{STRING}, std::allocator<{STRING} > >::push_back"),
                "std::vector<std::string>::push_back",
            ),
            (
                "std::vector<int, pool<int> >::size".to_owned(),
                "std::vector<int, pool<int>>::size",
            ),
            (
                "std::map<int, long, std::less<int>, std::allocator<std::pair<int const, long> > >"
                    .to_owned(),
                "std::map<int, long>",
            ),
            (
                "std::map<int, long, std::greater<int>, std::allocator<std::pair<int const, long> > >"
                    .to_owned(),
                "std::map<int, long, std::greater<int>>",
            ),
            (
                "std::unordered_set<int, std::hash<int>, std::equal_to<int>, std::allocator<int> >"
                    .to_owned(),
                "std::unordered_set<int>",
            ),
            (
                "std::unique_ptr<A, std::default_delete<A> >::get() const".to_owned(),
                "std::unique_ptr<A>::get() const",
            ),
            (
                "std::ostream& operator<< <char>(std::basic_ostream<char, std::char_traits<char> >&)"
                    .to_owned(),
                "std::ostream& operator<< <char>(std::ostream&)",
            ),
            ("std::__1::vector<int, std::__1::allocator<int> >".to_owned(), "std::vector<int>"),
            ("std::function<void (int, int)>".to_owned(), "std::function<void (int, int)>"),
            ("my::vector<int, std::allocator<int> >".to_owned(), "my::vector<int, std::allocator<int>>"),
            ("std::odd<int".to_owned(), "std::odd<int"),
            (
                "core::ptr::drop_in_place$LT$std..io..Error$GT$::h0123456789abcdef".to_owned(),
                "core::ptr::drop_in_place<std::io::Error>",
            ),
        ] {
            assert_eq!(simplified(&name), expected, "{name}");
        }
    }
}
