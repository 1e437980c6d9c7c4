//! Lookup by name of functions that the compiler inlined: the places found, and the values of
//! parameters there.

use crate::fixtures;

use std::path::PathBuf;
use std::process::Command;

use capriole_dwarf::DebugInfo as _;
use capriole_dwarf::{Refusal, Site as Scope};
use capriole_event::{EventSpec, Probe};
use capriole_object::Objects;
use capriole_planner::resolve::{Body, Site, namesakes, resolve};
use capriole_testkit::stopped::{Stopped, ask};
use fixtures::{Workshop, complaint, find, find_one, open};

/// `handle_request` is only inlined, `both` has code of its own as well. Each caller has
/// variables of the same names with other values.
const SOURCE: &str = r#"
struct request { int len; const char *name; };
volatile int sink;
static inline __attribute__((always_inline)) int handle_request(struct request *req, int size)
{
	int sum = size + req->len;
	sink = sum;
	for (int i = 0; i < size; i++)
		sink += req->name[i];
	return sum * 3;
}
int both(int size) { sink = size; return sink * size; }
__attribute__((noinline)) int first(struct request *r, int n) { return handle_request(r, n) + 1; }
__attribute__((noinline)) int second(struct request *r, int size)
{
	if (size > 100)
		return 0;
	return handle_request(r, size * 2 + 1) + size;
}
__attribute__((noinline)) int third(struct request *req)
{
	sink = 4;
	int x = handle_request(req + 1, 3);
	sink = x;
	return handle_request(req, 4) + x + req->len;
}
__attribute__((noinline)) int calls_both(int n) { sink = n; return both(n + 5) + n; }
int main(int argc, char **argv)
{
	struct request r[2] = { { 10, "some letters" }, { 20, "others" } };
	return first(r, argc + 1) + second(r, argc) + third(r) + calls_both(argc) == 7;
}
"#;

/// (caller, size, req->len) of each copy, by caller.
const EXPECTED: [(&str, &str, &str); 4] = [
    ("first", "2", "10"),
    ("second", "3", "10"),
    ("third", "3", "20"),
    ("third", "4", "10"),
];

fn builds(shop: &Workshop) -> Vec<PathBuf> {
    let sets: [&[&str]; 5] = [
        &["-g", "-O2"],
        &["-gdwarf-5", "-O2", "-gsplit-dwarf"],
        &["-gdwarf-4", "-O2", "-gsplit-dwarf"],
        &["-gdwarf-4", "-O2", "-fno-pie", "-no-pie"],
        &["-g", "-O1", "-fcf-protection=full"],
    ];
    let mut found = Vec::new();
    for compiler in ["gcc", "clang"] {
        for (index, options) in sets.iter().enumerate() {
            let name = format!("{compiler}-{index}");
            found.extend(shop.compile(compiler, options, SOURCE, &name));
        }
    }
    found
}

fn scope(site: &Site) -> &Scope {
    site.scope.as_ref().expect("a copy knows what is around it")
}

#[test]
fn every_inlined_copy_is_found_and_read_in_its_own_scope() {
    let shop = Workshop::new();
    for program in builds(&shop) {
        let objects = Objects::offline(&program).unwrap();
        let object = open(&program);
        let debug = object.debug().unwrap();
        assert!(object.symbols().unwrap().exact("handle_request").is_empty());
        let sites = find(&objects, ":handle_request").unwrap();
        let mut found: Vec<(String, String, String)> = Vec::new();
        for site in &sites {
            assert_eq!(
                site.body,
                Body::Inlined {
                    function: "handle_request".to_owned()
                },
                "{program:?}"
            );
            assert!(site.extent.start <= site.address && site.address < site.extent.end);
            assert_eq!(site.instruction().unwrap(), Some(site.address));
            assert_eq!(scope(site).frame().name, "handle_request");
            let stopped = Stopped::at(&program, site.link_address);
            let shows = |text: &str| {
                let typed = ask(&debug, scope(site), text, None);
                stopped.shows(&typed.unwrap_or_else(|error| panic!("{text}: {error} {program:?}")))
            };
            let caller = site.symbol.clone().unwrap();
            found.push((caller, shows("size"), shows("req->len")));
        }
        found.sort();
        let expected = EXPECTED.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()));
        assert_eq!(found, expected, "{program:?}");
        // Parameters are the copy's, in the order of the source.
        let copy = sites
            .iter()
            .find(|site| site.symbol.as_deref() == Some("second"));
        let listed = debug.describe(scope(copy.unwrap())).unwrap();
        let own = listed.iter().filter(|d| d.parameter);
        let names: Vec<&str> = own.map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["req", "size"], "{program:?}");
        assert!(listed.iter().all(|d| d.function == "handle_request"));
        // A variable of the surrounding function is not one of the copy.
        let error = ask(&debug, scope(copy.unwrap()), "r", None).unwrap_err();
        let other = matches!(&error.refusal, Refusal::OtherFunction { of, .. } if of == "second");
        assert!(other, "{error}");
        let error = ask(&debug, scope(copy.unwrap()), "nothing", None).unwrap_err();
        assert!(matches!(error.refusal, Refusal::Unknown { .. }), "{error}");
    }
}

#[test]
fn a_function_with_code_of_its_own_comes_first() {
    let shop = Workshop::new();
    for compiler in ["gcc", "clang"] {
        let Some(program) = shop.compile(compiler, &["-g", "-O2"], SOURCE, compiler) else {
            continue;
        };
        let objects = Objects::offline(&program).unwrap();
        let sites = find(&objects, ":both").unwrap();
        let bodies: Vec<_> = sites.iter().map(|site| &site.body).collect();
        let inlined = Body::Inlined {
            function: "both".to_owned(),
        };
        assert_eq!(bodies, [&Body::Own, &inlined], "{compiler}");
        assert_eq!(sites[0].symbol.as_deref(), Some("both"));
        assert_eq!(sites[1].symbol.as_deref(), Some("calls_both"));
        assert_eq!(scope(&sites[1]).frames.len(), 2);
        // An offset applies to the function's own code; patterns match symbols.
        for event in [":both+1", ":bot[h]", ":0x1000"] {
            if let Ok(sites) = find(&objects, event) {
                assert_eq!(sites.len(), 1, "{event}");
                assert_eq!(sites[0].body, Body::Own, "{event}");
            }
        }
        assert_eq!(
            find_one(&objects, ":bot[h]").symbol.as_deref(),
            Some("both")
        );
        // Without debug information, only its own code is found.
        let stripped = shop.path(&format!("{compiler}-plain"));
        let mut strip = std::process::Command::new("strip");
        strip
            .arg("--strip-debug")
            .arg(&program)
            .arg("-o")
            .arg(&stripped);
        if !fixtures::run(&mut strip) {
            continue;
        }
        let objects = Objects::offline(&stripped).unwrap();
        assert_eq!(find_one(&objects, ":both").body, Body::Own);
        let said = complaint(&objects, ":handle_request");
        assert!(said.starts_with("no function `handle_request`"), "{said}");
    }
}

/// The entry and the exits of a call are only searched in a function's own code.
#[test]
fn calls_are_those_of_a_functions_own_code() {
    let shop = Workshop::new();
    let parts = shop.compile("gcc", &["-g", "-O2"], PARTS, "parts");
    let clones = shop.compile("gcc", &["-g", "-O3"], CLONES, "clones");
    let (Some(parts), Some(clones)) = (parts, clones) else {
        return;
    };
    let calls = |text: &str| Probe {
        of_calls: true,
        ..EventSpec::parse(text).unwrap().into()
    };
    let objects = Objects::offline(&clones).unwrap();
    let cloned = find(&objects, ":same").unwrap().len() > 1;
    if !cloned {
        println!("skipped: this gcc does not clone the function");
        return;
    }
    let sites = resolve(&objects, &calls(":same")).unwrap();
    assert_eq!(sites.len(), 1);
    assert_eq!(sites[0].symbol.as_deref(), Some("same"));
    assert_eq!(sites[0].body, Body::Own);
    // A clone, given by its name, has its own entry and exits.
    let [entry] = &resolve(&objects, &calls(":same.constprop.0")).unwrap()[..] else {
        panic!("one entry")
    };
    let exits = resolve(&objects, &calls("r :same.constprop.0")).unwrap();
    let function = |site: &Site| site.leaving.as_ref().map(|leaving| leaving.function);
    assert!(!exits.is_empty());
    assert!(
        exits
            .iter()
            .all(|exit| function(exit) == Some(entry.address))
    );
    // A function that is inlined except for a part has no calls.
    let objects = Objects::offline(&parts).unwrap();
    if find(&objects, ":split").is_ok_and(|sites| sites[0].body == Body::Own) {
        println!("skipped: this gcc does not split the function");
        return;
    }
    let said = resolve(&objects, &calls(":split")).unwrap_err().to_string();
    assert!(said.starts_with("no function `split`"), "{said}");
}

/// A function whose beginning is worth inlining, one that is always called with the same
/// argument, and one that calls itself, for GCC to split and clone.
const PARTS: &str = r#"
volatile int sink;
__attribute__((noinline)) int slow(int n) { sink = n; return n; }
static int split(int n)
{
	if (__builtin_expect(n > 3, 1))
		return n;
	sink = 3;
	for (int i = 0; i < n; i++) { sink += slow(i); sink *= 3; sink -= slow(i + 2); }
	return sink + slow(1) + slow(2) + slow(3) + slow(n);
}
__attribute__((noinline)) static int same(int n, int always)
{
	sink = always;
	for (int i = 0; i < always; i++) sink += slow(n);
	return sink;
}
__attribute__((noinline)) int a(int x) { return split(x) + same(x, 8); }
__attribute__((noinline)) int b(int x) { return split(x) + same(x + 1, 8); }
__attribute__((noinline)) int c(int x) { return split(x) + 3; }
int main(int argc, char **argv) { return a(argc) + b(argc) + c(argc); }
"#;

#[test]
fn parts_are_no_calls_and_clones_are() {
    let shop = Workshop::new();
    let Some(program) = shop.compile("gcc", &["-g", "-O2"], PARTS, "parts") else {
        return;
    };
    let objects = Objects::offline(&program).unwrap();
    let main = fixtures::main_object(&objects);
    let symbols = main.symbols().unwrap();
    if symbols.exact("split.part.0").is_empty() {
        println!("skipped: this gcc does not split the function");
    } else {
        let sites = find(&objects, ":split").unwrap();
        let callers: Vec<_> = sites.iter().map(|site| site.symbol.as_deref()).collect();
        assert_eq!(callers.len(), 3, "{callers:?}");
        assert!(
            [Some("a"), Some("b"), Some("c")]
                .iter()
                .all(|caller| callers.contains(caller))
        );
    }
    if symbols.exact("same.constprop.0").is_empty() {
        println!("skipped: this gcc does not clone the function");
    } else {
        let site = find_one(&objects, ":same");
        assert_eq!(site.symbol.as_deref(), Some("same.constprop.0"));
        assert_eq!((site.body, site.offset), (Body::Clone, 0));
    }
}

/// A function with code of its own, of which GCC makes two clones.
const CLONES: &str = r#"
volatile int sink;
__attribute__((noinline)) static int same(int n, int always)
{
	sink = always;
	for (int i = 0; i < always; i++) sink += n ^ sink;
	return sink;
}
int (*volatile pointer)(int, int) = same;
__attribute__((noinline)) int a(int x) { return same(x, 8) + same(x + 1, 8); }
__attribute__((noinline)) int b(int x) { return same(x, 9) + same(x + 3, 9); }
int main(int argc, char **argv) { return a(argc) + b(argc) + pointer(argc, argc); }
"#;

/// Local functions of two source files: one has a symbol, of the other there are only copies.
#[test]
fn other_functions_of_the_name_are_known() {
    let shop = Workshop::new();
    let header = "extern volatile int sink; int second(int);\n";
    let own = "__attribute__((noinline)) static int helper(int n) { sink = n; return n + sink; }\n";
    let main = "volatile int sink;\nint main(int n, char **v) { return helper(n) + second(n); }\n";
    let inlined = "static inline __attribute__((always_inline)) int helper(int n)\n\
                   { sink = 2 * n; return sink; }\n\
                   __attribute__((noinline)) int second(int n) { return helper(n + 1); }\n";
    std::fs::write(shop.path("one.c"), [header, own, main].concat()).unwrap();
    std::fs::write(shop.path("two.c"), [header, inlined].concat()).unwrap();
    let program = shop.path("program");
    let mut gcc = Command::new("gcc");
    gcc.current_dir(shop.path(""))
        .args(["-O2", "-g", "one.c", "two.c", "-o"]);
    if !fixtures::run(gcc.arg(&program)) {
        return;
    }
    let objects = Objects::offline(&program).unwrap();
    let site = find_one(&objects, ":helper");
    let others = namesakes(&site);
    let [other] = &others[..] else {
        panic!("{others:?}");
    };
    let (file, line) = other.declared.as_ref().unwrap();
    assert!(file.ends_with("two.c") && *line == 2, "{other}");
    let second = find_one(&objects, ":second");
    let inside = second.file_offset..second.file_offset + second.extent.len();
    assert!(other.file_offsets.iter().all(|at| inside.contains(at)));
    assert!(namesakes(&second).is_empty());
}

#[test]
fn the_name_of_a_clone_means_only_that() {
    let shop = Workshop::new();
    let Some(program) = shop.compile("gcc", &["-g", "-O3"], CLONES, "clones") else {
        return;
    };
    let objects = Objects::offline(&program).unwrap();
    let main = fixtures::main_object(&objects);
    if main.symbols().unwrap().exact("same.constprop.0").is_empty() {
        println!("skipped: this gcc does not clone the function");
        return;
    }
    let sites = find(&objects, ":same").unwrap();
    assert_eq!(sites[0].body, Body::Own);
    assert!(sites.len() > 1);
    let site = find_one(&objects, ":same.constprop.0");
    assert_eq!((site.body, site.offset), (Body::Own, 0));
}

#[test]
fn qualified_names_mean_that_function_only() {
    let shop = Workshop::new();
    let source = r#"
volatile int sink;
#define INLINE inline __attribute__((always_inline))
namespace shop { struct Order {
	INLINE int add(long price) { sink = (int)price; return sink; }
	INLINE int add(long price, long tax) { sink = (int)(price + tax); return sink + 1; }
}; }
namespace other { INLINE int add(int x) { sink = x; return sink + 2; } }
int main(int argc, char **) { shop::Order order; return order.add(argc) + order.add(argc, 2) + other::add(argc); }
"#;
    for compiler in ["g++", "clang++"] {
        let Some(program) = shop.compile(compiler, &["-g", "-O2"], source, compiler) else {
            continue;
        };
        let objects = Objects::offline(&program).unwrap();
        let functions = |event: &str| -> Vec<String> {
            let sites = find(&objects, event).unwrap();
            let name = |site: &Site| match &site.body {
                Body::Inlined { function } => function.clone(),
                body => panic!("{body:?}"),
            };
            sites.iter().map(name).collect()
        };
        // Overloads are separate functions, as they are with symbols.
        let said = complaint(&objects, ":shop::Order::add");
        let (first, rest) = said.split_once('\n').unwrap();
        assert_eq!(first, "`shop::Order::add` names 2 functions; choose one:");
        let names: Vec<_> = rest
            .lines()
            .map(|line| line.split_once("  declared at ").unwrap())
            .map(|(name, _)| name.trim())
            .collect();
        assert_eq!(
            names,
            ["shop::Order::add(long)", "shop::Order::add(long, long)"]
        );
        assert_eq!(
            functions(":shop::Order::add(long, long)"),
            ["shop::Order::add(long, long)"]
        );
        assert_eq!(functions(":other::add"), ["other::add(int)"]);
        assert!(find(&objects, ":add").is_err());
    }
}
