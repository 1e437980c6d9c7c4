//! Static markers: sites that a program's authors have named, with arguments.
//!
//! Notes in the file describe the markers. `.note.stapsdt` has one note for each marker of
//! either kind (version 3, `sys/sdt.h`):
//!
//! ```text
//! u64  address of the marker
//! u64  address of section .stapsdt.base when the note was written
//! u64  address of its semaphore, or 0
//! provider NUL name NUL arguments NUL
//! ```
//!
//! All addresses are link addresses. A program that changes the file's addresses afterwards
//! (prelink) moves the section but does not update the notes; the difference is added on
//! reading.
//!
//! Markers of `capriole/marker.h` have a second note, in `.note.capriole`:
//!
//! ```text
//! u64  address of the marker
//! u64  as above
//! u32  line
//! u32  flags: bit n is set if argument n + 1 is a floating point number
//! provider NUL name NUL format NUL source file NUL
//! ```
//!
//! Nothing in a note is trusted: an address must be an address of code, the site must be the
//! start of an instruction as for any other event, and a note that does not parse is counted,
//! or its argument refused by itself.
//!
//! Places of one marker whose records look the same share an event id. Where the types differ,
//! only some can fault, or a call stack must know its place, there are several ids with one
//! name.

pub mod format;
pub mod operand;

use crate::elf::Headers;
use crate::notes::{Facts, notes};
use crate::source::Source;
use crate::symbols::Table;
use crate::{ObjectProblem, Text};
use format::{Conversion, conversions};
use object::LittleEndian as LE;
use object::elf;
use operand::{Argument, Operand, OperandError, Place, arguments};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Section, owner and type of the notes of `sys/sdt.h`.
const STAPSDT: (&str, &[u8], u32) = (".note.stapsdt", b"stapsdt", 3);
/// Section, owner and type of the notes of `capriole/marker.h`.
const CAPRIOLE: (&str, &[u8], u32) = (".note.capriole", b"capriole", 1);
/// Section whose address shows whether a tool has moved the file's addresses.
const BASE: &str = ".stapsdt.base";

/// A marker at one site. The same marker may occur at several sites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// Provider name.
    pub provider: String,
    /// Marker name.
    pub name: String,
    /// Link address.
    pub address: u64,
    /// Link address of the 16-bit counter that must be nonzero for the program to reach the marker.
    pub semaphore: Option<u64>,
    /// The argument string of the note.
    pub operands: String,
    /// The parsed arguments.
    pub arguments: Vec<Result<Argument, OperandError>>,
    /// The second note of a marker of `capriole/marker.h`.
    pub described: Option<Description>,
    /// Conversions to format the arguments with: one for each argument. Empty if the marker has no
    /// format, or one that does not match the arguments.
    pub conversions: Vec<Conversion>,
}

/// Contents of the second note of a marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// printf format of the arguments.
    pub format: String,
    /// The source file.
    pub file: String,
    /// Line in the source file; 0 if unknown.
    pub line: u32,
    /// Bit mask of the floating point arguments, the first argument in the lowest bit.
    pub floats: u32,
}

impl Marker {
    /// `PROVIDER:NAME`
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}:{}", self.provider, self.name)
    }

    fn key(&self) -> (u64, &str, &str) {
        (self.address, &self.provider, &self.name)
    }

    /// Adds the contents of the marker's second note.
    fn describe(&mut self, description: Description) {
        self.conversions = conversions(&description.format)
            .ok()
            .filter(|found| found.len() == self.arguments.len())
            .unwrap_or_default();
        for (index, argument) in self.arguments.iter_mut().enumerate() {
            // Floating point numbers are passed in general registers, because not all tools that read
            // the notes support vector registers.
            if let Ok(argument) = argument
                && index < 32
                && description.floats >> index & 1 == 1
                && matches!(argument.bytes, 4 | 8)
                && !matches!(argument.operand, Operand::SecondByte(_))
            {
                (argument.float, argument.signed) = (true, false);
            }
        }
        self.described = Some(description);
    }
}

/// The value of a symbol that an operand names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SymbolValue {
    /// A link address.
    Address(u64),
    /// A number that does not depend on the object's load address.
    Number(u64),
}

/// Reason why the value of a symbol that an operand names is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SymbolProblem {
    /// No symbol table contains it.
    #[error("it is in no symbol table (a local name, or the file was stripped)")]
    Unknown,
    /// Local symbols of several source files have this name.
    #[error("several symbols have this name")]
    Ambiguous,
    /// Another object defines it.
    #[error("it belongs to another object")]
    Imported,
    /// It is thread-local.
    #[error("each thread has its own")]
    ThreadLocal,
}

/// The markers of an object, by address.
#[derive(Debug, Clone, Default)]
pub struct Markers {
    /// The markers, one entry for each site.
    pub all: Vec<Arc<Marker>>,
    /// Number of unusable notes: truncated, with unprintable names, or with an address that is not
    /// in the object's code or not at a nop. A note with a wrong size and everything after it count
    /// as one.
    pub unusable: usize,
    symbols: HashMap<String, Result<SymbolValue, SymbolProblem>>,
}

impl Markers {
    pub(crate) fn read(
        source: &Source,
        headers: &Headers,
        facts: &Facts,
        texts: &[Text],
    ) -> Result<Markers, ObjectProblem> {
        let mut markers = Markers::default();
        let base = headers.section(BASE).map(|section| section.address);
        let mut found: Vec<Marker> = Vec::new();
        let mut described: HashMap<(u64, String, String), Description> = HashMap::new();
        markers.notes(source, headers, STAPSDT, |content| {
            let marker = marker(content, base)?;
            headers.text_range(marker.address)?;
            is_nop(texts, marker.address).then(|| found.push(marker))
        })?;
        markers.notes(source, headers, CAPRIOLE, |content| {
            let (key, description) = description(content, base)?;
            headers.text_range(key.0)?;
            described.insert(key, description);
            Some(())
        })?;
        found.sort_by(|a, b| a.key().cmp(&b.key()));
        found.dedup_by(|a, b| a.key() == b.key());
        for marker in &mut found {
            let key = (marker.address, marker.provider.clone(), marker.name.clone());
            if let Some(description) = described.remove(&key) {
                marker.describe(description);
            }
        }
        markers.unusable += described.len();
        markers.find_symbols(source, headers, facts, &found)?;
        markers.all = found.into_iter().map(Arc::new).collect();
        Ok(markers)
    }

    /// Reads the notes of one kind and counts those that `take` rejects.
    fn notes(
        &mut self,
        source: &Source,
        headers: &Headers,
        (section, owner, kind): (&str, &[u8], u32),
        mut take: impl FnMut(&[u8]) -> Option<()>,
    ) -> Result<(), ObjectProblem> {
        for section in headers.sections.iter().filter(|s| s.name == section) {
            if !section.in_file() {
                continue;
            }
            let bytes = source.read(section.offset, section.size)?;
            for note in notes(&bytes) {
                let is_usable = note.is_ok_and(|note| {
                    let is_own = (note.name(), note.n_type(LE).0) == (owner, kind);
                    !is_own || take(note.desc()).is_some()
                });
                self.unusable += usize::from(!is_usable);
            }
        }
        Ok(())
    }

    /// Looks up all symbols that operands name, in one pass.
    fn find_symbols(
        &mut self,
        source: &Source,
        headers: &Headers,
        facts: &Facts,
        markers: &[Marker],
    ) -> Result<(), ObjectProblem> {
        let operands = markers.iter().flat_map(|marker| marker.arguments.iter());
        let places = operands.flatten().filter_map(|a| a.operand.place());
        let wanted: HashSet<&str> = places.filter_map(|p| p.symbol.as_deref()).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        for table in Table::all(source, headers, facts)? {
            for symbol in table.symbols()? {
                let Some(name) = table.name(symbol).filter(|name| wanted.contains(name)) else {
                    continue;
                };
                let value = symbol.st_value.get(LE);
                let value = match (symbol.st_shndx.get(LE), symbol.st_type()) {
                    (elf::SHN_UNDEF, _) => Err(SymbolProblem::Imported),
                    (_, elf::STT_FILE | elf::STT_SECTION) => continue,
                    (_, elf::STT_TLS) => Err(SymbolProblem::ThreadLocal),
                    (elf::SHN_ABS, _) => Ok(SymbolValue::Number(value)),
                    _ => Ok(SymbolValue::Address(value)),
                };
                let known = self.symbols.entry(name.to_owned()).or_insert(value);
                match (*known, value) {
                    (known, value) if known == value => {}
                    // The other table may define the symbol.
                    (_, Err(SymbolProblem::Imported)) => {}
                    (Err(SymbolProblem::Imported), _) => *known = value,
                    _ => *known = Err(SymbolProblem::Ambiguous),
                }
            }
        }
        Ok(())
    }

    /// Returns the value of a symbol that an operand of these markers names.
    ///
    /// # Errors
    /// The symbol has no known value.
    pub fn symbol(&self, name: &str) -> Result<SymbolValue, SymbolProblem> {
        let known = self.symbols.get(name).copied();
        known.unwrap_or(Err(SymbolProblem::Unknown))
    }
}

impl Operand {
    /// Returns the operand's number or memory address.
    fn place(&self) -> Option<&Place> {
        match self {
            Operand::Immediate(place) | Operand::Memory { place, .. } => Some(place),
            Operand::Register(_) | Operand::SecondByte(_) | Operand::Vector(_) => None,
        }
    }
}

/// Takes a 64-bit word from the front.
fn word(bytes: &mut &[u8]) -> Option<u64> {
    let (word, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*word))
}

/// Takes a NUL-terminated string from the front.
fn text(bytes: &mut &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let text = String::from_utf8(bytes[..end].to_vec()).ok()?;
    *bytes = &bytes[end + 1..];
    Some(text)
}

/// Takes provider and name from the front. They are printed later, so control characters, which
/// a terminal might interpret, are rejected.
fn names(bytes: &mut &[u8]) -> Option<(String, String)> {
    let (provider, name) = (text(bytes)?, text(bytes)?);
    let usable = |name: &str| !name.is_empty() && !name.chars().any(char::is_control);
    (usable(&provider) && usable(&name)).then_some((provider, name))
}

/// True if a nop is at a link address. All tools that write such notes put a nop there; without
/// one, the note describes code other than this file's, and there may be no instruction at its
/// address.
fn is_nop(texts: &[Text], address: u64) -> bool {
    let text = texts
        .iter()
        .find(|t| (t.address..t.end()).contains(&address));
    let bytes = text.map(|text| &text.bytes[(address - text.address) as usize..]);
    let prefixes = |bytes: &[u8]| bytes.iter().take_while(|byte| **byte == 0x66).count();
    let bytes = bytes.map(|bytes| &bytes[prefixes(bytes).min(14)..]);
    matches!(
        bytes,
        Some([0x90, ..] | [0x0f, 0x1f, ..] | [0x2e, 0x0f, 0x1f, ..])
    )
}

/// Returns the offset to add to a note's addresses, from the actual address of the section and
/// the address recorded in the note.
fn moved(base: Option<u64>, noted: u64) -> u64 {
    match base {
        Some(base) if noted != 0 => base.wrapping_sub(noted),
        _ => 0,
    }
}

fn marker(mut content: &[u8], base: Option<u64>) -> Option<Marker> {
    let rest = &mut content;
    let (address, noted, semaphore) = (word(rest)?, word(rest)?, word(rest)?);
    let (provider, name) = names(rest)?;
    let operands = text(rest)?;
    let moved = moved(base, noted);
    Some(Marker {
        provider,
        name,
        address: address.wrapping_add(moved),
        semaphore: (semaphore != 0).then(|| semaphore.wrapping_add(moved)),
        arguments: arguments(&operands),
        operands,
        described: None,
        conversions: Vec::new(),
    })
}

fn description(
    mut content: &[u8],
    base: Option<u64>,
) -> Option<((u64, String, String), Description)> {
    let rest = &mut content;
    let (address, noted, line_and_flags) = (word(rest)?, word(rest)?, word(rest)?);
    let (provider, name) = names(rest)?;
    let (format, file) = (text(rest)?, text(rest)?);
    let address = address.wrapping_add(moved(base, noted));
    let line = line_and_flags as u32;
    let floats = (line_and_flags >> 32) as u32;
    Some((
        (address, provider, name),
        Description {
            format,
            file,
            line,
            floats,
        },
    ))
}
