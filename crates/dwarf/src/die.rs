//! Debug information entries (DIEs), their attributes, and the entries these refer to.

use std::rc::Rc;

use gimli::{AttributeValue, DebuggingInformationEntry, DwAt, DwTag, constants as dw};

use super::error::DebugError;
use super::units::{Bytes, Debug, DieKey, Loaded, Space, UnitKey, wraps};

pub(super) type Value<'a> = AttributeValue<Bytes<'a>>;

/// Maximum length of a chain of origins and specifications.
const ORIGINS: usize = 8;

/// A debug information entry.
#[derive(Clone)]
pub(super) struct Die<'a> {
    pub unit: Rc<Loaded<'a>>,
    pub entry: DebuggingInformationEntry<Bytes<'a>>,
}

impl<'a> Die<'a> {
    pub(super) fn key(&self) -> DieKey {
        DieKey {
            unit: self.unit.key,
            offset: self.entry.offset(),
        }
    }

    pub(super) fn tag(&self) -> DwTag {
        self.entry.tag()
    }

    pub(super) fn attr(&self, name: DwAt) -> Option<Value<'a>> {
        self.entry.attr_value(name)
    }

    pub(super) fn has(&self, name: DwAt) -> bool {
        self.entry.has_attr(name)
    }

    pub(super) fn flag(&self, name: DwAt) -> bool {
        matches!(self.attr(name), Some(AttributeValue::Flag(true)))
    }

    pub(super) fn unsigned(&self, name: DwAt) -> Option<u64> {
        self.attr(name)?.udata_value()
    }

    pub(super) fn signed(&self, name: DwAt) -> Option<i64> {
        self.attr(name)?.sdata_value()
    }

    /// Returns an attribute that is a plain number, not an address, an offset or an expression.
    pub(super) fn number(&self, name: DwAt) -> Option<u64> {
        let value = self.attr(name)?;
        match value {
            AttributeValue::Udata(_)
            | AttributeValue::Data1(_)
            | AttributeValue::Data2(_)
            | AttributeValue::Data4(_)
            | AttributeValue::Data8(_) => value.udata_value(),
            _ => None,
        }
    }

    pub(super) fn text(&self, name: DwAt) -> Option<String> {
        let value = self.attr(name)?;
        let bytes = self.unit.dwarf.attr_string(&self.unit.unit, value).ok()?;
        Some(String::from_utf8_lossy(bytes.slice()).into_owned())
    }

    /// Returns the language of the entry's unit (`DW_AT_language`).
    pub(super) fn language(&self) -> Option<gimli::DwLang> {
        let root = self.unit.unit.header.root_offset();
        match self
            .unit
            .unit
            .entry(root)
            .ok()?
            .attr_value(dw::DW_AT_language)?
        {
            AttributeValue::Language(language) => Some(language),
            _ => None,
        }
    }

    /// True if the entry's code covers a link address; `None` if it has no address ranges.
    pub(super) fn covers(&self, address: u64) -> Option<bool> {
        let ranges = self.ranges(MOST_RANGES);
        (!ranges.is_empty()).then(|| ranges.iter().any(|r| r.0 <= address && address < r.1))
    }

    /// Returns the first `limit` non-empty ranges of link addresses that the entry covers.
    pub(super) fn ranges(&self, limit: usize) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        if !self.has(dw::DW_AT_low_pc) && !self.has(dw::DW_AT_ranges) {
            return found;
        }
        let (dwarf, unit) = (&self.unit.dwarf, &self.unit.unit);
        let begin = self.attr(dw::DW_AT_low_pc);
        let begin = begin.and_then(|value| dwarf.attr_address(unit, value).ok().flatten());
        if begin.is_some_and(|begin| wraps(begin, self.attr(dw::DW_AT_high_pc))) {
            return found;
        }
        if let Ok(mut ranges) = dwarf.die_ranges(unit, &self.entry) {
            while let Ok(Some(range)) = ranges.next() {
                if found.len() == limit {
                    break;
                }
                if range.begin < range.end {
                    found.push((range.begin, range.end));
                }
            }
        }
        found
    }

    /// Returns the entry point that the entry names: `DW_AT_entry_pc`. It may lie outside of the ranges.
    pub(super) fn named_entry(&self) -> Option<u64> {
        let (dwarf, unit) = (&self.unit.dwarf, &self.unit.unit);
        let address = |name| dwarf.attr_address(unit, self.attr(name)?).ok()?;
        match self.number(dw::DW_AT_entry_pc) {
            // An offset from the low address, in DWARF 5.
            Some(distance) => address(dw::DW_AT_low_pc)
                .or_else(|| self.ranges(1).first().map(|range| range.0))
                .and_then(|low| low.checked_add(distance)),
            None => address(dw::DW_AT_entry_pc),
        }
    }

    /// True if the entry has code.
    pub(super) fn has_code(&self) -> bool {
        self.has(dw::DW_AT_low_pc) || self.has(dw::DW_AT_ranges)
    }
}

/// Maximum number of ranges examined for one entry.
const MOST_RANGES: usize = 1 << 16;

impl<'a> Debug<'a> {
    pub(super) fn die(&self, key: DieKey) -> Result<Die<'a>, DebugError> {
        let unit = self.unit(key.unit)?;
        let entry = unit.unit.entry(key.offset)?;
        self.spend(1 + entry.attrs().len() as u64)?;
        Ok(Die { unit, entry })
    }

    /// Returns the entry point of a function or of an inlined copy: `DW_AT_entry_pc`; else the start of its
    /// first range or, of a function whose code lies in several places, of the range that its own symbol
    /// begins: the linker sorts them, and one that is rarely executed may come first.
    pub(super) fn entry_address(&self, die: &Die<'a>) -> Option<u64> {
        if let Some(entry) = die.named_entry()
            && die
                .covers(entry)
                .unwrap_or_else(|| self.is_in_function(die, entry))
        {
            return Some(entry);
        }
        let limit = match die.tag() == dw::DW_TAG_subprogram {
            true => MOST_RANGES,
            false => 1,
        };
        let ranges = die.ranges(limit);
        let first = ranges.first()?.0;
        if ranges.len() < 2 {
            return Some(first);
        }
        let Ok(symbols) = self.object.symbols() else {
            return Some(first);
        };
        let begins = ranges.iter().filter_map(|range| {
            let function = symbols.function_starting_at(range.0)?;
            (function.is_named() && !symbols.is_split_off(function)).then_some(function)
        });
        let begins: Vec<_> = begins.collect();
        let name = self
            .linkage_name_of(die)
            .or_else(|| self.name_of(die))
            .unwrap_or_default();
        let own = begins
            .iter()
            .find(|function| symbols.names(function).any(|own| own.linkage == name))
            .or(begins.first());
        Some(own.map_or(first, |function| function.extent.start))
    }

    /// True for the place of an inlined copy without any code.
    fn is_in_function(&self, die: &Die<'a>, entry: u64) -> bool {
        let symbols = self.object.symbols();
        die.tag() == dw::DW_TAG_inlined_subroutine
            && symbols.is_ok_and(|symbols| symbols.function_at(entry).is_some())
    }

    pub(super) fn root(&self, unit: &Rc<Loaded<'a>>) -> Result<Die<'a>, DebugError> {
        let offset = unit.unit.header.root_offset();
        self.die(DieKey {
            unit: unit.key,
            offset,
        })
    }

    /// Returns the direct children of an entry.
    pub(super) fn children(&self, die: &Die<'a>) -> Result<Vec<Die<'a>>, DebugError> {
        let mut found = Vec::new();
        if !die.entry.has_children() {
            return Ok(found);
        }
        let unit = &die.unit;
        let mut cursor = unit.unit.entries_at_offset(die.entry.offset())?;
        cursor.next_entry()?;
        let mut wanted = None;
        // `next_entry` descends into an entry, `next_sibling` skips its children.
        let mut more = cursor.next_entry()?;
        while more {
            let Some(entry) = cursor.current() else { break };
            let depth = entry.depth();
            if *wanted.get_or_insert(depth) != depth {
                break;
            }
            self.spend(1 + entry.attrs().len() as u64)?;
            found.push(Die {
                unit: unit.clone(),
                entry: entry.clone(),
            });
            let before = cursor.offset();
            more = cursor.next_sibling()?.is_some();
            self.spend((cursor.offset().0.saturating_sub(before.0) / 8) as u64)?;
        }
        Ok(found)
    }

    /// Returns the entry that an attribute refers to.
    pub(super) fn reference(
        &self,
        die: &Die<'a>,
        name: DwAt,
    ) -> Result<Option<DieKey>, DebugError> {
        let Some(value) = die.attr(name) else {
            return Ok(None);
        };
        self.resolve(die.unit.key, value)
    }

    fn resolve(&self, from: UnitKey, value: Value<'a>) -> Result<Option<DieKey>, DebugError> {
        Ok(match value {
            AttributeValue::UnitRef(offset) => Some(DieKey { unit: from, offset }),
            AttributeValue::DebugInfoRef(offset) => Some(self.at(from.space, offset.0)?),
            AttributeValue::DebugInfoRefSup(offset) => Some(self.at(Space::Supplement, offset.0)?),
            AttributeValue::DebugTypesRef(signature) => Some(self.by_signature(from, signature.0)?),
            _ => None,
        })
    }

    /// Returns the entry at an offset of `.debug_info`.
    pub(super) fn at(&self, space: Space, offset: usize) -> Result<DieKey, DebugError> {
        let heads = self.heads(space)?;
        let info = heads.partition_point(|head| !head.key.in_types);
        let heads = &heads[..info];
        let after = heads.partition_point(|head| head.key.offset <= offset);
        let head = after.checked_sub(1).and_then(|index| heads.get(index));
        match head.filter(|head| offset < head.end) {
            Some(head) => Ok(DieKey {
                unit: head.key,
                offset: gimli::UnitOffset(offset - head.key.offset),
            }),
            None => Err(DebugError::Damaged("a reference to nothing")),
        }
    }

    fn by_signature(&self, from: UnitKey, signature: u64) -> Result<DieKey, DebugError> {
        let find = |space| -> Result<Option<DieKey>, DebugError> {
            let heads = self.heads(space)?;
            self.spend(heads.len() as u64 / 8)?;
            Ok(heads.iter().find_map(|head| {
                let (own, offset) = head.type_of?;
                (own == signature).then_some(DieKey {
                    unit: head.key,
                    offset,
                })
            }))
        };
        if let Some(found) = find(from.space)? {
            return Ok(found);
        }
        let missing = DebugError::Damaged("a type without its unit");
        let found = match from.space {
            Space::Split(unit) | Space::SplitType(unit, _) => {
                find(Space::SplitType(unit, signature))?
            }
            _ => None,
        };
        found.ok_or(missing)
    }

    /// Returns an entry and the entries that complete it: the original that it is a copy of, and
    /// its earlier declaration.
    pub(super) fn with_origins(&self, die: &Die<'a>) -> Vec<Die<'a>> {
        let mut found = vec![die.clone()];
        for _ in 0..ORIGINS {
            let last = &found[found.len() - 1];
            let next = [dw::DW_AT_abstract_origin, dw::DW_AT_specification]
                .into_iter()
                .find_map(|name| self.reference(last, name).ok().flatten());
            match next.map(|key| self.die(key)) {
                Some(Ok(next)) => found.push(next),
                _ => break,
            }
        }
        found
    }

    /// Returns a string attribute of an entry, or of an entry that completes it.
    pub(super) fn text_of(&self, die: &Die<'a>, name: DwAt) -> Option<String> {
        // Usually the entry itself has the attribute, so no other entry is read.
        die.text(name)
            .or_else(|| self.with_origins(die).iter().find_map(|die| die.text(name)))
    }

    /// Returns the name as in the source, without namespaces.
    pub(super) fn name_of(&self, die: &Die<'a>) -> Option<String> {
        self.text_of(die, dw::DW_AT_name)
    }

    /// Returns the linkage name, if the language mangles names.
    pub(super) fn linkage_name_of(&self, die: &Die<'a>) -> Option<String> {
        self.text_of(die, dw::DW_AT_linkage_name)
            .or_else(|| self.text_of(die, dw::DW_AT_MIPS_linkage_name))
    }

    /// Returns the linkage name of what a body is made of, if that has another one than the body itself: GCC
    /// describes a constructor once (`C4`), for all its symbols (`C1`, `C2`).
    pub(super) fn linkage_name_of_origin(&self, die: &Die<'a>) -> Option<String> {
        let own = die.text(dw::DW_AT_linkage_name)?;
        let origin = self.reference(die, dw::DW_AT_abstract_origin).ok()??;
        let whole = self.linkage_name_of(&self.die(origin).ok()?)?;
        (whole != own).then_some(whole)
    }

    /// Returns the type of an entry, from the entry itself or from one that completes it.
    pub(super) fn type_of(&self, die: &Die<'a>) -> Result<Option<DieKey>, DebugError> {
        for die in self.with_origins(die) {
            if die.has(dw::DW_AT_type) {
                return self.reference(&die, dw::DW_AT_type);
            }
        }
        Ok(None)
    }
}
