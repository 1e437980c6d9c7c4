//! Which bodies are of one function, and which only of functions that have the same name.

use std::collections::HashMap;

use gimli::{AttributeValue, constants as dw};

use super::die::Die;
use super::lines::{file_path, normal};
use super::units::{Debug, DieKey, Space};

/// Where a function comes from, as far as debug information says.
///
/// Local functions of several source files may have one name. On the other hand several units
/// may describe the same function: what a header defines, and what C++ makes of templates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// File, as its unit calls it, and line of the declaration.
    pub declared: Option<(String, u64)>,
    /// The entry that all bodies in its unit refer to.
    root: DieKey,
    /// The linker's name (or that of C) of a function that all units share.
    external: Option<String>,
    /// The linker's name where the function is declared: that of an overload.
    overload: Option<String>,
}

impl Origin {
    /// Both are of one function, in so far as these two say it: they are described by one
    /// entry, or have one name for the linker, or are declared at the same line.
    ///
    /// This is not transitive: a third one may show that two are the same.
    #[must_use]
    pub fn is_same(&self, other: &Origin) -> bool {
        self.root == other.root
            || (self.external.is_some() && self.external == other.external)
            || (self.declared.is_some()
                && self.declared == other.declared
                && self.overload == other.overload)
    }

    /// It is the function that the linker calls so, of whichever unit.
    #[must_use]
    pub fn is_external(&self, linkage_name: &str) -> bool {
        self.external.as_deref() == Some(linkage_name)
    }
}

/// Declarations by the entries that make them.
pub(super) type Declarations = HashMap<DieKey, Option<(String, u64)>>;

impl<'a> Debug<'a> {
    /// Where the body at `die` comes from.
    pub(super) fn origin(&self, die: &Die<'a>, known: &mut Declarations) -> Origin {
        let chain = self.with_origins(die);
        let root = &chain[chain.len() - 1];
        let declared = known
            .entry(root.key())
            .or_insert_with(|| chain.iter().rev().find_map(|die| self.declaration(die)))
            .clone();
        let is_external = chain.iter().any(|die| die.flag(dw::DW_AT_external));
        // A plain name says enough in C. In C++ it lacks its namespace.
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

    /// File and line that an entry itself says that it is declared at.
    fn declaration(&self, die: &Die<'a>) -> Option<(String, u64)> {
        let line = die.unsigned(dw::DW_AT_decl_line)?;
        let file = match die.attr(dw::DW_AT_decl_file)? {
            AttributeValue::FileIndex(file) => file,
            value => value.udata_value()?,
        };
        // The files of what was split off are listed in the program, but for its types.
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

/// Names have namespaces that are not part of `DW_AT_name`.
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
