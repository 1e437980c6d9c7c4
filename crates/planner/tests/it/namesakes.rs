//! Functions that have the same name, and one function that several units describe: which
//! inlined copies belong to an event.

use crate::fixtures;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use capriole_dwarf::DebugInfo as _;
use capriole_object::Objects;
use capriole_planner::resolve::{Body, ResolveError, Site};
use capriole_testkit::stopped::{Stopped, ask};
use fixtures::{Workshop, complaint, find, open, run};

const BUILDS: [&[&str]; 4] = [
    &["-O2", "-g"],
    &["-O2", "-gdwarf-4"],
    &["-O2", "-gdwarf-5", "-gsplit-dwarf"],
    &["-O2", "-gdwarf-4", "-gsplit-dwarf"],
];

/// Builds the program from `files` with each compiler and each set of options.
fn programs(shop: &Workshop, compilers: [&str; 2], files: &[(&str, &str)]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for compiler in compilers {
        for (index, options) in BUILDS.iter().enumerate() {
            // Each build has its own `.dwo` files.
            let dir = shop.path(&format!("{compiler}-{index}"));
            std::fs::create_dir_all(dir.join("inc")).unwrap();
            for (name, text) in files {
                std::fs::write(dir.join(name), text).unwrap();
            }
            let sources = files.iter().map(|file| file.0);
            let sources = sources.filter(|name| !name.ends_with(".h"));
            let mut command = Command::new(compiler);
            command.current_dir(&dir).args(sources).args(*options);
            if run(command.args(["-o", "program"])) {
                found.push(dir.join("program"));
            }
        }
    }
    found
}

/// Makes a copy of the program with debug information for the second of its sources only.
fn first_without_debug(program: &Path, sources: [&str; 2]) -> Option<PathBuf> {
    let dir = program.parent().unwrap();
    let name = dir.file_name().unwrap().to_str().unwrap();
    let compiler = name.split('-').next().unwrap();
    let plain = dir.join("plain");
    let compile = |options: &[&str], source: &str, object: &str| {
        let mut command = Command::new(compiler);
        command.current_dir(dir).args(["-O2", "-c"]).args(options);
        run(command.args([source, "-o", object]))
    };
    let compiled = compile(&[], sources[0], "1.o") && compile(&["-g"], sources[1], "2.o");
    let mut link = Command::new(compiler);
    link.current_dir(dir).args(["1.o", "2.o", "-o"]).arg(&plain);
    (compiled && run(&mut link)).then_some(plain)
}

/// Returns the functions that contain the sites.
fn callers(sites: &[Site]) -> BTreeSet<&str> {
    sites.iter().filter_map(|s| s.symbol.as_deref()).collect()
}

fn is_inlined(site: &Site) -> bool {
    matches!(site.body, Body::Inlined { .. })
}

/// A local function with code of its own, and one inlined copy.
const OWN: &str = r#"
extern volatile int sink;
static int init(int n) { sink = n; return n * sink; }
int (*volatile pointer)(int) = init;
__attribute__((noinline)) int one(int n) { sink = 1; return init(n + 1) + pointer(n); }
"#;

/// An unrelated function of the same name.
const OTHER: &str = r#"
volatile int sink;
int one(int n);

static inline __attribute__((always_inline)) long init(long q) { sink = (int)q; return q + 9; }
__attribute__((noinline)) long two(int n) { sink = 2; return init(n * 7L); }
int main(int argc, char **argv) { return one(argc) + two(argc) == 5; }
"#;

#[test]
fn a_symbol_has_only_its_own_copies() {
    let shop = Workshop::new();
    for program in programs(&shop, ["gcc", "clang"], &[("a1.c", OWN), ("a2.c", OTHER)]) {
        let objects = Objects::offline(&program).unwrap();
        let sites = find(&objects, ":init").unwrap();
        assert_eq!(sites[0].body, Body::Own, "{program:?}");
        assert_eq!(callers(&sites), ["init", "one"].into(), "{program:?}");
        assert!(sites[1..].iter().all(is_inlined), "{program:?}");
        // The other function can be probed by one of its lines.
        let sites = find(&objects, ":a2.c:5").unwrap();
        assert!(callers(&sites).contains("two"), "{program:?}");
        // Without debug information about the symbol's unit, the other function's copies do not
        // match either.
        if let Some(plain) = first_without_debug(&program, ["a1.c", "a2.c"]) {
            let objects = Objects::offline(&plain).unwrap();
            let sites = find(&objects, ":init").unwrap();
            assert_eq!(callers(&sites), ["init"].into(), "{plain:?}");
        }
    }
}

#[test]
fn functions_that_are_only_inlined_may_be_ambiguous() {
    let shop = Workshop::new();
    let first = r#"
extern volatile int sink;
static inline __attribute__((always_inline)) int init(int n) { sink = n; return n * sink; }
__attribute__((noinline)) int one(int n) { sink = 1; return init(n + 1); }
"#;
    for program in programs(&shop, ["gcc", "clang"], &[("a1.c", first), ("a2.c", OTHER)]) {
        let objects = Objects::offline(&program).unwrap();
        let Err(ResolveError::AmbiguousCopies { candidates, .. }) = find(&objects, ":init") else {
            panic!("{program:?}");
        };
        let dir = program.parent().unwrap();
        let mut declared = Vec::new();
        for candidate in &candidates {
            assert_eq!(candidate.symbol, "init");
            let (file, line) = candidate.declared.clone().expect("where it is declared");
            declared.push((PathBuf::from(file), line));
            for offset in &candidate.file_offsets {
                let event = format!(":{offset:#x}");
                let site = fixtures::find_one(&objects, &event);
                let caller = if line == 3 { "one" } else { "two" };
                let symbol = site.symbol.as_deref();
                // A copy in `main` was first inlined into one of these.
                assert!(symbol == Some(caller) || symbol == Some("main"), "{site:?}");
            }
        }
        declared.sort();
        let expected = [(dir.join("a1.c"), 3), (dir.join("a2.c"), 5)];
        assert_eq!(declared, expected, "{program:?}");
        let said = complaint(&objects, ":init");
        let start =
            "`init` names 2 functions; choose one by a line of its code (FILE:LINE) or by offset:";
        assert!(said.starts_with(start), "{said}");
        let line = format!(
            "\n  init  declared at {}:3, code at ",
            dir.join("a1.c").display()
        );
        assert!(said.contains(&line), "{said}");
    }
}

#[test]
fn a_function_of_a_header_is_one_in_all_units() {
    let shop = Workshop::new();
    let header = r#"
extern volatile int sink;
static inline __attribute__((always_inline)) int scale(int n) { sink = n; return n * sink; }
"#;
    let first = r#"
#include "inc/scale.h"
__attribute__((noinline)) int one(int n) { sink = 1; return scale(n + 1); }
"#;
    // The same file under another path.
    let second = r#"
#include "inc/../inc/scale.h"
volatile int sink;
int one(int n);
__attribute__((noinline)) int two(int n) { sink = 2; return scale(n + 6); }
int main(int argc, char **argv) { return one(argc) + two(argc) == 5; }
"#;
    let files = [("inc/scale.h", header), ("a1.c", first), ("a2.c", second)];
    for program in programs(&shop, ["gcc", "clang"], &files) {
        let objects = Objects::offline(&program).unwrap();
        let sites = find(&objects, ":scale").unwrap_or_else(|e| panic!("{program:?}: {e}"));
        assert!(sites.iter().all(is_inlined));
        assert_eq!(callers(&sites), ["one", "two"].into(), "{program:?}");
        let object = open(&program);
        let debug = object.debug().unwrap();
        for site in &sites {
            let scope = site.scope.as_ref().unwrap();
            let typed = ask(&debug, scope, "n", None).unwrap();
            let expected = if site.symbol.as_deref() == Some("one") {
                "2"
            } else {
                "7"
            };
            let shown = Stopped::at(&program, site.link_address).shows(&typed);
            assert_eq!(shown, expected, "{program:?}");
        }
    }
}

#[test]
fn inline_functions_and_templates_of_cpp_are_one_in_all_units() {
    let shop = Workshop::new();
    let header = r#"
extern volatile int sink;
#define INLINE __attribute__((always_inline))
namespace shop {
INLINE inline int price(int n) { sink = n; return n * sink; }
template <typename T> INLINE inline T tax(T n) { sink = (int)n; return n + sink; }
struct Order { INLINE int sum(int n) { sink = n; return n - sink; } int late(int n); };
inline int Order::late(int n) { sink = n; return n + 3 * sink; }
inline int kept(int n) { for (int i = 0; i < n; i++) sink = i; return n ^ sink; }
}
"#;
    let first = r#"
#include "inc/shop.h"
namespace { INLINE inline int mine(int n) { sink = n; return n - 1; } }
int (*volatile keep)(int) = shop::kept;
__attribute__((noinline)) int one(int n) {
	sink = 1; shop::Order order;
	return shop::price(n) + shop::tax(n) + shop::tax((long)n) + order.sum(n) + order.late(n) + mine(n);
}
"#;
    let second = r#"
#include "inc/shop.h"
volatile int sink;

namespace { INLINE inline int mine(int n) { sink = n; return n - 2; } }
int one(int n);
__attribute__((noinline)) int two(int n) {
	sink = 2; shop::Order order;
	return shop::price(n) + shop::tax(n) + order.sum(n) + order.late(n) + shop::kept(n) + mine(n);
}
int main(int argc, char **) { return one(argc) + two(argc) == 5; }
"#;
    let files = [("inc/shop.h", header), ("a1.cc", first), ("a2.cc", second)];
    for program in programs(&shop, ["g++", "clang++"], &files) {
        let objects = Objects::offline(&program).unwrap();
        let found = |event: &str| {
            find(&objects, event).unwrap_or_else(|error| panic!("{event} {program:?}: {error}"))
        };
        let both: BTreeSet<&str> = ["one(int)", "two(int)"].into();
        for event in [
            ":shop::price",
            ":shop::tax<int>",
            ":shop::Order::sum",
            ":shop::Order::late",
        ] {
            assert_eq!(callers(&found(event)), both, "{event} {program:?}");
        }
        // Another instance of the template is another function.
        let sites = found(":shop::tax<long>");
        assert_eq!(callers(&sites), ["one(int)"].into(), "{program:?}");
        // The linker kept the code of one unit, and the other unit inlined it.
        let sites = found(":shop::kept");
        let expected: BTreeSet<&str> = ["shop::kept(int)", "two(int)"].into();
        assert_eq!(sites[0].body, Body::Own, "{program:?}");
        assert_eq!(callers(&sites), expected, "{program:?}");
        // The same holds if there is no debug information about the code that was kept.
        if let Some(plain) = first_without_debug(&program, ["a1.cc", "a2.cc"]) {
            let objects = Objects::offline(&plain).unwrap();
            let sites = find(&objects, ":shop::kept").unwrap();
            assert_eq!(callers(&sites), expected, "{plain:?}");
        }
        // Local to their units: clang gives both the same mangled name, GCC none.
        let local = match program.to_string_lossy().contains("clang") {
            true => ":(anonymous namespace)::mine",
            false => ":mine",
        };
        let said = complaint(&objects, local);
        assert!(said.contains("names 2 functions"), "{program:?}: {said}");
    }
}
