//! Go's own table of functions (`.gopclntab`). Go's runtime needs it, so every Go program has it,
//! even if stripped. Layout: `cmd/link/internal/ld/pcln.go`, `runtime/symtab.go` and `debug/gosym`
//! of Go 1.18 to 1.26.

use std::collections::HashMap;

use capriole_insn::Extent;

use super::elf::{Headers, Section};
use super::pointers::relative_relocations;
use super::source::Source;

/// Magic numbers at the start of the table, named after the first version of Go that uses them.
const GO_1_18: u32 = 0xffff_fff0;
const GO_1_20: u32 = 0xffff_fff1;
const OLDER: [u32; 2] = [0xffff_fffb, 0xffff_fffa];
/// Bytes after the magic number: two zeros, the instruction size quantum and the pointer size.
const AMD64: [u8; 4] = [0, 0, 1, 8];
/// Size of the header, bytes.
const HEADER: usize = 72;
/// Offsets in `runtime.moduledata`: address of the table of names, and start of Go's text.
const MODULE_NAMES: u64 = 8;
const MODULE_TEXT: u64 = 22 * 8;
/// Flags of a function: `abi.FuncFlagTopFrame`, `abi.FuncFlagSPWrite`, `abi.FuncFlagAsm`.
const TOP_FRAME: u8 = 1 << 0;
const SETS_STACK: u8 = 1 << 1;
const ASSEMBLY: u8 = 1 << 2;
const SECTIONS: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];

/// A function that the Go linker put into the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GoFunction {
    /// Link addresses, up to the start of the next function.
    pub extent: Extent,
    /// Address where the function continues after a recovered panic, if it has deferred calls.
    pub recovers: Option<u64>,
    /// Offset of the name in the table of names, and length of the name in bytes.
    pub name: u32,
    pub name_len: u32,
    /// True if the function is written in assembly.
    pub assembly: bool,
    /// True if Go compiled the function; false for C code that Go's linker added.
    pub go: bool,
    /// Offset in the table of values by address of those of the stack pointer; 0: there are none.
    pub stack: u32,
    /// True if the function has no caller: a thread or a goroutine begins there.
    pub outermost: bool,
    /// True if the function moves the stack pointer to another stack.
    pub sets_stack: bool,
    /// True if another function has the same name: one is a wrapper of the other, for callers that
    /// use the other calling convention.
    pub twice: bool,
}

/// The functions of a Go program, by address.
#[derive(Debug, Default)]
pub(crate) struct GoFunctions {
    pub functions: Vec<GoFunction>,
    pub names: Vec<u8>,
    /// Table of values by address (`pctab`).
    pub values: Vec<u8>,
}

/// Reason why there is no list of functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoTable {
    /// The table was not found, or its format is not known.
    Unknown,
    /// A Go version before 1.18 wrote the table.
    Older,
}

impl GoFunctions {
    pub(crate) fn read(source: &Source, headers: &Headers) -> Result<GoFunctions, NoTable> {
        let (address, table) = table(source, headers).ok_or(NoTable::Unknown)?;
        match word32(&table, 0) {
            Some(magic) if OLDER.contains(&magic) => Err(NoTable::Older),
            Some(magic) => {
                let functions = GoFunctions::parse(source, headers, address, &table, magic);
                functions.ok_or(NoTable::Unknown)
            }
            None => Err(NoTable::Unknown),
        }
    }

    fn parse(
        source: &Source,
        headers: &Headers,
        address: u64,
        table: &[u8],
        magic: u32,
    ) -> Option<GoFunctions> {
        let (entry_size, flag) = match magic {
            GO_1_18 => (40, 37),
            GO_1_20 => (44, 41),
            _ => return None,
        };
        let count = usize::try_from(word64(table, 8)?).ok()?;
        let [names, files] = [word64(table, 32)?, word64(table, 40)?];
        let start = text_start(source, headers, address, address.checked_add(names)?)?;
        let names = table.get(usize::try_from(names).ok()?..usize::try_from(files).ok()?)?;
        let values =
            usize::try_from(word64(table, 56)?).ok()?..usize::try_from(word64(table, 64)?).ok()?;
        let functions = table.get(usize::try_from(word64(table, 64)?).ok()?..)?;
        // Pairs of a function's start and the offset of its entry, followed by the end of the last
        // function.
        let pairs = functions.get(..count.checked_mul(8)?.checked_add(4)?)?;
        let mut found = Vec::with_capacity(count);
        for index in 0..count {
            let begins = start.checked_add(word32(pairs, 8 * index)?.into())?;
            let ends = start.checked_add(word32(pairs, 8 * index + 8)?.into())?;
            let at = word32(pairs, 8 * index + 4)? as usize;
            let entry = functions.get(at..at.checked_add(entry_size)?)?;
            let name = word32(entry, 4)?;
            let tail = names.get(name as usize..)?;
            let name_len = tail.iter().position(|&byte| byte == 0)?;
            if begins > ends {
                return None;
            }
            let extent = Extent::new(begins, ends);
            let recovers = begins.checked_add(word32(entry, 12)?.into());
            found.push(GoFunction {
                extent,
                recovers: recovers.filter(|at| *at != begins && extent.contains(*at)),
                name,
                name_len: u32::try_from(name_len).ok()?,
                assembly: entry[flag] & ASSEMBLY != 0,
                // All Go functions have stack pointer information.
                go: word32(entry, 16)? != 0,
                stack: word32(entry, 16)?,
                outermost: entry[flag] & TOP_FRAME != 0,
                sets_stack: entry[flag] & SETS_STACK != 0,
                twice: false,
            });
        }
        let mut found = GoFunctions {
            functions: found,
            names: names.to_owned(),
            values: table.get(values)?.to_owned(),
        };
        found.mark_twice();
        Some(found)
    }

    /// Returns the ranges of link addresses within a function in which the stack pointer has the same
    /// distance, in bytes, from what it is at the function's entry. As `runtime.pcvalue`; in a damaged
    /// table, those before the damage.
    pub(crate) fn stack_sizes(&self, function: &GoFunction) -> Vec<(u64, u64, i32)> {
        let mut sizes = Vec::new();
        let Some(mut bytes) = self.values.get(function.stack as usize..) else {
            return sizes;
        };
        let (mut at, mut size) = (function.extent.start, -1i32);
        while let Some(change) = number(&mut bytes) {
            if change == 0 && !sizes.is_empty() {
                break;
            }
            let signed = (change >> 1) as i32 ^ -((change & 1) as i32);
            let Some(length) = number(&mut bytes) else {
                break;
            };
            size = size.wrapping_add(signed);
            let end = at
                .saturating_add(u64::from(length))
                .min(function.extent.end);
            sizes.push((at, end, size));
            at = end;
        }
        sizes
    }

    /// Returns the function around a link address.
    pub(crate) fn at(&self, address: u64) -> Option<&GoFunction> {
        let after = self
            .functions
            .partition_point(|f| f.extent.start <= address);
        let found = &self.functions[after.checked_sub(1)?];
        found.extent.contains(address).then_some(found)
    }

    fn mark_twice(&mut self) {
        let mut seen: HashMap<&[u8], u32> = HashMap::new();
        for function in &self.functions {
            *seen.entry(self.name(function)).or_default() += 1;
        }
        let of = |function: &GoFunction| seen[self.name(function)] > 1;
        let twice: Vec<bool> = self.functions.iter().map(of).collect();
        for (function, twice) in self.functions.iter_mut().zip(twice) {
            function.twice = twice;
        }
    }

    /// Returns the function's name in Go, without the suffix for a calling convention that the
    /// linker's name may have.
    pub(crate) fn name(&self, function: &GoFunction) -> &[u8] {
        let start = function.name as usize;
        let name = self.names.get(start..start + function.name_len as usize);
        name.unwrap_or_default()
    }
}

/// Returns the table and its link address. Linkers may have put it into a section with other
/// data, or the section headers may be missing; in both cases the data segments are searched.
fn table(source: &Source, headers: &Headers) -> Option<(u64, Vec<u8>)> {
    let named = SECTIONS.iter().find_map(|name| headers.section(name));
    if let Some(section) = named.filter(|section| Section::in_file(section)) {
        let bytes = source.read(section.offset, section.size).ok()?;
        return Some((section.address, bytes));
    }
    let data = headers.segments.iter().filter(|s| !s.perms.execute);
    for segment in data {
        let bytes = source.read(segment.offset, segment.file_size).ok()?;
        let skip = (segment.address.next_multiple_of(8) - segment.address) as usize;
        let begins = |at: &usize| {
            let head = &bytes[*at..];
            let magic = word32(head, 0).unwrap_or_default();
            let known = [GO_1_18, GO_1_20].contains(&magic) && head.get(4..8) == Some(&AMD64);
            // Names, units, files, positions and functions follow the header, in this order.
            let parts: Vec<u64> = (32..HEADER)
                .step_by(8)
                .filter_map(|at| word64(head, at))
                .collect();
            known && parts[0] >= HEADER as u64 && parts.is_sorted_by(|a, b| a < b)
        };
        let places = (skip..bytes.len()).step_by(8);
        if let Some(at) = places.into_iter().find(begins) {
            return Some((segment.address + at as u64, bytes[at..].to_owned()));
        }
    }
    None
}

/// Returns the start of Go's text; the table's addresses are relative to it. It is read from
/// `runtime.moduledata`, which begins with the addresses of the table and of its names. A
/// program at a fixed address contains these addresses; any other program has relocations for
/// them.
fn text_start(source: &Source, headers: &Headers, table: u64, names: u64) -> Option<u64> {
    let relocated = relative_relocations(source, headers).unwrap_or_default();
    let word = |at: u64| {
        let moved = relocated.iter().find(|(place, _)| *place == at);
        moved.map(|(_, value)| *value)
    };
    for (place, _) in relocated.iter().filter(|(_, value)| *value == table) {
        if word(place + MODULE_NAMES) == Some(names)
            && let Some(text) = word(place + MODULE_TEXT)
        {
            return Some(text);
        }
    }
    let data = headers.segments.iter().filter(|s| s.perms.write);
    for segment in data {
        let bytes = source.read(segment.offset, segment.file_size).ok()?;
        let skip = (segment.address.next_multiple_of(8) - segment.address) as usize;
        let is_module = |at: &usize| {
            word64(&bytes, *at) == Some(table)
                && word64(&bytes, at + MODULE_NAMES as usize) == Some(names)
        };
        let found = (skip..bytes.len()).step_by(8).find(is_module);
        if let Some(at) = found {
            return word64(&bytes, at + MODULE_TEXT as usize);
        }
    }
    None
}

/// Removes a number of variable length (LEB128, without a sign) from the start.
fn number(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0u32;
    for shift in (0..35).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u32::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}
