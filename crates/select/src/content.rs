//! Contents of fields as they are in memory.

use capriole_codegen::condition::Width;
use capriole_codegen::fetch::Content;
use capriole_event::{Element, FieldType, Shown};

/// Returns the content that a field of this type has in memory.
pub fn content(field_type: FieldType) -> Content {
    match (field_type.element, field_type.count) {
        (Element::String { .. }, None) => Content::Text,
        (Element::String { .. }, Some(count)) => Content::Texts { count },
        (Element::CallStack { bytes }, _) => Content::CallStack { bytes },
        (Element::Number { bytes, .. }, Some(count)) => Content::Numbers { bytes, count },
        (Element::Number { shown, bytes, bits }, None) => Content::Number(Width {
            bytes,
            signed: shown == Shown::Signed,
            bits: bits.map(|bits| (bits.offset, bits.width)),
        }),
    }
}
