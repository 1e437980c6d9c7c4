//! Addresses of code in an object's data.

use object::LittleEndian as LE;
use object::elf::{self, Rela64};
use object::pod;

use super::ObjectProblem;
use super::elf::Headers;
use super::source::Source;

const DAMAGED: ObjectProblem = ObjectProblem::Damaged("bad relocations");
const RELA: u64 = size_of::<Rela64<LE>>() as u64;
/// Sections of addresses of code that a program may overwrite, and never jumps to: nops made for
/// patching, and calls of `__fentry__` (`-mrecord-mcount`).
const PATCHABLE: [&str; 2] = ["__patchable_function_entries", "__mcount_loc"];
const SYMBOL: u64 = size_of::<elf::Sym64<LE>>() as u64;

/// Returns the words that the loader relocates by adding the load bias: their addresses and
/// their values (both link addresses).
///
/// They come from `R_X86_64_RELATIVE`, `R_X86_64_IRELATIVE` (the resolver),
/// `R_X86_64_64` with a symbol of this object, and the packed `RELR` form.
pub(super) fn relative_relocations(
    source: &Source,
    headers: &Headers,
) -> Result<Vec<(u64, u64)>, ObjectProblem> {
    let mut words = Vec::new();
    for section in &headers.sections {
        if !section.allocated {
            continue;
        }
        if section.kind == elf::SHT_RELA.0 {
            let bytes = source.read(section.offset, section.size / RELA * RELA)?;
            let relocations: &[Rela64<LE>] =
                pod::slice_from_all_bytes(&bytes).map_err(|()| DAMAGED)?;
            let mut symbols = None;
            for relocation in relocations {
                let addend = relocation.r_addend.get(LE) as u64;
                let base = match relocation.r_type(LE, false) {
                    elf::R_X86_64_RELATIVE | elf::R_X86_64_IRELATIVE => 0,
                    elf::R_X86_64_64 => {
                        let values = match &symbols {
                            Some(values) => values,
                            None => symbols.insert(symbol_values(source, headers, section.link)?),
                        };
                        match values.get(relocation.r_sym(LE, false) as usize) {
                            Some(&value) if value != 0 => value,
                            _ => continue,
                        }
                    }
                    _ => continue,
                };
                words.push((relocation.r_offset.get(LE), base.wrapping_add(addend)));
            }
        } else if section.kind == elf::SHT_RELR.0 {
            let bytes = source.read(section.offset, section.size / 8 * 8)?;
            unpack_relr(&bytes, |place| {
                let Some(offset) = headers.offset_of(place) else {
                    return;
                };
                if let Ok(word) = source.read(offset, 8) {
                    words.push((place, word_of(&word)));
                }
            })?;
        }
    }
    Ok(words)
}

/// Returns the slots where the loader stores the address of a function `name`
/// (`R_X86_64_JUMP_SLOT`, `R_X86_64_GLOB_DAT`).
pub(super) fn import_slots(
    source: &Source,
    headers: &Headers,
    name: &str,
) -> Result<Vec<u64>, ObjectProblem> {
    let mut slots = Vec::new();
    for section in headers
        .sections
        .iter()
        .filter(|s| s.allocated && s.kind == elf::SHT_RELA.0)
    {
        let bytes = source.read(section.offset, section.size / RELA * RELA)?;
        let relocations: &[Rela64<LE>] = pod::slice_from_all_bytes(&bytes).map_err(|()| DAMAGED)?;
        // The relocations of a static program do not refer to a symbol table.
        let Some(wanted) = symbols_named(source, headers, section.link, name)? else {
            continue;
        };
        slots.extend(relocations.iter().filter_map(|relocation| {
            let is_slot = matches!(
                relocation.r_type(LE, false),
                elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT
            );
            let symbol = relocation.r_sym(LE, false);
            (is_slot && wanted.contains(&symbol)).then(|| relocation.r_offset.get(LE))
        }));
    }
    Ok(slots)
}

/// Returns the slots where the loader stores what the resolver of an indirect function returns
/// (`R_X86_64_IRELATIVE`): those of the calls in the same object.
pub(super) fn resolved_slots(
    source: &Source,
    headers: &Headers,
    resolver: u64,
) -> Result<Vec<u64>, ObjectProblem> {
    let mut slots = Vec::new();
    let tables = headers.sections.iter();
    for section in tables.filter(|s| s.allocated && s.kind == elf::SHT_RELA.0) {
        let bytes = source.read(section.offset, section.size / RELA * RELA)?;
        let relocations: &[Rela64<LE>] = pod::slice_from_all_bytes(&bytes).map_err(|()| DAMAGED)?;
        slots.extend(relocations.iter().filter_map(|relocation| {
            let is_slot = relocation.r_type(LE, false) == elf::R_X86_64_IRELATIVE
                && relocation.r_addend.get(LE) as u64 == resolver;
            is_slot.then(|| relocation.r_offset.get(LE))
        }));
    }
    Ok(slots)
}

/// Returns the indices of the symbols named `name` in the symbol table of section `index`.
fn symbols_named(
    source: &Source,
    headers: &Headers,
    index: u32,
    name: &str,
) -> Result<Option<Vec<u32>>, ObjectProblem> {
    let Some(section) = headers.sections.get(index as usize) else {
        return Ok(None);
    };
    let Some(strings) = headers.sections.get(section.link as usize) else {
        return Ok(None);
    };
    if section.kind != elf::SHT_DYNSYM.0 || strings.kind != elf::SHT_STRTAB.0 {
        return Ok(None);
    }
    let bytes = source.read(section.offset, section.size / SYMBOL * SYMBOL)?;
    let symbols: &[elf::Sym64<LE>] = pod::slice_from_all_bytes(&bytes).map_err(|()| DAMAGED)?;
    let strings = source.read(strings.offset, strings.size)?;
    let is_wanted = |symbol: &elf::Sym64<LE>| {
        let tail = strings.get(symbol.st_name.get(LE) as usize..);
        let rest = tail.and_then(|tail| tail.strip_prefix(name.as_bytes()));
        rest.and_then(<[u8]>::first) == Some(&0)
    };
    let wanted = symbols
        .iter()
        .enumerate()
        .filter(|(_, symbol)| is_wanted(symbol));
    Ok(Some(wanted.map(|(index, _)| index as u32).collect()))
}

/// Returns the values of the symbols in a symbol table; 0 for undefined ones.
fn symbol_values(
    source: &Source,
    headers: &Headers,
    section: u32,
) -> Result<Vec<u64>, ObjectProblem> {
    let section = headers.sections.get(section as usize).ok_or(DAMAGED)?;
    let bytes = source.read(section.offset, section.size / SYMBOL * SYMBOL)?;
    let symbols: &[elf::Sym64<LE>] = pod::slice_from_all_bytes(&bytes).map_err(|()| DAMAGED)?;
    Ok(symbols
        .iter()
        .map(|symbol| match symbol.st_shndx.get(LE) {
            elf::SHN_UNDEF => 0,
            _ => symbol.st_value.get(LE),
        })
        .collect())
}

/// Unpacks relocations in the packed form (generic ABI, "Relative Relocation Table"): an even
/// word is an address, an odd word a bitmap of the 63 words after the last address.
fn unpack_relr(bytes: &[u8], mut each: impl FnMut(u64)) -> Result<(), ObjectProblem> {
    let mut next: Option<u64> = None;
    for entry in bytes.chunks_exact(8).map(word_of) {
        if entry & 1 == 0 {
            each(entry);
            next = entry.checked_add(8);
        } else {
            let base = next.ok_or(DAMAGED)?;
            for bit in 0..63 {
                if entry >> (bit + 1) & 1 == 1 {
                    each(base.wrapping_add(bit * 8));
                }
            }
            next = base.checked_add(63 * 8);
        }
    }
    Ok(())
}

/// True if the word at a link address is in a table of code to patch: nothing jumps through it.
pub(super) fn is_in_patch_table(headers: &Headers, place: u64) -> bool {
    let named = |name| {
        headers
            .sections
            .iter()
            .filter(move |s| s.allocated && s.name == name)
    };
    let mut tables = PATCHABLE.into_iter().flat_map(named);
    tables.any(|table| table.contains(place))
}

/// Calls `each` with the address and the value of every word in the data of an object at a fixed
/// address that could be an address. Such an object has no relocations that mark the addresses.
pub(super) fn data_words(
    source: &Source,
    headers: &Headers,
    mut each: impl FnMut(u64, u64),
) -> Result<(), ObjectProblem> {
    let data = headers.segments.iter().filter(|s| !s.perms.execute);
    for segment in data {
        let bytes = source.read(segment.offset, segment.file_size)?;
        // Structures may be packed: a word may be at any multiple of four bytes.
        let skip = (segment.address.next_multiple_of(4) - segment.address) as usize;
        let aligned = bytes.get(skip..).unwrap_or_default();
        let first = segment.address.next_multiple_of(4);
        for (place, word) in (first..).step_by(4).zip(aligned.windows(8).step_by(4)) {
            each(place, word_of(word));
        }
    }
    Ok(())
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacks_addresses_and_bitmaps() {
        let entries: [u64; 4] = [0x1000, 0b1011, 1 << 63 | 1, 0x8000];
        let bytes: Vec<u8> = entries.iter().flat_map(|e| e.to_le_bytes()).collect();
        let mut places = Vec::new();
        unpack_relr(&bytes, |place| places.push(place)).unwrap();
        assert_eq!(
            places,
            [0x1000, 0x1008, 0x1018, 0x1008 + 63 * 8 + 62 * 8, 0x8000]
        );
        assert!(unpack_relr(&3u64.to_le_bytes(), |_| ()).is_err());
    }
}
