//! Index by name of functions, their inlined copies, global variables and structs.
//!
//! The first lookup of a name reads all units once to build it.

use std::collections::HashMap;
use std::rc::Rc;

use gimli::constants as dw;

use super::die::Die;
use super::error::DebugError;
use super::globals::{Global, Import, Scopes, State};
use super::namespace::Part;
use super::units::{Debug, DieKey, Loaded, UnitKey};

/// Maximum number of attributes read per byte of debug information: some forms take no bytes.
const ATTRIBUTES: u64 = 40;

/// One body of a function.
#[derive(Debug, Clone, Copy)]
pub(super) struct Body {
    /// The function itself, or an inlined copy of it.
    pub key: DieKey,
    /// Link address at which it is entered.
    pub address: u64,
    /// The function that it was inlined into.
    pub within: Option<DieKey>,
}

#[derive(Debug, Default)]
pub(super) struct Names {
    pub bodies: Vec<Body>,
    /// Indices into `bodies`, by name and by linkage name.
    pub functions: HashMap<String, Vec<u32>>,
    /// Global and static variables and static members, by name without namespaces.
    pub globals: HashMap<String, Vec<Global>>,
    /// Variables that have a location or a constant value, by linkage name.
    pub linked: HashMap<String, DieKey>,
    /// Namespaces and classes that variables are declared in.
    pub scopes: Scopes,
    /// `using` outside of functions, by unit.
    pub imports: HashMap<UnitKey, Vec<Import>>,
    /// Definitions of structs, unions and classes by name without namespaces: one of each size
    /// and source line.
    pub records: HashMap<String, Vec<Record>>,
    /// The first error, if a part could not be read.
    pub problem: Option<DebugError>,
}

/// A definition of a struct, union or class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub key: DieKey,
    size: u64,
    line: Option<u64>,
}

/// Maximum number of definitions kept for one name.
const MOST_RECORDS: usize = 16;

/// Plain name and linkage name.
type Called = (Option<String>, Option<String>);

struct Reader<'d, 'a> {
    debug: &'d Debug<'a>,
    names: Names,
    called: HashMap<DieKey, Called>,
    /// Scope of each variable, by the entry that defines or declares it.
    declared_in: HashMap<DieKey, u32>,
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
                declared_in: HashMap::new(),
                attributes_left: 0,
            };
            for unit in units {
                // Each unit has its own work limit, like a query.
                self.begin();
                let read = self.whole(unit).and_then(|unit| reader.unit(&unit));
                if let Err(problem) = read {
                    reader.names.problem.get_or_insert(problem);
                }
            }
            self.begin();
            reader.settle();
            self.begin();
            Ok(reader.names)
        });
        names.as_ref().map_err(Clone::clone)
    }

    /// Returns the definition of a struct that `die` only declares. `None` if there is none, or if
    /// several different ones have the name.
    pub(super) fn definition(&self, die: &Die<'a>) -> Result<Option<Die<'a>>, DebugError> {
        let Some(name) = die.text(dw::DW_AT_name) else {
            return Ok(None);
        };
        let all = self
            .names()?
            .records
            .get(&name)
            .map_or(&[][..], Vec::as_slice);
        if all.len() == MOST_RECORDS {
            return Ok(None);
        }
        let scope = |key: DieKey| Ok::<_, DebugError>(self.enclosing(key)?.seen());
        let own = match all.is_empty() {
            true => return Ok(None),
            false => scope(die.key())?,
        };
        let mut found: Option<DieKey> = None;
        for record in all {
            if scope(record.key)? != own {
                continue;
            }
            // A definition in the same unit takes precedence.
            if record.key.unit == die.key().unit {
                return self.die(record.key).map(Some);
            }
            match found {
                Some(found) if !self.is_same_record(found, record.key)? => return Ok(None),
                Some(_) => {}
                None => found = Some(record.key),
            }
        }
        found.map(|key| self.die(key)).transpose()
    }

    /// True if two structs have the same members at the same places.
    fn is_same_record(&self, one: DieKey, other: DieKey) -> Result<bool, DebugError> {
        let layout = |key| -> Result<_, DebugError> {
            let die = self.die(key)?;
            let mut members = Vec::new();
            for member in self.children(&die)? {
                if matches!(member.tag(), dw::DW_TAG_member | dw::DW_TAG_inheritance) {
                    let at = self
                        .layout(&member)?
                        .map(|member| (member.offset, member.bits));
                    members.push((member.text(dw::DW_AT_name), at));
                }
            }
            Ok((die.number(dw::DW_AT_byte_size), members))
        };
        Ok(layout(one)? == layout(other)?)
    }
}

impl<'a> Reader<'_, 'a> {
    fn unit(&mut self, unit: &Rc<Loaded<'a>>) -> Result<(), DebugError> {
        let size = unit.unit.header.length_including_self() as u64;
        self.attributes_left = size.saturating_mul(ATTRIBUTES);
        let mut entries = unit.unit.entries_raw(None)?;
        // The functions around the current entry, and their depths.
        let mut outer: Vec<(isize, DieKey)> = Vec::new();
        // The namespaces and classes around it.
        let mut around: Vec<(isize, Part)> = Vec::new();
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
            while around.last().is_some_and(|(at, _)| *at >= depth) {
                around.pop();
            }
            let tag = abbreviation.tag();
            // Up to DWARF 4, a static member of a class is declared as a member.
            let marks = [dw::DW_AT_external, dw::DW_AT_declaration];
            let is_static = || {
                abbreviation
                    .attributes()
                    .iter()
                    .any(|a| marks.contains(&a.name()))
            };
            let wanted = match tag {
                dw::DW_TAG_subprogram | dw::DW_TAG_inlined_subroutine => true,
                dw::DW_TAG_variable
                | dw::DW_TAG_namespace
                | dw::DW_TAG_imported_module
                | dw::DW_TAG_imported_declaration => outer.is_empty(),
                dw::DW_TAG_member => outer.is_empty() && is_static(),
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
                dw::DW_TAG_variable | dw::DW_TAG_member => self.variable(&die, &around),
                dw::DW_TAG_namespace => around.push((depth, self.debug.part(&die))),
                dw::DW_TAG_imported_module | dw::DW_TAG_imported_declaration => {
                    self.import(&die, &around);
                }
                dw::DW_TAG_subprogram | dw::DW_TAG_inlined_subroutine => {
                    let within = outer.last().map(|&(_, key)| key);
                    self.function(&die, within);
                    if tag == dw::DW_TAG_subprogram {
                        outer.push((depth, key));
                    }
                }
                _ => {
                    self.record(&die);
                    around.push((depth, self.debug.part(&die)));
                }
            }
        }
        Ok(())
    }

    fn function(&mut self, die: &Die<'a>, within: Option<DieKey>) {
        if !die.has_code() {
            return;
        }
        let Some(address) = self.debug.entry_address(die) else {
            return;
        };
        // Functions that the linker discarded have addresses such as 0 or 1.
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
        // A body may have its own linkage name.
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

    fn variable(&mut self, die: &Die<'a>, around: &[(isize, Part)]) {
        let scope = self
            .names
            .scopes
            .number(around.iter().map(|(_, part)| part));
        let value = die.has(dw::DW_AT_const_value);
        let placed = die.has(dw::DW_AT_location) || value;
        let (name, linkage) = self.called(die);
        let is_initial = value && die.flag(dw::DW_AT_declaration);
        if let Some(linkage) = linkage.filter(|_| placed && !is_initial) {
            self.names.linked.entry(linkage).or_insert(die.key());
        }
        let Some(name) = name else { return };
        self.declared_in.insert(die.key(), scope);
        let chain = self.debug.with_origins(die);
        let copies = chain
            .iter()
            .take_while(|die| die.has(dw::DW_AT_abstract_origin));
        let home = &chain[copies.count().min(chain.len() - 1)];
        let global = Global {
            key: die.key(),
            root: chain[chain.len() - 1].key(),
            home: home.unit.key,
            scope,
            external: chain.iter().any(|die| die.flag(dw::DW_AT_external)),
            state: match placed {
                true if is_initial => State::Initial,
                true => State::Placed,
                false if die.flag(dw::DW_AT_declaration) => State::Declared,
                false => State::Gone,
            },
        };
        self.names.globals.entry(name).or_default().push(global);
    }

    fn import(&mut self, die: &Die<'a>, around: &[(isize, Part)]) {
        let Ok(Some(what)) = self.debug.reference(die, dw::DW_AT_import) else {
            return;
        };
        let at = self
            .names
            .scopes
            .number(around.iter().map(|(_, part)| part));
        let import = Import {
            at: self.names.scopes.seen(at).to_owned(),
            what,
            module: die.tag() == dw::DW_TAG_imported_module,
        };
        let imports = self.names.imports.entry(die.unit.key).or_default();
        imports.push(import);
    }

    /// Gives each variable that has an earlier declaration the scope of that declaration.
    fn settle(&mut self) {
        for global in self.names.globals.values_mut().flatten() {
            if global.root == global.key {
                continue;
            }
            global.scope = match self.declared_in.get(&global.root) {
                Some(&scope) => scope,
                // The declaration is in a type unit or a common file of dwz(1).
                None => match self.debug.enclosing(global.root) {
                    Ok(parts) => self.names.scopes.number(parts.0.iter().rev()),
                    Err(problem) => {
                        self.names.problem.get_or_insert(problem);
                        continue;
                    }
                },
            };
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
        let (key, line) = (die.key(), die.unsigned(dw::DW_AT_decl_line));
        let all = self.names.records.entry(name).or_default();
        let is_known = |other: &Record| other.size == size && other.line == line;
        if all.len() < MOST_RECORDS && !all.iter().any(is_known) {
            all.push(Record { key, size, line });
        }
    }
}
