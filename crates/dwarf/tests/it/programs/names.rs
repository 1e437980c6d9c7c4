//! Names of members, of variables in namespaces, and of static variables that several units have:
//! in C++ and C, where a global variable of the same name is there too.

use std::path::{Path, PathBuf};
use std::process::Command;

use capriole_dwarf::DebugInfo as _;
use capriole_dwarf::{Debug, Site};

use super::has_no_place;
use capriole_testkit::objects::open;
use capriole_testkit::stopped::{Stopped, ask};
use capriole_testkit::workshop::{Workshop, run};

const BUILDS: [&[&str]; 6] = [
    &["-O0", "-gdwarf-4"],
    &["-O0", "-gdwarf-5"],
    &["-O2", "-gdwarf-4"],
    &["-O2", "-gdwarf-5"],
    &["-O2", "-gdwarf-5", "-gsplit-dwarf"],
    &["-O0", "-gdwarf-4", "-fdebug-types-section"],
];

/// Builds the program of `files` in each variant with both compilers.
fn builds(shop: &Workshop, compilers: [&str; 2], files: &[(&str, &str)]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for compiler in compilers {
        for options in BUILDS {
            found.extend(build(shop, compiler, options, files));
        }
    }
    assert!(!found.is_empty(), "no compiler");
    found
}

fn build(
    shop: &Workshop,
    compiler: &str,
    options: &[&str],
    files: &[(&str, &str)],
) -> Option<PathBuf> {
    let dir = shop.path(&format!("{compiler}{}", options.concat()));
    std::fs::create_dir_all(&dir).unwrap();
    for (name, text) in files {
        std::fs::write(dir.join(name), text).unwrap();
    }
    let mut command = Command::new(compiler);
    command.current_dir(&dir).args(files.iter().map(|f| f.0));
    command.args(options).arg("-w").args(["-o", "program"]);
    run(&mut command).then(|| dir.join("program"))
}

/// Returns the place where the function's own code begins.
fn entry(debug: &Debug<'_>, function: &str) -> Site {
    let places = debug.functions(function);
    // Clang numbers local functions, and GCC does not mangle their names.
    let clang = || debug.functions(&function.replace("{lambda(int)#1}", "$_0"));
    let places = places.or_else(|_| clang());
    let places = places.or_else(|_| debug.functions("operator()")).unwrap();
    let own = places
        .into_iter()
        .find(|place| place.inlined_into.is_none());
    own.unwrap().site
}

/// Checks that each name has this value at the site, or is refused with a message that contains
/// the text after a `!`. With optimisation, it may have no location.
fn check(program: &Path, site: &Site, expected: &[(&str, &str)]) {
    let object = open(program);
    let debug = object.debug().unwrap();
    let stopped = Stopped::at(program, site.address);
    let optimised = program.to_str().unwrap().contains("-O2");
    for (name, value) in expected {
        let at = format!("{name} in {} of {program:?}", site.frame().name);
        match (ask(&debug, site, name, None), value.strip_prefix('!')) {
            (Ok(typed), None) => assert_eq!(&stopped.shows(&typed), value, "{at}"),
            (Err(error), Some(why)) => {
                assert!(error.to_string().contains(why), "{at}: {error}");
            }
            (Err(error), None) => {
                assert!(optimised && has_no_place(&error.refusal), "{at}: {error}");
            }
            (Ok(typed), Some(_)) => panic!("{at}: {}", stopped.shows(&typed)),
        }
    }
}

/// Every name that is looked up also exists as a global variable.
const FIRST: &str = r#"
#ifdef __clang__
#define OWN __attribute__((noinline))
#else
#define OWN __attribute__((noinline, noipa))
#endif
volatile int level = 1000, base_only = 1001, ns_var = 1002, anon_var = 1003, inner_var = 1004,
	own_static = 1005, base_static = 1006, virt = 1007, twice = 1008, captured = 1009,
	used = 1010, outer_static = 1011, un = 1012, inl = 1013, size = 1014, ns_static = 1015;
volatile int sink;
static volatile int same = 11, only_a = 12;
int far_b(int), far_c(int);
namespace other { volatile int used = 50, imported = 51, b2 = 52; }
namespace deep { volatile int far_used = 53; }
namespace ns {
volatile int ns_var = 2002;
static volatile int ns_static = 2003;
namespace { volatile int anon_var = 2004; }
inline namespace v1 { volatile int inl = 2005; }
struct Outer { static volatile int outer_static; struct In; };
volatile int Outer::outer_static = 2011;
struct Base {
	int base_only = 3001, twice = 3008;
	static volatile int base_static;
};
volatile int Base::base_static = 3006;
struct Base2 { int b2 = 3100, twice = 3108; };
struct Virt { int virt = 3007; };
struct Level : Base, Base2, virtual Virt {
	int level;
	union { int un; float fl; };
	static volatile int own_static;
	Level(int n) : level(n) { un = 3013; }
	int size() { return level; }
	OWN int method(int n);
	OWN static int still(int n);
	OWN int lambda(int n);
};
volatile int Level::own_static = 3005;
int Level::method(int n)
{
	sink = n;
	return level + base_only + n + own_static + base_static + virt + b2 + un + ns_var + size();
}
int Level::still(int n) { sink = n; return n + own_static + base_static; }
int Level::lambda(int n)
{
	int captured = n + 1;
	auto f = [this, captured](int q) OWN { sink = q; return q + captured + level; };
	return f(n);
}
struct Outer::In {
	int x = 5;
	OWN int method(int n);
};
int Outer::In::method(int n) { sink = n; return n + outer_static + x; }
namespace inner {
volatile int inner_var = 2006;
OWN int fun(int n)
{
	sink = n;
	return n + inner_var + ns_var + anon_var + ns_static + inl;
}
OWN int direct(int n)
{
	using namespace other;
	using other::imported;
	sink = n;
	return n + imported + b2;
}
}
}
using namespace deep;
namespace { volatile int top_anon = 70; }
OWN int plain(int n) { sink = n; return n + level + far_used + top_anon + same + only_a; }
int main(int argc, char **)
{
	ns::Level l(argc + 5);
	ns::Outer::In in;
	int all = l.method(argc) + l.still(argc) + l.lambda(argc) + in.method(argc);
	all += ns::inner::fun(argc) + ns::inner::direct(argc) + plain(argc) + other::used;
	all += ns_static + own_static + base_static + base_only + virt + twice + captured;
	return all + used + outer_static + un + inl + size + inner_var + anon_var + far_b(argc) == far_c(argc);
}
"#;

const SECOND: &str = r#"
extern volatile int sink;
static volatile int same = 22, only_dup = 33, lonely = 66;
volatile int external = 44;
namespace ns { static volatile int ns_static = 88; }
__attribute__((noinline)) int far_b(int n)
{
	static volatile int calls = 8;
	sink = n;
	return n + same + only_dup + external + calls++ + lonely + ns::ns_static;
}
"#;

const THIRD: &str = r#"
extern volatile int sink;
static volatile int only_dup = 55, external = 77;
__attribute__((noinline)) int far_c(int n)
{
	static volatile int calls = 9;
	sink = n;
	return n + only_dup + external + calls++;
}
"#;

#[test]
fn names_mean_what_they_mean_in_cpp() {
    let shop = Workshop::new();
    let files = [("a.cc", FIRST), ("b.cc", SECOND), ("c.cc", THIRD)];
    for program in builds(&shop, ["g++", "clang++"], &files) {
        let object = open(&program);
        let debug = object.debug().unwrap();
        for (function, expected) in [
            (
                "ns::Level::method",
                [
                    ("level", "6"),
                    ("base_only", "3001"),
                    ("own_static", "3005"),
                    ("base_static", "3006"),
                    ("b2", "3100"),
                    ("un", "3013"),
                    ("virt", "!ns::Virt, a virtual base class of"),
                    ("twice", "!write one of ns::Base::twice, ns::Base2::twice"),
                    ("size", "!member function of ns::Level"),
                    ("Base::twice", "3008"),
                    ("this->Base2::twice", "3108"),
                    ("this->own_static", "3005"),
                    ("ns_var", "2002"),
                    ("ns_static", "2003"),
                    ("anon_var", "2004"),
                    ("inl", "2005"),
                    ("inner_var", "1004"),
                    ("inner::inner_var", "2006"),
                    ("::ns_var", "1002"),
                    ("::ns::ns_var", "2002"),
                    ("ns::ns_var", "2002"),
                    ("ns::inl", "2005"),
                    ("ns::v1::inl", "2005"),
                    ("ns::anon_var", "2004"),
                    ("Level::own_static", "3005"),
                    ("Level::base_static", "3006"),
                    ("ns::Level::own_static", "3005"),
                    ("Outer::outer_static", "2011"),
                    ("outer_static", "1011"),
                    ("used", "1010"),
                    ("other::used", "50"),
                    ("far_used", "53"),
                    ("top_anon", "70"),
                    ("same", "11"),
                    ("lonely", "66"),
                    ("only_dup", "!names 2 variables"),
                    ("external", "44"),
                    ("far_b::calls", "8"),
                    ("'b.cc'::same", "22"),
                    ("'c.cc'::only_dup", "55"),
                    ("'b.cc'::ns::ns_static", "88"),
                    ("'b.cc'::only_a", "!no variable"),
                    ("nowhere", "!no variable `nowhere` here"),
                    ("ns::nowhere", "!no variable"),
                ]
                .as_slice(),
            ),
            (
                "ns::Level::still",
                &[
                    ("own_static", "3005"),
                    ("base_static", "3006"),
                    ("level", "!member of ns::Level"),
                ],
            ),
            (
                "ns::Level::lambda(int)::{lambda(int)#1}::operator()(int) const",
                &[
                    ("captured", "2"),
                    ("level", "6"),
                    ("base_only", "3001"),
                    ("own_static", "3005"),
                    ("ns_var", "2002"),
                    ("q", "1"),
                ],
            ),
            (
                "ns::Outer::In::method",
                &[("outer_static", "2011"), ("x", "5"), ("ns_var", "2002")],
            ),
            (
                "ns::inner::fun",
                &[
                    ("inner_var", "2006"),
                    ("ns_var", "2002"),
                    ("anon_var", "2004"),
                    ("ns_static", "2003"),
                    ("inl", "2005"),
                    ("outer_static", "1011"),
                    ("level", "1000"),
                ],
            ),
            (
                "ns::inner::direct",
                &[
                    ("imported", "51"),
                    ("b2", "52"),
                    ("used", "!write one of ::used, ::other::used"),
                ],
            ),
            (
                "plain",
                &[
                    ("level", "1000"),
                    ("ns_var", "1002"),
                    ("far_used", "53"),
                    ("same", "11"),
                ],
            ),
            (
                "far_b",
                &[
                    ("same", "22"),
                    ("only_dup", "33"),
                    ("only_a", "12"),
                    ("calls", "8"),
                ],
            ),
            (
                "far_c",
                &[
                    ("same", "!names 2 variables; write one of '"),
                    ("only_dup", "55"),
                    ("external", "77"),
                    ("::external", "77"),
                    ("'b.cc'::external", "44"),
                    ("calls", "9"),
                ],
            ),
        ] {
            check(&program, &entry(&debug, function), expected);
        }
    }
}

#[test]
fn variables_of_a_namespace_are_not_all_optimised_out() {
    // `check` accepts missing values in an optimised program, but volatile globals must have one.
    let shop = Workshop::new();
    let files = [("a.cc", FIRST), ("b.cc", SECOND), ("c.cc", THIRD)];
    let options = ["-O2", "-gdwarf-5"];
    for compiler in ["g++", "clang++"] {
        let Some(program) = build(&shop, compiler, &options, &files) else {
            continue;
        };
        let object = open(&program);
        let debug = object.debug().unwrap();
        for (function, names) in [
            (
                "ns::Level::method",
                "level base_only b2 own_static ns_var ns_static anon_var inl",
            ),
            (
                "far_b",
                "same only_dup lonely only_a external ns_static ns::ns_static",
            ),
        ] {
            let site = entry(&debug, function);
            for name in names.split(' ') {
                let asked = ask(&debug, &site, name, None);
                assert!(
                    asked.is_ok() || name == "ns_static",
                    "{name} of {program:?}: {asked:?}"
                );
            }
        }
    }
}

const ONE: &str = r#"
extern volatile int sink;
static volatile int state = 100;
int helper(int n) { sink = n; state += n; return state + sink; }
"#;

const OTHER: &str = r#"
volatile int sink;
static volatile int state = 200;
int helper(int n);
__attribute__((noinline)) int work(int n) { state += n; return helper(n) + state; }
int main(int argc, char **argv) { return work(argc + 4) == 3; }
"#;

#[test]
fn a_copy_has_the_static_variables_of_its_own_unit() {
    let shop = Workshop::new();
    let files = [("one.c", ONE), ("other.c", OTHER)];
    let mut copies = 0;
    for (compiler, options) in [
        ("gcc", ["-O2", "-gdwarf-5", "-flto"].as_slice()),
        ("gcc", &["-O2", "-gdwarf-4", "-flto"]),
        ("clang", &["-O2", "-g", "-flto", "-fuse-ld=lld"]),
    ] {
        let Some(program) = build(&shop, compiler, options, &files) else {
            continue;
        };
        let object = open(&program);
        let debug = object.debug().unwrap();
        let places = debug.functions("helper").unwrap();
        for place in places.iter().filter(|place| place.inlined_into.is_some()) {
            let names = [("state", "100"), ("'one.c'::state", "100")];
            check(&program, &place.site, &names);
            assert!(
                ask(&debug, &place.site, "state", None).is_ok(),
                "{program:?}"
            );
            copies += 1;
        }
        // In the surrounding code the name is another variable.
        let work = debug.functions("work").unwrap();
        for place in work.iter().filter(|_| !places.is_empty()) {
            check(
                &program,
                &place.site,
                &[("state", "200"), ("'one.c'::state", "100")],
            );
        }
    }
    assert!(copies > 0, "nothing was inlined");
}

const PACKS: &str = r#"
volatile long sink;
template <typename... Args> __attribute__((noinline)) int pack(int first, Args... args)
{
	sink = first;
	return static_cast<int>((first + ... + args)) + static_cast<int>(sink);
}
template <typename... More> __attribute__((noinline)) int more(More &&...more, int last)
{
	sink = last;
	return static_cast<int>((last + ... + more));
}
int main(int argc, char **)
{
	int n = argc + 40;
	return pack(argc, 5, 6L, 7u) + pack(argc, 8) + more<int &, long>(n, 12L, 9) == 2;
}
"#;

#[test]
fn elements_of_a_parameter_pack_have_names() {
    let shop = Workshop::new();
    for program in builds(&shop, ["g++", "clang++"], &[("packs.cc", PACKS)]) {
        let object = open(&program);
        let debug = object.debug().unwrap();
        let name = |index| match program.to_str().unwrap().contains("clang") {
            true => format!("more#{index}"),
            false => format!("args#{index}"),
        };
        for (function, expected) in [
            (
                "pack<int, long, unsigned int>",
                [
                    ("first", "1"),
                    ("args#0", "5"),
                    ("args#1", "6"),
                    ("args#2", "7"),
                    ("args#3", "!no variable"),
                    (
                        "args",
                        "!a parameter pack; name an element: args#0, args#1, args#2",
                    ),
                ]
                .as_slice(),
            ),
            (
                "more<int&, long>",
                &[(&name(0), "41"), (&name(1), "12"), ("last", "9")],
            ),
        ] {
            let site = entry(&debug, function);
            check(&program, &site, expected);
            // `$arg*` and `list --args` show the described parameters.
            let values: Vec<_> = expected.iter().filter(|e| !e.1.starts_with('!')).collect();
            let listed = debug.describe(&site).unwrap();
            let names: Vec<&str> = listed.iter().map(|d| d.name.as_str()).collect();
            let wanted: Vec<&str> = values.iter().map(|value| value.0).collect();
            assert_eq!(names, wanted, "{program:?}");
            assert!(listed.iter().all(|d| d.parameter), "{program:?}");
        }
        // With clang, a pack of one element cannot be distinguished from a plain parameter.
        let site = entry(&debug, "pack<int>");
        let single = match program.to_str().unwrap().contains("clang") {
            true => "args",
            false => "args#0",
        };
        check(&program, &site, &[("first", "1"), (single, "8")]);
    }
}

const USER: &str = r#"
struct node;
extern volatile int sink;
__attribute__((noinline)) int user(struct node *n) { sink = 1; return n != 0; }
"#;
const NODE_A: &str = r#"
struct node { int first, second; };
volatile int sink;
int user(struct node *);
__attribute__((noinline)) int a(struct node *n) { sink = n->first; return n->second; }
int b(void *);
int main(int argc, char **argv) { struct node n = { 1, 2 }; return user(&n) + a(&n) + b(&n); }
"#;
const NODE_B: &str = r#"

struct node { int second, first; };
__attribute__((noinline)) int b(struct node *n) { return n->first - n->second; }
"#;

#[test]
fn structs_of_one_name_are_not_mixed_up() {
    let shop = Workshop::new();
    let files = [("u.c", USER), ("na.c", NODE_A), ("nb.c", NODE_B)];
    for program in builds(&shop, ["gcc", "clang"], &files) {
        let object = open(&program);
        let debug = object.debug().unwrap();
        // Both structs have 8 bytes.
        check(
            &program,
            &entry(&debug, "user"),
            &[("n->first", "!is not known here")],
        );
        check(
            &program,
            &entry(&debug, "a"),
            &[("n->first", "1"), ("n->second", "2")],
        );
        check(
            &program,
            &entry(&debug, "b"),
            &[("n->first", "2"), ("n->second", "1")],
        );
    }
    for program in builds(
        &shop,
        ["gcc", "clang"],
        &[files[0], files[1], ("nb.c", "int b(void *n) { return 0; }")],
    ) {
        let object = open(&program);
        let debug = object.debug().unwrap();
        check(
            &program,
            &entry(&debug, "user"),
            &[("n->first", "1"), ("n->second", "2")],
        );
    }
}
