//! Names of functions as reports show them: as their users write them.
//!
//! A demangled name has much that nobody wrote: default arguments of templates, the C++ library's
//! inline namespaces, ABI tags, and the numbers of copies that the compiler made. Parameter types are
//! left out as well, where names differ without them.
//!
//! ```text
//! full    shop::add(std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >)
//! Typed   shop::add(std::string)           if `shop::add(int)` is shown as well
//! Bare    shop::add
//! ```

use std::collections::{HashMap, HashSet};

use super::parts::{Kind, Parts};
use super::standard::simplified;

/// Form of the names in a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// Names as their users write them.
    #[default]
    Short,
    /// The same, with `<..>`, in D `!(..)`, in place of template arguments: for the frames of a picture, which equal
    /// beginnings would fill.
    Frame,
    /// Complete demangled names.
    Full,
}

/// Parts of a name that are kept, the fewest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// `ns::f<..>`
    Frame,
    /// `ns::f<int>`
    Bare,
    /// `ns::f<int> [clone .isra.0]`
    Copy,
    /// `ns::f<int>(int)`
    Typed,
    /// `ns::f<int>(int) [clone .isra.0]`
    TypedCopy,
    /// The name as it is.
    Full,
}

const LEVELS: [Level; 6] = [
    Level::Frame,
    Level::Bare,
    Level::Copy,
    Level::Typed,
    Level::TypedCopy,
    Level::Full,
];

/// The short names of functions that are shown side by side. Different functions have different
/// names: those that would have one name keep more of it, all of them alike.
#[derive(Debug, Clone, Default)]
pub struct ShownNames {
    form: Form,
    /// By complete name.
    short: HashMap<String, String>,
}

impl ShownNames {
    /// Finds the short names of functions or of their events, such as `ns::f(int)+0x12`.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>, form: Form) -> ShownNames {
        let mut short = HashMap::new();
        if form != Form::Full {
            let functions: HashSet<&str> = names.into_iter().flat_map(functions).collect();
            let levels = match form {
                Form::Frame => &LEVELS[..],
                _ => &LEVELS[1..],
            };
            distinguish(functions.into_iter().collect(), levels, &mut short);
        }
        ShownNames { form, short }
    }

    /// Returns the name to show for a function or an event. One that was not given to
    /// [`ShownNames::of`] is shortened as if it stood alone.
    #[must_use]
    pub fn get(&self, name: &str) -> String {
        if self.form == Form::Full {
            return name.to_owned();
        }
        let level = match self.form {
            Form::Frame => Level::Frame,
            _ => Level::Bare,
        };
        let mut shown = String::with_capacity(name.len());
        let mut rest = name;
        for function in functions(name) {
            let Some((before, behind)) = rest.split_once(function) else {
                break;
            };
            shown.push_str(before);
            match self.short.get(function) {
                Some(short) => shown.push_str(short),
                None => shown.push_str(&at_level(function, level)),
            }
            rest = behind;
        }
        shown + rest
    }
}

/// Adds the names at the first level at which they differ; those that are alike at a level are
/// tried at the next.
fn distinguish(functions: Vec<&str>, levels: &[Level], short: &mut HashMap<String, String>) {
    let Some((level, more)) = levels.split_first() else {
        return;
    };
    let mut alike: HashMap<String, Vec<&str>> = HashMap::new();
    for function in functions {
        let shown = at_level(function, *level);
        alike.entry(shown).or_default().push(function);
    }
    for (shown, functions) in alike {
        match functions[..] {
            [function] => {
                short.insert(function.to_owned(), shown);
            }
            _ if *more == [Level::Full] => {
                let complete = functions.iter().map(|f| ((*f).to_owned(), (*f).to_owned()));
                short.extend(complete);
            }
            _ => all_at(functions, more, short),
        }
    }
}

/// Adds the names of functions that are alike at an earlier level: all at one level if they differ
/// there, else those that differ only when complete as they are.
fn all_at(functions: Vec<&str>, levels: &[Level], short: &mut HashMap<String, String>) {
    for level in levels.iter().filter(|level| **level != Level::Full) {
        let names: Vec<String> = functions.iter().map(|f| at_level(f, *level)).collect();
        let different: HashSet<&String> = names.iter().collect();
        if different.len() == names.len() {
            let functions = functions.into_iter().map(str::to_owned);
            short.extend(functions.zip(names));
            return;
        }
    }
    distinguish(functions, &[Level::TypedCopy, Level::Full], short);
}

/// Returns the name of one function as it is shown beside functions of other names.
#[must_use]
pub fn bare(name: &str) -> String {
    at_level(name, Level::Bare)
}

/// Returns the name of one function with its parameters.
pub(super) fn typed(name: &str) -> String {
    at_level(name, Level::Typed)
}

/// True if the name ends with a list of parameters: `shop::add(long) const`.
#[must_use]
pub fn has_parameters(name: &str) -> bool {
    let parts = Parts::of(name);
    let mut last = parts.iter().rev().map(|(kind, _)| kind);
    last.find(|kind| *kind != Kind::Copy) == Some(Kind::Parameters)
}

fn at_level(name: &str, level: Level) -> String {
    if level == Level::Full {
        return name.to_owned();
    }
    let simple = simplified(name);
    let mut shown = String::with_capacity(simple.len());
    for (kind, text) in Parts::of(&simple).iter() {
        match kind {
            Kind::Text => shown.push_str(text),
            Kind::Arguments if level == Level::Frame => {
                shown.push_str(if text.starts_with('!') {
                    "!(..)"
                } else {
                    "<..>"
                });
            }
            Kind::Arguments => shown.push_str(text),
            Kind::Parameters if matches!(level, Level::Typed | Level::TypedCopy) => {
                shown.push_str(text);
            }
            Kind::Copy if matches!(level, Level::Copy | Level::TypedCopy) => shown.push_str(text),
            // Not the function itself, but a part of it.
            Kind::Copy if text.contains(".cold") => shown.push_str(".cold"),
            Kind::Parameters | Kind::Copy | Kind::Tag => {}
        }
    }
    shown
}

/// Returns the functions in the name of an event, which may have more: `f+0x12`, `f__return`,
/// `f (inlined in g+0x12)`.
fn functions(name: &str) -> impl Iterator<Item = &str> {
    let (first, second) = match name.split_once(" (inlined in ") {
        Some((first, second)) => (first, Some(second.strip_suffix(')').unwrap_or(second))),
        None => (name, None),
    };
    std::iter::once(first).chain(second).map(|part| {
        let part = part.strip_suffix("__return").unwrap_or(part);
        let part = part.strip_suffix("__tail").unwrap_or(part);
        match part.rsplit_once("+0x") {
            Some((function, offset)) if offset.bytes().all(|c| c.is_ascii_hexdigit()) => function,
            _ => part,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(names: &[&str], form: Form) -> Vec<String> {
        let all = ShownNames::of(names.iter().copied(), form);
        names.iter().map(|name| all.get(name)).collect()
    }

    #[test]
    fn a_name_alone_has_no_parameters() {
        for (name, expected) in [
            ("fib(int)", "fib"),
            ("shop::add(long, long) const", "shop::add"),
            ("f(void (*)(int))", "f"),
            (
                "f(int)::{lambda(int)#1}::operator()(int) const",
                "f::{lambda#1}::operator()",
            ),
            ("T::operator()(int)", "T::operator()"),
            ("T::operator()", "T::operator()"),
            ("T::operator[](unsigned long) const &", "T::operator[]"),
            ("T::operator bool() const", "T::operator bool"),
            ("T::operator char const*() const", "T::operator char const*"),
            ("operator<<(std::ostream&, A)", "operator<<"),
            ("operator< <int>(A<int>, B)", "operator< <int>"),
            ("ns::operator->*(A)", "ns::operator->*"),
            ("operator new(unsigned long)", "operator new"),
            ("std::max<int>(int const&, int const&)", "std::max<int>"),
            ("f<&A::operator< >(int)", "f<&A::operator< >"),
            ("f<(3>2)>(int)", "f<(3>2)>"),
            ("(anonymous namespace)::f()", "(anonymous namespace)::f"),
            ("f[abi:cxx11](int)", "f"),
            ("f(int) [clone .isra.0]", "f"),
            ("f(int) [clone .constprop.0] [clone .isra.0]", "f"),
            ("f(int) [clone .cold]", "f.cold"),
            ("f.constprop.0", "f"),
            ("f.part.0.isra.0", "f"),
            ("f.part.0.cold", "f.cold"),
            ("f.cold", "f.cold"),
            ("main", "main"),
            ("odd)", "odd)"),
            ("odd<", "odd<"),
            ("", ""),
            // Rust
            ("alloc::vec::Vec<T>::push", "alloc::vec::Vec<T>::push"),
            (
                "<alloc::vec::Vec<T> as core::ops::drop::Drop>::drop",
                "<alloc::vec::Vec<T> as core::ops::drop::Drop>::drop",
            ),
            ("<fn(i32) -> i32 as a::B>::c", "<fn(i32) -> i32 as a::B>::c"),
            ("a::b::{closure#0}", "a::b::{closure#0}"),
            ("a::b::{{closure}}", "a::b::{{closure}}"),
            ("a::b::<(u8, u8)>::c", "a::b::<(u8, u8)>::c"),
            // D
            ("app.Cart.cost(int) const", "app.Cart.cost"),
            ("app.Cart.get(int) inout", "app.Cart.get"),
            ("app.max!(int, char).max(int)", "app.max!(int, char).max"),
            (
                "app.f!(\"<\", 3uL).f(const(char)[])",
                "app.f!(\"<\", 3uL).f",
            ),
            ("app.f().inner(void(int) delegate)", "app.f.inner"),
            ("app.Cart.this(int)", "app.Cart.this"),
            ("app.f(int) [clone .isra.0]", "app.f"),
            ("D main", "D main"),
            // Go
            ("main.(*T).Add", "main.(*T).Add"),
            ("main.cold", "main.cold"),
            ("main.Map[go.shape.int]", "main.Map[go.shape.int]"),
            ("main.main.func1", "main.main.func1"),
            (
                "type:.eq.struct { C chan<- int }",
                "type:.eq.struct { C chan<- int }",
            ),
        ] {
            assert_eq!(bare(name), expected, "{name}");
        }
    }

    #[test]
    fn functions_of_one_name_stay_different() {
        assert_eq!(
            shown(
                &[
                    "add(int)",
                    "add(long)",
                    "add(int)__return",
                    "sub(int)+0x12",
                    "x"
                ],
                Form::Short
            ),
            ["add(int)", "add(long)", "add(int)__return", "sub+0x12", "x"]
        );
        assert_eq!(
            shown(&["f(int)", "f(int) [clone .isra.0]"], Form::Short),
            ["f", "f [clone .isra.0]"]
        );
        assert_eq!(
            shown(
                &["f(int)", "f(long)", "f(int) [clone .isra.0]"],
                Form::Short
            ),
            ["f(int)", "f(long)", "f(int) [clone .isra.0]"]
        );
        assert_eq!(
            shown(&["f", "f.isra.0", "f[abi:a]", "f[abi:b]"], Form::Short),
            ["f", "f.isra.0", "f[abi:a]", "f[abi:b]"]
        );
        assert_eq!(
            shown(
                &["get(int) (inlined in main(int)+0x4)", "get()"],
                Form::Short
            ),
            ["get(int) (inlined in main+0x4)", "get()"]
        );
    }

    #[test]
    fn only_names_that_need_it_are_complete() {
        assert_eq!(
            shown(
                &["std::f(int)", "std::__cxx11::f(int)", "std::f(long)"],
                Form::Short
            ),
            ["std::f(int)", "std::__cxx11::f(int)", "std::f(long)"]
        );
        assert_eq!(
            shown(
                &["f(std::__1::a)", "f(std::a)", "f(std::__1::b)"],
                Form::Short
            ),
            ["f(std::__1::a)", "f(std::a)", "f(std::b)"]
        );
    }

    #[test]
    fn frames_have_no_arguments() {
        let names = [
            "std::_Rb_tree<int, std::pair<int const, long> >::_M_insert(int)",
            "std::_Rb_tree<int, std::pair<int const, long> >::_M_erase(int)",
            "std::sort<int*>(int*)",
            "std::sort<long*>(long*)",
            "operator<(A<int>, B)",
            "app.max!(int).max(int)",
            "app.max!(int[], string).min(int)",
        ];
        assert_eq!(
            shown(&names, Form::Frame),
            [
                "std::_Rb_tree<..>::_M_insert",
                "std::_Rb_tree<..>::_M_erase",
                "std::sort<int*>",
                "std::sort<long*>",
                "operator<",
                "app.max!(..).max",
                "app.max!(..).min",
            ]
        );
    }

    #[test]
    fn a_full_name_is_complete() {
        let name = "f[abi:cxx11](int) [clone .isra.0]";
        assert_eq!(shown(&[name], Form::Full), [name]);
    }
}
