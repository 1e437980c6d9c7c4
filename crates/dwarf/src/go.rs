//! Results of Go functions, and their registers (Go's cmd/compile/abi-internal.md).

use gimli::constants as dw;

use super::die::Die;
use super::error::DebugError;
use super::types::Shape;
use super::units::{Debug, DieKey};

/// Maximum nesting of types.
const DEPTH: usize = 16;
/// Number of registers for integers and, below, for floating point numbers.
pub(super) const INTEGERS: usize = 9;
pub(super) const FLOATS: usize = 15;

/// Place where a result begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begins {
    /// In `rax`.
    Integer,
    /// In the first vector register.
    Float,
    /// On the stack.
    Stack,
}

impl<'a> Debug<'a> {
    /// Returns the type of the first result. Go describes results as parameters that the function
    /// sets.
    pub(super) fn first_result(&self, function: &Die<'a>) -> Result<Option<DieKey>, DebugError> {
        for whole in self.with_origins(function) {
            let children = self.children(&whole)?;
            if let Some(die) = children.iter().find(|die| self.is_go_result(die)) {
                return self.type_of(die);
            }
        }
        Ok(None)
    }

    /// True if a parameter is one of a Go function's results.
    pub(super) fn is_go_result(&self, die: &Die<'a>) -> bool {
        let sets = |die: &Die<'a>| die.flag(dw::DW_AT_variable_parameter);
        die.tag() == dw::DW_TAG_formal_parameter
            && die.language() == Some(dw::DW_LANG_Go)
            && self.with_origins(die).iter().any(sets)
    }

    /// Returns where a result of this type begins, if it is the first.
    pub(super) fn begins(&self, kind: Option<DieKey>) -> Result<Begins, DebugError> {
        let mut parts = Vec::new();
        if !self.parts(kind, &mut parts, 0)? {
            return Ok(Begins::Stack);
        }
        let floats = parts.iter().filter(|&&part| part == Begins::Float).count();
        let fits = floats <= FLOATS && parts.len() - floats <= INTEGERS;
        let first = parts.first().filter(|_| fits);
        Ok(first.copied().unwrap_or(Begins::Stack))
    }

    /// Splits a type into parts that take one register each; false if that is not possible.
    fn parts(
        &self,
        kind: Option<DieKey>,
        parts: &mut Vec<Begins>,
        depth: usize,
    ) -> Result<bool, DebugError> {
        if depth > DEPTH || parts.len() > INTEGERS + FLOATS {
            return Ok(false);
        }
        match self.shape(kind)? {
            Shape::Base { encoding, .. } => match encoding {
                dw::DW_ATE_float => parts.push(Begins::Float),
                dw::DW_ATE_complex_float => parts.extend([Begins::Float; 2]),
                _ => parts.push(Begins::Integer),
            },
            Shape::Pointer { .. }
            | Shape::Reference { .. }
            | Shape::Enumeration { .. }
            | Shape::Function => {
                parts.push(Begins::Integer);
            }
            Shape::Array { element, .. } => {
                let die = self.bare(kind)?;
                let dimensions = die.map(|die| self.dimensions(&die)).transpose()?;
                return match dimensions.as_deref() {
                    Some([Some(0)]) => Ok(true),
                    Some([Some(1)]) => self.parts(element, parts, depth + 1),
                    _ => Ok(false),
                };
            }
            Shape::Record { key, .. } => {
                for die in self.children(&self.die(key)?)? {
                    let member = die.tag() == dw::DW_TAG_member;
                    if member && !self.parts(self.type_of(&die)?, parts, depth + 1)? {
                        return Ok(false);
                    }
                }
            }
            Shape::Void | Shape::Other => return Ok(false),
        }
        Ok(true)
    }
}
