//! Demangling of names.

use cpp_demangle::{BorrowedSymbol, DemangleOptions};

use super::dlang;
use super::parts::{Kind, Parts};

/// Maximum length of a name to demangle: demangling may take time quadratic in the length, and
/// nobody types longer names.
const LONGEST: usize = 4096;
/// Maximum length of the result: it can be exponentially longer than the mangled name.
const LONGEST_RESULT: usize = 1 << 16;

/// The forms of a demangled name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demangled {
    /// With parameters, without the return type: `ns::f<int>(char const*)`, `app.f!(int).f(char)`.
    pub full: String,
    /// Without parameters: `ns::f<int>`. Equal to `full` in Rust.
    pub short: String,
    /// Form that `c++filt` prints, if it has a return type: `void ns::f<int>(char const*)`.
    pub with_return_type: Option<String>,
    /// Text between a scope and the name in it: `::`, or `.` in D.
    pub(super) separator: &'static str,
}

impl Demangled {
    /// Returns the name of a function of C++ that has no mangled one, from its name in the source, with its
    /// namespaces, and the types of its parameters.
    pub fn of_source(name: &str, parameters: &[String]) -> Demangled {
        Demangled {
            full: format!("{name}({})", parameters.join(", ")),
            short: name.to_owned(),
            with_return_type: None,
            separator: "::",
        }
    }

    /// True if a name without blanks is the end of this one, in some class, namespace or module; arguments of
    /// templates may be left out.
    pub fn is_member(&self, wanted: &str) -> bool {
        let is_wanted = |name: &str| {
            let name = without_blanks(name);
            let outer = name.strip_suffix(wanted);
            outer.is_some_and(|outer| outer.is_empty() || outer.ends_with(self.separator))
        };
        is_wanted(&self.full)
            || is_wanted(&self.short)
            || is_wanted(&without_template_arguments(&self.short))
            || is_wanted(&without_tags(&self.short))
    }
}

/// True if the name looks like a mangled name.
pub fn is_mangled(name: &str) -> bool {
    let mut prefixes = ["_Z", "__Z", "_R", "_GLOBAL__"].iter();
    prefixes.any(|prefix| name.starts_with(prefix)) || dlang::is_mangled(name)
}

/// A mangled name, by its language.
enum Mangled<'a> {
    D(&'a str),
    Rust(rustc_demangle::Demangle<'a>),
    Cxx(BorrowedSymbol<'a>),
}

impl<'a> Mangled<'a> {
    fn of(name: &'a str) -> Option<Mangled<'a>> {
        if !is_mangled(name) || name.len() > LONGEST {
            return None;
        }
        if dlang::is_mangled(name) {
            return Some(Mangled::D(name));
        }
        if let Ok(rust) = rustc_demangle::try_demangle(name) {
            return Some(Mangled::Rust(rust));
        }
        BorrowedSymbol::new(name.as_bytes()).ok().map(Mangled::Cxx)
    }

    /// Returns [`Demangled::full`].
    fn full(&self) -> Option<String> {
        match self {
            Mangled::D(name) => dlang::demangle(name, LONGEST_RESULT).map(|name| name.full),
            Mangled::Rust(rust) => bounded(format_args!("{rust:#}")),
            Mangled::Cxx(symbol) => form(symbol, DemangleOptions::new().no_return_type()),
        }
    }
}

/// Demangles a name of C++ (Itanium ABI), Rust (v0, and legacy, whose hash is omitted), or D.
/// `None` if the name is none of these.
pub fn demangle(name: &str) -> Option<Demangled> {
    let mangled = Mangled::of(name)?;
    let symbol = match &mangled {
        Mangled::D(name) => {
            let dlang::Name { full, short } = dlang::demangle(name, LONGEST_RESULT)?;
            return Some(Demangled {
                full,
                short,
                with_return_type: None,
                separator: ".",
            });
        }
        Mangled::Rust(_) => {
            let full = mangled.full()?;
            return Some(Demangled {
                short: full.clone(),
                full,
                with_return_type: None,
                separator: "::",
            });
        }
        Mangled::Cxx(symbol) => symbol,
    };
    let plain = DemangleOptions::new();
    let full = mangled.full()?;
    let with_return_type = form(symbol, plain)?;
    Some(Demangled {
        short: form(symbol, plain.no_return_type().no_params())?,
        with_return_type: (with_return_type != full).then_some(with_return_type),
        full,
        separator: "::",
    })
}

/// Demangles a name as [`demangle`] does, to its full form alone, which takes a third of the time.
pub fn demangle_full(name: &str) -> Option<String> {
    Mangled::of(name)?.full()
}

/// Writes a symbol of C++ with these options.
fn form(symbol: &BorrowedSymbol<'_>, options: DemangleOptions) -> Option<String> {
    let mut out = Bounded(String::new());
    symbol
        .structured_demangle(&mut Adapter(&mut out), &options)
        .ok()?;
    Some(out.0)
}

struct Bounded(String);

impl std::fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.0.len() + text.len() > LONGEST_RESULT {
            return Err(std::fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

struct Adapter<'a>(&'a mut Bounded);

impl cpp_demangle::DemangleWrite for Adapter<'_> {
    fn write_string(&mut self, text: &str) -> std::fmt::Result {
        std::fmt::Write::write_str(self.0, text)
    }
}

fn bounded(text: std::fmt::Arguments<'_>) -> Option<String> {
    let mut out = Bounded(String::new());
    std::fmt::Write::write_fmt(&mut out, text).ok()?;
    Some(out.0)
}

/// Removes ABI tags from `name`: `f[abi:cxx11]`, `ns::g[abi:one][abi:two](int)`.
pub(crate) fn without_tags(name: &str) -> String {
    Parts::of(name).without(Kind::Tag)
}

/// Removes the arguments of templates: `Box<int>::get` is `Box::get`, `Box!(int).get` is `Box.get`. Keeps operators, and the types
/// that begin a part of Rust's names: `<A as B>::f`.
pub(crate) fn without_template_arguments(name: &str) -> String {
    Parts::of(name).without(Kind::Arguments)
}

/// Removes the spaces in `name` that demanglers place differently: all that do not separate two
/// words.
pub fn without_blanks(name: &str) -> String {
    significant(name).collect()
}

/// True if [`without_blanks`] makes `wanted` of `name`; most names differ in their first characters.
pub fn is_without_blanks(name: &str, wanted: &str) -> bool {
    significant(name).eq(wanted.chars())
}

/// The characters of a name but for spaces that do not separate two words.
fn significant(name: &str) -> impl Iterator<Item = char> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut characters = name.chars().peekable();
    let mut after_word = false;
    std::iter::from_fn(move || {
        let mut blank = false;
        while characters.next_if_eq(&' ').is_some() {
            blank = true;
        }
        let next = *characters.peek()?;
        if blank && after_word && is_word(next) {
            after_word = false;
            return Some(' ');
        }
        after_word = is_word(next);
        characters.next()
    })
}

/// Returns the last identifier of the function's own name. Every mangled form of the name
/// contains it, unless the ABI abbreviates it (`std::string::string`). `None` for names that are mangled
/// as codes: see [`may_be_code`].
pub fn last_identifier(name: &str) -> Option<&str> {
    // Lambdas and functions around a local class have parameters of their own.
    let parts = Parts::of(name);
    let own = parts.iter().rev();
    let own = own.take_while(|(kind, _)| matches!(kind, Kind::Parameters | Kind::Copy));
    let own: usize = own.map(|(_, text)| text.len()).sum();
    let head = &name[..name.len() - own];
    let head = strip_template_arguments(strip_brackets(head))?;
    let start = head
        .char_indices()
        .rev()
        .take_while(|&(_, c)| c.is_alphanumeric() || c == '_')
        .last()
        .map(|(at, _)| at)?;
    let identifier = &head[start..];
    let is_code = head.ends_with("operator") || head.contains("operator ") || identifier == "this";
    (!is_code).then_some(identifier)
}

/// True if a name may be mangled as a code: that of an operator, or of a constructor of D.
pub fn may_be_code(name: &str) -> bool {
    name.contains("operator") || name.contains("this")
}

/// Removes what is in brackets at the end: tags, as in `f[abi:cxx11]`, or the wildcards of a pattern.
fn strip_brackets(mut name: &str) -> &str {
    while let Some(inside) = name.trim_end().strip_suffix(']')
        && let Some((before, _)) = inside.rsplit_once('[')
        && !before.ends_with("operator")
    {
        name = before;
    }
    name
}

/// Reduces `f<int>` to `f`; `None` if the brackets do not match, as in `operator<`.
fn strip_template_arguments(name: &str) -> Option<&str> {
    let name = name.trim_end();
    if !name.ends_with('>') {
        return Some(name);
    }
    let mut depth = 0u32;
    for (at, c) in name.char_indices().rev() {
        match c {
            '>' => depth += 1,
            '<' => {
                depth -= 1;
                if depth == 0 {
                    return Some(name[..at].trim_end_matches("::"));
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demangles_cpp_with_and_without_parameters() {
        let name = demangle("_ZN2ns3Foo3barEiPKc").unwrap();
        assert_eq!(name.full, "ns::Foo::bar(int, char const*)");
        assert_eq!(name.short, "ns::Foo::bar");
        assert_eq!(name.with_return_type, None);
        let name = demangle("_Z3maxIiET_S0_S0_").unwrap();
        assert_eq!(name.full, "max<int>(int, int)");
        assert_eq!(name.short, "max<int>");
        assert_eq!(
            name.with_return_type.as_deref(),
            Some("int max<int>(int, int)")
        );
    }

    #[test]
    fn demangles_rust_without_hash() {
        let legacy = demangle("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE").unwrap();
        assert_eq!(legacy.full, "core::fmt::Formatter::pad");
        assert_eq!(legacy.short, legacy.full);
        let v0 = demangle("_RNvC6_123foo3bar").unwrap();
        assert_eq!(v0.full, "123foo::bar");
    }

    #[test]
    fn leaves_other_names_alone() {
        for name in ["malloc", "_Z", "_R", "_ZN", "main.cold", ""] {
            assert_eq!(demangle(name), None, "{name}");
        }
        let bomb = format!("_Z1fI{}E", "S_".repeat(3000));
        assert_eq!(demangle(&bomb), None);
    }

    #[test]
    fn blanks_that_separate_nothing_do_not_count() {
        let cases = [
            ("f<a, b >(char const *, int)", "f<a,b>(char const*,int)"),
            (
                "operator new (unsigned long)",
                "operator new(unsigned long)",
            ),
            ("  unsigned   int ", "unsigned int"),
            ("", ""),
        ];
        for (name, expected) in cases {
            assert_eq!(without_blanks(name), expected);
            assert!(is_without_blanks(name, expected), "{name}");
            assert!(!is_without_blanks(name, &format!("{expected}x")), "{name}");
            assert!(!is_without_blanks(&format!("x{name}"), expected), "{name}");
        }
    }

    #[test]
    fn finds_what_a_mangled_name_must_contain() {
        let cases = [
            ("ns::Foo::bar(int, ns::Baz)", Some("bar")),
            ("ns::Foo<int>::bar<a, b>", Some("bar")),
            ("(anonymous namespace)::f(int)", Some("f")),
            ("ns::Foo::~Foo()", Some("Foo")),
            ("ns::operator<<(std::ostream&)", None),
            ("ns::operator<", None),
            ("ns::Foo::operator int", None),
            ("operator new(unsigned long)", None),
            ("Foo::operator()(int) const", None),
            ("main::{lambda(int)#1}::operator()", None),
            ("f(int)::{lambda(int)#1}::operator()(int) const", None),
            ("f(int)::Local::get() const", Some("get")),
            ("f(int)::{lambda(int)#1}::get", Some("get")),
            ("alloc::vec::Vec<T>::push", Some("push")),
            ("<a::B as c::D>::run", Some("run")),
            ("f", Some("f")),
            ("f[abi:cxx11]", Some("f")),
            ("ns::Foo::operator[](int)", None),
            ("some_nam[e]", Some("some_nam")),
            ("app.max!(int).max(int)", Some("max")),
            ("app.f().inner", Some("inner")),
            ("app.Cart.this(int)", None),
            ("app.Cart.~this", None),
            ("", None),
        ];
        for (name, expected) in cases {
            assert_eq!(last_identifier(name), expected, "{name}");
        }
    }
}
