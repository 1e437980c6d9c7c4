//! Compares the values of variables, read through debug information, with those of the running
//! program.

use capriole_dwarf::DebugInfo as _;
use capriole_dwarf::Refusal;
use capriole_event::{Base, Deref, Element, Fetch, FieldType, Shown};
use capriole_testkit::objects::open;
use capriole_testkit::stopped::{Stopped, ask, check};
use capriole_testkit::workshop::Workshop;

const C: &str = r#"#include <stdlib.h>
#include <stdbool.h>
#include <stdint.h>
enum colour { RED, GREEN = 7 };
enum sign { MINUS = -2, PLUS = 2 };
struct item { int id; const char *name; struct item *next; };
struct pair { long a, b; };
struct small { short x; signed char y; unsigned char z; };
struct big { long v[5]; };
struct flags { unsigned a : 3; signed b : 5; unsigned long long c : 40; unsigned d : 1; };
struct __attribute__((packed)) tight { char c; unsigned x : 13; unsigned y : 13; };
typedef const struct request {
	uint32_t len; char name[16]; struct item *list; struct item inner[3];
	union { int number; float real; }; struct { char c; bool yes; };
	enum colour colour; enum sign sign; struct flags flags; int grid[2][3];
	unsigned char bytes[4]; void (*call)(int); struct tight tight; double d;
} request_t;
int counter = 42; static volatile long hidden = -5; request_t *current; char label[] = "label";
__thread int mine = 3;
volatile int sink;

__attribute__((noinline)) int handle(request_t *req, int size, unsigned char flag, char *text,
	enum sign sign, short last, long seventh, int eighth)
{
	int local = size + 1;                                   /* LINE first */
	{
		int inner_local = local * 2;                    /* LINE declared */
		sink = inner_local;                             /* LINE inner */
	}
	sink = local + req->len + flag + text[0] + sign + last; /* LINE body */
	return sink + (int)seventh + eighth;
}
__attribute__((noinline)) long structs(struct pair p, struct small s, struct big b, double d, int after)
{
	sink = (int)(p.a + s.x + b.v[0] + d);                  /* LINE structs */
	return after + p.b;
}
__attribute__((noinline)) struct big returns(int first, int second)
{
	struct big b = { { first, second } };                   /* LINE returns */
	sink = first;
	return b;
}
static inline __attribute__((always_inline)) int twice(int what) { int result = what * 2; sink = result; /* LINE twice */ return result + sink; }
__attribute__((noinline)) int caller(int a, int b) { return twice(a + 1) + twice(b + 2); }
int main(void)
{
	static struct item second = { 2, "two", 0 }, first = { 1, "one", &second };
	static struct request r = { .len = 4000000000u, .name = "fifteen letters", .list = &first,
		.inner = { { 10, "ten", 0 }, { 20, "twenty", &first }, { 30, "thirty", 0 } },
		.number = 99, .c = 'q', .yes = true, .colour = GREEN, .sign = MINUS,
		.flags = { 5, -7, 0x123456789a, 1 }, .grid = { { 1, 2, 3 }, { 4, 5, 6 } },
		.bytes = { 1, 2, 250, 255 }, .tight = { 'x', 4321, 8000 }, .d = 1.5 };
	current = &r;
	struct pair p = { 11, -12 }; struct small s = { -3, -4, 250 }; struct big b = { { 7, 8, 9 } };
	int x = handle(&r, -77, 200, "some text", MINUS, -9, 7777777777, -8);
	structs(p, s, b, 2.5, 66);
	sink += returns(31, 32).v[0];
	caller(20, 30);
	return x == 12345 ? (int)hidden : mine - 3;
}
"#;

const HANDLE: &[(&str, &str)] = &[
    ("size", "-77"),
    ("flag", "200"),
    ("text", "\"some text\""),
    ("*text", "'s'"),
    ("text[5]", "'t'"),
    ("sign", "-2"),
    ("last", "-9"),
    ("seventh", "7777777777"),
    ("eighth", "-8"),
    ("req->len", "4000000000"),
    ("(*req).len", "4000000000"),
    ("req->name", "\"fifteen letters\""),
    ("req->name[1]", "'i'"),
    ("req->list->name", "\"one\""),
    ("req->list->next->name", "\"two\""),
    ("req->list->next->id", "2"),
    ("req->list->next->next", "0x0"),
    ("req->inner[2].id", "30"),
    ("req->inner[1].next->next->name", "\"two\""),
    ("req->inner->name", "\"ten\""),
    ("req->number", "99"),
    ("req->c", "'q'"),
    ("req->yes", "1"),
    ("req->colour", "7"),
    ("req->sign", "-2"),
    ("req->flags.a", "5"),
    ("req->flags.b", "-7"),
    ("req->flags.c", "78187493530"),
    ("req->flags.d", "1"),
    ("req->tight.x", "4321"),
    ("req->tight.y", "8000"),
    ("req->grid[1][2]", "6"),
    ("req->grid[1]", "{4,5,6}"),
    ("req->bytes", "{1,2,250,255}"),
    ("req->call", "0x0"),
    ("*req->list->name", "'o'"),
    ("counter", "42"),
    ("hidden", "-5"),
    ("label", "\"label\""),
    ("label[2]", "'b'"),
    ("current->list->next->id", "2"),
    ("req->d", "1.5"),
    (
        "req->flags",
        "error 3: `req->flags` is struct flags; name a member: there are a, b, c, d",
    ),
    (
        "req->grid",
        "error 3: `req->grid` is int [2][3]; at most 64 numbers fit into a field: name an element, req->grid[0]",
    ),
    (
        "req->nothing",
        "error 3: request_t has no member `nothing`: there are len, name, list, inner, colour, sign, flags, grid, bytes, call, tight, d, ...",
    ),
    ("req->inner[3].id", "error 10: the array has 3 elements"),
    (
        "size->x",
        "error 4: `size` is not a pointer; use `.`: its type is int",
    ),
    ("size.x", "error 4: `size` has no members: its type is int"),
    (
        "mine",
        "error 0: `mine` is thread-local, which is not supported; record a pointer to it",
    ),
];

/// Returns the number of the source line with a mark.
fn line(source: &str, mark: &str) -> u64 {
    let mark = format!("LINE {mark} ");
    1 + source
        .lines()
        .position(|line| line.contains(&mark))
        .unwrap() as u64
}

fn builds(shop: &Workshop, source: &str, c: bool) -> Vec<std::path::PathBuf> {
    let compilers = if c {
        ["gcc", "clang"]
    } else {
        ["g++", "clang++"]
    };
    let sets: [&[&str]; 6] = [
        &["-g", "-O0"],
        &["-g", "-O0", "-no-pie", "-fcf-protection=full"],
        &["-g", "-O2", "-fno-omit-frame-pointer"],
        &["-gdwarf-4", "-O2"],
        &["-gdwarf-5", "-O1", "-gz=zlib"],
        &["-gdwarf-4", "-O0", "-fdebug-types-section"],
    ];
    let mut found = Vec::new();
    for compiler in compilers {
        for (index, options) in sets.iter().enumerate() {
            let name = format!("{compiler}-{index}");
            found.extend(shop.compile(compiler, options, source, &name));
        }
    }
    found
}

#[test]
fn parameters_at_the_entry_hold_what_was_passed() {
    let shop = Workshop::new();
    for program in builds(&shop, C, true) {
        let object = open(&program);
        let debug = object.debug().unwrap();
        let place = &debug.functions("handle").unwrap()[0];
        assert_eq!(place.inlined_into, None);
        check(&program, place.address, Some("handle"), HANDLE);
        let address = debug.functions("structs").unwrap()[0].address;
        let name = program.file_name().unwrap().to_str().unwrap().to_owned();
        // With optimisation, GCC describes a struct in a vector register and in memory in its
        // own ways.
        let expected = [
            ("p.a", "11"),
            ("p.b", "-12"),
            ("s.x", "-3"),
            ("s.y", "-4"),
            ("s.z", "250"),
            ("b.v[2]", "9"),
            ("after", "66"),
        ];
        let optimised = !["-0", "-1", "-5"].iter().any(|end| name.ends_with(end));
        if !optimised {
            check(&program, address, None, &expected);
            let address = debug.functions("returns").unwrap()[0].address;
            check(
                &program,
                address,
                None,
                &[("first", "31"), ("second", "32")],
            );
        } else {
            check(&program, address, None, &expected[6..]);
        }
        // After `endbr64` it is still the entry.
        if object.read(place.address, 4).unwrap() == [0xf3, 0x0f, 0x1e, 0xfa] {
            check(&program, place.address + 4, Some("handle"), HANDLE);
        }
    }
}

#[test]
fn variables_of_a_line_hold_what_was_computed() {
    let shop = Workshop::new();
    for program in builds(&shop, C, true) {
        let object = open(&program);
        let debug = object.debug().unwrap();
        let source = format!("{}.c", program.file_name().unwrap().to_str().unwrap());
        let name = program.file_name().unwrap().to_str().unwrap().to_owned();
        let optimised = !["-0", "-1", "-5"].iter().any(|end| name.ends_with(end));
        let places = debug.line(&source, line(C, "body")).unwrap();
        let firsts: Vec<_> = places.iter().filter(|place| place.first).collect();
        assert_eq!(firsts.len(), 1, "{source}");
        if optimised {
            continue;
        }
        let mut expected = HANDLE.to_vec();
        expected.push(("local", "-76"));
        let declared = format!(
            "error 0: `inner_local` is not visible here; it is declared at line {}",
            line(C, "declared")
        );
        expected.push(("inner_local", &declared));
        check(&program, firsts[0].address, None, &expected);
        let inner = debug.line(&source, line(C, "inner")).unwrap();
        let expected = [("inner_local", "-152"), ("local", "-76"), ("size", "-77")];
        check(&program, inner[0].address, None, &expected);
        let structs = debug.line(&source, line(C, "structs")).unwrap();
        let expected = [
            ("p.b", "-12"),
            ("s.y", "-4"),
            ("b.v[1]", "8"),
            ("b.v", "{7,8,9,0,0}"),
            ("after", "66"),
        ];
        check(&program, structs[0].address, None, &expected);
        // In each of the two copies.
        let twice = debug.line(&source, line(C, "twice")).unwrap();
        let copies: Vec<_> = twice.iter().filter(|place| place.first).collect();
        assert!(copies.len() >= 2, "{source}: {twice:?}");
    }
}

#[test]
fn values_that_are_optimised_away_are_never_invented() {
    let shop = Workshop::new();
    for program in builds(&shop, C, true) {
        // Any value given for these in `handle` must be the one that was passed, as they never
        // change. Another check, at the entry, ensures that enough values are given.
        let object = open(&program);
        let debug = object.debug().unwrap();
        let place = &debug.functions("handle").unwrap()[0];
        let function = object
            .symbols()
            .unwrap()
            .function_at(place.address)
            .unwrap();
        let text = object.read(place.address, function.extent.end - place.address);
        let text = text.unwrap();
        let mut decoder = iced_x86::Decoder::with_ip(64, &text, place.address, 0);
        let mut given = 0;
        for instruction in decoder.iter().collect::<Vec<_>>() {
            let address = instruction.ip();
            let site = debug.site(address, Some("handle")).unwrap();
            let stopped = Stopped::at(&program, address);
            for (name, value) in &HANDLE[..9] {
                if let Ok(typed) = ask(&debug, &site, name, None) {
                    assert_eq!(
                        &stopped.shows(&typed),
                        value,
                        "{name} at {address:#x} in {program:?}"
                    );
                    given += 1;
                }
            }
        }
        assert!(given > 20, "{given} in {program:?}");
    }
}

/// A refusal names the line behind the one that gives it a value.
#[test]
fn a_local_without_initialiser_has_its_value_behind_the_assignment() {
    const SOURCE: &str = r#"
long handle(long n)
{
	long result;
	long other = n * 2;
	if (other > 7)
		other++;
	result = other + n;
	other = result; // LINE behind the store
	return other;
}
int main(void)
{
	return (int)handle(1);
}
"#;
    let shop = Workshop::new();
    for compiler in ["gcc", "clang"] {
        let Some(program) = shop.compile(compiler, &["-g", "-O0"], SOURCE, compiler) else {
            continue;
        };
        let object = open(&program);
        let debug = object.debug().unwrap();
        let place = &debug.functions("handle").unwrap()[0];
        let error = ask(&debug, &place.site, "result", None).unwrap_err();
        let line = line(SOURCE, "behind");
        assert_eq!(
            error.to_string(),
            format!("`result` has no value yet here; probe at line {line} instead"),
            "{compiler}"
        );
    }
}

#[test]
fn locals_have_no_value_at_the_entry_without_optimisation() {
    let shop = Workshop::new();
    let Some(program) = shop.compile("gcc", &["-g", "-O0"], C, "entry") else {
        return;
    };
    let object = open(&program);
    let debug = object.debug().unwrap();
    let place = &debug.functions("handle").unwrap()[0];
    let error = ask(&debug, &place.site, "local", None).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "`local` has no value yet here; probe at line {} instead",
            line(C, "declared")
        )
    );
    // The line of the declaration begins before the variable has its value.
    let at = |mark| {
        let places = debug.line("entry.c", line(C, mark)).unwrap();
        places[0].site.clone().unwrap()
    };
    let refused = ask(&debug, &at("first"), "local", None).unwrap_err();
    assert_eq!(refused.to_string(), error.to_string());
    assert!(ask(&debug, &at("declared"), "local", None).is_ok());
    // Between the two, parameters are neither in the registers nor in the frame.
    let site = debug.site(place.address + 1, None).unwrap();
    let error = ask(&debug, &site, "size", None).unwrap_err();
    assert!(
        matches!(error.refusal, Refusal::NotYetStored { .. }),
        "{error}"
    );
    let error = ask(&debug, &place.site, "sized", None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no variable `sized` here: there are req, size, flag, text, sign, last, seventh, eighth, local"
    );
}

#[test]
fn types_that_are_asked_for_are_given() {
    let shop = Workshop::new();
    let Some(program) = shop.compile("gcc", &["-g", "-O0"], C, "asked") else {
        return;
    };
    let object = open(&program);
    let debug = object.debug().unwrap();
    let site = debug.functions("handle").unwrap().remove(0).site;
    let stopped = Stopped::at(&program, site.address);
    let string = Some(FieldType {
        element: Element::String { user: false },
        count: None,
    });
    let array = Some(FieldType {
        count: Some(4),
        ..FieldType::number(Shown::Unsigned, 1)
    });
    let hex = |bytes| Some(FieldType::number(Shown::Hexadecimal, bytes));
    for (text, wanted, value) in [
        ("size", hex(4), "0xffffffb3"),
        ("size", Some(FieldType::number(Shown::Unsigned, 1)), "179"),
        ("text", array, "{115,111,109,101}"),
        ("req->name", array, "{102,105,102,116}"),
        ("req->name", string, "\"fifteen letters\""),
        ("req->list->name", string, "\"one\""),
        ("req->d", hex(8), "0x3ff8000000000000"),
        ("req->flags.a", hex(4), "0x5"),
        ("current->len", hex(4), "0xee6b2800"),
    ] {
        let typed = ask(&debug, &site, text, wanted).unwrap();
        assert_eq!(stopped.shows(&typed), value, "{text}");
    }
    for (text, wanted) in [
        ("size", string),
        ("size", array),
        ("req->flags.a", string),
        ("req->len", hex(8)),
    ] {
        let error = ask(&debug, &site, text, wanted).unwrap_err();
        let expected = matches!(
            error.refusal,
            Refusal::Mismatch { .. } | Refusal::Size { .. } | Refusal::Wider { .. }
        );
        assert!(expected, "{text}: {error}");
    }
    // Dereferences around a variable start from its value, or from an array's address.
    let around = |text: &str, offsets: &[i64], wanted| {
        let derefs = offsets.iter().map(|&offset| Deref {
            offset,
            user: false,
        });
        let fetch = Fetch {
            base: Base::Variable(text.to_owned()),
            derefs: derefs.collect(),
        };
        stopped.shows(&debug.fetch(&site, &fetch, wanted).unwrap())
    };
    assert_eq!(around("req", &[0], hex(4)), "0xee6b2800");
    assert_eq!(around("req->list", &[16, 0], hex(4)), "0x2");
    assert_eq!(around("req->name", &[1], string), "\"ifteen letters\"");
    assert_eq!(around("label", &[2], string), "\"bel\"");
    assert_eq!(around("text", &[5], string), "\"text\"");
}

const CXX: &str = r#"#include <string>
#include <utility>
namespace net {
struct base { int kind = 5; virtual ~base() {} };
struct other { long weight = 6; };
class request : public base, public other {
public:
	int size = 7; static int count; const int &alias; int *pointer;
	request(int *p) : alias(*p), pointer(p) {}
	__attribute__((noinline)) int handle(const std::pair<int, long> &pair, int &&moved, bool yes) { return size + pair.first + moved + yes; }
};
int request::count = 9;
struct owner { int n; owner(int n) : n(n) {} owner(const owner &o) : n(o.n) {} ~owner() { n = 0; } };
__attribute__((noinline)) int take(owner by_value, int after) { return by_value.n + after; }
template <typename T> __attribute__((noinline)) T add(T a, T b) { return a + b; }
}
int main()
{
	int value = 13; net::request r(&value); std::pair<int, long> p(21, 22);
	int x = r.handle(p, 23, true);
	x += net::take(net::owner(55), 56);
	x += net::add<short>(-3, -4);
	return x == 1;
}
"#;

#[test]
fn classes_references_and_bases_are_followed() {
    let shop = Workshop::new();
    for program in builds(&shop, CXX, false) {
        let object = open(&program);
        let debug = object.debug().unwrap();
        let name = program.file_name().unwrap().to_str().unwrap().to_owned();
        let unoptimised = ["-0", "-1", "-5"].iter().any(|end| name.ends_with(end));
        if !unoptimised {
            continue;
        }
        let at = |function: &str| debug.functions(function).unwrap()[0].address;
        let expected = [
            ("this->size", "7"),
            ("this->kind", "5"),
            ("this->weight", "6"),
            ("this->alias", "13"),
            ("*this->pointer", "13"),
            ("this.size", "7"),
            ("pair.first", "21"),
            ("pair.second", "22"),
            ("moved", "23"),
            ("yes", "1"),
            ("net::request::count", "9"),
        ];
        check(&program, at("net::request::handle"), None, &expected);
        // As with symbols: the name alone would be a function outside of all classes.
        assert!(debug.functions("handle").is_err());
        let expected = [("by_value.n", "55"), ("after", "56")];
        check(&program, at("net::take"), None, &expected);
        check(
            &program,
            at("short net::add<short>(short, short)"),
            None,
            &[("a", "-3"), ("b", "-4")],
        );
    }
}
