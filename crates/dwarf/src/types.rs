//! Types: the type behind typedefs, its size and its members.

use gimli::{AttributeValue, constants as dw};

use super::die::Die;
use super::error::DebugError;
use super::units::{Bytes, Debug, DieKey};

/// Names of the values of an enumeration.
pub type Enumerators = Vec<(String, i64)>;

/// Maximum number of names of an enumeration's values.
const MOST_ENUMERATORS: usize = 1024;

/// Maximum nesting of typedefs, qualifiers, base classes or anonymous members.
pub(super) const DEPTH: usize = 32;

/// Kind of a type, behind typedefs and qualifiers.
#[derive(Clone)]
pub(super) enum Shape {
    /// Number, character, boolean.
    Base {
        encoding: gimli::DwAte,
        size: u64,
        name: String,
    },
    /// Pointer to `target`; none for `void *`.
    Pointer {
        target: Option<DieKey>,
        size: u64,
    },
    /// `&` or `&&` of C++.
    Reference {
        target: Option<DieKey>,
    },
    /// Struct, union or class.
    Record {
        key: DieKey,
        size: Option<u64>,
    },

    Array {
        element: Option<DieKey>,
    },
    Enumeration {
        size: u64,
        signed: bool,
    },
    Function,
    Void,
    Other,
}

/// One dimension of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    /// The first index, if it is known.
    pub lower: Option<i64>,
    /// Number of elements, if it is known.
    pub count: Option<u64>,
}

/// A member of a struct: type, offset, and bits of a bit field.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub kind: Option<DieKey>,
    /// Bytes from the start of the struct.
    pub offset: u64,
    /// First bit, counted from the start of the struct, and number of bits.
    pub bits: Option<(u64, u64)>,
}

impl<'a> Debug<'a> {
    /// Returns the type behind typedefs, `const` and the like.
    pub(super) fn bare(&self, mut key: Option<DieKey>) -> Result<Option<Die<'a>>, DebugError> {
        for _ in 0..DEPTH {
            let Some(at) = key else { return Ok(None) };
            let die = self.die(at)?;
            match die.tag() {
                dw::DW_TAG_typedef
                | dw::DW_TAG_const_type
                | dw::DW_TAG_volatile_type
                | dw::DW_TAG_restrict_type
                | dw::DW_TAG_atomic_type
                | dw::DW_TAG_immutable_type
                | dw::DW_TAG_packed_type
                | dw::DW_TAG_shared_type
                | dw::DW_TAG_template_alias => key = self.reference(&die, dw::DW_AT_type)?,
                dw::DW_TAG_structure_type
                | dw::DW_TAG_class_type
                | dw::DW_TAG_union_type
                | dw::DW_TAG_enumeration_type
                    if die.has(dw::DW_AT_signature) =>
                {
                    key = self.reference(&die, dw::DW_AT_signature)?;
                }
                _ => return Ok(Some(die)),
            }
        }
        Err(DebugError::Damaged("types lead in a circle"))
    }

    /// True if objects of the type keep the value with which they begin.
    pub(super) fn is_constant(&self, mut key: Option<DieKey>) -> Result<bool, DebugError> {
        for _ in 0..DEPTH {
            let Some(at) = key else { break };
            let die = self.die(at)?;
            match die.tag() {
                dw::DW_TAG_const_type | dw::DW_TAG_immutable_type => return Ok(true),
                dw::DW_TAG_typedef | dw::DW_TAG_volatile_type | dw::DW_TAG_atomic_type => {
                    key = self.reference(&die, dw::DW_AT_type)?;
                }
                _ => break,
            }
        }
        Ok(false)
    }

    pub(super) fn shape(&self, key: Option<DieKey>) -> Result<Shape, DebugError> {
        let Some(die) = self.bare(key)? else {
            return Ok(Shape::Void);
        };
        let size = die.unsigned(dw::DW_AT_byte_size);
        let target = || self.reference(&die, dw::DW_AT_type);
        Ok(match die.tag() {
            dw::DW_TAG_base_type => Shape::Base {
                encoding: match die.attr(dw::DW_AT_encoding) {
                    Some(AttributeValue::Encoding(encoding)) => encoding,
                    _ => dw::DW_ATE_unsigned,
                },
                size: size.unwrap_or(0),
                name: die.text(dw::DW_AT_name).unwrap_or_default(),
            },
            dw::DW_TAG_pointer_type => Shape::Pointer {
                target: target()?,
                size: size.unwrap_or(8),
            },
            dw::DW_TAG_ptr_to_member_type => self.pointer_to_member(&die)?,
            dw::DW_TAG_reference_type | dw::DW_TAG_rvalue_reference_type => {
                Shape::Reference { target: target()? }
            }
            dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type => {
                self.record(&die)?
            }
            dw::DW_TAG_array_type => Shape::Array { element: target()? },
            dw::DW_TAG_enumeration_type => self.enumeration(&die, size)?,
            dw::DW_TAG_subroutine_type => Shape::Function,
            dw::DW_TAG_unspecified_type => match die.text(dw::DW_AT_name).as_deref() {
                Some("decltype(nullptr)") => Shape::Pointer {
                    target: None,
                    size: 8,
                },
                _ => Shape::Void,
            },
            _ => Shape::Other,
        })
    }

    /// Returns the shape of a C++ pointer to member: a number for a data member, a pair for a
    /// member function.
    fn pointer_to_member(&self, die: &Die<'a>) -> Result<Shape, DebugError> {
        let target = self.reference(die, dw::DW_AT_type)?;
        let is_function = matches!(self.shape(target)?, Shape::Function);
        Ok(Shape::Base {
            encoding: dw::DW_ATE_signed,
            size: if is_function { 16 } else { 8 },
            name: "pointer to member".to_owned(),
        })
    }

    fn record(&self, die: &Die<'a>) -> Result<Shape, DebugError> {
        let size = die.unsigned(dw::DW_AT_byte_size);
        let (key, size) = if die.flag(dw::DW_AT_declaration) {
            // The definition may be in this unit after all, or in another.
            match self.definition(die)? {
                Some(found) => (found.key(), found.unsigned(dw::DW_AT_byte_size)),
                None => (die.key(), None),
            }
        } else {
            (die.key(), size)
        };
        Ok(Shape::Record { key, size })
    }

    fn enumeration(&self, die: &Die<'a>, size: Option<u64>) -> Result<Shape, DebugError> {
        let underlying = self.bare(self.reference(die, dw::DW_AT_type)?)?;
        let encoding = underlying
            .as_ref()
            .and_then(|die| die.attr(dw::DW_AT_encoding))
            .or_else(|| die.attr(dw::DW_AT_encoding));
        let signed = match encoding {
            Some(AttributeValue::Encoding(encoding)) => is_signed(encoding),
            _ => {
                let negative = |die: &Die<'a>| {
                    die.tag() == dw::DW_TAG_enumerator
                        && die
                            .signed(dw::DW_AT_const_value)
                            .is_some_and(|value| value < 0)
                };
                self.children(die)?.iter().any(negative)
            }
        };
        let below = underlying.and_then(|die| die.unsigned(dw::DW_AT_byte_size));
        Ok(Shape::Enumeration {
            size: size.or(below).unwrap_or(4),
            signed,
        })
    }

    /// Returns the names of the values of an enumeration, in the order of the source; none for another
    /// type, or if there are more than [`MOST_ENUMERATORS`].
    pub(super) fn enumerators(&self, kind: Option<DieKey>) -> Result<Enumerators, DebugError> {
        let die = self.bare(kind)?;
        let Some(die) = die.filter(|die| die.tag() == dw::DW_TAG_enumeration_type) else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for child in self.children(&die)? {
            if child.tag() != dw::DW_TAG_enumerator {
                continue;
            }
            // GCC writes 200 as one byte, and negative values as numbers with a sign.
            let value = match child.attr(dw::DW_AT_const_value) {
                Some(AttributeValue::Sdata(value)) => Some(value),
                Some(value) => value.udata_value().map(u64::cast_signed),
                None => None,
            };
            if let (Some(name), Some(value)) = (self.name_of(&child), value) {
                found.push((name, value));
            }
        }
        found.truncate(if found.len() > MOST_ENUMERATORS {
            0
        } else {
            found.len()
        });
        Ok(found)
    }

    /// Returns the number of elements of each dimension.
    pub(super) fn dimensions(&self, array: &Die<'a>) -> Result<Vec<Option<u64>>, DebugError> {
        let bounds = self.bounds(array)?;
        Ok(bounds.into_iter().map(|bounds| bounds.count).collect())
    }

    /// Returns the dimensions of an array, in the order of the source.
    pub(super) fn bounds(&self, array: &Die<'a>) -> Result<Vec<Bounds>, DebugError> {
        let default = array.language().map_or(0, first_index);
        let children = self.children(array)?;
        let ranges = children.iter().filter(|die| {
            matches!(
                die.tag(),
                dw::DW_TAG_subrange_type | dw::DW_TAG_enumeration_type
            )
        });
        Ok(ranges
            .map(|die| {
                let lower = match die.attr(dw::DW_AT_lower_bound) {
                    None if die.tag() == dw::DW_TAG_enumeration_type => None,
                    None => Some(default),
                    Some(value) => bound(&value),
                };
                let upper = || {
                    let upper = bound(&die.attr(dw::DW_AT_upper_bound)?)?;
                    // GCC writes -1 as the upper bound of an array without elements.
                    match upper {
                        0xffff_ffff => Some(0),
                        _ => u64::try_from(upper.checked_sub(lower?)?.checked_add(1)?.max(0)).ok(),
                    }
                };
                let count = die.attr(dw::DW_AT_count).and_then(|value| bound(&value));
                Bounds {
                    lower,
                    count: count.map(i64::cast_unsigned).or_else(upper),
                }
            })
            .collect())
    }

    /// True if only the program knows where the elements of an array are: it has a descriptor with its
    /// address, or steps between its elements that are not the size of one.
    pub(super) fn is_described_at_run_time(&self, array: &Die<'a>) -> Result<bool, DebugError> {
        let marks = [
            dw::DW_AT_data_location,
            dw::DW_AT_allocated,
            dw::DW_AT_associated,
            dw::DW_AT_rank,
            dw::DW_AT_bit_stride,
        ];
        let steps = [dw::DW_AT_byte_stride, dw::DW_AT_bit_stride];
        let is_expression =
            array.has(dw::DW_AT_byte_stride) && array.unsigned(dw::DW_AT_byte_stride).is_none();
        let own = is_expression || marks.iter().any(|&mark| array.has(mark));
        let has_steps = |die: &Die<'a>| steps.iter().any(|&step| die.has(step));
        Ok(own || self.children(array)?.iter().any(has_steps))
    }

    /// True if the first index of an array is the one of neighbours in memory.
    pub(super) fn is_column_major(&self, array: &Die<'a>) -> bool {
        const FORTRAN: [gimli::DwLang; 6] = [
            dw::DW_LANG_Fortran77,
            dw::DW_LANG_Fortran90,
            dw::DW_LANG_Fortran95,
            dw::DW_LANG_Fortran03,
            dw::DW_LANG_Fortran08,
            dw::DW_LANG_Fortran18,
        ];
        match array.attr(dw::DW_AT_ordering) {
            Some(AttributeValue::Ordering(order)) => order == dw::DW_ORD_col_major,
            _ => array
                .language()
                .is_some_and(|language| FORTRAN.contains(&language)),
        }
    }

    /// Returns the size in bytes of an object of the type, if known.
    pub(super) fn size(&self, key: Option<DieKey>) -> Result<Option<u64>, DebugError> {
        self.size_within(key, 0)
    }

    fn size_within(&self, key: Option<DieKey>, depth: usize) -> Result<Option<u64>, DebugError> {
        if depth > DEPTH {
            return Err(DebugError::Damaged("types lead in a circle"));
        }
        Ok(match self.shape(key)? {
            Shape::Base { size, .. }
            | Shape::Pointer { size, .. }
            | Shape::Enumeration { size, .. } => Some(size),
            Shape::Reference { .. } => Some(8),
            Shape::Record { size, .. } => size,
            Shape::Array { element, .. } => {
                let element = self.size_within(element, depth + 1)?;
                let Some(die) = self.bare(key)? else {
                    return Ok(None);
                };
                let stride = die.unsigned(dw::DW_AT_byte_stride).or(element);
                let dimensions = self.dimensions(&die)?;
                let elements = dimensions
                    .into_iter()
                    .try_fold(1u64, |product, count| product.checked_mul(count?));
                stride.and_then(|stride| stride.checked_mul(elements?))
            }
            Shape::Function | Shape::Void | Shape::Other => None,
        })
    }

    /// True for a struct with a part that depends on a value in it: a Rust enum with data.
    pub(super) fn has_variants(&self, record: DieKey) -> Result<bool, DebugError> {
        let children = self.children(&self.die(record)?)?;
        Ok(children
            .iter()
            .any(|die| die.tag() == dw::DW_TAG_variant_part))
    }

    /// Returns the position of a member or base class in its struct; `None` if it is known only
    /// at run time (virtual base classes).
    pub(super) fn layout(&self, die: &Die<'a>) -> Result<Option<Member>, DebugError> {
        let kind = self.reference(die, dw::DW_AT_type)?;
        let offset = match die.attr(dw::DW_AT_data_member_location) {
            None => 0,
            Some(AttributeValue::Exprloc(expression)) => {
                let mut operations = expression.operations(die.unit.unit.encoding());
                // DWARF 2: `DW_OP_plus_uconst`.
                match (operations.next()?, operations.next()?) {
                    (Some(gimli::Operation::PlusConstant { value }), None) => value,
                    _ => return Ok(None),
                }
            }
            Some(value) => value.udata_value().unwrap_or(0),
        };
        let width = die.unsigned(dw::DW_AT_bit_size);
        let bits = match width {
            None => None,
            Some(width) => {
                let first = match die.unsigned(dw::DW_AT_data_bit_offset) {
                    Some(first) => Some(first),
                    None => self.old_bit_offset(die, kind, offset, width)?,
                };
                let first = first.ok_or(DebugError::Damaged("a bit field of no place"))?;
                Some((first, width))
            }
        };
        Ok(Some(Member { kind, offset, bits }))
    }

    /// Converts `DW_AT_bit_offset` of DWARF 2 and 3, which counts from the most significant bit of
    /// the container.
    fn old_bit_offset(
        &self,
        die: &Die<'a>,
        kind: Option<DieKey>,
        offset: u64,
        width: u64,
    ) -> Result<Option<u64>, DebugError> {
        // Negative if the field extends beyond its container (packed structs).
        let unsigned = || die.unsigned(dw::DW_AT_bit_offset).map(|bits| bits as i64);
        let Some(from_top) = die.signed(dw::DW_AT_bit_offset).or_else(unsigned) else {
            return Ok(offset.checked_mul(8));
        };
        let container = match die.unsigned(dw::DW_AT_byte_size) {
            Some(size) => Some(size),
            None => self.size(kind)?,
        };
        Ok(container.and_then(|size| {
            let above = from_top.checked_add_unsigned(width)?;
            let below = i64::try_from(size.checked_mul(8)?)
                .ok()?
                .checked_sub(above)?;
            offset.checked_mul(8)?.checked_add_signed(below)
        }))
    }
}

/// Returns the first index of arrays of a language (DWARF 5, table 7.17) that debug information does not
/// mention.
fn first_index(language: gimli::DwLang) -> i64 {
    match language {
        dw::DW_LANG_Fortran18 | dw::DW_LANG_Ada2005 | dw::DW_LANG_Ada2012 => 1,
        language => i64::from(language.default_lower_bound() == Some(1)),
    }
}

/// Returns a bound of an array that is a number.
fn bound(value: &AttributeValue<Bytes<'_>>) -> Option<i64> {
    match value {
        AttributeValue::Exprloc(_)
        | AttributeValue::UnitRef(_)
        | AttributeValue::DebugInfoRef(_) => None,
        AttributeValue::Sdata(value) => Some(*value),
        value => value.udata_value().map(u64::cast_signed),
    }
}

pub(super) fn is_signed(encoding: gimli::DwAte) -> bool {
    matches!(encoding, dw::DW_ATE_signed | dw::DW_ATE_signed_char)
}
