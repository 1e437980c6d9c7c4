//! The namespaces and classes around an entry.

use std::rc::Rc;

use gimli::constants as dw;

use super::die::Die;
use super::error::DebugError;
use super::units::{Debug, DieKey};

/// Maximum nesting of local classes (classes in functions) followed outwards.
const NESTED: usize = 32;

/// A namespace or class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// Empty for an anonymous namespace, and for a class without a name.
    pub name: String,
    /// True if its names are also names of the scope around it: an anonymous or `inline` namespace.
    pub transparent: bool,
    /// True if its contents are local to its unit: an anonymous namespace.
    pub local: bool,
    /// The class, if it is one.
    pub class: Option<DieKey>,
}

/// The namespaces and classes around an entry, innermost first.
#[derive(Debug, Default)]
pub(super) struct Parts(pub Vec<Part>);

impl Parts {
    /// Returns the qualified name of the innermost part (`net::Server`), without transparent
    /// parts. Empty at the top level.
    pub(super) fn seen(&self) -> String {
        seen(self.0.iter().rev())
    }
}

/// Like [`Parts::seen`], but takes the outermost part first.
pub(super) fn seen<'p>(parts: impl Iterator<Item = &'p Part>) -> String {
    let names = parts.filter(|part| !part.transparent);
    let names: Vec<&str> = names.map(|part| part.name.as_str()).collect();
    names.join("::")
}

impl<'a> Debug<'a> {
    /// Returns the [`Part`] that the entry of a namespace or class describes.
    pub(super) fn part(&self, die: &Die<'a>) -> Part {
        let namespace = die.tag() == dw::DW_TAG_namespace;
        let own = die.text(dw::DW_AT_name);
        let name = own.or_else(|| {
            // The class itself is in a type unit.
            let whole = self.reference(die, dw::DW_AT_signature).ok()??;
            self.die(whole).ok()?.text(dw::DW_AT_name)
        });
        let name = name.unwrap_or_default();
        Part {
            transparent: name.is_empty() || namespace && die.flag(dw::DW_AT_export_symbols),
            local: namespace && name.is_empty(),
            class: (!namespace).then(|| die.key()),
            name,
        }
    }

    /// Returns the namespaces and classes around an entry or, for an inlined copy, around the
    /// original. Functions around a class are skipped.
    pub(super) fn enclosing(&self, key: DieKey) -> Result<Rc<Parts>, DebugError> {
        if let Some(known) = self.around.borrow().get(&key) {
            return Ok(known.clone());
        }
        let mut parts = Parts::default();
        let mut at = key;
        for _ in 0..NESTED {
            let die = self.die(at)?;
            let declared = self.with_origins(&die);
            let declared = declared.last().map_or(at, Die::key);
            let mut function = None;
            for parent in self.parents(declared)? {
                let die = self.die(parent)?;
                match die.tag() {
                    dw::DW_TAG_namespace
                    | dw::DW_TAG_structure_type
                    | dw::DW_TAG_class_type
                    | dw::DW_TAG_union_type => parts.0.push(self.part(&die)),
                    dw::DW_TAG_subprogram | dw::DW_TAG_inlined_subroutine => {
                        function = Some(parent);
                        break;
                    }
                    _ => {}
                }
            }
            match function {
                Some(function) => at = function,
                None => break,
            }
        }
        let parts = Rc::new(parts);
        self.around.borrow_mut().insert(key, parts.clone());
        Ok(parts)
    }

    /// Returns the ancestors of an entry, innermost first.
    fn parents(&self, key: DieKey) -> Result<Vec<DieKey>, DebugError> {
        let unit = self.unit(key.unit)?;
        let mut entries = unit.unit.entries_raw(None)?;
        let mut parents: Vec<(isize, gimli::UnitOffset)> = Vec::new();
        while !entries.is_empty() {
            let (depth, offset) = (entries.next_depth(), entries.next_offset());
            if offset > key.offset {
                break;
            }
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            while parents.last().is_some_and(|&(at, _)| at >= depth) {
                parents.pop();
            }
            if offset == key.offset {
                let keys = parents.iter().rev();
                return Ok(keys.map(|&(_, offset)| DieKey { offset, ..key }).collect());
            }
            self.spend(1 + abbreviation.attributes().len() as u64 / 4)?;
            if abbreviation.has_children() {
                parents.push((depth, offset));
            }
            entries.skip_attributes(abbreviation.attributes())?;
        }
        Err(DebugError::Damaged("a reference to nothing"))
    }
}
