//! Meaning of names: in inlined copies that lack a variable, and where blocks have
//! variables of the same name as others. Compares each value with the program's own.

use std::path::{Path, PathBuf};

use super::has_no_place;
use capriole_dwarf::DebugInfo as _;
use capriole_dwarf::{Refusal, Site};
use capriole_testkit::objects::open;
use capriole_testkit::stopped::{Stopped, ask};
use capriole_testkit::workshop::Workshop;

/// Builds with each compiler at each level, with both current versions of debug information.
fn builds(shop: &Workshop, source: &str) -> Vec<(PathBuf, &'static str)> {
    let mut found = Vec::new();
    for compiler in ["gcc", "clang"] {
        for level in ["-O0", "-O1", "-O2", "-O3"] {
            for version in ["-gdwarf-4", "-gdwarf-5"] {
                let name = format!("{compiler}{level}{version}");
                let built = shop.compile(compiler, &[level, version], source, &name);
                found.extend(built.map(|program| (program, level)));
            }
        }
    }
    found
}

/// Checks that names have these values at a site, wherever a value is given.
/// Returns the number of given values.
fn holds(program: &Path, site: &Site, expected: &[(&str, &str)]) -> usize {
    let object = open(program);
    let debug = object.debug().unwrap();
    let stopped = Stopped::at(program, site.address);
    let mut given = 0;
    for (name, value) in expected {
        match ask(&debug, site, name, None) {
            Ok(typed) => {
                let shown = stopped.shows(&typed);
                let at = site.address;
                assert_eq!(&shown, value, "{name} at {at:#x} of {program:?}: {typed:?}");
                given += 1;
            }
            Err(error) => {
                let honest = has_no_place(&error.refusal);
                assert!(honest, "{name} of {program:?}: {error}");
            }
        }
    }
    given
}

const COPIES: &str = r#"
volatile int sink;
int global = 5, named = 77;
static int dropped(int value, int unused, int named)
{
	sink = value;
	return sink + 1;
}
__attribute__((noinline)) int around(int unused, int other, int local)
{
	sink = unused;
	int r = dropped(other, local * 3, other);
	return r + unused + sink + local;
}
__attribute__((noinline)) int again(int unused, int value)
{
	return dropped(value + 1, unused * 3, 4) + unused;
}
int main(int argc, char **argv)
{
	return around(argc + 10, argc + 20, argc + 30) + again(argc + 40, argc + 50) == global + named;
}
"#;

#[test]
fn what_a_copy_lacks_is_not_read_from_the_function_around_it() {
    let shop = Workshop::new();
    let mut out = 0;
    for (program, level) in builds(&shop, COPIES) {
        let object = open(&program);
        let debug = object.debug().unwrap();
        let places = debug.functions("dropped").unwrap();
        let copies: Vec<_> = places.iter().filter(|p| p.inlined_into.is_some()).collect();
        assert_eq!(
            copies.len(),
            if level == "-O0" { 0 } else { 2 },
            "{program:?}"
        );
        for copy in copies {
            let expected = match copy.inlined_into.as_deref() {
                Some("around") => [("value", "21"), ("unused", "93"), ("named", "21")],
                _ => [("value", "52"), ("unused", "123"), ("named", "4")],
            };
            holds(&program, &copy.site, &expected);
            let listed = debug.describe(&copy.site).unwrap();
            let names: Vec<&str> = listed.iter().map(|d| d.name.as_str()).collect();
            assert_eq!(names, ["value", "unused", "named"], "{program:?}");
            for described in &listed {
                let asked = ask(&debug, &copy.site, &described.name, None);
                assert_eq!(asked.is_ok(), described.fetch.is_ok(), "{program:?}");
                out += usize::from(matches!(described.place, Err(Refusal::OptimisedOut { .. })));
            }
            let error = ask(&debug, &copy.site, "local", None).unwrap_err();
            match copy.inlined_into.as_deref() {
                Some("around") => assert_eq!(
                    error.to_string(),
                    "`local` is a variable of `around`, which this copy is inlined into, not of \
                     `dropped`; probe a line of `around` for it"
                ),
                _ => assert!(matches!(error.refusal, Refusal::Unknown { .. }), "{error}"),
            }
            // Nor does a lookup in the surrounding function find names of the copy.
            let outer = debug.site(copy.address, copy.inlined_into.as_deref());
            let error = ask(&debug, &outer.unwrap(), "named", None);
            // There, the name is the global variable.
            assert!(error.unwrap().link_address, "{program:?}");
        }
    }
    if shop
        .compile("clang", &["-O2", "-g"], COPIES, "there")
        .is_some()
    {
        assert!(out >= 24, "{out}");
    }
}

const BLOCKS: &str = r#"
volatile int sink;
int y_global = 9;
__attribute__((noinline)) int shadow(int x, int y)
{
	sink = x;                       /* LINE outer */
	if (y > 1000) {
		int x = y + 500;
		sink = x;
	}
	{
		int x = y + 100;
		sink = x;               /* LINE inner */
		{
			long x = sink + 7;
			sink = x + y;   /* LINE innermost */
		}
	}
	if (0) {
		int y = 3, x = 4;
		sink = y + x;
	}
	sink = x + y;                   /* LINE behind */
	return sink;
}
__attribute__((noinline)) int first(int x)
{
	{
		int x = 5;
		sink = x;               /* LINE constant */
	}
	return sink + x;
}
static inline int part(int x)
{
	{
		int x = sink;
		sink = 3;
		sink = x * 0;           /* LINE lost */
	}
	return x + 1;                   /* LINE kept */
}
__attribute__((noinline)) int whole(int a) { return part(a + 1) * 3; }
__attribute__((noinline)) int outside(void)
{
	extern int y_global;
	static int calls = 70;
	return y_global + calls++;      /* LINE outside */
}
int main(int argc, char **argv)
{
	int all = shadow(argc + 10, argc + 20);
	all += first(argc + 30);
	sink = 5;
	all += whole(argc + 40);
	return all + outside() == 1;
}
"#;

/// Returns the first place of the line with a mark.
fn line_of(debug: &capriole_dwarf::Debug<'_>, program: &Path, mark: &str) -> Option<Site> {
    let mark = format!("LINE {mark} ");
    let line = 1 + BLOCKS.lines().position(|l| l.contains(&mark)).unwrap() as u64;
    let file = format!("{}.c", program.file_name().unwrap().to_str().unwrap());
    let places = debug.line(&file, line).ok()?;
    let site = places.into_iter().find(|place| place.first)?.site;
    // An instruction merged with code of the surrounding function belongs to that function.
    site.filter(|site| site.frame().name != "whole")
}

#[test]
fn a_block_elsewhere_hides_nothing() {
    let shop = Workshop::new();
    for (program, level) in builds(&shop, BLOCKS) {
        let object = open(&program);
        let debug = object.debug().unwrap();
        // At an entry, names refer to the function's variables, even where its first instruction
        // belongs to a block.
        for (function, expected) in [
            ("shadow", [("x", "11"), ("y", "21")].as_slice()),
            ("first", &[("x", "31")]),
            ("outside", &[("y_global", "9"), ("calls", "70")]),
        ] {
            let place = &debug.functions(function).unwrap()[0];
            let given = holds(&program, &place.site, expected);
            assert_eq!(given, expected.len(), "{function} of {program:?}");
            let listed = debug.describe(&place.site).unwrap();
            for parameter in listed.iter().filter(|d| d.parameter) {
                assert!(parameter.fetch.is_ok(), "{function} of {program:?}");
            }
        }
        for place in debug.functions("part").unwrap() {
            holds(&program, &place.site, &[("x", "42")]);
        }
        for (mark, expected) in [
            ("outer", [("x", "11"), ("y", "21")].as_slice()),
            ("inner", &[("x", "121"), ("y", "21")]),
            ("innermost", &[("x", "128"), ("y", "21")]),
            ("behind", &[("x", "11"), ("y", "21")]),
            ("constant", &[("x", "5")]),
            ("kept", &[("x", "42")]),
            ("outside", &[("y_global", "9"), ("calls", "70")]),
        ] {
            let Some(site) = line_of(&debug, &program, mark) else {
                assert_ne!(level, "-O0", "{mark} of {program:?}");
                continue;
            };
            let given = holds(&program, &site, expected);
            if level == "-O0" {
                assert_eq!(given, expected.len(), "{mark} of {program:?}");
            }
        }
        // Where LLVM omitted the block's variable, and the block with it, the parameter must not be
        // shown instead. (GCC says here that it is in a register which holds something else.)
        let clang = program
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with("clang");
        if clang && let Some(site) = line_of(&debug, &program, "lost") {
            holds(&program, &site, &[("x", "5")]);
        }
    }
}
