//! Lookup of functions by name.

use super::demangle::{self, Demangled, last_identifier, without_blanks, without_tags};
use super::dlang;
use super::parts::TAG;
use super::read::split_version;
use super::spelling::Spelling;
use super::{Function, Name, SymbolTable, shown};

/// Minimum number of symbols for which demangling uses several threads.
const WORTH_A_THREAD: usize = 2000;

/// Functions that are in every program of Go.
const GO: [&str; 2] = ["runtime.goexit", "runtime.goexit.abi0"];

/// Type arguments in names that Go prints.
const INSTANTIATED: &str = "[...]";

/// A function and the name under which it was found.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// The function.
    pub function: &'a Function,
    /// The name that matched.
    pub name: Name<'a>,
}

impl SymbolTable {
    /// Finds the functions with exactly this name, one for each address.
    ///
    /// The following are tried in order until one matches: the linkage name; the demangled name
    /// with parameters (spaces are ignored, and a template's return type may precede it); the
    /// demangled name without parameters, which matches all overloads; the previous two without ABI
    /// tags (`f[abi:cxx11]` is `f` in the source), or as reports show them (`std::string::append`);
    /// other [spellings](super::spelling), such as `f(const char *)` for `f(char const*)`.
    ///
    /// If a symbol has several versions (`memcpy@@GLIBC_2.14` and `memcpy@GLIBC_2.2.5`), returns the
    /// default one for the plain name, see also [`old_versions`](Self::old_versions), and that version for a
    /// name with one. For a function and its split-off part (`name.cold`), returns the function.
    #[must_use]
    pub fn exact(&self, name: &str) -> Vec<Found<'_>> {
        if let (plain, Some(version), _) = split_version(name) {
            let versions = self.raw.versions.iter();
            let versions = versions.filter(|v| v.version == version && v.name == plain);
            return self.at(versions.map(|v| v.address).collect(), plain);
        }
        let mut found = self.by_linkage_name(name);
        if found.is_empty() {
            found = self.by_demangled_name(name);
        }
        if found.is_empty() {
            let spelling = Spelling::of(name);
            found = self.by_spelling(name, |function| spelling.is(function));
        }
        if found.is_empty() && name.contains(INSTANTIATED) {
            found = self.by_generic_name(name);
        }
        self.found(found)
    }

    /// Finds the instantiations of a generic function of Go by its name as Go prints it:
    /// `main.Map[...]` is `main.Map[go.shape.int]`.
    fn by_generic_name(&self, name: &str) -> Vec<u32> {
        let symbols = self.raw.symbols.iter().enumerate();
        let found = symbols.filter(|(_, symbol)| {
            let own = self.raw.text(symbol);
            own.contains('[') && instantiated(own).as_deref() == Some(name)
        });
        found.map(|(index, _)| index as u32).collect()
    }

    /// Finds the functions with this linkage name that are kept for old programs, besides the one that new
    /// programs get, if there is one.
    #[must_use]
    pub fn old_versions(&self, linkage: &str) -> Vec<Found<'_>> {
        let symbols = &self.raw.symbols;
        let all = self.by_linkage_name(linkage).into_iter();
        let (default, old): (Vec<u32>, Vec<u32>) =
            all.partition(|index| symbols[*index as usize].default_version);
        if default.is_empty() {
            return Vec::new();
        }
        let own: Vec<u64> = default
            .iter()
            .map(|i| symbols[*i as usize].address)
            .collect();
        let old = old.iter().map(|index| symbols[*index as usize].address);
        let old = old.filter(|address| !own.contains(address));
        self.at(old.collect(), linkage)
    }

    /// Returns the functions that start at some addresses and have this linkage name.
    fn at(&self, mut addresses: Vec<u64>, linkage: &str) -> Vec<Found<'_>> {
        addresses.sort_unstable();
        addresses.dedup();
        let found = addresses.into_iter().filter_map(|address| {
            let function = self.function_starting_at(address)?;
            let name = self.names(function).find(|name| name.linkage == linkage)?;
            Some(Found { function, name })
        });
        found.collect()
    }

    /// Finds the functions with this linkage name.
    pub fn linked(&self, name: &str) -> Vec<Found<'_>> {
        self.found(self.by_linkage_name(name))
    }

    /// Finds the functions with a matching name: linkage name, or demangled name with or without
    /// parameters, complete or as reports show it. Returns at most one match for each function.
    ///
    /// Resolvers (`STT_GNU_IFUNC`) and split-off cold parts (`name.cold`) are left out.
    pub fn matching(&self, matches: impl Fn(&str) -> bool) -> Vec<Found<'_>> {
        let symbols = &self.raw.symbols;
        let demangled = |index: u32| self.demangled()[index as usize].as_ref();
        let wanted = |index: u32| {
            let symbol = &symbols[index as usize];
            let name = self.raw.text(symbol);
            // Demangling is expensive: avoid it if the name itself matches.
            !is_cold(name)
                && (matches(name)
                    || demangled(index).is_some_and(|name| {
                        matches(&name.short)
                            || matches(&name.full)
                            || is_shown(&name.full, &matches)
                    }))
        };
        self.functions
            .iter()
            .filter(|function| !function.is_resolver)
            .filter_map(|function| {
                let indices = function.first_name..function.first_name + function.names;
                let name = self.name(indices.into_iter().find(|&index| wanted(index))?);
                Some(Found { function, name })
            })
            .collect()
    }

    /// Finds the functions of any class, namespace or module whose name ends with this one, as
    /// debuggers do: `cost` and `cart::cost` are `shop::cart::cost(int)`. Arguments of templates may be
    /// left out: `get` and `Box::get` are `Box<int>::get()`. In Go, `store.Put` is `example.com/shop/store.Put`.
    #[must_use]
    pub fn members(&self, name: &str) -> Vec<Found<'_>> {
        let wanted = without_blanks(name.trim_start_matches(':'));
        let identifier = last_identifier(&wanted);
        if identifier.is_none() && !demangle::may_be_code(&wanted) {
            return Vec::new();
        }
        let symbols = self.raw.symbols.iter().enumerate();
        let found = symbols.filter_map(|(index, symbol)| {
            let name = self.raw.text(symbol);
            let may_be = demangle::is_mangled(name)
                && identifier.is_none_or(|identifier| name.contains(identifier));
            (may_be && demangle::demangle(name)?.is_member(&wanted)).then_some(index as u32)
        });
        let mut found: Vec<u32> = found.collect();
        if found.is_empty() {
            let spelling = Spelling::of(name.trim_start_matches(':'));
            found = self.by_spelling(name, |function| spelling.is_member(function));
        }
        if found.is_empty() && GO.iter().any(|own| self.has_linkage_name(own)) {
            found = self.by_end_in_go(name);
        }
        self.found(found)
    }

    /// Finds the functions of Go whose name ends with this one, behind the start of the package's path, or behind the
    /// package or the type.
    fn by_end_in_go(&self, name: &str) -> Vec<u32> {
        let ends = |own: &str| {
            let outer = own.strip_suffix(name);
            outer.is_some_and(|outer| outer.ends_with(['/', '.']))
        };
        let symbols = self.raw.symbols.iter().enumerate();
        let found = symbols.filter(|(_, symbol)| {
            let own = self.raw.text(symbol);
            let is_generic = || own.contains('[') && name.contains(INSTANTIATED);
            ends(own) || is_generic() && instantiated(own).is_some_and(|own| ends(&own))
        });
        found.map(|(index, _)| index as u32).collect()
    }

    /// Finds the symbols of C++ and D functions by a comparison of names, among those that contain the
    /// last identifier of `name`.
    fn by_spelling(&self, name: &str, is: impl Fn(&Demangled) -> bool) -> Vec<u32> {
        let identifier = last_identifier(name);
        let symbols = self.raw.symbols.iter().enumerate();
        let found = symbols.filter_map(|(index, symbol)| {
            let name = self.raw.text(symbol);
            let has_spellings = name.starts_with("_Z") || dlang::is_mangled(name);
            let may_be = has_spellings && identifier.is_none_or(|word| name.contains(word));
            (may_be && is(&demangle::demangle(name)?)).then_some(index as u32)
        });
        found.collect()
    }

    /// Finds the functions whose linkage names compilers derive from this one (`name.isra.0`,
    /// `name.constprop.0`), without parts of functions (`name.cold`, `name.part.0`).
    #[must_use]
    pub fn variants(&self, name: &str) -> Vec<Found<'_>> {
        let stem = format!("{name}.");
        let text = |index: &u32| self.raw.text(&self.raw.symbols[*index as usize]);
        let tail = self.starting_at_name(&stem).iter();
        let like = tail.take_while(|index| text(index).starts_with(&stem));
        let whole = like.filter(|index| !is_cold(text(index)) && !text(index).contains(".part."));
        self.found(whole.copied().collect())
    }

    /// True if some function has this linkage name.
    #[must_use]
    pub fn has_linkage_name(&self, name: &str) -> bool {
        !self.by_linkage_name(name).is_empty()
    }

    /// Converts symbol indices to functions, one for each address, by address.
    fn found(&self, mut symbols: Vec<u32>) -> Vec<Found<'_>> {
        let default = |&index: &u32| self.raw.symbols[index as usize].default_version;
        if symbols.iter().any(default) {
            symbols.retain(default);
        }
        let whole = |&index: &u32| !is_cold(self.raw.text(&self.raw.symbols[index as usize]));
        if symbols.iter().any(whole) {
            symbols.retain(whole);
        }
        symbols.sort_unstable();
        let mut found: Vec<Found<'_>> = symbols
            .into_iter()
            .filter_map(|index| {
                let address = self.raw.symbols[index as usize].address;
                let function = self.function_starting_at(address)?;
                let name = self.name(index);
                Some(Found { function, name })
            })
            .collect();
        found.dedup_by_key(|found| found.function.extent.start);
        found
    }

    fn by_linkage_name(&self, name: &str) -> Vec<u32> {
        let text = |index: &u32| self.raw.text(&self.raw.symbols[*index as usize]);
        let tail = self.starting_at_name(name).iter();
        tail.copied().take_while(|i| text(i) == name).collect()
    }

    /// Returns the symbols by linkage name, from this name on.
    fn starting_at_name(&self, name: &str) -> &[u32] {
        let text = |index: &u32| self.raw.text(&self.raw.symbols[*index as usize]);
        let index = self.by_name.get_or_init(|| {
            let mut index: Vec<u32> = (0..self.raw.symbols.len() as u32).collect();
            index.sort_by_key(text);
            index
        });
        let start = index.partition_point(|i| text(i) < name);
        index.get(start..).unwrap_or_default()
    }

    /// Finds symbols by demangled name. Demangles only the names that contain the requested
    /// identifier, unless that finds nothing.
    fn by_demangled_name(&self, name: &str) -> Vec<u32> {
        let wanted = without_blanks(name);
        if self.demangled.get().is_none()
            && let Some(identifier) = last_identifier(name)
        {
            let names = self
                .raw
                .symbols
                .iter()
                .enumerate()
                .filter_map(|(index, symbol)| {
                    let name = self.raw.text(symbol);
                    (demangle::is_mangled(name) && name.contains(identifier))
                        .then(|| Some((index as u32, demangle::demangle(name)?)))?
                });
            let found = pick(names, &wanted);
            if !found.is_empty() {
                return found;
            }
        }
        let names = self.demangled().iter().enumerate();
        pick(
            names.filter_map(|(index, name)| Some((index as u32, name.as_ref()?))),
            &wanted,
        )
    }

    /// Returns all demangled names, computed on first use on all processors.
    pub(super) fn demangled(&self) -> &[Option<Demangled>] {
        self.demangled.get_or_init(|| {
            let symbols = &self.raw.symbols;
            let demangle = |symbol| demangle::demangle(self.raw.text(symbol));
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let share = symbols.len().div_ceil(threads).max(WORTH_A_THREAD);
            let mut names = vec![None; symbols.len()];
            std::thread::scope(|scope| {
                for (symbols, names) in symbols.chunks(share).zip(names.chunks_mut(share)) {
                    let work = move || {
                        for (symbol, name) in symbols.iter().zip(names) {
                            *name = demangle(symbol);
                        }
                    };
                    if symbols.len() < share || threads == 1 {
                        work();
                    } else {
                        scope.spawn(work);
                    }
                }
            });
            names
        })
    }
}

/// Returns the symbols whose full name is `wanted`. If there are none, compares the name
/// without parameters, and after that either form without ABI tags, or as reports show it.
fn pick<D: std::borrow::Borrow<Demangled>>(
    names: impl Iterator<Item = (u32, D)>,
    wanted: &str,
) -> Vec<u32> {
    let (mut full, mut short, mut tagged) = (Vec::new(), Vec::new(), Vec::new());
    let is_wanted = |name: &str| demangle::is_without_blanks(name, wanted);
    let is_tagged = |name: &str| name.contains(TAG) && is_wanted(&without_tags(name));
    let may_be_shown = wanted.contains("std::") || wanted.contains("{lambda#");
    let is_shown = |name: &str| may_be_shown && is_shown(name, is_wanted);
    for (index, name) in names {
        let name = name.borrow();
        if is_wanted(&name.full) || name.with_return_type.as_deref().is_some_and(is_wanted) {
            full.push(index);
        } else if is_wanted(&name.short) {
            short.push(index);
        } else if is_tagged(&name.full) || is_tagged(&name.short) || is_shown(&name.full) {
            tagged.push(index);
        }
    }
    let mut found = [full, short, tagged].into_iter();
    found.find(|found| !found.is_empty()).unwrap_or_default()
}

/// True if a name matches as reports show it, with or without parameters. Only some names are shown
/// otherwise than demangled, and it takes long to find out how.
fn is_shown(name: &str, matches: impl Fn(&str) -> bool) -> bool {
    let differs = ["std::", "{lambda(", TAG, "[clone "];
    differs.iter().any(|part| name.contains(part))
        && (matches(&shown::typed(name)) || matches(&shown::bare(name)))
}

/// True for the names that GCC and clang give to the rarely executed part of a function, and to others that lie
/// apart (`-fbasic-block-sections`: `name.__part.1`).
pub(super) fn is_cold(name: &str) -> bool {
    name.ends_with(".cold") || name.contains(".cold.") || name.contains(".__part.")
}

/// Replaces the type arguments in a name of Go by `[...]`. `None` if its brackets do not match.
fn instantiated(name: &str) -> Option<String> {
    let mut shown = String::new();
    let mut rest = name;
    while let Some((before, behind)) = rest.split_once('[') {
        shown += before;
        shown += INSTANTIATED;
        let mut depth = 1_usize;
        let end = behind.find(|c| {
            match c {
                '[' => depth += 1,
                ']' => depth -= 1,
                _ => {}
            }
            depth == 0
        })?;
        rest = &behind[end + 1..];
    }
    Some(shown + rest)
}
