//! The notes of static markers: results for intact notes; damaged notes are an error
//! or are counted.

use std::sync::OnceLock;

use capriole_object::ObjectFile;
use capriole_object::markers::{Markers, SymbolProblem, SymbolValue};
use capriole_testkit::objects::object_of;
use capriole_testkit::workshop::Workshop;
use object::{Object as _, ObjectSection as _};
use proptest::prelude::*;

/// A program with markers of both kinds.
fn sample() -> Option<&'static Vec<u8>> {
    static SAMPLE: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    SAMPLE
        .get_or_init(|| {
            let shop = Workshop::new();
            let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/programs");
            let include = format!("-I{programs}");
            let options = ["-std=gnu99", "-O2", "-pthread", &include];
            let path = shop.compile("gcc", &options, "#include \"marked.c\"\n", "whole")?;
            Some(std::fs::read(path).unwrap())
        })
        .as_ref()
}

fn open(bytes: &[u8]) -> ObjectFile {
    object_of(bytes).expect("an ELF file")
}

/// Returns the range of a section's bytes in the file.
fn section(bytes: &[u8], name: &str) -> std::ops::Range<usize> {
    let file = object::File::parse(bytes).expect("an ELF file");
    let section = file.section_by_name(name).expect("it is there");
    let (offset, size) = section.file_range().expect("in the file");
    offset as usize..(offset + size) as usize
}

/// Returns the range of the content of the section's first note that contains this text.
fn content(bytes: &[u8], name: &str, text: &str) -> std::ops::Range<usize> {
    let section = section(bytes, name);
    let mut at = section.start;
    while at < section.end {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let start = at + 12 + word(at).next_multiple_of(4);
        let end = start + word(at + 4);
        if bytes[start..end]
            .windows(text.len())
            .any(|w| w == text.as_bytes())
        {
            return start..end;
        }
        at = end.next_multiple_of(4);
    }
    panic!("no note has {text}")
}

fn names(markers: &Markers) -> Vec<String> {
    markers
        .all
        .iter()
        .map(|marker| marker.full_name())
        .collect()
}

#[test]
fn markers_are_found_with_all_that_is_known() {
    let Some(bytes) = sample() else { return };
    let file = open(bytes);
    let markers = file.markers().unwrap();
    assert_eq!(markers.unusable, 0);
    assert_eq!(markers.all.len(), 12);
    assert!(markers.all.is_sorted_by_key(|marker| marker.address));
    let one = |name: &str| {
        let mut all = markers.all.iter();
        all.find(|m| m.full_name() == name).expect("it is there")
    };
    let order = one("shop:order");
    let described = order.described.as_ref().expect("a description");
    assert_eq!(described.format, "id=%d price: %u at %p (%s) %x %c end %ld");
    assert!(described.file.ends_with("marked.c"), "{}", described.file);
    assert_eq!(order.conversions.len(), 7);
    assert_eq!(order.conversions[1].name.as_deref(), Some("price"));
    assert_eq!(order.semaphore, None);
    let symbols = file.symbols().unwrap();
    for marker in &markers.all {
        assert!(symbols.function_at(marker.address).is_some());
    }
    let nop = file.read(order.address, 5).unwrap();
    assert_eq!(nop, [0x0f, 0x1f, 0x44, 0, 0]);
    let guarded = one("plain:guarded");
    assert!(guarded.described.is_none() && guarded.conversions.is_empty());
    let semaphore = guarded.semaphore.expect("a semaphore");
    assert_eq!(file.read(semaphore, 2).unwrap(), [0, 0]);
    let found = file.other_symbol("marked_global").unwrap();
    let Some(capriole_object::symbols::OtherSymbol::Data(address)) = found else {
        panic!("{found:?}")
    };
    assert_eq!(
        markers.symbol("marked_global"),
        Ok(SymbolValue::Address(address))
    );
    assert_eq!(markers.symbol("nowhere"), Err(SymbolProblem::Unknown));
}

/// As prelink does: the section has moved, and the notes contain the old addresses.
#[test]
fn moved_addresses_are_corrected() {
    let Some(bytes) = sample() else { return };
    let file = open(bytes);
    let markers = file.markers().unwrap();
    let mut moved = bytes.clone();
    for name in [".note.stapsdt", ".note.capriole"] {
        for marker in &markers.all {
            if name == ".note.capriole" && marker.described.is_none() {
                continue;
            }
            let section = section(bytes, name);
            let address = marker.address.to_le_bytes();
            // The base follows the address, and the semaphore follows the base.
            for at in (section.start..section.end - 24).step_by(4) {
                if bytes[at..at + 8] != address {
                    continue;
                }
                let words = if name == ".note.stapsdt" { 3 } else { 2 };
                for word in (at..at + 8 * words).step_by(8) {
                    let old = u64::from_le_bytes(bytes[word..word + 8].try_into().unwrap());
                    if old != 0 {
                        let new = old.wrapping_sub(0x12_3000);
                        moved[word..word + 8].copy_from_slice(&new.to_le_bytes());
                    }
                }
            }
        }
    }
    assert_ne!(moved, *bytes);
    let file = open(&moved);
    assert_eq!(file.markers().unwrap().all, markers.all);
    assert_eq!(file.markers().unwrap().unusable, 0);
}

#[test]
fn damaged_notes_are_counted() {
    let Some(bytes) = sample() else { return };
    let whole = open(bytes);
    let whole = names(whole.markers().unwrap());
    let damaged = |damage: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        damage(&mut bytes);
        let file = open(&bytes);
        let markers = file.markers().unwrap();
        (names(markers), markers.unusable)
    };
    let note = content(bytes, ".note.stapsdt", "registers\0");
    let without =
        |name: &str| -> Vec<String> { whole.iter().filter(|n| *n != name).cloned().collect() };
    // A name that is not valid UTF-8, and one with a terminal escape.
    for byte in [0xff, 0x1b] {
        let (names, unusable) = damaged(&|bytes| bytes[note.start + 24 + 6] = byte);
        assert_eq!((names, unusable), (without("plain:registers"), 1));
    }
    // The arguments have no terminator.
    let (names, unusable) = damaged(&|bytes| bytes[note.end - 1] = b'x');
    assert_eq!((names, unusable), (without("plain:registers"), 1));
    // An address outside of all code.
    let (names, unusable) = damaged(&|bytes| bytes[note.start + 5] = 0x70);
    assert_eq!((names, unusable), (without("plain:registers"), 1));
    // An address after the nop, where other code is.
    let (names, unusable) = damaged(&|bytes| bytes[note.start] += 1);
    assert_eq!((names, unusable), (without("plain:registers"), 1));
    // A size beyond the section's end: the remaining notes are lost, and the damage is counted.
    let (names, unusable) = damaged(&|bytes| {
        let first = section(bytes, ".note.stapsdt").start;
        bytes[first + 4..first + 8].fill(0xff);
    });
    assert_eq!(
        (names.len(), unusable),
        (0, 1 + 2),
        "its descriptions describe nothing"
    );
    let (names, unusable) = damaged(&|bytes| {
        let first = section(bytes, ".note.capriole").start;
        bytes[first..first + 4].fill(0xff);
    });
    assert_eq!((names, unusable), (whole.clone(), 1));
    // A marker with unknown operands is still a marker.
    let mut strange = bytes.clone();
    let arguments = note.start + 24 + "plain\0registers\0".len();
    strange[arguments..arguments + 6].copy_from_slice(b"8@%xyz");
    let file = open(&strange);
    let markers = file.markers().unwrap();
    assert_eq!(self::names(markers), whole);
    let marker = markers.all.iter().find(|m| m.name == "registers").unwrap();
    assert!(marker.arguments[0].is_err() && marker.arguments[1].is_ok());
}

/// The section header gives a size larger than the file.
#[test]
fn a_cut_file_is_an_error() {
    let Some(bytes) = sample() else { return };
    let mut cut = bytes.clone();
    let table = u64::from_le_bytes(cut[40..48].try_into().unwrap()) as usize;
    let note = section(bytes, ".note.stapsdt");
    for header in (table..cut.len() - 63).step_by(64) {
        let offset = u64::from_le_bytes(cut[header + 24..header + 32].try_into().unwrap());
        if offset == note.start as u64 {
            cut[header + 32..header + 40].copy_from_slice(&u64::MAX.to_le_bytes());
        }
    }
    let file = open(&cut);
    let error = file.markers().unwrap_err().to_string();
    assert_eq!(
        error,
        "/nowhere/small: damaged ELF file: it ends too early (truncated?)"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any contents of the sections give a result.
    #[test]
    fn any_damage(damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40)) {
        let Some(bytes) = sample() else { return Ok(()) };
        let mut damaged = bytes.clone();
        let places: Vec<usize> = [".note.stapsdt", ".note.capriole"]
            .into_iter()
            .flat_map(|name| section(bytes, name))
            .collect();
        for (index, byte) in damage {
            damaged[*index.get(&places)] = byte;
        }
        let file = open(&damaged);
        if let Ok(markers) = file.markers() {
            for marker in &markers.all {
                prop_assert!(file.is_text(marker.address));
                prop_assert!(marker.conversions.is_empty() || marker.conversions.len() == marker.arguments.len());
            }
        }
    }
}
