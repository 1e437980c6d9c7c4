//! What has which name: functions, where they were inlined, global variables, structs.
//!
//! All units are read once for it, the first time that somebody asks for a name.

use std::collections::HashMap;
use std::rc::Rc;

use gimli::constants as dw;

use super::die::Die;
use super::error::DebugError;
use super::units::{Debug, DieKey, Loaded};

/// Attributes read for each byte of debug information, at most: there are forms of no bytes.
const ATTRIBUTES: u64 = 40;

/// One body of a function.
#[derive(Debug, Clone, Copy)]
pub(super) struct Body {
    /// The function itself or the copy that was inlined.
    pub key: DieKey,
    /// Link address at which it is entered.
    pub address: u64,
    /// The function that it was inlined into.
    pub within: Option<DieKey>,
}

#[derive(Debug, Default)]
pub(super) struct Names {
    pub bodies: Vec<Body>,
    /// Indices of `bodies` by name, and by the linker's name.
    pub functions: HashMap<String, Vec<u32>>,
    /// Global and static variables that have a place, by name and by the linker's name.
    pub variables: HashMap<String, DieKey>,
    /// Structs, unions and classes by name, with their sizes; none if there are several
    /// sizes.
    pub records: HashMap<String, Option<(DieKey, u64)>>,
    /// Why a part of it could not be read.
    pub problem: Option<DebugError>,
}

/// Plain and linker's name.
type Called = (Option<String>, Option<String>);

struct Reader<'d, 'a> {
    debug: &'d Debug<'a>,
    names: Names,
    called: HashMap<DieKey, Called>,
    attributes_left: u64,
}

impl<'a> Debug<'a> {
    pub(super) fn names(&self) -> Result<&'a Names, DebugError> {
        let names = self.data.names.get_or_init(|| {
            let units = self.units()?;
            let mut reader = Reader {
                debug: self,
                names: Names::default(),
                called: HashMap::new(),
                attributes_left: 0,
            };
            for unit in units {
                // Each unit is a question of its own, as regards the work.
                self.begin();
                let read = self.whole(unit).and_then(|unit| reader.unit(&unit));
                if let Err(problem) = read {
                    reader.names.problem.get_or_insert(problem);
                }
            }
            self.begin();
            Ok(reader.names)
        });
        names.as_ref().map_err(Clone::clone)
    }

    /// The whole of a struct that is only declared where `die` stands.
    pub(super) fn definition(&self, die: &Die<'a>) -> Result<Option<Die<'a>>, DebugError> {
        let Some(name) = die.text(dw::DW_AT_name) else {
            return Ok(None);
        };
        match self.names()?.records.get(&name) {
            Some(Some((key, _))) => self.die(*key).map(Some),
            _ => Ok(None),
        }
    }
}

impl<'a> Reader<'_, 'a> {
    fn unit(&mut self, unit: &Rc<Loaded<'a>>) -> Result<(), DebugError> {
        let size = unit.unit.header.length_including_self() as u64;
        self.attributes_left = size.saturating_mul(ATTRIBUTES);
        let mut entries = unit.unit.entries_raw(None)?;
        // The functions around the present entry, and their depths.
        let mut outer: Vec<(isize, DieKey)> = Vec::new();
        let mut attributes = Vec::new();
        while !entries.is_empty() {
            let depth = entries.next_depth();
            let offset = entries.next_offset();
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            let count = abbreviation.attributes().len() as u64;
            self.attributes_left = self
                .attributes_left
                .checked_sub(count)
                .ok_or(DebugError::TooMuch)?;
            while outer.last().is_some_and(|&(at, _)| at >= depth) {
                outer.pop();
            }
            let tag = abbreviation.tag();
            let wanted = match tag {
                dw::DW_TAG_subprogram | dw::DW_TAG_inlined_subroutine => true,
                dw::DW_TAG_variable => outer.is_empty(),
                dw::DW_TAG_structure_type | dw::DW_TAG_union_type | dw::DW_TAG_class_type => true,
                _ => false,
            };
            if !wanted {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            attributes.clear();
            entries.read_attributes(abbreviation.attributes(), &mut attributes)?;
            let key = DieKey {
                unit: unit.key,
                offset,
            };
            let entry = gimli::DebuggingInformationEntry {
                tag,
                has_children: abbreviation.has_children(),
                attrs: attributes.clone(),
                offset,
                depth,
            };
            let die = Die {
                unit: unit.clone(),
                entry,
            };
            match tag {
                dw::DW_TAG_variable => self.variable(&die),
                dw::DW_TAG_subprogram | dw::DW_TAG_inlined_subroutine => {
                    let within = outer.last().map(|&(_, key)| key);
                    self.function(&die, within);
                    if tag == dw::DW_TAG_subprogram {
                        outer.push((depth, key));
                    }
                }
                _ => self.record(&die),
            }
        }
        Ok(())
    }

    fn function(&mut self, die: &Die<'a>, within: Option<DieKey>) {
        if !die.has_code() {
            return;
        }
        let Some(address) = die.entry_address() else {
            return;
        };
        // Functions that the linker dropped stand at address 0 or 1 or so.
        if !self.debug.object.is_text(address) {
            return;
        }
        let index = self.names.bodies.len() as u32;
        let (name, linkage) = self.called(die);
        for name in [&name, &linkage].into_iter().flatten() {
            let indices = self.names.functions.entry(name.clone()).or_default();
            if indices.last() != Some(&index) {
                indices.push(index);
            }
        }
        self.names.bodies.push(Body {
            key: die.key(),
            address,
            within: within.filter(|_| die.tag() == dw::DW_TAG_inlined_subroutine),
        });
    }

    fn called(&mut self, die: &Die<'a>) -> Called {
        let origin = [dw::DW_AT_abstract_origin, dw::DW_AT_specification]
            .into_iter()
            .find_map(|name| self.debug.reference(die, name).ok().flatten());
        let read = |die: &Die<'a>| (self.debug.name_of(die), self.debug.linkage_name_of(die));
        // A body may have a linker's name of its own.
        let Some(origin) = origin.filter(|_| !die.has(dw::DW_AT_linkage_name)) else {
            return read(die);
        };
        if let Some(called) = self.called.get(&origin) {
            return called.clone();
        }
        let called = read(die);
        self.called.insert(origin, called.clone());
        called
    }

    fn variable(&mut self, die: &Die<'a>) {
        let placed = die.has(dw::DW_AT_location) || die.has(dw::DW_AT_const_value);
        if !placed || die.flag(dw::DW_AT_declaration) {
            return;
        }
        let (name, linkage) = self.called(die);
        for name in [name, linkage].into_iter().flatten() {
            self.names.variables.entry(name).or_insert(die.key());
        }
    }

    fn record(&mut self, die: &Die<'a>) {
        if die.flag(dw::DW_AT_declaration) {
            return;
        }
        let (Some(name), Some(size)) = (die.text(dw::DW_AT_name), die.number(dw::DW_AT_byte_size))
        else {
            return;
        };
        let key = die.key();
        self.names
            .records
            .entry(name)
            .and_modify(|known| {
                if known.is_some_and(|(_, other)| other != size) {
                    *known = None;
                }
            })
            .or_insert(Some((key, size)));
    }
}
