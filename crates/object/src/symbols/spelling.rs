//! Names of C++ and D functions in the spellings that people use.
//!
//! Both a name as written and a demangled one are brought into one form, in which they are compared:
//!
//! | written | form |
//! | --- | --- |
//! | `const char *` | `char const*` |
//! | `size_t`, `std::uint64_t`, `unsigned` | `unsigned long`, `unsigned long`, `unsigned int` |
//! | `f(void)` | `f()` |
//! | `{anonymous}::f`, `ns::(anonymous namespace)::f` | `f`, `ns::f` |
//! | `f[abi:cxx11]` | `f` |
//! | `std::vector<int, std::allocator<int> >` | `std::vector<int>` |
//! | `immutable(char)[]`, `max!int` (D) | `string`, `max!(int)` |

use super::demangle::{Demangled, without_blanks};
use super::parts::{Kind, Parts, group};
use super::standard::simplified;

/// Names of types that stand for others on x86-64 Linux.
const ALIASES: [(&str, &str); 22] = [
    ("size_t", "unsigned long"),
    ("ssize_t", "long"),
    ("ptrdiff_t", "long"),
    ("intptr_t", "long"),
    ("uintptr_t", "unsigned long"),
    ("int8_t", "signed char"),
    ("uint8_t", "unsigned char"),
    ("int16_t", "short"),
    ("uint16_t", "unsigned short"),
    ("int32_t", "int"),
    ("uint32_t", "unsigned int"),
    ("int64_t", "long"),
    ("uint64_t", "unsigned long"),
    ("intmax_t", "long"),
    ("uintmax_t", "unsigned long"),
    ("off_t", "long"),
    ("time_t", "long"),
    ("pid_t", "int"),
    ("uint", "unsigned int"),
    ("ulong", "unsigned long"),
    ("ushort", "unsigned short"),
    ("nullptr_t", "decltype(nullptr)"),
];
/// Names that D's library gives to types of texts.
const STRINGS: [(&str, &str); 3] = [
    ("immutable(char)[]", "string"),
    ("immutable(wchar)[]", "wstring"),
    ("immutable(dchar)[]", "dstring"),
];
/// Words of the built-in types that consist of several.
const BUILT_IN: [&str; 6] = ["unsigned", "signed", "long", "short", "int", "char"];
/// Ways to write the scope of an anonymous namespace.
const ANONYMOUS: [&str; 3] = [
    "(anonymous namespace)::",
    "{anonymous}::",
    "`anonymous namespace'::",
];
/// Keywords that may precede the name of a type.
const ELABORATED: [&str; 4] = ["struct ", "class ", "enum ", "union "];

/// A name as written, to be compared with demangled ones.
pub struct Spelling {
    name: String,
    has_parameters: bool,
    /// True if text such as ` const` follows the parameters.
    is_qualified: bool,
}

impl Spelling {
    /// Prepares the comparison with a name.
    #[must_use]
    pub fn of(name: &str) -> Spelling {
        let form = form(name);
        let last = Parts::of(&form).iter().last().map(|(kind, text)| {
            let parameters = kind == Kind::Parameters;
            (parameters, parameters && !text.ends_with(')'))
        });
        let (has_parameters, is_qualified) = last.unwrap_or_default();
        Spelling {
            name: without_blanks(&form),
            has_parameters,
            is_qualified,
        }
    }

    /// True if it may be meant for this function.
    #[must_use]
    pub fn is(&self, name: &Demangled) -> bool {
        self.fits(name, |name| name == self.name)
    }

    /// True if it may be meant for this function, without its outer scopes.
    #[must_use]
    pub fn is_member(&self, name: &Demangled) -> bool {
        self.fits(name, |full| {
            let outer = full.strip_suffix(self.name.as_str());
            outer.is_some_and(|outer| outer.is_empty() || outer.ends_with(name.separator))
        })
    }

    fn fits(&self, name: &Demangled, is: impl Fn(&str) -> bool) -> bool {
        let full = form(&name.full);
        let parts: Vec<(Kind, &str)> = Parts::of(&full).iter().collect();
        // Without what was not written: qualifiers, or all parameters; the function's own template
        // arguments.
        let Some(((Kind::Parameters, last), head)) = parts.split_last() else {
            return is(&without_blanks(&full));
        };
        let parameters = match (self.has_parameters, self.is_qualified) {
            (false, _) => "",
            (true, true) => *last,
            (true, false) => &last[..group(last).unwrap_or(last.len())],
        };
        let text = |parts: &[(Kind, &str)]| -> String {
            let head: String = parts.iter().map(|(_, text)| *text).collect();
            without_blanks(&(head + parameters))
        };
        is(&text(head))
            || matches!(head.split_last(), Some(((Kind::Arguments, _), rest)) if is(&text(rest)))
    }
}

/// Brings a name into the form for comparison.
fn form(name: &str) -> String {
    let mut name = simplified(&in_brackets(&name.replace("> >", ">>")));
    for scope in ANONYMOUS {
        name = name.replace(scope, "");
    }
    let name = Parts::of(&name).without(Kind::Tag);
    let name = types(&name).replace("(void)", "()");
    STRINGS
        .iter()
        .fold(name, |name, (own, alias)| name.replace(own, alias))
}

/// Writes a single template argument of D in brackets: `max!int` is `max!(int)`.
fn in_brackets(name: &str) -> String {
    let mut parts = name.split('!');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let argument = first_word(part);
        out += "!";
        match argument {
            "" => {}
            argument => out += &format!("({argument})"),
        }
        out += &part[argument.len()..];
    }
    out
}

/// Rewrites the types in a name: `const` behind what it belongs to, and no aliases.
fn types(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        // Types stand in brackets only.
        let begins = out.trim_end().ends_with(['(', '<', ',']) && !out.ends_with("operator(");
        if begins && (is_word(c) || c == ':') {
            let length = put_type(&mut out, rest);
            rest = &rest[length..];
            if length > 0 {
                continue;
            }
        }
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
    out
}

/// Adds the type that `rest` begins with, up to pointers and references. Returns its length, 0 if there
/// is none.
fn put_type(out: &mut String, rest: &str) -> usize {
    let mut at = 0;
    let mut qualifiers: Vec<&str> = Vec::new();
    loop {
        let behind = &rest[at..];
        if let Some(word) = ["const", "volatile"]
            .into_iter()
            .find(|word| first_word(behind) == *word)
        {
            qualifiers.push(word);
            at += word.len();
        } else if let Some(word) = ELABORATED
            .into_iter()
            .find(|word| behind.starts_with(*word))
        {
            at += word.len();
            continue;
        } else {
            break;
        }
        at += rest[at..].len() - rest[at..].trim_start().len();
    }
    // The name: words of a built-in type, or scopes with template arguments.
    let start = at;
    let mut words: Vec<&str> = Vec::new();
    while BUILT_IN.contains(&first_word(&rest[at..])) {
        let word = first_word(&rest[at..]);
        words.push(word);
        at += word.len();
        let blank = rest[at..].len() - rest[at..].trim_start().len();
        match BUILT_IN.contains(&first_word(&rest[at + blank..])) {
            true => at += blank,
            false => break,
        }
    }
    if !words.is_empty() {
        out.push_str(&built_in(&words));
    } else {
        loop {
            let behind = &rest[at..];
            at += match behind.chars().next() {
                Some(c) if is_word(c) => c.len_utf8(),
                Some(':') if behind.starts_with("::") => 2,
                Some('<') => match group(behind) {
                    Some(length) => length,
                    None => break,
                },
                _ => break,
            };
        }
        let name = &rest[start..at];
        let plain = name.strip_prefix("::").unwrap_or(name);
        let plain = plain.strip_prefix("std::").unwrap_or(plain);
        match ALIASES.iter().find(|(alias, _)| *alias == plain) {
            Some((_, meaning)) => out.push_str(meaning),
            None => out.push_str(&types(name)),
        }
    }
    if at == start {
        return 0;
    }
    for word in qualifiers {
        out.push(' ');
        out.push_str(word);
    }
    at
}

/// Returns the usual name of a built-in type.
fn built_in(words: &[&str]) -> String {
    let has = |word: &str| words.contains(&word);
    let sign = match (has("unsigned"), has("signed"), has("char")) {
        (true, ..) => "unsigned ",
        (_, true, true) => "signed ",
        _ => "",
    };
    let long = words.iter().filter(|word| **word == "long").count();
    let kind = match (has("char"), has("short"), long) {
        (true, ..) => "char",
        (_, true, _) => "short",
        (_, _, 1) => "long",
        (_, _, 2..) => "long long",
        _ => "int",
    };
    format!("{sign}{kind}")
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn first_word(text: &str) -> &str {
    let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::super::demangle::demangle;
    use super::*;

    #[test]
    fn people_write_names_in_many_ways() {
        for (linkage, spellings) in [
            (
                "_ZN4shop4takeERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEi",
                &[
                    "shop::take",
                    "shop::take(const std::string&, int)",
                    "shop::take(const std::string &,int)",
                    "shop::take(std::string const&, int)",
                    "shop::take(const std::__cxx11::string&, signed int)",
                ][..],
            ),
            (
                "_ZN4shop4takeEmPKc",
                &[
                    "shop::take(size_t, const char*)",
                    "shop::take(std::size_t, char const *)",
                    "shop::take(long unsigned int, const char *)",
                    "shop::take(uint64_t, const char*)",
                ],
            ),
            (
                "_ZN4shop3fooEPKPKc",
                &[
                    "shop::foo(const char* const*)",
                    "shop::foo(const char *const *)",
                ],
            ),
            (
                "_ZN4shop3fooEv",
                &["shop::foo(void)", "shop::foo( )", "shop::foo"],
            ),
            (
                "_ZN4shop12_GLOBAL__N_16hiddenEi",
                &[
                    "shop::hidden",
                    "shop::hidden(int)",
                    "shop::(anonymous namespace)::hidden",
                    "shop::{anonymous}::hidden(int)",
                ],
            ),
            (
                "_ZNK4shop3BoxIiE3getEv",
                &["shop::Box<int>::get()", "shop::Box<int>::get() const"],
            ),
            (
                "_ZN4shop6taggedB5cxx11Ei",
                &["shop::tagged[abi:cxx11]", "shop::tagged(int)"],
            ),
            (
                "_ZN4shop3twoIcjEEiT_T0_",
                &[
                    "shop::two<char, unsigned>",
                    "shop::two",
                    "shop::two(char, unsigned)",
                ],
            ),
            (
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                &[
                    "std::vector<int>::push_back",
                    "std::vector<int>::push_back(const int&)",
                    "std::vector<int, std::allocator<int>>::push_back",
                ],
            ),
            (
                "_Znwm",
                &[
                    "operator new(size_t)",
                    "operator new(std::size_t)",
                    "operator new",
                ],
            ),
            (
                "_ZN4shop2OpeqERKS0_",
                &["shop::Op::operator==(const shop::Op&)"],
            ),
            (
                "_ZN4shop2OpclEi",
                &["shop::Op::operator()(int)", "shop::Op::operator()"],
            ),
            (
                "_D4shop4Cart4costMxFAyamZi",
                &[
                    "shop.Cart.cost",
                    "shop.Cart.cost(string, ulong)",
                    "shop.Cart.cost(string,size_t) const",
                    "shop.Cart.cost(immutable(char)[], ulong)",
                ],
            ),
            (
                "_D4shop__T3maxTiZQhFiiZi",
                &["shop.max!(int).max", "shop.max!int.max(int, int)"],
            ),
        ] {
            let name = demangle(linkage).expect("a mangled name");
            for spelling in spellings {
                assert!(
                    Spelling::of(spelling).is(&name),
                    "{spelling}: {}",
                    name.full
                );
            }
        }
        for (linkage, other) in [
            ("_D4shop4Cart4costMxFAyamZi", "shop.Cart.cost(int)"),
            ("_D4shop4Cart4costMxFAyamZi", "Cart.cost"),
            ("_D4shop__T3maxTiZQhFiiZi", "shop.max!(char).max"),
            ("_ZN4shop3fooEPKPKc", "shop::foo(const char**)"),
            ("_ZN4shop3fooEPKPKc", "shop::foo(const char*)"),
            ("_ZN4shop3fooEPKPKc", "foo"),
            ("_ZN4shop4takeEmPKc", "shop::take(unsigned, const char*)"),
            ("_ZN4shop4takeEmPKc", "shop::take()"),
            ("_ZN4shop4takeEmPKc", "shop::take(my::size_t, const char*)"),
            ("_ZNK4shop3BoxIiE3getEv", "shop::Box<long>::get()"),
            ("_ZN4shop3BoxIiE3getEv", "shop::Box<int>::get() const"),
            ("_ZN4shop2OpclEi", "shop::Op::operator()()"),
            ("_Znwm", "operator new[]"),
        ] {
            let name = demangle(linkage).expect("a mangled name");
            assert!(!Spelling::of(other).is(&name), "{other}: {}", name.full);
        }
    }

    #[test]
    fn no_name_is_too_odd() {
        for name in [
            "",
            "(",
            "<",
            "f(const",
            "f(const)",
            "f(const ",
            "::",
            "f(<",
            "f(unsigned",
            "f(::",
        ] {
            let _ = Spelling::of(name);
        }
    }
}
