//! Contents of fields as they are in memory.

use crate::error::{Result, bail};
use capriole_codegen::condition::Width;
use capriole_codegen::fetch::Content;
use capriole_event::{Element, FieldType, Shown};

/// Returns the content that a field of this type has in memory.
///
/// # Errors
/// The type is for single whole numbers only.
pub fn content(field_type: FieldType) -> Result<Content> {
    Ok(match (field_type.element, field_type.count) {
        (Element::String { .. }, None) => Content::Text,
        (Element::String { .. }, Some(count)) => Content::Texts { count },
        (Element::Ipv6, None) => Content::Numbers {
            bytes: 16,
            count: 1,
        },
        (Element::Ipv6, Some(_)) => bail!(
            Field,
            "arrays of addresses are not read; read the elements one by one"
        ),
        (Element::CallStack { .. }, _) => bail!(Field, "a call stack is not in memory"),
        (
            Element::Number {
                shown: Shown::Network | Shown::Ipv4,
                bytes,
                bits,
            },
            count,
        ) => match (bits, count) {
            (None, None) => Content::Network { bytes },
            (Some(_), _) => bail!(
                Field,
                "it is some bits of a number here, and only whole numbers are read in network \
                 byte order; a type such as x16 shows it as it is"
            ),
            (None, Some(_)) => bail!(
                Field,
                "arrays are not read in network byte order; read the elements one by one"
            ),
        },
        (Element::Number { bytes, .. }, Some(count)) => Content::Numbers { bytes, count },
        (Element::Number { shown, bytes, bits }, None) => Content::Number(Width {
            bytes,
            signed: shown.is_signed(),
            bits: bits.map(|bits| (bits.offset, bits.width)),
        }),
    })
}
