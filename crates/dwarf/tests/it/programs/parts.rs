//! Members of small structs in registers, bit fields, and numbers in some bits of a register:
//! compares each value with the one that the program passed.

use super::has_no_place;
use capriole_dwarf::DebugInfo as _;
use capriole_event::Base;
use capriole_testkit::objects::open;
use capriole_testkit::stopped::{Stopped, ask};
use capriole_testkit::workshop::Workshop;

const SOURCE: &str = r#"
volatile long sink;
struct small { short x; signed char y; unsigned char z; };
struct mixed { int id; char c; _Bool yes; unsigned short u; };
struct floats { float a, b; };
struct bits { int a : 3; int b : 7; unsigned c : 5; int d : 17; long long e : 20; };
struct two { long a; int b; char c; };
struct half { float f; int i; };
__attribute__((noinline)) long take(struct small s, struct mixed m, struct bits b, struct two t)
{
	sink = s.x + m.id;
	sink = b.a + t.b;
	return s.y + m.u + b.e;
}
__attribute__((noinline)) long real(struct floats f, struct half h, double d)
{
	sink = f.a;
	sink = h.i;
	return f.b + d + h.f;
}
__attribute__((noinline)) long wide(int n, unsigned char c, short s)
{
	long l = n;
	unsigned long u = (unsigned)n;
	int k = c;
	long q = s;
	unsigned w = (unsigned char)s;
	int bit = c >> 3 & 1;
	sink = 1;               /* LINE wide */
	sink = l + u;
	sink = k + q + w + bit;
	return sink;
}
int main(int argc, char **argv)
{
	struct small s = { -3, -4, 250 };
	struct mixed m = { -77, 'q', 1, 60000 };
	struct bits b = { -2, -50, 21, -30000, -400000 };
	struct two t = { -1, -2, 'z' };
	struct floats f = { 1.5, -2.5 };
	struct half h = { 3.5, -9 };
	take(s, m, b, t);
	real(f, h, 4.5);
	wide(-argc - 70000, 200, -300);
	return 0;
}
"#;

const TAKE: &[(&str, &str)] = &[
    ("s.x", "-3"),
    ("s.y", "-4"),
    ("s.z", "250"),
    ("m.id", "-77"),
    ("m.c", "'q'"),
    ("m.yes", "1"),
    ("m.u", "60000"),
    ("b.a", "-2"),
    ("b.b", "-50"),
    ("b.c", "21"),
    ("b.d", "-30000"),
    ("b.e", "-400000"),
    ("t.a", "-1"),
    ("t.b", "-2"),
    ("t.c", "'z'"),
];
const REAL: &[(&str, &str)] = &[
    ("f.a", "1.5"),
    ("f.b", "-2.5"),
    ("h.f", "3.5"),
    ("h.i", "-9"),
    ("d", "4.5"),
];
const WIDE: &[(&str, &str)] = &[
    ("n", "-70001"),
    ("c", "200"),
    ("s", "-300"),
    ("l", "-70001"),
    ("u", "4294897295"),
    ("k", "200"),
    ("q", "-300"),
    ("w", "212"),
    ("bit", "1"),
];

#[test]
fn parts_of_registers_hold_what_was_passed() {
    let shop = Workshop::new();
    let mark = "LINE wide ";
    let line = 1 + SOURCE.lines().position(|l| l.contains(mark)).unwrap() as u64;
    for compiler in ["gcc", "clang"] {
        for level in ["-O0", "-O1", "-O2", "-O3"] {
            for version in ["-gdwarf-4", "-gdwarf-5"] {
                let name = format!("{compiler}{level}{version}");
                let Some(program) = shop.compile(compiler, &[level, version], SOURCE, &name) else {
                    continue;
                };
                let object = open(&program);
                let debug = object.debug().unwrap();
                let wide = debug.line(&format!("{name}.c"), line).unwrap();
                let wide = wide.into_iter().find(|place| place.first).unwrap();
                let entry = |function: &str| debug.functions(function).unwrap()[0].site.clone();
                // Maximum number of values without a location, or that would need a calculation:
                // LLVM does not track floating point members of structs, or registers that it
                // reuses.
                for (site, expected, most) in [
                    (entry("take"), TAKE, 4),
                    (entry("real"), REAL, 3),
                    (
                        wide.site.unwrap(),
                        WIDE,
                        if compiler == "gcc" { 1 } else { 6 },
                    ),
                ] {
                    let stopped = Stopped::at(&program, site.address);
                    let mut refused = Vec::new();
                    for (text, value) in expected {
                        let at = site.address;
                        match ask(&debug, &site, text, None) {
                            // The tests of whole recordings read vector registers.
                            Ok(typed) if matches!(typed.fetch.base, Base::Vector(_)) => {}
                            Ok(typed) => {
                                let shown = stopped.shows(&typed);
                                assert_eq!(&shown, value, "{text} at {at:#x} of {name}: {typed:?}");
                                let written = typed.field_type.to_string();
                                assert_eq!(written.parse(), Ok(typed.field_type), "{text}");
                            }
                            Err(error) => {
                                let honest = has_no_place(&error.refusal);
                                assert!(honest, "{text} at {at:#x} of {name}: {error}");
                                refused.push(error.to_string());
                            }
                        }
                    }
                    let most = if level == "-O0" { 0 } else { most };
                    assert!(refused.len() <= most, "{name}: {refused:#?}");
                }
            }
        }
    }
}
