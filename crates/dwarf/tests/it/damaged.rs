//! Damaged debug information: it gives an error or some result, but never a panic, an endless
//! loop or exhausted memory.

use std::sync::OnceLock;

use capriole_dwarf::DebugInfo as _;
use capriole_event::{Base, Element, Fetch, FieldType};
use capriole_testkit::effort::rounds;
use capriole_testkit::objects::object_of;
use capriole_testkit::workshop::Workshop;
use proptest::prelude::*;

const C: &str = r#"
struct item { int id; const char *name; struct item *next; };
struct request { unsigned len : 5; char name[8]; struct item inner[2]; union { int n; float f; }; };
int counter = 4;
static inline int twice(int what) { return what * counter; }
int handle(struct request *req, int size, double d) { int local = twice(size); { int deep = local + req->len; counter = deep; } return twice(local) + (int)d; }
"#;

const CXX: &str = r#"
namespace net { struct base { int kind; virtual ~base() {} }; template <typename T> struct request : base { T size; T &alias; int handle(const base &b, int what) { return size + b.kind + what; } }; }
int counter; int use(net::request<int> &r) { int local = r.handle(r, 1); return local + counter; }
"#;

const RUST: &str = "#![no_std]\npub struct Point { pub x: i32, pub name: &'static str }\n#[unsafe(no_mangle)]\npub fn handle(point: &Point, size: u16) -> usize { let local = point.x as usize + size as usize; local + point.name.len() }\n#[panic_handler] fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }\n";

/// Small libraries of each kind.
fn samples() -> &'static [Vec<u8>] {
    static SAMPLES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    SAMPLES.get_or_init(|| {
        let shop = Workshop::new();
        let library = ["-shared", "-fPIC", "-nostdlib"];
        let mut found = Vec::new();
        for (compiler, source) in [("gcc", C), ("clang", C), ("g++", CXX), ("clang++", CXX)] {
            let sets: [&[&str]; 4] = [
                &["-gdwarf-4", "-O0"],
                &["-gdwarf-5", "-O2"],
                &["-gdwarf-4", "-O2", "-fdebug-types-section"],
                &["-gdwarf-5", "-O1", "-gz=zlib"],
            ];
            for (index, set) in sets.iter().enumerate() {
                let options = [*set, &library].concat();
                found.extend(shop.compile(
                    compiler,
                    &options,
                    source,
                    &format!("{compiler}{index}"),
                ));
            }
        }
        let options = [
            "--crate-type=cdylib",
            "-Cpanic=abort",
            "-Clink-arg=-nostdlib",
        ];
        for level in ["0", "2"] {
            found.extend(shop.compile_rust(&options, RUST, "small", level));
        }
        let read = |path: &std::path::PathBuf| std::fs::read(path).unwrap();
        let samples: Vec<Vec<u8>> = found.iter().map(read).collect();
        // The queries succeed as long as nothing is damaged.
        for bytes in &samples {
            assert!(ask(bytes.clone()) > 5);
        }
        samples
    })
}

/// Calls every query; counts the successful results.
fn ask(bytes: Vec<u8>) -> usize {
    let Ok(file) = object_of(&bytes) else {
        return 0;
    };
    let file = file.with_debug_directories(Vec::new());
    let Ok(debug) = file.debug() else { return 0 };
    let mut answers = 0;
    let mut sites = Vec::new();
    for name in [
        "handle",
        "twice",
        "use",
        "net::request<int>::handle",
        "nothing",
    ] {
        sites.extend(
            debug
                .functions(name)
                .into_iter()
                .flatten()
                .map(|place| place.site),
        );
    }
    for line in 1..8 {
        for name in ["gcc0.c", "clang1.c", "g++2.cc", "small.rs", "c"] {
            let places = debug.line(name, line).into_iter().flatten();
            sites.extend(places.filter_map(|place| place.site));
        }
    }
    sites.truncate(12);
    for site in &mut sites {
        let _ = debug.site(site.address + 1, Some("handle"));
        answers += debug.describe(site).map_or(0, |found| found.len());
        for text in [
            "req->inner[1].next->name",
            "req->len",
            "req->f",
            "*req",
            "size",
            "d",
            "local",
            "counter",
            "what",
            "this->alias",
            "r.size",
            "r.kind",
            "b.kind",
            "point.name.length",
            "point->x",
            "deep",
            "req[3].name[2]",
            "net::counter",
            "nothing",
        ] {
            for derefs in [0, 2] {
                let fetch = Fetch {
                    base: Base::Variable(text.to_owned()),
                    derefs: vec![
                        capriole_event::Deref {
                            offset: 8,
                            user: false
                        };
                        derefs
                    ],
                };
                let string = FieldType {
                    element: Element::String { user: false },
                    count: None,
                };
                for wanted in [None, Some(string)] {
                    answers += usize::from(debug.fetch(site, &fetch, wanted).is_ok());
                }
            }
        }
    }
    answers
}

#[test]
fn every_cut_is_survived() {
    for bytes in samples() {
        for len in (0..bytes.len()).step_by(rounds(4999, 1499, 101)) {
            ask(bytes[..len].to_vec());
            // The section headers are at the end: keep them, but clear a range before them.
            let mut hole = bytes.clone();
            let end = (len + 499).min(bytes.len());
            hole[len..end].fill(0);
            ask(hole);
        }
    }
}

/// Offsets in the relevant sections.
fn interesting(bytes: &[u8]) -> Vec<usize> {
    use object::{Object as _, ObjectSection as _};
    let file = object::File::parse(bytes).unwrap();
    let ranges = file.sections().filter(|section| {
        let name = section.name().unwrap_or_default();
        name.starts_with(".debug") && name != ".debug_str" || name == ".eh_frame"
    });
    ranges
        .filter_map(|section| section.file_range())
        .flat_map(|(start, size)| start as usize..(start + size) as usize)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(200, 600, 10_000) as u32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes_are_survived(
        sample in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<bool>(), 0..6u8, any::<u8>()), 1..10),
    ) {
        if samples().is_empty() { return Ok(()); }
        let mut bytes = sample.get(samples()).clone();
        let places = interesting(&bytes);
        for (at, anywhere, how, value) in changes {
            let at = if anywhere && value < 64 { at.index(bytes.len()) } else { *at.get(&places) };
            bytes[at] = match how {
                0 => value,
                1 => 0,
                2 => 0xff,
                3 => bytes[at].wrapping_add(1),
                4 => 0x80,
                _ => bytes[at] ^ (1 << (value % 8)),
            };
        }
        ask(bytes);
    }

    #[test]
    fn extreme_words_are_survived(
        sample in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        word in prop_oneof![Just(u64::MAX), Just(i64::MAX as u64), Just(0), Just(1 << 40), any::<u64>(), 0..0x10000u64],
    ) {
        if samples().is_empty() { return Ok(()); }
        let mut bytes = sample.get(samples()).clone();
        let at = (*at.get(&interesting(&bytes))).min(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        ask(bytes);
    }
}
