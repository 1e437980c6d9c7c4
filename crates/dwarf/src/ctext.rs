//! Types in C notation.

use gimli::constants as dw;

use super::error::DebugError;
use super::types::Shape;
use super::units::{Debug, DieKey};

/// Maximum nesting of pointers, arrays and functions that is written out.
const DEPTH: usize = 12;

impl Debug<'_> {
    /// Formats a type in C notation, without a name: `const char *`, `int [4]`, `void (*)(int)`.
    pub(super) fn c_type(&self, kind: Option<DieKey>) -> String {
        match self.declare(kind, String::new(), 0) {
            Ok(text) => text,
            Err(_) => "?".to_owned(),
        }
    }

    /// Formats a declaration of `inner`, which takes the place of the name.
    fn declare(
        &self,
        kind: Option<DieKey>,
        inner: String,
        depth: usize,
    ) -> Result<String, DebugError> {
        let Some(key) = kind else {
            return Ok(joined("void", &inner));
        };
        if depth > DEPTH {
            return Ok(joined("...", &inner));
        }
        let mut die = self.die(key)?;
        if let Some(whole) = self.reference(&die, dw::DW_AT_signature)? {
            die = self.die(whole)?;
        }
        let target = || self.reference(&die, dw::DW_AT_type);
        let name = die.text(dw::DW_AT_name);
        let qualified = |word: &str| -> Result<String, DebugError> {
            // `char *const` but `const char`.
            let target = target()?;
            let is_pointer = match target {
                Some(target) => matches!(
                    self.die(target)?.tag(),
                    dw::DW_TAG_pointer_type | dw::DW_TAG_reference_type
                ),
                None => false,
            };
            if is_pointer {
                let inner = joined(word, &inner);
                return self.declare(target, inner, depth + 1);
            }
            let text = self.declare(target, inner.clone(), depth + 1)?;
            Ok(format!("{word} {text}"))
        };
        match die.tag() {
            dw::DW_TAG_const_type => qualified("const"),
            dw::DW_TAG_volatile_type => qualified("volatile"),
            dw::DW_TAG_restrict_type => qualified("restrict"),
            dw::DW_TAG_atomic_type => qualified("_Atomic"),
            // Rust gives names to its pointers.
            dw::DW_TAG_pointer_type if name.is_some() => {
                Ok(joined(&name.unwrap_or_default(), &inner))
            }
            dw::DW_TAG_pointer_type => self.pointed(target()?, "*", &inner, depth),
            dw::DW_TAG_reference_type => self.pointed(target()?, "&", &inner, depth),
            dw::DW_TAG_rvalue_reference_type => self.pointed(target()?, "&&", &inner, depth),
            dw::DW_TAG_array_type => {
                let mut inner = inner;
                if inner.is_empty() {
                    inner.push(' ');
                }
                for count in self.dimensions(&die)?.into_iter().take(DEPTH) {
                    match count {
                        Some(count) if count > 0 => inner.push_str(&format!("[{count}]")),
                        _ => inner.push_str("[]"),
                    }
                }
                let text = self.declare(target()?, inner, depth + 1)?;
                Ok(text.replace("  ", " "))
            }
            dw::DW_TAG_subroutine_type => {
                let mut parameters = Vec::new();
                for child in self.children(&die)? {
                    match child.tag() {
                        dw::DW_TAG_formal_parameter => {
                            let kind = self.reference(&child, dw::DW_AT_type)?;
                            parameters.push(self.declare(kind, String::new(), depth + 1)?);
                        }
                        dw::DW_TAG_unspecified_parameters => parameters.push("...".to_owned()),
                        _ => {}
                    }
                }
                let inner = format!("{inner}({})", parameters.join(", "));
                self.declare(target()?, inner, depth + 1)
            }
            tag => {
                let word = match tag {
                    dw::DW_TAG_structure_type => "struct ",
                    dw::DW_TAG_union_type => "union ",
                    dw::DW_TAG_class_type => "class ",
                    dw::DW_TAG_enumeration_type => "enum ",
                    _ => "",
                };
                // dwz(1) moves types into units without a language.
                let is_c = die.language().is_none_or(|language| {
                    matches!(
                        language,
                        dw::DW_LANG_C | dw::DW_LANG_C89 | dw::DW_LANG_C99 | dw::DW_LANG_C11
                    )
                });
                // C++ and Rust leave `struct` out.
                let text = match name {
                    Some(name) if is_c => format!("{word}{name}"),
                    Some(name) => name,
                    None => format!("{word}{{...}}"),
                };
                Ok(joined(&text, &inner))
            }
        }
    }

    fn pointed(
        &self,
        target: Option<DieKey>,
        sign: &str,
        inner: &str,
        depth: usize,
    ) -> Result<String, DebugError> {
        // `inner` may begin with a qualifier of the pointer itself.
        let inner = match inner.starts_with(|c: char| c.is_alphabetic()) {
            true => format!("{sign}{inner}"),
            false => format!("{sign}{}", inner.trim_start()),
        };
        let inner = match self.shape(target)? {
            Shape::Array { .. } | Shape::Function => format!("({inner})"),
            _ => inner,
        };
        self.declare(target, inner, depth + 1)
    }
}

fn joined(text: &str, inner: &str) -> String {
    match inner {
        "" => text.to_owned(),
        _ if inner.starts_with(' ') => format!("{text}{inner}"),
        _ => format!("{text} {inner}"),
    }
}
