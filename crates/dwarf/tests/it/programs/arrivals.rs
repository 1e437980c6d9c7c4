//! Parameters that are not passed as plain numbers: at the first instruction of a
//! function they have the value that the caller passed, or are refused.

use std::path::Path;

use capriole_dwarf::DebugInfo as _;
use capriole_dwarf::{Refusal, Returned, VariableError};
use capriole_testkit::objects::open;
use capriole_testkit::stopped::{Stopped, ask};
use capriole_testkit::workshop::Workshop;

const CXX: &str = r#"#include <memory>
#include <string>
#include <cstdarg>
#define KEEP __attribute__((noinline, noclone))
volatile long sink;
struct owner { int n; owner(int n) : n(n) {} owner(const owner &o) : n(o.n) {} ~owner() { sink = n; } };
struct holder { std::string text; long n; };
struct empty {};
struct odd { unsigned char a, b, c; };
struct mixed { double d; int i; char c; };
struct alignas(32) aligned { int v[8]; };
struct row { virtual ~row() {} int id = 4;
	KEEP std::string name(int flags, const char *text) { sink = flags + id; return std::string(text); } };
KEEP std::string string_result(int flags, const char *name) { sink = flags; return std::string(name); }
KEEP std::unique_ptr<int> unique(std::unique_ptr<int> p, int flags) { sink = flags; return p; }
KEEP long shared(std::shared_ptr<long> p, std::string text, short after) { sink = after; return *p + text.size(); }
KEEP holder held(holder h, unsigned after) { sink = h.n + after; return h; }
KEEP int by_value(owner o, int after) { sink = after; return o.n + after; }
KEEP owner made(int first, owner second) { owner local(first); sink = second.n; return local; }
KEEP long without(empty e, int x, bool yes, char c, empty f, long last) { (void)e; (void)f; sink = last; return x + yes + c; }
KEEP long odds(odd o, mixed m, float f, int after) { sink = o.c; return m.i + (long)f + after; }
KEEP long realigned(int a, double d, const char *text) { alignas(64) volatile char buffer[64]; buffer[0] = a; return buffer[0] + (long)d + text[0]; }
KEEP long grown(int a, double d, const char *text) { alignas(64) volatile char buffer[64]; volatile char *more = (volatile char *)__builtin_alloca(a + 1); more[0] = 1; buffer[0] = a; return more[0] + (long)d + text[0]; }
KEEP long many(int a, int b, int c, int d, int e, int f, int seventh, int eighth) { alignas(64) volatile char buffer[64]; volatile char *more = (volatile char *)__builtin_alloca(a + 1); more[0] = buffer[0] = b + c + d + e + f; return more[0] + seventh + eighth; }
KEEP long over(aligned a, int x) { sink = x; return a.v[0] + x; }
KEEP long wide(__int128 i, long double l, int after, _Complex double z, double d) { sink = after; return (long)i + (long)l + (long)__real__ z + (long)d; }
KEEP _Complex long double complex_result(int first, long double l, int second) { sink = first + second; return l; }
KEEP __float128 quad(__float128 q, float f, int after) { sink = after + (long)f; return q; }
KEEP long vary(int count, const char *text, ...) { va_list list; va_start(list, text); long x = va_arg(list, int); va_end(list); sink = x; return count + text[0]; }
KEEP long large(int a, const char *text) { volatile char room[40000]; room[a] = text[0]; return room[a]; }
KEEP long stacked(int a, int b, int c, int d, int e, int f, owner o, int after) { sink = a + b + c + d + e + f + after; return o.n; }
KEEP long addressed(int a, long b) { sink += *(volatile int *)&a; sink += *(volatile long *)&b; return a + b; }
KEEP long swapped(long a, long b) { long t = a; a = b; b = t; asm volatile("" : : "r"(&a), "r"(&b) : "memory"); return a - b; }
KEEP long captured(int x) { int y = x + 1; auto inner = [x, &y](int z) KEEP { sink = z; return x + y + z; }; return inner(30); }
int main()
{
	row r; r.name(21, "row");
	string_result(1, "abc"); unique(std::make_unique<int>(4), 5);
	shared(std::make_shared<long>(6), "seven", -8); held(holder{"text", 9}, 10);
	by_value(owner(55), 56); made(57, owner(58));
	without(empty(), 3, true, 'c', empty(), 4); odds(odd{200, 201, 202}, mixed{1.5, -5, 'm'}, 2.5f, 66);
	realigned(1, 2.5, "x"); grown(2, 3.5, "y"); many(1, 2, 3, 4, 5, 6, 7, 8);
	aligned a = {}; a.v[7] = 77; over(a, 12);
	wide(13, 14.0L, 15, 16.5, 17.5); complex_result(18, 19.0L, 20); quad(1, 2.5f, 22);
	stacked(1, 2, 3, 4, 5, 6, owner(-7), 8);
	vary(23, "vary", 24); large(25, "large"); addressed(26, 27); swapped(28, 29); captured(31);
	return 0;
}
"#;

/// Functions, and their expected arguments.
const CALLS: &[(&str, &[(&str, &str)])] = &[
    (
        "_ZN3row4nameB5cxx11EiPKc",
        &[("this->id", "4"), ("flags", "21"), ("text", "\"row\"")],
    ),
    (
        "_Z13string_resultB5cxx11iPKc",
        &[("flags", "1"), ("name", "\"abc\"")],
    ),
    ("unique", &[("flags", "5")]),
    ("shared", &[("after", "-8"), ("*p._M_ptr", "6")]),
    ("held", &[("h.n", "9"), ("after", "10")]),
    ("by_value", &[("o.n", "55"), ("after", "56")]),
    ("made", &[("first", "57"), ("second.n", "58")]),
    (
        "without",
        &[("x", "3"), ("yes", "1"), ("c", "'c'"), ("last", "4")],
    ),
    (
        "odds",
        &[
            ("o.a", "200"),
            ("o.b", "201"),
            ("o.c", "202"),
            ("m.d", "1.5"),
            ("m.i", "-5"),
            ("m.c", "'m'"),
            ("f", "2.5"),
            ("after", "66"),
        ],
    ),
    ("realigned", &[("a", "1"), ("d", "2.5"), ("text", "\"x\"")]),
    ("grown", &[("a", "2"), ("d", "3.5"), ("text", "\"y\"")]),
    (
        "many",
        &[
            ("a", "1"),
            ("b", "2"),
            ("f", "6"),
            ("seventh", "7"),
            ("eighth", "8"),
        ],
    ),
    ("over", &[("a.v[7]", "77"), ("x", "12")]),
    ("wide", &[("after", "15"), ("d", "17.5")]),
    ("complex_result", &[("first", "18"), ("second", "20")]),
    ("quad", &[("f", "2.5"), ("after", "22")]),
    ("stacked", &[("f", "6"), ("o.n", "-7"), ("after", "8")]),
    ("vary", &[("count", "23"), ("text", "\"vary\"")]),
    ("large", &[("a", "25"), ("text", "\"large\"")]),
    ("addressed", &[("a", "26"), ("b", "27")]),
    ("swapped", &[("a", "28"), ("b", "29")]),
];

/// Checks each value at the entry of each function. Without optimisation none may be refused.
fn check_calls(program: &Path, all: bool) {
    let object = open(program);
    let debug = object.debug().unwrap();
    let mut given = 0;
    let mut wrong = Vec::new();
    let clang = program.to_str().unwrap().contains("clang");
    for (function, expected) in CALLS {
        // clang's debug information treats the assignments of the first line as done at the entry.
        if *function == "swapped" && clang && !all {
            continue;
        }
        let places = debug.functions(function).unwrap();
        let place = places.iter().find(|place| place.inlined_into.is_none());
        let place = place.unwrap();
        let stopped = Stopped::at(program, place.address);
        for (name, value) in *expected {
            let found = match ask(&debug, &place.site, name, None) {
                Ok(typed) => stopped.shows(&typed),
                // The compiler describes the variable only for a part of the function.
                Err(VariableError {
                    refusal: Refusal::OptimisedOut { .. },
                    ..
                }) if clang => continue,
                Err(error) if all => format!("error: {error}"),
                Err(_) => continue,
            };
            if found != *value {
                wrong.push(format!("{function}: {name} is {value}, not {found}"));
            }
            given += 1;
        }
    }
    assert!(wrong.is_empty(), "{}: {wrong:#?}", program.display());
    assert!(given > 20, "{given} in {}", program.display());
}

#[test]
fn parameters_of_unoptimised_functions_hold_what_was_passed() {
    let shop = Workshop::new();
    let sets: [&[&str]; 5] = [
        &["-gdwarf-5"],
        &["-gdwarf-4", "-no-pie", "-fcf-protection=full"],
        &["-g", "-mavx2", "-fstack-protector-all"],
        &["-g", "-fstack-clash-protection", "-fno-omit-frame-pointer"],
        &["-g", "-pg"],
    ];
    let mut builds = 0;
    for compiler in ["g++", "clang++"] {
        for (index, set) in sets.iter().enumerate() {
            let options = [*set, &["-O0"][..]].concat();
            let name = format!("{compiler}-{index}");
            if let Some(program) = shop.compile(compiler, &options, CXX, &name) {
                // clang calls `mcount` after the address that it marks as the start of the first
                // line.
                check_calls(&program, !(compiler == "clang++" && set.contains(&"-pg")));
                builds += 1;
            }
        }
    }
    assert!(builds > 0);
}

#[test]
fn parameters_of_optimised_functions_are_what_was_passed_or_refused() {
    let shop = Workshop::new();
    for compiler in ["g++", "clang++"] {
        for (index, level) in ["-Og", "-O2", "-O3"].iter().enumerate() {
            let version = if index % 2 == 0 {
                "-gdwarf-5"
            } else {
                "-gdwarf-4"
            };
            let name = format!("{compiler}{level}");
            if let Some(program) = shop.compile(compiler, &[level, version], CXX, &name) {
                check_calls(&program, false);
            }
        }
    }
}

const C: &str = r#"
volatile long sink;
long old(a, f, c, d) int a; float f; char c; double d; { sink = a; return a + (long)f + c + (long)d; }
long kept(register int a, register double d) { sink = a; return a + (long)d; }
long around(int x)
{
	long __attribute__((noinline)) within(int y) { sink = y; return x + y; }
	return within(x + 1);
}
__attribute__((ms_abi, noinline)) long other(int a, long b) { sink = a; return a + b; }
int main() { old(1, 2.5f, 'c', 4.5); kept(5, 6.5); around(7); other(9, 10); }
"#;

#[test]
fn parameters_in_other_conventions_are_what_was_passed_or_refused() {
    let shop = Workshop::new();
    for level in ["-O0", "-O1"] {
        let name = format!("gcc{level}");
        let Some(program) = shop.compile("gcc", &["-g", "-w", "-fno-inline", level], C, &name)
        else {
            return;
        };
        let object = open(&program);
        let debug = object.debug().unwrap();
        for (function, expected) in [
            (
                "old",
                &[("a", "1"), ("f", "2.5"), ("c", "'c'"), ("d", "4.5")][..],
            ),
            ("kept", &[("a", "5"), ("d", "6.5")]),
            ("within", &[("y", "8")]),
            ("other", &[("a", "9"), ("b", "10")]),
        ] {
            // A nested function has no linker symbol of its own.
            let Ok(places) = debug.functions(function) else {
                assert_eq!((function, level), ("within", "-O1"));
                continue;
            };
            let Some(place) = places.iter().find(|place| place.inlined_into.is_none()) else {
                continue;
            };
            let stopped = Stopped::at(&program, place.address);
            for (text, value) in expected {
                match ask(&debug, &place.site, text, None) {
                    Ok(typed) => assert_eq!(&stopped.shows(&typed), value, "{text} {level}"),
                    // A float is passed as a double if there is no prototype; Microsoft's
                    // convention has another order of registers.
                    Err(error) => assert!(
                        level == "-O1" || *text == "f" || function == "other",
                        "{text} of {function}: {error}"
                    ),
                }
            }
        }
    }
}

const LOCALS: &str = r#"
struct owner { int n; owner(int n) : n(n) {} owner(const owner &o) : n(o.n) {} ~owner() {} };
volatile long sink;
owner made(int first)
{
	owner local(first);
	sink = local.n;                                         /* LINE made */
	return local;
}
long sized(int n)
{
	long before = n + 1;                                    /* LINE before */
	if (before > 100)
		sink = 1;
	int array[n];
	array[0] = n * 2;                                       /* LINE array */
	sink = array[0];                                        /* LINE used */
	return before;
}
long captured(int x)
{
	int y = x + 1;
	auto inner = [x, &y](int z) { sink = z; return x + y + z; };
	return inner(30);
}
int short_one(int n) { int local = n; return local; }
int main() { made(1); sized(5); captured(31); short_one(3); }
"#;

fn line(source: &str, mark: &str) -> u64 {
    let mark = format!("LINE {mark} ");
    let found = source.lines().position(|line| line.contains(&mark));
    1 + found.unwrap() as u64
}

#[test]
fn variables_that_are_found_through_the_frame_are_refused_until_it_is_set_up() {
    let shop = Workshop::new();
    let mut builds = 0;
    for (compiler, version) in [
        ("g++", "-gdwarf-5"),
        ("g++", "-gdwarf-4"),
        ("clang++", "-g"),
    ] {
        let name = format!("{compiler}{version}");
        let Some(program) = shop.compile(compiler, &["-O0", version], LOCALS, &name) else {
            continue;
        };
        builds += 1;
        let object = open(&program);
        let debug = object.debug().unwrap();
        let entry = |function: &str| debug.functions(function).unwrap()[0].site.clone();
        let at_line = |mark: &str| {
            let places = debug.line(&format!("{name}.cc"), line(LOCALS, mark));
            places.unwrap()[0].site.clone().unwrap()
        };
        let shown = |site: &capriole_dwarf::Site, text: &str| {
            let typed = ask(&debug, site, text, None).map_err(|error| error.to_string())?;
            Ok::<String, String>(Stopped::at(&program, site.address).shows(&typed))
        };
        let not_yet = |text: &str, mark: &str| {
            let line = line(LOCALS, mark);
            Err(format!(
                "`{text}` has no value yet here; probe at line {line} instead"
            ))
        };
        // In the caller's memory, at an address that is stored in the frame.
        let refused = shown(&entry("made"), "local.n");
        assert!(
            refused
                .unwrap_err()
                .starts_with("`local` has no value yet here")
        );
        assert_eq!(shown(&at_line("made"), "local.n"), Ok("1".to_owned()));
        // The array's address is calculated in the middle of the function.
        for site in [&entry("sized"), &at_line("before")] {
            // clang does not describe it before that point.
            match compiler {
                "g++" => assert_eq!(shown(site, "array[0]"), not_yet("array", "array"), "{name}"),
                _ => assert!(shown(site, "array[0]").is_err()),
            }
        }
        assert_eq!(shown(&at_line("used"), "array[0]"), Ok("10".to_owned()));
        // No line separates the two ends of the function.
        assert!(
            matches!(
                shown(&entry("short_one"), "local"),
                Err(text) if text.contains("; probe short_one+0x")
            ),
            "{name}"
        );
        if compiler == "clang++" {
            continue;
        }
        let lambda = debug.site(entry_of_lambda(&object), None).unwrap();
        for (text, value) in [
            ("x", "31"),
            ("y", "32"),
            ("z", "30"),
            ("__closure->__x", "31"),
        ] {
            assert_eq!(
                shown(&lambda, text),
                Ok(value.to_owned()),
                "{text} in {name}"
            );
        }
    }
    assert!(builds > 0);
}

fn entry_of_lambda(object: &capriole_object::ObjectFile) -> u64 {
    let symbols = object.symbols().unwrap();
    let found = symbols.functions().iter().find(|function| {
        let mut names = symbols.names(function);
        names.any(|name| name.linkage.starts_with("_ZZ8capturediENK"))
    });
    found.unwrap().extent.start
}

const RUST: &str = r#"
pub struct Point { pub x: i32, pub name: &'static str, pub list: Vec<u8> }
#[inline(never)]
pub fn handle(point: &Point, text: &str, count: u16, scale: f64, wide: u128, whole: Point) -> String {
    let extra = count as usize + whole.list.len();
    let inner = std::hint::black_box(|step: i64| step as usize + extra + text.len());
    format!("{}{}{}{}", point.name, inner(-5), scale, wide)
}
fn main() {
    let new = |x| std::hint::black_box(Point { x, name: "name", list: vec![1, 2] });
    println!("{}", handle(&new(3), "text", 9, 2.5, 7, new(-4)));
}
"#;

#[test]
fn parameters_of_rust_are_what_was_passed() {
    let shop = Workshop::new();
    for level in ["0", "2"] {
        let Some(program) = shop.compile_rust(&[], RUST, "point", level) else {
            return;
        };
        let object = open(&program);
        let debug = object.debug().unwrap();
        let site = &debug.functions("point::handle").unwrap()[0].site;
        let stopped = Stopped::at(&program, site.address);
        for (text, value) in [
            ("point.x", "3"),
            ("text.length", "4"),
            ("count", "9"),
            ("scale", "2.5"),
            ("whole.x", "-4"),
            ("whole.name.length", "4"),
        ] {
            match ask(&debug, site, text, None) {
                Ok(typed) => assert_eq!(stopped.shows(&typed), value, "{text} at {level}"),
                Err(error) => assert_eq!(level, "2", "{text}: {error}"),
            }
        }
    }
}

const RESULTS: &str = r#"#include <immintrin.h>
typedef int small __attribute__((vector_size(4)));
typedef float wide __attribute__((vector_size(32)));
struct holds_vector { __m128 v; };
struct holds_wide { wide v; };
struct holds_long_double { long double v; };
struct floats { float a, b; };
struct packed { float a; _Complex float b; };
struct pair { long a; double b; };
struct large { double v[3]; };
#ifdef __cplusplus
struct own { double v; own(double v) : v(v) {} own(const own &o) : v(o.v) {} };
struct inherits : own { inherits() : own(1) {} };
struct destroyed { double v; ~destroyed(); };
struct with_virtual { double v; virtual void f() {} };
struct plain { double v; plain() = default; plain(const plain &) = default; };
own returns_own() { return own(1); }
inherits returns_inherits() { return inherits(); }
destroyed::~destroyed() {}
destroyed returns_destroyed() { return destroyed{1}; }
plain returns_plain() { return plain(); }
#endif
__m128 returns_m128() { return _mm_set1_ps(1); }
__m128i returns_m128i() { return _mm_set1_epi32(1); }
wide returns_wide() { wide w = { 1 }; return w; }
small returns_small() { small s = { 1 }; return s; }
struct holds_vector returns_holds_vector() { struct holds_vector v = { _mm_set1_ps(1) }; return v; }
struct holds_wide returns_holds_wide() { struct holds_wide v = { { 1 } }; return v; }
struct holds_long_double returns_holds_long_double() { struct holds_long_double v = { 1 }; return v; }
struct floats returns_floats() { struct floats v = { 1, 2 }; return v; }
struct packed returns_packed() { struct packed v = { 1, 2 }; return v; }
struct pair returns_pair() { struct pair v = { 1, 2 }; return v; }
struct large returns_large() { struct large v = { { 1 } }; return v; }
long double returns_long_double() { return 1; }
_Complex double returns_complex() { return 1; }
__float128 returns_quad() { return 1; }
int returns_int() { return -1; }
double returns_double() { return 1; }
int main() { return 0; }
"#;

#[test]
fn results_are_in_the_registers_that_the_convention_says() {
    let shop = Workshop::new();
    let in_general = &["pair", "large", "int"][..];
    let in_vector = &[
        "m128",
        "m128i",
        "holds_vector",
        "floats",
        "packed",
        "double",
    ][..];
    let elsewhere = &[
        "wide",
        "small",
        "holds_wide",
        "holds_long_double",
        "long_double",
        "complex",
        "quad",
    ][..];
    let mut builds = 0;
    for compiler in ["gcc", "clang", "g++", "clang++"] {
        for version in ["-gdwarf-4", "-gdwarf-5"] {
            let options = ["-O0", "-w", "-mavx", version];
            let name = format!("{compiler}{version}");
            let Some(program) = shop.compile(compiler, &options, RESULTS, &name) else {
                continue;
            };
            builds += 1;
            let object = open(&program);
            let debug = object.debug().unwrap();
            let check = |names: &[&str], fits: fn(&Returned) -> bool| {
                for name in names {
                    let places = debug.functions(&format!("returns_{name}")).unwrap();
                    let returned = debug.returned(&places[0].site).unwrap();
                    assert!(fits(&returned), "{name}: {returned:?} in {compiler}");
                }
            };
            let general = |r: &Returned| matches!(r, Returned::Number(..) | Returned::Other(_));
            let vector = |r: &Returned| matches!(r, Returned::Vector(_));
            check(in_general, general);
            check(in_vector, vector);
            check(elsewhere, |r| matches!(r, Returned::Elsewhere(_)));
            if compiler.ends_with("++") {
                check(&["own", "inherits", "destroyed"], general);
                check(&["plain"], vector);
            }
        }
    }
    assert!(builds > 0);
}
