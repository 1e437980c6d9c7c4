//! The functions of an object: names, aliases, bounds.
//!
//! All addresses are link addresses; an object's load bias is added by
//! [`Object`](crate::Object). Names are demangled only on demand.

mod bounds;
pub mod demangle;
mod dlang;
mod lookup;
mod near;
mod parts;
mod read;
mod same_code;
pub mod shown;
pub mod spelling;
mod standard;
mod variables;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::OnceLock;

use capriole_insn::Extent;

pub use lookup::Found;
pub use near::nearest;
pub use read::{Binding, OtherSymbol, SymbolKind};

use crate::ObjectProblem;
use crate::elf::Headers;
use crate::go::GoFunctions;
use crate::unwind::Frame;
use demangle::Demangled;
use read::{RawSymbol, RawSymbols};
pub(crate) use read::{Table, defines, find_other};
pub(crate) use variables::Variables;

/// A function, or a split-off part of one (`name.cold`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// Link addresses of the first byte of the function and after the last byte.
    pub extent: Extent,
    /// True for an IFUNC resolver, which runs when the object is loaded to choose an
    /// implementation.
    pub is_resolver: bool,
    /// Position of the function's first name, followed by the number of its names.
    first_name: u32,
    names: u32,
}

impl Function {
    /// True if the function has a name. A function without a name is known only from the call frame
    /// information and is specified by its file offset.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.names > 0
    }
}

/// One name of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name<'a> {
    /// Linkage name: mangled, without version.
    pub linkage: &'a str,
    /// Type of the symbol.
    pub kind: SymbolKind,
    /// Visibility of the symbol.
    pub binding: Binding,
    index: u32,
}

/// The functions of an object by address and by name.
#[derive(Debug, Default)]
pub struct SymbolTable {
    raw: RawSymbols,
    functions: Vec<Function>,
    /// For each function, the index of the nearest earlier one that extends beyond its start; its
    /// own index if there is none.
    enclosing: Vec<u32>,
    /// Data in the text, ascending.
    data: Vec<Extent>,
    /// Starts of all functions and data, and ends of text, ascending: the points where padding
    /// ends.
    bounds: Vec<u64>,
    /// Indices of symbols, sorted by linkage name.
    by_name: OnceLock<Vec<u32>>,
    /// Demangled names, by symbol index.
    demangled: OnceLock<Vec<Option<Demangled>>>,
}

impl SymbolTable {
    pub(crate) fn read(
        tables: &[Table],
        headers: &Headers,
        frames: &[Frame],
        go: Option<&GoFunctions>,
    ) -> Result<SymbolTable, ObjectProblem> {
        let mut raw = read::function_symbols(headers, tables)?;
        if let Some(go) = go {
            read::go_functions(headers, go, &mut raw)?;
        }
        sort_and_join(&mut raw);
        drop_type_ids(&mut raw);
        Ok(bounds::build(raw, headers, frames))
    }

    /// Returns all functions by address, one for each address.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Returns the names of a function, the preferred one first: global and weak before local,
    /// names without a leading underscore before names with one, global before weak, short before
    /// long.
    pub fn names(&self, function: &Function) -> impl Iterator<Item = Name<'_>> {
        (function.first_name..function.first_name + function.names).map(|index| self.name(index))
    }

    /// Returns the preferred name, mangled.
    #[must_use]
    pub fn linkage_name(&self, function: &Function) -> Option<&str> {
        self.names(function).next().map(|name| name.linkage)
    }

    /// Returns the preferred name, demangled if it is mangled.
    #[must_use]
    pub fn display_name(&self, function: &Function) -> Option<Cow<'_, str>> {
        self.linkage_name(function).map(display)
    }

    /// Returns the function that contains a link address; the innermost one if functions are
    /// nested.
    #[must_use]
    pub fn function_at(&self, address: u64) -> Option<&Function> {
        let after = self
            .functions
            .partition_point(|f| f.extent.start <= address);
        let mut index = after.checked_sub(1)?;
        loop {
            let function = &self.functions[index];
            if address < function.extent.end {
                return Some(function);
            }
            let outer = self.enclosing[index] as usize;
            if outer == index {
                return None;
            }
            index = outer;
        }
    }

    /// Returns the function that starts at a link address.
    #[must_use]
    pub fn function_starting_at(&self, address: u64) -> Option<&Function> {
        let found = self
            .functions
            .binary_search_by_key(&address, |f| f.extent.start);
        found.ok().map(|index| &self.functions[index])
    }

    /// Returns the first function start or end of text above a link address: code after a function,
    /// up to that boundary, belongs to no other function.
    #[must_use]
    pub fn next_boundary(&self, address: u64) -> Option<u64> {
        let after = self.bounds.partition_point(|&bound| bound <= address);
        self.bounds.get(after).copied()
    }

    /// Returns the link addresses of the other symbols in the text: labels of assembly code.
    #[must_use]
    pub fn labels(&self) -> &[u64] {
        &self.raw.labels
    }

    /// Returns the name and the link address of the local label that names the code at a link address: one
    /// that is in no function, like the address, or where the call frame information of that code begins.
    /// It need not be the start of a function.
    #[must_use]
    pub fn label_around(&self, address: u64) -> Option<(&str, u64)> {
        let labels = &self.raw.local_labels;
        let last_to = |to: u64| labels[..labels.partition_point(|l| l.address <= to)].last();
        let label = match self.function_at(address) {
            Some(function) if function.is_named() => None,
            Some(function) => {
                let start = function.extent.start;
                last_to(start).filter(|label| label.address == start)
            }
            None => last_to(address).filter(|label| {
                let boundary = self.next_boundary(label.address);
                boundary.is_none_or(|boundary| address < boundary)
                    && self.function_at(label.address).is_none()
            }),
        }?;
        Some((self.raw.text(label), label.address))
    }

    /// Returns the link addresses of the local labels with this name that are in no function, ascending.
    #[must_use]
    pub fn lone_labels(&self, name: &str) -> Vec<u64> {
        let is_lone = |address: u64| {
            let found = self.label_around(address);
            found.is_some_and(|(_, start)| start == address)
        };
        let labels = self.raw.local_labels.iter();
        let labels = labels.filter(|label| self.raw.text(label) == name);
        let mut found: Vec<u64> = labels.map(|label| label.address).collect();
        found.retain(|address| is_lone(*address));
        found.dedup();
        found
    }

    /// Returns the link addresses of data in the text, from symbols; ascending and disjoint.
    #[must_use]
    pub fn data(&self) -> &[Extent] {
        &self.data
    }

    /// True for a part of a function that the compiler placed elsewhere (`name.cold`, `name.__part.1`): code jumps
    /// into it and does not call it.
    #[must_use]
    pub fn is_split_off(&self, function: &Function) -> bool {
        self.names(function)
            .any(|name| lookup::is_cold(name.linkage))
    }

    fn name(&self, index: u32) -> Name<'_> {
        let symbol = &self.raw.symbols[index as usize];
        Name {
            linkage: self.raw.text(symbol),
            kind: symbol.kind,
            binding: symbol.binding,
            index,
        }
    }
}

impl SymbolTable {
    /// Returns the version of a function by this name if it is none that new programs get: one that is kept
    /// for old programs, as `GLIBC_2.2.5` is for `memcpy` in glibc.
    #[must_use]
    pub fn old_version(&self, found: &Found<'_>) -> Option<&str> {
        let symbol = &self.raw.symbols[found.name.index as usize];
        if symbol.default_version {
            return None;
        }
        let address = found.function.extent.start;
        let first = self.raw.versions.partition_point(|v| v.address < address);
        let here = self.raw.versions[first..].iter();
        let mut here = here.take_while(|version| version.address == address);
        let own = here.find(|version| version.name == found.name.linkage)?;
        Some(&own.version)
    }

    /// Returns the name of a function for display, with its version if that is an old one.
    #[must_use]
    pub fn versioned_name(&self, found: &Found<'_>) -> String {
        let name = display(found.name.linkage);
        match self.old_version(found) {
            Some(version) => format!("{name}@{version}"),
            None => name.into_owned(),
        }
    }
}

/// Demangles a linkage name for display.
#[must_use]
pub fn display(linkage: &str) -> Cow<'_, str> {
    match demangle::demangle_full(linkage) {
        Some(name) => Cow::Owned(name),
        None => Cow::Borrowed(linkage),
    }
}

impl RawSymbols {
    /// Returns the name of a symbol.
    fn text(&self, symbol: &RawSymbol) -> &str {
        let start = symbol.name as usize;
        let name = self.strings.get(start..start + symbol.name_len as usize);
        name.unwrap_or_default()
    }
}

/// Drops `__cfi_NAME` right before `NAME`, which is not a function: `-fsanitize=kcfi` puts a
/// type hash there, which callers check.
fn drop_type_ids(raw: &mut RawSymbols) {
    const PREFIX: &str = "__cfi_";
    /// Maximum size of the patchable nops between the two symbols, bytes.
    const BETWEEN: u64 = 64;
    let symbols = std::mem::take(&mut raw.symbols);
    let is_type_id = |index: usize| {
        let symbol = &symbols[index];
        let name = raw.text(symbol).strip_prefix(PREFIX)?;
        let near = symbols[index + 1..]
            .iter()
            .take_while(|other| other.address <= symbol.address + symbol.size.max(16) + BETWEEN);
        let own = near.into_iter().find(|other| raw.text(other) == name)?;
        let size = match symbol.size {
            0 => own.address - symbol.address,
            size => size.min(own.address - symbol.address),
        };
        Some((symbol.address, size))
    };
    let found: Vec<Option<(u64, u64)>> = (0..symbols.len()).map(is_type_id).collect();
    raw.data.extend(found.iter().flatten());
    let kept = symbols.iter().zip(&found).filter(|(_, id)| id.is_none());
    raw.symbols = kept.map(|(symbol, _)| *symbol).collect();
}

/// Sorts symbols by address and preference, and drops those that are in both tables.
fn sort_and_join(raw: &mut RawSymbols) {
    let mut symbols = std::mem::take(&mut raw.symbols);
    let hidden = |name: &str| name.starts_with('_') && !demangle::is_mangled(name);
    symbols.sort_by_cached_key(|symbol| {
        let name = raw.text(symbol);
        let binding = match symbol.binding {
            Binding::Local => 1,
            _ => 0,
        };
        // Symbols with the same name and address become neighbours.
        (
            symbol.address,
            binding,
            hidden(name),
            symbol.binding,
            name.len(),
            name.to_owned(),
            Reverse(symbol.default_version),
        )
    });
    symbols.dedup_by(|later, earlier| {
        let same = later.address == earlier.address && raw.text(later) == raw.text(earlier);
        if same {
            earlier.size = earlier.size.max(later.size);
            earlier.default_version |= later.default_version;
        }
        same
    });
    raw.symbols = symbols;
}
