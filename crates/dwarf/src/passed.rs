//! Check of arguments that are given by number: an optimiser may drop parameters of a function that only its
//! own file calls, and passes the others in other registers than the source says.

use capriole_prologue::Place;
use capriole_prologue::registers::PARAMETERS;
use gimli::constants as dw;

use super::convention::Words;
use super::error::{DebugError, Refusal};
use super::scope::Site;
use super::types::Shape;
use super::units::Debug;

/// Number of registers for arguments of general types (System V AMD64 psABI 3.2.3).
const GENERAL: usize = 6;

/// A proof that the compiler has changed the parameters of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedParameters {
    /// Number of the first register for arguments that has not what the source says, from 1.
    pub first: u8,
    /// Number of the last one.
    pub last: u8,
    /// The parameter that the source has there.
    pub parameter: String,
}

impl Debug<'_> {
    /// True if the function at a site is compiled by Zig, which passes arguments by a convention of its
    /// own unless the function is exported.
    ///
    /// # Errors
    ///
    /// The debug information is damaged.
    pub fn is_zig(&self, site: &Site) -> Result<bool, DebugError> {
        self.begin();
        let function = self.die(site.frame().key)?;
        let is_named = || self.producer(&function).starts_with("zig ");
        Ok(function.language() == Some(dw::DW_LANG_Zig) || is_named())
    }

    /// Looks for a proof that registers for arguments of the function at a site, its entry, do not have the
    /// arguments of its declaration. Without one they have, or it cannot be known.
    ///
    /// Only numbers and pointers are followed, up to the first parameter of another type, whose registers
    /// depend on details of the calling convention.
    ///
    /// # Errors
    ///
    /// The debug information is damaged.
    pub fn changed_parameters(&self, site: &Site) -> Result<Option<ChangedParameters>, DebugError> {
        self.begin();
        let frame = site.frame();
        let function = self.die(frame.key)?;
        let chain = self.with_origins(&function);
        let kind = self.type_of(&function)?;
        let language = function.language();
        let mut next = match (self.shape(kind)?, language) {
            (_, Some(dw::DW_LANG_Go)) => return Ok(None),
            (Shape::Record { .. }, Some(dw::DW_LANG_Rust)) => return Ok(None),
            // The caller passes the address for the result first.
            (Shape::Record { .. }, _) => match self.result_words(kind)? {
                Words::Memory => 1,
                Words::General => 0,
                Words::Other => return Ok(None),
            },
            _ => 0,
        };
        let is_internal = !chain.iter().any(|die| die.flag(dw::DW_AT_external));
        // The first parameter that is not proved to be where it belongs, and its register.
        let mut unproved: Option<(usize, String)> = None;
        let mut dropped = None;
        for variable in self.variables(site)?.visible {
            if !variable.parameter {
                continue;
            }
            let kind = self.type_of(&variable.die)?;
            match self.shape(kind)? {
                Shape::Base { encoding, size, .. } if size <= 8 => {
                    if encoding == dw::DW_ATE_float {
                        continue;
                    }
                }
                Shape::Pointer { size: 8, .. }
                | Shape::Reference { .. }
                | Shape::Enumeration { .. } => {}
                _ => break,
            }
            if next == GENERAL {
                break;
            }
            let is_missing = match self.place_of(site, &variable, Some(frame.key)) {
                Ok(Place::Register { register, .. }) if register == PARAMETERS[next] => {
                    next += 1;
                    continue;
                }
                Ok(Place::Register { register, .. })
                    if PARAMETERS[..GENERAL].contains(&register) =>
                {
                    let (first, parameter) = unproved.unwrap_or((next, variable.name));
                    return Ok(Some(ChangedParameters {
                        first: first as u8 + 1,
                        last: GENERAL as u8,
                        parameter,
                    }));
                }
                Ok(Place::Missing) | Err(Refusal::OptimisedOut { .. }) => true,
                _ => false,
            };
            unproved.get_or_insert((next, variable.name.clone()));
            if is_missing && is_internal {
                dropped.get_or_insert((next, variable.name));
            }
            next += 1;
        }
        Ok(dropped.map(|(at, parameter)| ChangedParameters {
            first: at as u8 + 1,
            last: at as u8 + 1,
            parameter,
        }))
    }
}
