//! The function table, compared with `nm` and between builds of one program.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use capriole_insn::Extent;
use capriole_object::symbols::{Function, SymbolTable};
use capriole_object::{ObjectFile, ObjectKind};
use capriole_testkit::files::{system_file, system_files};
use capriole_testkit::nm::nm_functions;
use capriole_testkit::objects::{object_of, open};
use capriole_testkit::workshop::Workshop;

/// Checks that the table has every name that `nm` gives a function, with the same address
/// and size, and no others.
fn agrees_with_nm(path: &Path) {
    let (Some(symbols), Some(dynamic)) = (nm_functions(path, false), nm_functions(path, true))
    else {
        return;
    };
    let file = open(path);
    let table = file.symbols().unwrap();
    let ours: BTreeSet<(u64, &str)> = table
        .functions()
        .iter()
        .flat_map(|f| table.names(f).map(|name| (f.extent.start, name.linkage)))
        .collect();
    let both = symbols.iter().chain(&dynamic);
    let theirs: BTreeSet<(u64, &str)> = both
        .clone()
        .map(|symbol| (symbol.address, symbol.name.as_str()))
        .collect();
    assert!(!theirs.is_empty(), "{}", path.display());
    let missing: Vec<_> = theirs.difference(&ours).collect();
    let invented: Vec<_> = ours.difference(&theirs).collect();
    assert!(
        missing.is_empty(),
        "{}: missing {missing:x?}",
        path.display()
    );
    assert!(
        invented.is_empty(),
        "{}: invented {invented:x?}",
        path.display()
    );

    let mut sizes = BTreeMap::<u64, u64>::new();
    for symbol in both.clone() {
        let size = sizes.entry(symbol.address).or_default();
        *size = symbol.size.max(*size);
    }
    for (address, size) in sizes {
        let function = table.function_starting_at(address).unwrap();
        assert!(size == 0 || function.extent.len() == size, "{address:#x}");
    }
    for symbol in both {
        let function = table.function_starting_at(symbol.address).unwrap();
        assert!(
            symbol.class != 'i' || function.is_resolver,
            "{}",
            symbol.name
        );
    }
    println!("{}: {} names", path.display(), ours.len());
}

#[test]
fn names_addresses_and_sizes_are_those_of_nm() {
    for path in system_files() {
        agrees_with_nm(&path);
    }
}

#[test]
fn a_program_with_a_hundred_thousand_symbols_agrees_with_nm() {
    if let Some(path) = system_file(&["/usr/bin/node"]) {
        agrees_with_nm(&path);
    }
}

/// Checks the properties of every table.
fn is_consistent(file: &ObjectFile, table: &SymbolTable) {
    let functions = table.functions();
    assert!(
        functions
            .windows(2)
            .all(|w| w[0].extent.start < w[1].extent.start)
    );
    for function in functions {
        let Extent { start, end } = function.extent;
        assert!(start <= end && file.is_text(start), "{start:#x}");
        if start == end {
            continue;
        }
        assert_eq!(table.function_at(start).unwrap(), function);
        let last = table.function_at(end - 1).unwrap();
        assert!(last.extent.contains(end - 1) && last.extent.start >= start);
        assert_eq!(table.function_starting_at(start).unwrap(), function);
        assert!(table.next_boundary(start).unwrap() > start);
    }
}

/// Returns the expected result of [`SymbolTable::function_at`], by a linear search.
fn innermost(functions: &[Function], address: u64) -> Option<&Function> {
    functions.iter().rev().find(|f| f.extent.contains(address))
}

#[test]
fn an_address_leads_to_the_innermost_function() {
    for path in system_files() {
        let file = open(&path);
        let table = file.symbols().unwrap();
        is_consistent(&file, table);
        for text in file.text().unwrap() {
            let step = (text.bytes.len() / 500).max(1);
            for address in (text.address..text.end()).step_by(step) {
                let expected = innermost(table.functions(), address);
                assert_eq!(table.function_at(address), expected, "{address:#x}");
            }
        }
    }
}

const CPLUSPLUS: &str = r#"
#include <stdexcept>
#include <string>
#include <cstdio>
#define KEEP __attribute__((noinline, used))
namespace shapes {
struct Point { int x, y; KEEP Point(int x, int y); KEEP ~Point();
    KEEP Point operator*(int by) const; KEEP int operator[](int i) const;
    KEEP bool operator<(const Point &o) const; };
Point::Point(int x, int y) : x(x), y(y) {}
Point::~Point() { std::puts("gone"); }
Point Point::operator*(int by) const { return Point(x * by, y * by); }
int Point::operator[](int i) const { return i ? y : x; }
bool Point::operator<(const Point &o) const { return x < o.x; }
KEEP int area(int side) { return side * side; }
KEEP int area(int width, int height) { return width * height; }
template <class T, class U> KEEP T mix(T a, U b) { return a + (T)b; }
}
KEEP int thrower(int x) { if (x > 1) throw std::runtime_error("no"); return x; }
KEEP int catcher(int x) {
    std::string kept = std::to_string(x);
    try { return thrower(x) + (int)kept.size(); }
    catch (const std::exception &e) { return -1; }
}
int main(int argc, char **) {
    shapes::Point p(argc, 2), q = p * 3;
    return q[0] + (p < q) + shapes::area(argc) + shapes::area(argc, 2) + catcher(argc)
        + shapes::mix<int, long>(argc, 2) + shapes::mix<long, int>(argc, 3);
}
"#;

fn extents(table: &SymbolTable) -> BTreeMap<u64, u64> {
    let functions = table.functions().iter();
    functions.map(|f| (f.extent.start, f.extent.end)).collect()
}

#[test]
fn a_stripped_program_keeps_the_bounds_of_its_functions() {
    let shop = Workshop::new();
    let Some(full) = shop.compile("g++", &["-O2"], CPLUSPLUS, "shapes") else {
        return;
    };
    let Some(stripped) = shop.strip(&full) else {
        return;
    };
    let (full, stripped) = (open(&full), open(&stripped));
    let (named, bare) = (full.symbols().unwrap(), stripped.symbols().unwrap());
    is_consistent(&stripped, bare);
    let find = |name: &str| named.exact(name).first().map(|found| found.function.extent);
    let names = [
        "catcher(int)",
        "shapes::area(int)",
        "shapes::Point::operator[](int) const",
    ];
    for name in names {
        let extent = find(name).unwrap();
        let bare = bare.function_at(extent.start).unwrap();
        assert!(!bare.is_named());
        assert_eq!(bare.extent.start, extent.start, "{name}");
        assert_eq!(bare.extent.end, extent.end, "{name}");
    }
    // Every frame belongs to a function with the same bounds in both files.
    let (named, bare) = (extents(named), extents(bare));
    for frame in full.frames().unwrap() {
        if let Some(end) = bare.get(&frame.extent.start) {
            assert_eq!(
                named.get(&frame.extent.start),
                Some(end),
                "{:#x}",
                frame.extent.start
            );
        }
    }
}

#[test]
fn names_are_found_mangled_and_demangled() {
    let shop = Workshop::new();
    let Some(path) = shop.compile("g++", &["-O2"], CPLUSPLUS, "shapes") else {
        return;
    };
    let file = open(&path);
    let table = file.symbols().unwrap();
    let names = |name: &str| -> Vec<&str> {
        table
            .exact(name)
            .iter()
            .map(|found| found.name.linkage)
            .collect()
    };
    assert_eq!(names("_ZN6shapes4areaEi"), ["_ZN6shapes4areaEi"]);
    assert_eq!(names("shapes::area(int)"), ["_ZN6shapes4areaEi"]);
    assert_eq!(names("shapes::area( int,int )"), ["_ZN6shapes4areaEii"]);
    assert_eq!(names("shapes::area").len(), 2);
    assert_eq!(names("shapes::Point::operator*"), ["_ZNK6shapes5PointmlEi"]);
    assert_eq!(
        names("shapes::Point::operator[](int) const"),
        ["_ZNK6shapes5PointixEi"]
    );
    let less = "shapes::Point::operator<(shapes::Point const&) const";
    assert_eq!(names(less), ["_ZNK6shapes5PointltERKS0_"]);
    assert_eq!(names("shapes::Point::~Point()").len(), 1);
    // A template's return type is part of its mangled name.
    assert_eq!(
        names("shapes::mix<int, long>"),
        ["_ZN6shapes3mixIilEET_S1_T0_"]
    );
    assert_eq!(
        names("int shapes::mix<int,long>(int, long)"),
        ["_ZN6shapes3mixIilEET_S1_T0_"]
    );
    assert_eq!(names("thrower"), ["_Z7throweri"], "not its cold part");
    assert!(names("shapes").is_empty());
    assert_eq!(
        table.nearest("shapes::aera").first().map(String::as_str),
        Some("shapes::area")
    );
    // The same after all names have been demangled.
    let every = table.matching(|name| name.starts_with("shapes::area"));
    assert_eq!(every.len(), 2);
    assert_eq!(names("shapes::area(int)"), ["_ZN6shapes4areaEi"]);
    assert_eq!(names("shapes::area").len(), 2);
}

#[test]
fn landing_pads_are_instructions_of_functions_that_catch() {
    let shop = Workshop::new();
    let Some(path) = shop.compile("g++", &["-O0"], CPLUSPLUS, "shapes") else {
        return;
    };
    let file = open(&path);
    let table = file.symbols().unwrap();
    let pads = file.landing_pads().unwrap();
    assert!(pads.unknown.is_empty());
    let pads_of = |name: &str| {
        let extent = table.exact(name)[0].function.extent;
        let text = file
            .text()
            .unwrap()
            .iter()
            .find(|t| t.end() > extent.start)
            .unwrap();
        let code = capriole_insn::Code::new(&text.bytes, text.address);
        let inside: Vec<u64> = pads
            .addresses
            .iter()
            .copied()
            .filter(|&p| extent.contains(p))
            .collect();
        let mut starts = BTreeSet::new();
        let mut at = extent.start;
        while at < extent.end {
            starts.insert(at);
            at = code.instruction_at(at, extent.end).unwrap().next_ip();
        }
        assert!(inside.iter().all(|pad| starts.contains(pad)), "{name}");
        inside.len()
    };
    assert!(pads_of("catcher(int)") >= 1);
    assert_eq!(pads_of("shapes::area(int)"), 0);
    assert!(pads_of("thrower(int)") >= 1);
}

const LIBRARY: &str = r#"
int shown(int x) { return x + 1; }
static __attribute__((noinline, used)) int hidden(int x) { return x * 3; }
int caller(int x) { return hidden(x) + shown(x); }
"#;

/// Removes the section headers, as `sstrip` does.
fn without_sections(path: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[0x28..0x30].fill(0); // e_shoff
    bytes[0x3c..0x40].fill(0); // e_shnum, e_shstrndx
    bytes
}

#[test]
fn a_file_without_section_headers_still_has_functions() {
    let shop = Workshop::new();
    let options = ["-O1", "-shared", "-fPIC", "-Wl,-soname,libsample.so.1"];
    let Some(path) = shop.compile("gcc", &options, LIBRARY, "libsample.so") else {
        return;
    };
    let whole = open(&path);
    let bare = object_of(&without_sections(&path)).unwrap();
    assert_eq!(bare.soname(), Some("libsample.so.1"));
    assert_eq!(bare.kind(), ObjectKind::SharedLibrary);
    assert_eq!(bare.build_id(), whole.build_id());
    assert_eq!(bare.frames().unwrap(), whole.frames().unwrap());
    let (whole, bare) = (whole.symbols().unwrap(), bare.symbols().unwrap());
    for name in ["shown", "caller"] {
        let extent = bare.exact(name)[0].function.extent;
        assert_eq!(extent, whole.exact(name)[0].function.extent);
    }
    let hidden = whole.exact("hidden")[0].function.extent;
    assert!(bare.exact("hidden").is_empty());
    assert_eq!(bare.function_at(hidden.start).unwrap().extent, hidden);
}

#[test]
fn assembly_without_sizes_ends_at_the_next_function() {
    let shop = Workshop::new();
    let source = r#"
        asm(".text\n.globl first\nfirst:\n nop\n ret\n .p2align 4\n"
            ".globl second\nsecond:\n nop\nlabel:\n ret\n"
            ".globl typed\n.type typed,@function\ntyped:\n ret\n .size typed,.-typed\n"
            ".p2align 5\n.globl last\n.type last,@function\nlast:\n ret\n");
    "#;
    let Some(path) = shop.compile("gcc", &["-shared", "-nostdlib"], source, "libasm.so") else {
        return;
    };
    let file = open(&path);
    let table = file.symbols().unwrap();
    let extent = |name: &str| table.exact(name)[0].function.extent;
    assert_eq!(extent("first").end, extent("second").start);
    assert_eq!(extent("second").end, extent("typed").start);
    assert_eq!(extent("typed").len(), 1);
    assert_eq!(extent("last").len(), 1, "ends with the section");
    assert!(table.exact("label").is_empty());
    assert_eq!(table.labels(), [extent("second").start + 1]);
}

#[test]
fn assembly_that_nothing_marks_has_the_names_of_its_labels() {
    let shop = Workshop::new();
    let source = r#"
        asm(".text\n.globl before\n.type before,@function\nbefore:\n jmp lone\ninner:\n ret\n .size before,.-before\n"
            ".p2align 4\nhelper:\n call lone\n ret\n"
            "lone:\n nop\n ret\n"
            ".type table,@object\ntable:\n .quad 1\nmiddle:\n .quad 2\n .size table,.-table\n"
            "framed:\n .cfi_startproc\n nop\nwithin:\n ret\n .cfi_endproc\n"
            ".globl after\n.type after,@function\nafter:\n ret\n .size after,.-after\n");
    "#;
    let Some(path) = shop.compile("gcc", &["-shared", "-nostdlib"], source, "liblabels.so") else {
        return;
    };
    let file = open(&path);
    let table = file.symbols().unwrap();
    for (name, length) in [("helper", 6), ("lone", 2), ("framed", 2)] {
        let [start] = table.lone_labels(name)[..] else {
            panic!("{name}");
        };
        assert!(table.labels().contains(&start), "code may jump there");
        assert!(table.exact(name).is_empty(), "it may be data");
        for address in start..start + length {
            assert_eq!(
                table.label_around(address),
                Some((name, start)),
                "{address:#x}"
            );
        }
    }
    for name in ["inner", "within", "before", "after", "table"] {
        assert!(table.lone_labels(name).is_empty(), "{name}");
    }
    let before = table.exact("before")[0].function.extent;
    for address in before.start..before.end + 1 {
        assert_eq!(table.label_around(address), None, "{address:#x}");
    }
}
