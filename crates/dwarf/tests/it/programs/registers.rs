//! Values that debug information describes by a register, or as a constant, where the program has
//! something else: they are read where they are, or refused.

use std::path::Path;

use capriole_dwarf::DebugInfo as _;
use capriole_dwarf::Site;
use capriole_testkit::objects::open;
use capriole_testkit::stopped::{Stopped, ask};
use capriole_testkit::workshop::Workshop;

/// Returns the value of an expression at a site, or the reason why it is refused.
fn value(program: &Path, site: &Site, text: &str) -> Result<String, String> {
    let object = open(program);
    let debug = object.debug().unwrap();
    let typed = ask(&debug, site, text, None).map_err(|error| error.to_string())?;
    Ok(Stopped::at(program, site.address).shows(&typed))
}

/// Returns the entry of a function.
fn entry(program: &Path, function: &str) -> Site {
    let object = open(program);
    let debug = object.debug().unwrap();
    let places = debug.functions(function).unwrap();
    let own = places.iter().find(|place| place.inlined_into.is_none());
    own.unwrap().site.clone()
}

/// Returns the first instruction of a line.
fn line(program: &Path, file: &str, line: u64) -> Site {
    let object = open(program);
    let debug = object.debug().unwrap();
    let places = debug.line(file, line).unwrap();
    places[0].site.clone().unwrap()
}

fn shows(program: &Path, site: &Site, expected: &[(&str, &str)]) {
    for (text, wanted) in expected {
        let found = value(program, site, text);
        assert_eq!(found, Ok((*wanted).to_owned()), "{text} at {site:?}");
    }
}

/// Checks values at every statement of a function: they are right, or refused. At the entry they are
/// right.
fn throughout(program: &Path, function: &str, expected: &[(&str, &str)]) {
    let entry = entry(program, function);
    shows(program, &entry, expected);
    let object = open(program);
    let debug = object.debug().unwrap();
    let mut statements = debug.statements(entry.address, entry.address + 0x400);
    statements.dedup_by_key(|statement| statement.0);
    let mut given = 0;
    for (address, _) in statements {
        let site = debug.site(address, None).unwrap();
        if site.frame().name != entry.frame().name {
            break;
        }
        for (text, wanted) in expected {
            if let Ok(found) = value(program, &site, text) {
                assert_eq!(&found, wanted, "{text} at {address:#x}");
                given += 1;
            }
        }
    }
    assert!(given > expected.len(), "{given}");
}

const BY_ADDRESS: &str = r"struct money { long cents; money(long c) : cents(c) {} money(const money &o) : cents(o.cents) {} ~money() {} };
volatile long sink;
__attribute__((noinline)) long seventh(const money &a, const money &b, const money &c, const money &d,
	const money &e, const money &g, money tax)
{
	sink += d.cents;
	return a.cents + b.cents + c.cents + e.cents + g.cents + tax.cents;
}
__attribute__((noinline)) long two(money s, long a, long b, long c, long d, long e, money t, money u)
{
	sink += a + b + c + d;
	return s.cents + t.cents + u.cents + e;
}
int main()
{
	sink = seventh(money(1), money(2), money(3), money(4), money(5), money(6), money(700));
	sink = two(money(10), 1, 2, 3, 4, 5, money(20), money(30));
}
";

#[test]
fn classes_whose_addresses_are_on_the_stack() {
    let workshop = Workshop::new();
    for (compiler, level) in [("clang++", "-O0"), ("clang++", "-O1"), ("g++", "-O0")] {
        let name = format!("by_address{level}{compiler}");
        let Some(program) = workshop.compile(compiler, &["-g", level], BY_ADDRESS, &name) else {
            return;
        };
        let seventh = [("tax.cents", "700"), ("d.cents", "4")];
        let two = [
            ("s.cents", "10"),
            ("e", "5"),
            ("t.cents", "20"),
            ("u.cents", "30"),
        ];
        for (function, expected) in [("seventh", &seventh[..]), ("two", &two[..])] {
            match level {
                "-O0" => throughout(&program, function, expected),
                _ => shows(&program, &entry(&program, function), expected),
            }
        }
    }
}

#[test]
fn a_register_that_has_one_parameter_and_then_another_has_neither() {
    let source = r"struct big { int a, b, c, d, e; };
volatile long sink;
__attribute__((ms_abi, noinline, noclone)) long f(long n, struct big s, long m, long k, struct big t)
{
	sink += n;
	return s.c + m + t.d + k;
}
int main(int c, char **v)
{
	struct big s = { 1, 2, 10, 4, 5 }, t = { 1, 2, 3, 20, 5 };
	sink += f(7, s, c, c, t);
}
";
    let workshop = Workshop::new();
    let Some(program) = workshop.compile("gcc", &["-g", "-O2"], source, "ms_abi") else {
        return;
    };
    let site = entry(&program, "f");
    shows(&program, &site, &[("n", "7")]);
    for (text, name, wanted) in [("s.c", "s", "10"), ("t.d", "t", "20")] {
        let found = value(&program, &site, text);
        let reason = format!(
            "where `{name}` is cannot be understood: it is relative to a register that the function changes"
        );
        assert!(
            found == Ok(wanted.to_owned()) || found == Err(reason),
            "{found:?}"
        );
    }
}

#[test]
fn parameters_relative_to_the_address_that_an_aligned_frame_keeps() {
    let source = r"#include <alloca.h>
struct order { long id, cents, items, d, e, f, g, h; };
volatile long sink;
__attribute__((noinline, noclone)) void fill(double *v, char *p) { v[0] = 1; p[0] = 2; sink += (long)v; }
__attribute__((noinline, noclone)) long aligned(struct order o, long a, long b, long c, long d, long e, long f,
	long seventh)
{
	_Alignas(32) double v[8];
	char *p = alloca(b * 8);

	fill(v, p);
	sink += p[0];
	return o.id + o.cents + a + b + c + d + e + f + seventh + (long)v[0];
}
__attribute__((noinline, noclone)) long other(struct order q, struct order o, long a) { sink += o.cents; return q.id + a; }
__attribute__((noinline, noclone)) long passes(struct order o, struct order q, long a)
{
	sink += 5;
	return other(q, o, a) + 1;
}
int main(void)
{
	struct order o = { 100, 200, 300 }, q = { 101, 201, 301 };
	sink += aligned(o, 1, 2, 3, 4, 5, 6, 700) + passes(o, q, 7);
}
";
    let workshop = Workshop::new();
    for options in [
        &["-g", "-O2"][..],
        &["-g", "-O2", "-fcf-protection"],
        &["-g", "-O1"],
    ] {
        let name = format!("drap{}", options.concat());
        let Some(program) = workshop.compile("gcc", options, source, &name) else {
            return;
        };
        let aligned = [
            ("o.id", "100"),
            ("o.cents", "200"),
            ("f", "6"),
            ("seventh", "700"),
        ];
        throughout(&program, "aligned", &aligned);
        let passes = [
            ("o.cents", "200"),
            ("q.id", "101"),
            ("q.items", "301"),
            ("a", "7"),
        ];
        throughout(&program, "passes", &passes);
    }
}

#[test]
fn a_parameter_that_is_overwritten_first_has_the_callers_value_at_the_entry() {
    let source = r"volatile long sink;
__attribute__((noinline, noclone)) void ext(long h) { sink += h; }
__attribute__((noinline, noclone)) long get(long key, int flags)
{
	flags = 0;
	ext(flags);
	return key * 2 + flags;
}
int main(void) { sink += get(1, 101); }
";
    let workshop = Workshop::new();
    for options in [
        &["-g", "-O2"][..],
        &["-g", "-O2", "-fcf-protection"],
        &["-g", "-O2", "-gdwarf-4"],
    ] {
        let name = format!("reused{}", options.concat());
        let Some(program) = workshop.compile("gcc", options, source, &name) else {
            return;
        };
        shows(
            &program,
            &entry(&program, "get"),
            &[("key", "1"), ("flags", "101")],
        );
        let later = line(&program, &format!("{name}.c"), 6);
        shows(&program, &later, &[("key", "1"), ("flags", "0")]);
    }
}

#[test]
fn a_parameter_of_an_inlined_copy_has_the_callers_value_at_its_entry() {
    let source = r"volatile long sink;
__attribute__((noinline, noclone)) void ext(long h) { sink += h; }
static inline __attribute__((always_inline)) long get(long key, int flags)
{
	flags = 0;
	ext(flags);
	return key * 2 + flags;
}
__attribute__((noinline, noclone)) long outer(long k, int f) { sink++; return get(k, f) + 1; }
int main(void) { sink += outer(1, 101); }
";
    let workshop = Workshop::new();
    let Some(program) = workshop.compile("gcc", &["-g", "-O2"], source, "inlined_reused") else {
        return;
    };
    let object = open(&program);
    let debug = object.debug().unwrap();
    let places = debug.functions("get").unwrap();
    let copy = places.iter().find(|place| place.inlined_into.is_some());
    shows(&program, &copy.unwrap().site, &[("flags", "101")]);
}

#[test]
fn lines_at_which_a_variable_is_kept_are_those_of_its_function() {
    let source = r#"volatile int sink;
# 2457 "other.h"
static inline __attribute__((always_inline)) int twice(int x) { sink = x; return sink * 2; }
# 10 "kept.c"
__attribute__((noinline, noclone)) int ext(int x) { return sink + x; }
__attribute__((noinline, noclone)) int uses(int a)
{
	int local = ext(a);

	sink = twice(local);
	return sink + local;
}
int main(void) { return uses(1) == 12345; }
"#;
    let workshop = Workshop::new();
    let Some(program) = workshop.compile("gcc", &["-g", "-O2"], source, "kept") else {
        return;
    };
    let said = value(&program, &entry(&program, "uses"), "local").unwrap_err();
    let (_, lines) = said.split_once("; it is kept at line").expect(&said);
    let numbers = lines.split(|c: char| !c.is_ascii_digit());
    let numbers: Vec<u64> = numbers.filter_map(|number| number.parse().ok()).collect();
    assert!(
        !numbers.is_empty() && numbers.iter().all(|line| (11..=17).contains(line)),
        "{said}"
    );
}

#[test]
fn static_members_are_not_what_they_began_with() {
    let source = r"struct counter {
	inline static int total = 3;
	static const int fixed = 5;
	static int other;
	long own = 5;
	__attribute__((noinline)) long step(int n);
};
int counter::other = 4;
long counter::step(int n) { own += n + fixed; return own; }
int main() { counter c; counter::total += 10; counter::other += 10; c.step(1); }
";
    let workshop = Workshop::new();
    for compiler in ["clang++", "g++"] {
        let name = format!("static_members_{compiler}");
        let options = ["-g", "-O0", "-std=c++17"];
        let Some(program) = workshop.compile(compiler, &options, source, &name) else {
            return;
        };
        let expected = [
            ("total", "13"),
            ("counter::total", "13"),
            ("this->total", "13"),
            ("other", "14"),
            ("fixed", "5"),
        ];
        shows(&program, &entry(&program, "counter::step"), &expected);
    }
}

#[test]
fn a_truth_value_in_a_register_is_one_bit() {
    let source = r"volatile unsigned long sink;
__attribute__((noinline, noclone)) unsigned long ext(unsigned long h) { sink += h; return h * 7 + 1; }
__attribute__((noinline, noclone)) void show(unsigned long v) { sink += v; }
__attribute__((noinline, noclone)) unsigned long work(unsigned long h)
{
	_Bool flag = h & 1;
	h += ext(h);
	show(flag);
	return h;
}
__attribute__((noinline, noclone)) long take(_Bool yes, _Bool no) { sink += yes; return no; }
int main(int c, char **v) { sink += take(c < 10, c > 10); work(NUMBER); }
";
    let workshop = Workshop::new();
    for (number, expected) in [("16", "0"), ("27", "1")] {
        let source = source.replace("NUMBER", number);
        let name = format!("truth{number}");
        let Some(program) = workshop.compile("gcc", &["-g", "-O2"], &source, &name) else {
            return;
        };
        let site = line(&program, &format!("{name}.c"), 8);
        shows(&program, &site, &[("flag", expected)]);
        shows(
            &program,
            &entry(&program, "take"),
            &[("yes", "1"), ("no", "0")],
        );
    }
}
