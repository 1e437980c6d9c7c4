//! Reader of `.symtab` and `.dynsym` (System V ABI, chapter 4).

use std::collections::{BTreeMap, HashSet};

use object::LittleEndian as LE;
use object::elf::{self, Sym64};
use object::pod;

use crate::ObjectProblem;
use crate::elf::{Headers, Section};
use crate::go::GoFunctions;
use crate::notes::Facts;
use crate::source::Source;

const DAMAGED: ObjectProblem = ObjectProblem::Damaged("bad symbol table");
/// Size of an entry of the symbol table, bytes.
const ENTRY: u64 = size_of::<Sym64<LE>>() as u64;
/// Flag in `.gnu.version`: this is not the version with which new programs are linked.
const VERSYM_HIDDEN: u16 = 0x8000;

/// Type of a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SymbolKind {
    /// A function.
    Function,
    /// Untyped symbol in the text: a function written in assembly.
    Untyped,
    /// A function that returns the address of the implementation to use (`STT_GNU_IFUNC`).
    Resolver,
}

/// Visibility of a symbol outside its file, in order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Binding {
    /// Visible everywhere.
    Global,
    /// Visible everywhere, may be replaced.
    Weak,
    /// Visible in its source file only (`static`).
    Local,
}

/// A name of a function.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawSymbol {
    pub address: u64,
    pub size: u64,
    /// Offset in the combined string table.
    pub name: u32,
    /// Length of the name without version, bytes.
    pub name_len: u32,
    pub kind: SymbolKind,
    pub binding: Binding,
    /// False for an old version that is kept for old programs.
    pub default_version: bool,
}

/// A version of a function.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    pub address: u64,
    /// Name of the version: `GLIBC_2.2.5`.
    pub version: String,
    /// Linkage name of the function.
    pub name: String,
}

/// The symbols that name functions, and their strings.
#[derive(Debug, Default)]
pub(crate) struct RawSymbols {
    pub strings: String,
    pub symbols: Vec<RawSymbol>,
    /// Versions of functions, ascending. A function may have several.
    pub versions: Vec<Version>,
    /// Addresses of symbols in the text that are not functions.
    pub labels: Vec<u64>,
    /// Those of them that are local to assembly code, by address.
    pub local_labels: Vec<RawSymbol>,
    /// Data in the text: address and size, which may be 0.
    pub data: Vec<(u64, u64)>,
}

/// Raw bytes of a symbol table.
pub(crate) struct Table {
    entries: Vec<u8>,
    strings: Vec<u8>,
    /// `.gnu.version`, two bytes for each entry; empty if there is none.
    versions: Vec<u8>,
    /// Names of the versions that the file defines, by number.
    defined: BTreeMap<u16, String>,
}

impl Table {
    /// Reads the tables of a file: `.symtab` if it was not stripped, and `.dynsym`.
    pub(crate) fn all(
        source: &Source,
        headers: &Headers,
        facts: &Facts,
    ) -> Result<Vec<Table>, ObjectProblem> {
        let mut tables = Vec::new();
        for section in &headers.sections {
            if section.kind == elf::SHT_SYMTAB.0 || section.kind == elf::SHT_DYNSYM.0 {
                // In some files, such as a separate debug file, `.symtab` has no bytes.
                tables.push(Table::of_section(source, headers, section)?);
            }
        }
        if headers.sections.is_empty()
            && let Some((symbols, strings, size)) = facts.dynamic_symbols
        {
            tables.push(Table::of_dynamic(source, headers, symbols, strings, size)?);
        }
        Ok(tables)
    }

    /// Reads the table of the symbols that the file shares with others, `.dynsym`.
    pub(crate) fn shared(
        source: &Source,
        headers: &Headers,
        facts: &Facts,
    ) -> Result<Option<Table>, ObjectProblem> {
        let mut sections = headers.sections.iter();
        match (
            sections.find(|s| s.kind == elf::SHT_DYNSYM.0),
            facts.dynamic_symbols,
        ) {
            (Some(section), _) => Table::of_section(source, headers, section).map(Some),
            (None, Some((symbols, strings, size))) if headers.sections.is_empty() => {
                Table::of_dynamic(source, headers, symbols, strings, size).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// True if the file uses a symbol of another file.
    pub(crate) fn imports(&self, name: &str) -> bool {
        let mut symbols = self.symbols().unwrap_or_default().iter();
        symbols.any(|symbol| {
            symbol.st_shndx.get(LE) == elf::SHN_UNDEF
                && self
                    .name(symbol)
                    .is_some_and(|found| split_version(found).0 == name)
        })
    }

    fn of_section(
        source: &Source,
        headers: &Headers,
        section: &Section,
    ) -> Result<Table, ObjectProblem> {
        let strings = headers.sections.get(section.link as usize).ok_or(DAMAGED)?;
        if strings.kind != elf::SHT_STRTAB.0 {
            return Err(DAMAGED);
        }
        let versions = match headers.section(".gnu.version") {
            Some(versions) if section.kind == elf::SHT_DYNSYM.0 => {
                source.read(versions.offset, versions.size)?
            }
            _ => Vec::new(),
        };
        let mut table = Table {
            entries: source.read(section.offset, section.size / ENTRY * ENTRY)?,
            strings: source.read(strings.offset, strings.size)?,
            versions,
            defined: BTreeMap::new(),
        };
        if !table.versions.is_empty()
            && let Some(defined) = headers.section(".gnu.version_d")
        {
            let defined = source.read(defined.offset, defined.size)?;
            table.defined = table.defined_versions(&defined);
        }
        Ok(table)
    }

    /// Reads `.dynsym` without section headers. Its length is not recorded, but every linker puts
    /// the strings after the symbols.
    fn of_dynamic(
        source: &Source,
        headers: &Headers,
        symbols: u64,
        strings: u64,
        strings_size: u64,
    ) -> Result<Table, ObjectProblem> {
        let size = strings.checked_sub(symbols).ok_or(DAMAGED)? / ENTRY * ENTRY;
        let offset = |address| headers.offset_of(address).ok_or(DAMAGED);
        Ok(Table {
            entries: source.read(offset(symbols)?, size)?,
            strings: source.read(offset(strings)?, strings_size)?,
            versions: Vec::new(),
            defined: BTreeMap::new(),
        })
    }

    pub(crate) fn symbols(&self) -> Result<&[Sym64<LE>], ObjectProblem> {
        pod::slice_from_all_bytes(&self.entries).map_err(|()| DAMAGED)
    }

    /// Returns the symbol's name if it is valid: not empty, UTF-8, and inside the string table.
    pub(crate) fn name(&self, symbol: &Sym64<LE>) -> Option<&str> {
        self.text(symbol.st_name.get(LE))
    }

    /// Returns the string at an offset if it is valid.
    fn text(&self, start: u32) -> Option<&str> {
        let tail = self.strings.get(start as usize..)?;
        let end = tail.iter().position(|&b| b == 0)?;
        let name = std::str::from_utf8(&tail[..end]).ok()?;
        (!name.is_empty()).then_some(name)
    }

    /// Returns the entry of `.gnu.version` for a symbol.
    fn version(&self, index: usize) -> Option<u16> {
        let version = self.versions.get(index * 2..index * 2 + 2)?;
        Some(u16::from_le_bytes([version[0], version[1]]))
    }

    fn is_hidden_version(&self, index: usize) -> bool {
        let version = self.version(index);
        version.is_some_and(|version| version & VERSYM_HIDDEN != 0)
    }

    /// Returns the name of the version of a symbol that the file defines.
    fn defined_version(&self, index: usize) -> Option<&str> {
        let number = self.version(index)? & !VERSYM_HIDDEN;
        self.defined.get(&number).map(String::as_str)
    }

    /// Reads `.gnu.version_d`: for each version `Elf64_Verdef` (flags, number and place of the names,
    /// offset of the next one), and the first of its `Elf64_Verdaux`, which holds its name (Linux
    /// Standard Base, "Symbol Versioning"). Ends at the first that makes no sense.
    fn defined_versions(&self, bytes: &[u8]) -> BTreeMap<u16, String> {
        const FLAGS: usize = 2;
        const NUMBER: usize = 4;
        const NAMES: usize = 12;
        const NEXT: usize = 16;
        /// Flag of the version that is the file's name, not a version of symbols.
        const BASE: u16 = 1;
        let half = |at: usize| {
            let half = bytes.get(at..at.checked_add(2)?)?;
            Some(u16::from_le_bytes([half[0], half[1]]))
        };
        let word = |at: usize| {
            let word = bytes.get(at..at.checked_add(4)?)?;
            Some(u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        };
        let one = |at: usize| {
            let names = at.checked_add(word(at + NAMES)? as usize)?;
            Some((
                half(at + FLAGS)?,
                half(at + NUMBER)?,
                word(names)?,
                word(at + NEXT)?,
            ))
        };
        let mut found = BTreeMap::new();
        let mut at = 0;
        while let Some((flags, number, name, next)) = one(at) {
            if flags & BASE == 0
                && let Some(name) = self.text(name)
            {
                found.insert(number, name.to_owned());
            }
            if next == 0 {
                break;
            }
            at += next as usize;
        }
        found
    }
}

impl Table {
    /// Returns the variables with sizes: address, size in bytes, and linkage name.
    pub(super) fn variables(&self) -> impl Iterator<Item = (u64, u64, &str)> {
        let symbols = self.symbols().unwrap_or_default().iter();
        symbols
            .filter(|symbol| is_data(symbol))
            .filter_map(|symbol| {
                let size = symbol.st_size.get(LE);
                let (name, ..) = split_version(self.name(symbol)?);
                (size > 0).then(|| (symbol.st_value.get(LE), size, name))
            })
    }
}

/// Splits `name@VERSION` and `name@@VERSION` (as in `.symtab`) into the name, the version, and whether new
/// programs get this version.
pub(super) fn split_version(name: &str) -> (&str, Option<&str>, bool) {
    match name.find('@') {
        Some(at) if at > 0 => {
            let (name, version) = name.split_at(at);
            let is_default = version.starts_with("@@");
            (name, Some(version.trim_start_matches('@')), is_default)
        }
        _ => (name, None, true),
    }
}

/// Appends a table of strings, with as many bytes: those that are no UTF-8 belong to names that are left out, and
/// become question marks.
fn push_strings(strings: &mut String, table: &[u8]) {
    for chunk in table.utf8_chunks() {
        strings.push_str(chunk.valid());
        strings.extend(std::iter::repeat_n('?', chunk.invalid().len()));
    }
}

/// Selects from `tables` the symbols that name functions in the text.
pub(crate) fn function_symbols(
    headers: &Headers,
    tables: &[Table],
) -> Result<RawSymbols, ObjectProblem> {
    let mut raw = RawSymbols::default();
    let mut text = TextRanges::new(headers);
    for table in tables {
        let base = u32::try_from(raw.strings.len()).map_err(|_| DAMAGED)?;
        u32::try_from(raw.strings.len() + table.strings.len()).map_err(|_| DAMAGED)?;
        push_strings(&mut raw.strings, &table.strings);
        for (index, symbol) in table.symbols()?.iter().enumerate() {
            let address = symbol.st_value.get(LE);
            let Some((kind, binding)) = classify(symbol) else {
                if is_data(symbol) && text.holds_function(address) {
                    raw.data.push((address, symbol.st_size.get(LE)));
                }
                continue;
            };
            // GCC's link-time optimisation leaves symbols for places in `.debug_info`; their values only
            // look like addresses.
            let section = headers.sections.get(usize::from(symbol.st_shndx.get(LE).0));
            let elsewhere =
                kind == SymbolKind::Untyped && section.is_some_and(|section| !section.allocated);
            if elsewhere || !text.holds_function(address) {
                continue;
            }
            let Some(name) = table.name(symbol) else {
                continue;
            };
            let own = RawSymbol {
                address,
                size: symbol.st_size.get(LE),
                name: base + symbol.st_name.get(LE),
                name_len: name.len() as u32,
                kind,
                binding,
                default_version: true,
            };
            if kind == SymbolKind::Untyped && !is_assembly_function(name, symbol, binding) {
                raw.labels.push(address);
                if binding == Binding::Local && !is_section_bound(name) {
                    raw.local_labels.push(own);
                }
                continue;
            }
            let (name, version, default_version) = split_version(name);
            if let Some(version) = version.or_else(|| table.defined_version(index)) {
                raw.versions.push(Version {
                    address,
                    version: version.to_owned(),
                    name: name.to_owned(),
                });
            }
            raw.symbols.push(RawSymbol {
                name_len: name.len() as u32,
                default_version: default_version && !table.is_hidden_version(index),
                ..own
            });
        }
    }
    raw.local_labels.sort_by_key(|label| label.address);
    raw.versions.sort_unstable();
    raw.versions.dedup();
    Ok(raw)
}

/// Adds the functions of Go's own table that no symbol names. In a stripped program, no symbol
/// names any of them.
pub(crate) fn go_functions(
    headers: &Headers,
    go: &GoFunctions,
    raw: &mut RawSymbols,
) -> Result<(), ObjectProblem> {
    let base = u32::try_from(raw.strings.len()).map_err(|_| DAMAGED)?;
    u32::try_from(raw.strings.len() + go.names.len()).map_err(|_| DAMAGED)?;
    let named: HashSet<u64> = raw.symbols.iter().map(|symbol| symbol.address).collect();
    let mut text = TextRanges::new(headers);
    let functions = go.functions.iter();
    let new = functions.filter(|function| {
        let name = std::str::from_utf8(go.name(function));
        !named.contains(&function.extent.start)
            && text.holds_function(function.extent.start)
            && name.is_ok_and(|name| !name.is_empty())
    });
    let symbols = new.map(|function| RawSymbol {
        address: function.extent.start,
        size: function.extent.len(),
        name: base + function.name,
        name_len: function.name_len,
        kind: SymbolKind::Function,
        binding: Binding::Local,
        default_version: true,
    });
    raw.symbols.extend(symbols);
    push_strings(&mut raw.strings, &go.names);
    Ok(())
}

fn is_data(symbol: &Sym64<LE>) -> bool {
    let section = symbol.st_shndx.get(LE);
    let nowhere = [elf::SHN_UNDEF, elf::SHN_ABS, elf::SHN_COMMON];
    symbol.st_type() == elf::STT_OBJECT && !nowhere.contains(&section)
}

fn classify(symbol: &Sym64<LE>) -> Option<(SymbolKind, Binding)> {
    let section = symbol.st_shndx.get(LE);
    if section == elf::SHN_UNDEF || section == elf::SHN_ABS || section == elf::SHN_COMMON {
        return None;
    }
    let kind = match symbol.st_type() {
        elf::STT_FUNC => SymbolKind::Function,
        elf::STT_NOTYPE => SymbolKind::Untyped,
        elf::STT_GNU_IFUNC => SymbolKind::Resolver,
        _ => return None,
    };
    Some((kind, binding(symbol)))
}

fn binding(symbol: &Sym64<LE>) -> Binding {
    match symbol.st_bind() {
        elf::STB_LOCAL => Binding::Local,
        elf::STB_WEAK => Binding::Weak,
        _ => Binding::Global,
    }
}

/// True if an untyped symbol is a function. Untyped symbols also mark labels, and the section
/// bounds that the linker defines.
fn is_assembly_function(name: &str, symbol: &Sym64<LE>, binding: Binding) -> bool {
    (symbol.st_size.get(LE) > 0 || binding != Binding::Local) && !is_section_bound(name)
}

/// True for the names that the linker gives to the bounds of sections.
fn is_section_bound(name: &str) -> bool {
    name.starts_with("__start_") || name.starts_with("__stop_")
}

/// Lookup that caches the last range, because neighbouring symbols lie in the same range.
struct TextRanges<'a> {
    headers: &'a Headers,
    last: (u64, u64, bool),
}

impl<'a> TextRanges<'a> {
    fn new(headers: &'a Headers) -> Self {
        TextRanges {
            headers,
            last: (0, 0, true),
        }
    }

    /// True if `address` lies in text that is not a procedure linkage table (PLT).
    fn holds_function(&mut self, address: u64) -> bool {
        let (start, end, _) = self.last;
        if !(start <= address && address < end) {
            match self.headers.text_range(address) {
                Some(range) => self.last = range,
                None => return false,
            }
        }
        !self.last.2
    }
}

/// Kind of a symbol that is not a function in this object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherSymbol {
    /// A variable, at this link address.
    Data(u64),
    /// An untyped symbol, at this link address: a label in assembly code, or a bound of a section.
    Label(u64),
    /// A symbol that is used here but defined in another object.
    Imported,
}

/// True if a function with this name is defined in some table, which is quicker found out than all functions
/// are read.
pub(crate) fn defines(tables: &[Table], name: &str) -> bool {
    tables.iter().any(|table| {
        let symbols = table.symbols().unwrap_or_default();
        symbols.iter().any(|symbol| {
            symbol.st_type() == elf::STT_FUNC
                && symbol.st_shndx.get(LE) != elf::SHN_UNDEF
                && table.name(symbol) == Some(name)
        })
    })
}

/// Looks for a name among the symbols that are not functions.
pub(crate) fn find_other(
    tables: &[Table],
    name: &str,
) -> Result<Option<OtherSymbol>, ObjectProblem> {
    let mut imported = None;
    for table in tables {
        for symbol in table.symbols()? {
            let other = match (symbol.st_shndx.get(LE), symbol.st_type()) {
                (elf::SHN_UNDEF, _) => OtherSymbol::Imported,
                (_, elf::STT_OBJECT | elf::STT_TLS | elf::STT_COMMON) => {
                    OtherSymbol::Data(symbol.st_value.get(LE))
                }
                (_, elf::STT_NOTYPE) => OtherSymbol::Label(symbol.st_value.get(LE)),
                _ => continue,
            };
            if table
                .name(symbol)
                .is_none_or(|found| split_version(found).0 != name)
            {
                continue;
            }
            match other {
                OtherSymbol::Data(_) | OtherSymbol::Label(_) => return Ok(Some(other)),
                OtherSymbol::Imported => imported = Some(other),
            }
        }
    }
    Ok(imported)
}
