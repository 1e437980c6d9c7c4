//! Text types of widely used programs in C, by the names of their types.
//!
//! C has no text type with a length, so servers and libraries define their own. The table has those
//! whose text is where one member points to, or one member itself, with a length that is a member,
//! or up to a NUL; and PostgreSQL's `varlena`, whose first byte tells which. A type of the name that
//! has other members is a struct like any other.

use super::error::DebugError;
use super::types::DEPTH;
use super::units::{Debug, DieKey};
use gimli::constants as dw;

/// A text type.
pub(super) struct Known {
    /// Name of the struct, or of a `typedef` of it.
    name: &'static str,
    /// Where the text is, and how long.
    pub layout: Layout,
}

/// Where a text is, and how long.
pub(super) enum Layout {
    /// A member points to the text, another one has the number of bytes.
    Counted {
        text: &'static str,
        length: &'static str,
    },
    /// In a member, up to a NUL.
    Terminated { text: &'static str },
    /// As PostgreSQL's varatt.h says.
    Varlena,
}

const fn counted(name: &'static str, text: &'static str, length: &'static str) -> Known {
    Known {
        name,
        layout: Layout::Counted { text, length },
    }
}

/// All types; `docs/events-reference.md` lists them.
const KNOWN: [Known; 7] = [
    // nginx
    counted("ngx_str_t", "data", "len"),
    // PostgreSQL
    counted("StringInfoData", "data", "len"),
    Known {
        name: "nameData",
        layout: Layout::Terminated { text: "data" },
    },
    Known {
        name: "varlena",
        layout: Layout::Varlena,
    },
    // GLib
    counted("_GString", "str", "len"),
    // HAProxy
    counted("ist", "ptr", "len"),
    // H2O
    counted("st_h2o_iovec_t", "base", "len"),
];

impl Debug<'_> {
    /// Returns the text type that a type is, by its own name or that of a `typedef` on the way to it.
    pub(super) fn known_text(
        &self,
        mut kind: Option<DieKey>,
    ) -> Result<Option<&'static Known>, DebugError> {
        for _ in 0..DEPTH {
            let Some(key) = kind else { return Ok(None) };
            let die = self.die(key)?;
            let is_named = match die.tag() {
                dw::DW_TAG_typedef | dw::DW_TAG_structure_type => true,
                dw::DW_TAG_const_type | dw::DW_TAG_volatile_type => false,
                _ => return Ok(None),
            };
            if is_named && let Some(name) = die.text(dw::DW_AT_name) {
                let found = KNOWN.iter().find(|known| known.name == name);
                if found.is_some() {
                    return Ok(found);
                }
            }
            if die.tag() == dw::DW_TAG_structure_type {
                return Ok(None);
            }
            kind = self.reference(&die, dw::DW_AT_type)?;
        }
        Ok(None)
    }
}
