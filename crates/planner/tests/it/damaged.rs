//! Damaged files: they give an error or some result, but never a panic or an endless loop.

use std::sync::{Arc, OnceLock};

use crate::fixtures::{Workshop, main_object, object_of};
use capriole_event::EventSpec;
use capriole_object::Objects;
use capriole_planner::resolve::resolve;
use capriole_testkit::effort::rounds;
use proptest::prelude::*;

const SOURCE: &str = r#"
#include <string>
struct Noisy { int x; __attribute__((noinline)) ~Noisy() { x = 0; } };
__attribute__((noinline)) int thrower(int x) { if (x > 3) throw x; return x; }
int catcher(int x) { Noisy n{x}; try { return thrower(x); } catch (int i) { return i; } }
asm(".pushsection __rseq_cs, \"aw\"\n.balign 32\n.long 0, 0\n.quad _Z7catcheri, 8, _Z7throweri\n.popsection\n");
"#;

/// A small library that contains everything the parser reads, to be damaged
/// where that matters: file header, program and section headers, the tables.
fn sample() -> Option<&'static Vec<u8>> {
    static SAMPLE: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    SAMPLE
        .get_or_init(|| {
            let shop = Workshop::new();
            let options = ["-O1", "-shared", "-fPIC", "-nostdlib"];
            let path = shop.compile("g++", &options, SOURCE, "libsmall.so")?;
            let bytes = std::fs::read(path).unwrap();
            let file = object_of(&bytes).unwrap();
            assert!(!file.landing_pads().unwrap().addresses.is_empty());
            assert_eq!(file.rseq_sections().unwrap().len(), 1);
            Some(bytes)
        })
        .as_ref()
}

/// Calls every query.
fn ask(bytes: Vec<u8>) {
    let Ok(file) = object_of(&bytes) else {
        return;
    };
    let _ = (
        file.build_id(),
        file.soname(),
        file.is_go(),
        file.link_range(),
    );
    let _ = file.frames();
    let _ = file.landing_pads();
    let _ = file.rseq_sections();
    let _ = file.import_slots("puts");
    if let Ok(symbols) = file.symbols() {
        for function in symbols.functions() {
            let _ = symbols.display_name(function);
            let _ = file.file_offset(function.extent.start);
        }
        let _ = symbols.function_at(0x1100);
        let _ = symbols.nearest("catcher");
    }
    if let Ok(text) = file.text() {
        let _ = text.iter().map(|text| text.end()).max();
    }
    let objects = Objects::of_file(Arc::new(file));
    for event in [":catcher(int)", ":thrower", ":*", ":puts", ":0x1100"] {
        for site in resolve(&objects, &EventSpec::parse(event).unwrap().into())
            .into_iter()
            .flatten()
            .take(50)
        {
            let _ = site.instruction();
        }
    }
    if let Ok(code) = main_object(&objects).code() {
        for &extent in code.functions().iter().take(50) {
            let _ = code.padding_end(extent);
        }
    }
}

#[test]
fn every_cut_is_survived() {
    let Some(bytes) = sample() else { return };
    for len in (0..bytes.len()).step_by(rounds(29, 7, 1)) {
        ask(bytes[..len].to_vec());
    }
}

/// Offsets where a changed byte has the largest effect.
fn places(len: usize) -> impl Strategy<Value = usize> {
    let headers: usize = 64 + 56 * 12;
    let sections: usize = 64 * 30;
    prop_oneof![
        2 => 0..64usize,
        2 => 64usize..headers,
        3 => len - sections..len,
        3 => 0usize..len,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(500, 1500, 20_000) as u32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes_are_survived(
        seeds in proptest::collection::vec((any::<prop::sample::Index>(), 0..4u8, any::<u8>()), 1..12),
        choice in proptest::collection::vec(places(sample().map_or(4096, Vec::len)), 12),
    ) {
        let Some(bytes) = sample() else { return Ok(()) };
        let mut bytes = bytes.clone();
        for ((_, how, value), at) in seeds.iter().zip(choice) {
            let at = at.min(bytes.len() - 1);
            bytes[at] = match how {
                0 => *value,
                1 => 0,
                2 => 0xff,
                _ => bytes[at] ^ (1 << (value % 8)),
            };
        }
        ask(bytes);
    }

    #[test]
    fn extreme_words_are_survived(at in any::<prop::sample::Index>(), word in prop_oneof![
        Just(u64::MAX), Just(i64::MAX as u64), Just(0), Just(1 << 40), any::<u64>(), 0..0x10000u64,
    ]) {
        let Some(bytes) = sample() else { return Ok(()) };
        let mut bytes = bytes.clone();
        let at = at.index(bytes.len() / 8) * 8;
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        ask(bytes);
    }
}
