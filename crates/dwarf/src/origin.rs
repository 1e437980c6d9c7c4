//! Distinguishes bodies of one function from bodies of other functions with the same name.

use std::collections::HashMap;

use gimli::{AttributeValue, constants as dw};

use super::die::Die;
use super::lines::{file_path, normal};
use super::units::{Debug, DieKey, Space};

/// Identity of a function, as far as the debug information shows it.
///
/// Local functions of different source files may have the same name. Conversely, several
/// units may describe the same function: one defined in a header, or instantiated from a C++
/// template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// File, as its unit names it, and line of the declaration.
    pub declared: Option<(String, u64)>,
    /// The entry that all bodies in its unit refer to.
    root: DieKey,
    /// The linkage name (or C name) of a function that all units share.
    external: Option<String>,
    /// The linkage name at the declaration, which identifies an overload.
    overload: Option<String>,
}

impl Origin {
    /// True if these two origins alone show that they are the same function: they share an entry
    /// or a linkage name, or are declared at the same line as the same overload.
    ///
    /// This relation is not transitive: a third origin may show that two others are the same.
    #[must_use]
    pub fn is_same(&self, other: &Origin) -> bool {
        self.root == other.root
            || (self.external.is_some() && self.external == other.external)
            || (self.declared.is_some()
                && self.declared == other.declared
                && self.overload == other.overload)
    }

    /// True for the external function with this linkage name, of any unit.
    #[must_use]
    pub fn is_external(&self, linkage_name: &str) -> bool {
        self.external.as_deref() == Some(linkage_name)
    }
}

/// Cache of declarations, by entry.
pub(super) type Declarations = HashMap<DieKey, Option<(String, u64)>>;

impl<'a> Debug<'a> {
    /// Returns the origin of the body at `die`.
    pub(super) fn origin(&self, die: &Die<'a>, known: &mut Declarations) -> Origin {
        let chain = self.with_origins(die);
        let root = &chain[chain.len() - 1];
        let declared = known
            .entry(root.key())
            .or_insert_with(|| chain.iter().rev().find_map(|die| self.declaration(die)))
            .clone();
        let is_external = chain.iter().any(|die| die.flag(dw::DW_AT_external));
        // A plain name is enough in C. In C++ it lacks its namespace.
        let shared = self
            .linkage_name_of(die)
            .or_else(|| self.name_of(die).filter(|_| !is_cpp(die)));
        Origin {
            declared,
            root: root.key(),
            external: shared.filter(|_| is_external),
            overload: root.text(dw::DW_AT_linkage_name),
        }
    }

    /// Returns file and line of the declaration, from the entry itself.
    fn declaration(&self, die: &Die<'a>) -> Option<(String, u64)> {
        let line = die.unsigned(dw::DW_AT_decl_line)?;
        let file = match die.attr(dw::DW_AT_decl_file)? {
            AttributeValue::FileIndex(file) => file,
            value => value.udata_value()?,
        };
        // The file table of a split unit is in the program, except for type units.
        let key = die.unit.key;
        let unit = match key.space {
            Space::Split(offset) if !key.in_types => self.main_unit(offset).ok(),
            _ => None,
        };
        let unit = unit.as_ref().unwrap_or(&die.unit);
        let header = unit.unit.line_program.as_ref()?.header();
        Some((normal(&file_path(unit, header, file)?), line))
    }
}

/// True for C++, where `DW_AT_name` does not include the namespaces.
pub(super) fn is_cpp(die: &Die<'_>) -> bool {
    matches!(
        die.language(),
        Some(
            dw::DW_LANG_C_plus_plus
                | dw::DW_LANG_C_plus_plus_03
                | dw::DW_LANG_C_plus_plus_11
                | dw::DW_LANG_C_plus_plus_14
                | dw::DW_LANG_C_plus_plus_17
                | dw::DW_LANG_C_plus_plus_20
                | dw::DW_LANG_ObjC_plus_plus
        )
    )
}
