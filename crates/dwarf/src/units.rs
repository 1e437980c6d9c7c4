//! Compilation units: their list, the addresses they cover, and their entries.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::OnceLock;

use gimli::{
    AbbreviationsCacheStrategy, AttributeValue, DwarfSections, EndianSlice, LittleEndian,
    UnitSectionOffset, UnitType,
};

use super::error::DebugError;
use super::find::{self, DebugData};
use capriole_object::ObjectFile;
use capriole_prologue::Sum;

pub(super) type Bytes<'a> = EndianSlice<'a, LittleEndian>;
pub(super) type Dwarf<'a> = gimli::Dwarf<Bytes<'a>>;

/// Maximum number of entries and attributes that one query may read, not counting those that
/// an index reads once. The largest functions have about 100,000.
const WORK: u64 = 20_000_000;

/// The file that contains an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Space {
    Main,
    Supplement,
    /// The split part (`.dwo`) of the unit at this offset.
    Split(usize),
    /// A type unit in a `.dwp`, by signature.
    SplitType(usize, u64),
}

/// A unit, by its offset in `.debug_info` or `.debug_types`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct UnitKey {
    pub space: Space,
    pub in_types: bool,
    pub offset: usize,
}

/// An entry, by its offset in its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct DieKey {
    pub unit: UnitKey,
    pub offset: gimli::UnitOffset,
}

/// A unit's place, without its entries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub key: UnitKey,
    /// Offset after its last byte.
    pub end: usize,
    /// Signature and offset of the type that a type unit describes.
    pub type_of: Option<(u64, gimli::UnitOffset)>,
}

/// Description of a unit of the main file.
#[derive(Debug)]
pub(super) struct Unit {
    pub head: Head,
    /// Link addresses that its code covers; empty if unknown.
    pub ranges: Vec<(u64, u64)>,
    /// `.dwo` file and the directory that its name is relative to.
    pub split: Option<(String, Option<String>)>,
    split_sections: OnceLock<Result<Box<DwarfSections<Vec<u8>>>, DebugError>>,
}

/// A unit whose entries can be read.
pub(super) struct Loaded<'a> {
    pub key: UnitKey,
    pub dwarf: Rc<Dwarf<'a>>,
    pub unit: gimli::Unit<Bytes<'a>>,
    /// Its functions by address, once read.
    pub bodies: OnceCell<Rc<super::scope::Bodies>>,
}

/// Queries of the debug information of a file.
///
/// It is cheap to create, by [`ObjectFile::debug`]; expensive results are cached in the
/// [`ObjectFile`]. All addresses are link addresses. Whatever the file contains, each query ends
/// after a bounded amount of work, with a result or [`DebugError`].
pub struct Debug<'a> {
    pub(super) object: &'a ObjectFile,
    pub(super) data: &'a DebugData,
    spaces: RefCell<HashMap<Space, Rc<Dwarf<'a>>>>,
    heads: RefCell<HashMap<Space, Rc<[Head]>>>,
    loaded: RefCell<HashMap<UnitKey, Rc<Loaded<'a>>>>,
    /// Cache of the first statements of functions.
    pub(super) first_statements: RefCell<HashMap<DieKey, u64>>,
    /// Cache of canonical frame addresses.
    pub(super) frames: RefCell<HashMap<u64, Option<Sum>>>,
    /// Cache of the namespaces and classes around entries.
    pub(super) around: RefCell<HashMap<DieKey, Rc<super::namespace::Parts>>>,
    /// Cache of the rows of line tables, by their offset.
    pub(super) rows: RefCell<HashMap<usize, Rc<[super::lines::Row]>>>,
    /// True while places for a message are tried.
    pub(super) trying: Cell<bool>,
    work: Cell<u64>,
}

impl std::fmt::Debug for Debug<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Debug")
            .field("object", &self.object.path())
            .field("found_in", &self.data.path)
            .finish_non_exhaustive()
    }
}

#[expect(clippy::ptr_arg, reason = "what the sections are made of")]
pub(super) fn slice(bytes: &Vec<u8>) -> Bytes<'_> {
    EndianSlice::new(bytes, LittleEndian)
}

impl<'a> Debug<'a> {
    pub(crate) fn new(object: &'a ObjectFile, data: &'a DebugData) -> Debug<'a> {
        Debug {
            object,
            data,
            spaces: RefCell::default(),
            heads: RefCell::default(),
            loaded: RefCell::default(),
            first_statements: RefCell::default(),
            frames: RefCell::default(),
            around: RefCell::default(),
            rows: RefCell::default(),
            trying: Cell::new(false),
            work: Cell::new(WORK),
        }
    }

    /// Begins a new query, with a new work limit.
    pub(super) fn begin(&self) {
        self.work.set(WORK);
    }

    /// Charges `amount` entries or attributes to the query.
    pub(super) fn spend(&self, amount: u64) -> Result<(), DebugError> {
        let left = self.work.get().checked_sub(amount);
        self.work.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or(DebugError::TooMuch)
    }

    pub(super) fn dwarf(&self, space: Space) -> Result<Rc<Dwarf<'a>>, DebugError> {
        if let Some(dwarf) = self.spaces.borrow().get(&space) {
            return Ok(dwarf.clone());
        }
        let dwarf = Rc::new(self.open_space(space)?);
        self.spaces.borrow_mut().insert(space, dwarf.clone());
        Ok(dwarf)
    }

    fn open_space(&self, space: Space) -> Result<Dwarf<'a>, DebugError> {
        let data = self.data;
        match space {
            Space::Main => {
                let mut dwarf = data.main.borrow(slice);
                if let Some(supplement) = &data.supplement {
                    dwarf.set_sup(supplement.borrow(slice));
                }
                dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::All);
                Ok(dwarf)
            }
            Space::Supplement => match (&data.supplement, &data.supplement_missing) {
                (Some(supplement), _) => {
                    let mut dwarf = supplement.borrow(slice);
                    dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::All);
                    Ok(dwarf)
                }
                (None, Some(path)) => Err(DebugError::SupplementMissing(path.clone())),
                (None, None) => Err(DebugError::Damaged("no supplementary file is named")),
            },
            Space::Split(offset) => self.open_split(offset),
            Space::SplitType(_, signature) => {
                let parent = self.dwarf(Space::Main)?;
                let package = self.package()?.ok_or(NO_TYPE)?;
                let signature = gimli::DebugTypeSignature(signature);
                package.find_tu(signature, &parent)?.ok_or(NO_TYPE)
            }
        }
    }

    fn package(&self) -> Result<Option<gimli::DwarfPackage<Bytes<'a>>>, DebugError> {
        let empty = EndianSlice::new(&[], LittleEndian);
        let package = self.data.package.as_ref();
        Ok(package
            .map(|package| package.borrow(slice, empty))
            .transpose()?)
    }

    fn open_split(&self, offset: usize) -> Result<Dwarf<'a>, DebugError> {
        let parent = self.dwarf(Space::Main)?;
        let units = self.units()?;
        let is_it = |unit: &&Unit| unit.head.key.offset == offset && !unit.head.key.in_types;
        let unit = units.iter().find(is_it).ok_or(NO_UNIT)?;
        let id = self.main_unit(offset)?.unit.dwo_id;
        if let (Some(package), Some(id)) = (self.package()?, id)
            && let Some(dwarf) = package.find_cu(id, &parent)?
        {
            return Ok(dwarf);
        }
        let (name, directory) = unit.split.as_ref().ok_or(NO_UNIT)?;
        let sections = unit
            .split_sections
            .get_or_init(|| find::split(name, directory.as_deref(), &self.data.path).map(Box::new));
        let sections = sections.as_ref().map_err(Clone::clone)?;
        let mut dwarf = sections.borrow(slice);
        dwarf.make_dwo(&parent);
        Ok(dwarf)
    }

    /// Returns the unit at `offset` in the main file itself, not its split part.
    pub(super) fn main_unit(&self, offset: usize) -> Result<Rc<Loaded<'a>>, DebugError> {
        self.unit(UnitKey {
            space: Space::Main,
            in_types: false,
            offset,
        })
    }

    /// Returns a unit with its entries.
    pub(super) fn unit(&self, key: UnitKey) -> Result<Rc<Loaded<'a>>, DebugError> {
        if let Some(unit) = self.loaded.borrow().get(&key) {
            return Ok(unit.clone());
        }
        self.spend(10)?;
        let dwarf = self.dwarf(key.space)?;
        let mut unit = load(&dwarf, key)?;
        if let Space::Split(offset) | Space::SplitType(offset, _) = key.space {
            let skeleton = self.main_unit(offset)?;
            if key.space == Space::Split(offset)
                && !key.in_types
                && unit.dwo_id != skeleton.unit.dwo_id
                && matches!(
                    unit.header.type_(),
                    UnitType::SplitCompilation(_) | UnitType::Compilation
                )
            {
                return Err(DebugError::Damaged("a .dwo file is of another build"));
            }
            unit.copy_relocated_attributes(&skeleton.unit);
        }
        let unit = Rc::new(Loaded {
            key,
            dwarf,
            unit,
            bodies: OnceCell::new(),
        });
        self.loaded.borrow_mut().insert(key, unit.clone());
        Ok(unit)
    }

    /// Fails if the common file of dwz(1) is missing, because some names are in it.
    pub(super) fn all_there(&self) -> Result<(), DebugError> {
        match &self.data.supplement_missing {
            Some(path) => Err(DebugError::SupplementMissing(path.clone())),
            None => Ok(()),
        }
    }

    /// Returns the units of a file, in the order of their offsets.
    pub(super) fn heads(&self, space: Space) -> Result<Rc<[Head]>, DebugError> {
        if let Some(heads) = self.heads.borrow().get(&space) {
            return Ok(heads.clone());
        }
        let heads: Rc<[Head]> = if space == Space::Main && self.data.units.get().is_some() {
            self.units()?.iter().map(|unit| unit.head).collect()
        } else {
            heads(&*self.dwarf(space)?, space).into()
        };
        self.heads.borrow_mut().insert(space, heads.clone());
        Ok(heads)
    }

    /// Returns the units of the main file with their descriptions, by offset.
    pub(super) fn units(&self) -> Result<&'a [Unit], DebugError> {
        let read = || {
            let dwarf = self.dwarf(Space::Main)?;
            Ok(heads(&dwarf, Space::Main)
                .into_iter()
                .map(|head| describe(&dwarf, head))
                .collect())
        };
        let units = self.data.units.get_or_init(read);
        units.as_deref().map_err(Clone::clone)
    }

    /// Returns the unit to read for a unit of the main file: its split part, if there is one.
    pub(super) fn whole(&self, unit: &Unit) -> Result<Rc<Loaded<'a>>, DebugError> {
        if unit.split.is_none() {
            return self.unit(unit.head.key);
        }
        let space = Space::Split(unit.head.key.offset);
        let heads = self.heads(space)?;
        let main = heads.iter().find(|head| head.type_of.is_none());
        self.unit(main.ok_or(NO_UNIT)?.key)
    }

    /// Returns the unit that describes the code at a link address.
    pub(super) fn unit_at(&self, address: u64) -> Result<Rc<Loaded<'a>>, DebugError> {
        let units = self.units()?;
        let covers = |unit: &&Unit| unit.ranges.iter().any(|r| r.0 <= address && address < r.1);
        let unit = units.iter().find(covers);
        self.whole(unit.ok_or(DebugError::NoFunction(address))?)
    }
}

const NO_UNIT: DebugError = DebugError::Damaged("a reference to no unit");
const NO_TYPE: DebugError = DebugError::Damaged("a type without its unit");

fn load<'a>(dwarf: &Dwarf<'a>, key: UnitKey) -> Result<gimli::Unit<Bytes<'a>>, DebugError> {
    let header = if key.in_types {
        let mut units = dwarf.type_units();
        loop {
            let unit = units.next()?.ok_or(NO_UNIT)?;
            if offset_of(unit.offset()) == key.offset {
                break unit;
            }
        }
    } else {
        dwarf.unit_header(gimli::DebugInfoOffset(key.offset))?
    };
    Ok(dwarf.unit(header)?)
}

fn offset_of(offset: UnitSectionOffset) -> usize {
    // `UnitKey::in_types` distinguishes `.debug_types` from `.debug_info`.
    offset.0
}

/// Returns the units of a file, up to the first damaged one.
fn heads(dwarf: &Dwarf<'_>, space: Space) -> Vec<Head> {
    let mut found = Vec::new();
    let mut add = |header: gimli::UnitHeader<Bytes<'_>>, in_types| {
        let offset = offset_of(header.offset());
        let type_of = match header.type_() {
            UnitType::Type {
                type_signature,
                type_offset,
            }
            | UnitType::SplitType {
                type_signature,
                type_offset,
            } => Some((type_signature.0, type_offset)),
            _ => None,
        };
        found.push(Head {
            key: UnitKey {
                space,
                in_types,
                offset,
            },
            end: offset.saturating_add(header.length_including_self()),
            type_of,
        });
    };
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        add(header, false);
    }
    let mut units = dwarf.type_units();
    while let Ok(Some(header)) = units.next() {
        add(header, true);
    }
    found
}

fn describe(dwarf: &Dwarf<'_>, head: Head) -> Unit {
    let mut described = Unit {
        head,
        ranges: Vec::new(),
        split: None,
        split_sections: OnceLock::new(),
    };
    if head.type_of.is_some() {
        return described;
    }
    let Ok(unit) = load(dwarf, head.key) else {
        return described;
    };
    let root = unit.entry(unit.header.root_offset()).ok();
    let high = root.and_then(|root| root.attr_value(gimli::DW_AT_high_pc));
    if wraps(unit.low_pc, high) {
        return described;
    }
    if let Ok(mut ranges) = dwarf.unit_ranges(&unit) {
        while let Ok(Some(range)) = ranges.next() {
            if range.begin < range.end && described.ranges.len() < MOST_RANGES {
                described.ranges.push((range.begin, range.end));
            }
        }
    }
    let text = |value| {
        let bytes = dwarf.attr_string(&unit, value).ok()?;
        Some(String::from_utf8_lossy(bytes.slice()).into_owned())
    };
    if unit.dwo_id.is_some() {
        let name = unit.dwo_name().ok().flatten().and_then(text);
        let directory = unit.comp_dir.map(|dir| dir.to_string_lossy().into_owned());
        described.split = name.map(|name| (name, directory));
    }
    described
}

/// Maximum number of ranges kept for one unit.
const MOST_RANGES: usize = 1 << 20;

/// True if `DW_AT_high_pc` is a size that reaches from the low address past the end of the
/// address space. Such an entry is damaged, and gimli adds the two without a check.
pub(super) fn wraps(low: u64, high: Option<AttributeValue<Bytes<'_>>>) -> bool {
    let size = high.and_then(|value| value.udata_value());
    low.checked_add(size.unwrap_or(0)).is_none()
}
