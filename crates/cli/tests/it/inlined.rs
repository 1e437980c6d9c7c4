//! Events at functions that the compiler inlined: which are recorded, listed and refused.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{counted_and_told, record, scratch, text, told_by_stat};
use capriole_testkit::workshop::Workshop;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

fn program() -> Option<PathBuf> {
    build(Compiler::Gcc, "inlined.c", &[])
}

/// Returns the number of times each line of a report occurs, from the event's name on and
/// without addresses.
fn lines(trace: &std::path::Path) -> BTreeMap<String, usize> {
    let output = capriole(&["report", text(trace)]);
    assert!(output.status.success(), "{}", told(&output));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = BTreeMap::new();
    for line in shown.lines().filter(|line| !line.starts_with('#')) {
        let (_, event) = line.split_once(": ").expect("a time");
        let (name, rest) = event.split_once(": (").expect("a place");
        // The compiler chooses where in its caller a copy begins.
        let name = name.split(['+', ')']).next().expect("a name");
        let (_, fields) = rest.split_once(')').expect("a place");
        *lines.entry(format!("{name}:{fields}")).or_default() += 1;
    }
    lines
}

fn counts(expected: &[(&str, usize)]) -> BTreeMap<String, usize> {
    let owned = expected
        .iter()
        .map(|(line, count)| (line.to_string(), *count));
    owned.collect()
}

#[test]
fn fields_of_every_copy_are_its_own() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let arguments = ["-e", ":handle_request size req->len", "--", text(&program)];
    let output = record(&trace, &arguments);
    assert!(output.status.success(), "{}", told(&output));
    let expected = [
        ("handle_request (inlined in first: size=2 req_len=10", 3),
        ("handle_request (inlined in second: size=3 req_len=10", 3),
        ("handle_request (inlined in third: size=3 req_len=20", 3),
        ("handle_request (inlined in third: size=4 req_len=10", 3),
    ];
    assert_eq!(lines(&trace), counts(&expected));
}

#[test]
fn a_copy_without_what_was_asked_for_is_left_out_if_others_have_it() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let output = record(&trace, &["-e", ":both $arg1:s32", "--", text(&program)]);
    let said = told(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains(
            "left out: 1 of 2 functions (an inlined copy has no arguments in registers: 1); \
             `capriole check EVENT` shows why\ncapriole: calls of the inlined copies among them \
             are neither recorded nor counted\n"
        ),
        "{said}"
    );
    assert_eq!(lines(&trace), counts(&[("both: arg1=1", 3)]));
    // By name, both copies and the function itself have the field.
    let output = record(&trace, &["-e", ":both size", "--", text(&program)]);
    assert!(output.status.success(), "{}", told(&output));
    let expected = [
        ("both (inlined in calls_both: size=6", 3),
        ("both: size=1", 3),
    ];
    assert_eq!(lines(&trace), counts(&expected));
    // If every copy is left out, nothing is recorded.
    for field in ["$arg1", "$stack0", "+0($arg2):string"] {
        let event = format!(":handle_request {field}");
        let output = record(&trace, &["-e", &event, "--", text(&program)]);
        let said = told(&output);
        assert!(!output.status.success(), "{said}");
        assert!(
            said.contains(&format!(
                "event `{event}`: field `{field}`: an inlined copy has no arguments"
            )),
            "{said}"
        );
    }
}

#[test]
fn returns_of_a_function_that_is_only_inlined_are_refused_as_such() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("trace");
    for event in ["r :handle_request", ":handle_request+4"] {
        let output = record(&trace, &["-e", event, "--", text(&program)]);
        let said = told(&output);
        let reason = "no function `handle_request` with code of its own in ";
        assert!(!output.status.success() && said.contains(reason), "{said}");
        assert!(said.contains("it is only inlined"), "{said}");
        assert!(
            said.contains("probe their entries (`:handle_request`)"),
            "{said}"
        );
    }
}

#[test]
fn several_events_at_a_copy_are_all_recorded() {
    let Some(program) = program() else { return };
    let directory = scratch();
    let trace = directory.path().join("trace");
    // GCC begins `first` with the copy: two events at one address, without any field.
    let list = |event: &str| {
        let output = capriole(&["list", event, text(&program), "--json"]);
        let sites: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        sites.as_array().expect("sites").clone()
    };
    let first = list(":first")[0]["address"].clone();
    let copies = list(":handle_request");
    assert_eq!(copies.len(), 4);
    let copy = copies.iter().find(|copy| copy["symbol"] == "first");
    let copy = copy.expect("it is inlined there");
    assert_eq!(copy["inlined"], "handle_request");
    let event = copy["event"].as_str().expect("a name");
    assert!(
        event.starts_with("handle_request (inlined in first"),
        "{event}"
    );
    if copy["address"] != first {
        println!("skipped: this gcc puts something before the copy");
        return;
    }
    let events = [
        "-e",
        ":first",
        "-e",
        ":handle_request",
        "-e",
        ":first",
        "--",
        text(&program),
    ];
    let output = record(&trace, &events);
    assert!(output.status.success(), "{}", told(&output));
    let expected = [
        ("first:", 3),
        ("handle_request (inlined in first:", 3),
        ("handle_request (inlined in second:", 3),
        ("handle_request (inlined in third:", 6),
    ];
    assert_eq!(lines(&trace), counts(&expected));
}

#[test]
fn arguments_of_copies_are_listed() {
    let Some(program) = program() else { return };
    let output = capriole(&["list", "--args", ":handle_request", text(&program)]);
    let shown = told(&output);
    assert!(output.status.success(), "{shown}");
    assert_eq!(
        shown.matches("handle_request (inlined in ").count(),
        4,
        "{shown}"
    );
    // Arguments of the functions around the copies do not count.
    assert_eq!(
        shown.matches("  req   struct request *").count(),
        4,
        "{shown}"
    );
    let output = capriole(&["check", ":handle_request $stack1", text(&program)]);
    assert!(!output.status.success(), "{}", told(&output));
    let output = capriole(&["check", ":both $arg1", text(&program)]);
    let shown = told(&output);
    assert_eq!(
        shown.matches("  it is left out: field `$arg1`").count(),
        1,
        "{shown}"
    );
}

/// LLVM counts the padding before a loop among the copy with which the loop begins.
#[test]
fn a_copy_that_begins_a_loop_is_hit_in_each_round() {
    const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
struct node { struct node *next; int v; };
static volatile int hits;
static inline void enqueue(struct node **head, struct node *n, int v)
{
	n->v = v;
	n->next = *head;
	*head = n;
	hits++;
}
__attribute__((noinline)) struct node *fill(struct node *all, int n)
{
	struct node *head = 0;
	for (int i = 0; i < n; i++)
		enqueue(&head, &all[i], i);
	return head;
}
/* Its copies begin with a loop of their own. */
static inline int length(const struct node *at)
{
	int n = 0;
	do {
		n++;
		at = at->next;
	} while (at);
	return n;
}
__attribute__((noinline)) int lengths(struct node *first, struct node *second)
{
	return length(first) * 1000 + length(second);
}
int main(void)
{
	struct node *all = calloc(100, sizeof *all);
	struct node *head = fill(all, 100);
	printf("%d hits %d\n", lengths(head, head->next), hits);
	return 0;
}
"#;
    let shop = Workshop::new();
    for (compiler, level) in [("gcc", "-O2"), ("clang", "-O1"), ("gcc", "-O1")] {
        let name = format!("loops_{compiler}{level}");
        let Some(program) = shop.compile(compiler, &["-g", level], SOURCE, &name) else {
            continue;
        };
        for (event, expected) in [(":enqueue", 100), (":length", 2)] {
            let words = ["stat", "--json", "-e", event, "--", text(&program)];
            let output = capriole(&words);
            assert!(output.status.success(), "{name}: {}", told(&output));
            let (_, json) = told_by_stat(&output);
            let copies = json["events"].as_array().expect("a list").iter();
            let calls: Option<u64> = copies.map(|copy| copy["calls"].as_u64()).sum();
            assert_eq!(calls, Some(expected), "{name} {event}: {json}");
        }
    }
}

/// The end of a name is enough, as for functions with a symbol; if several end so, each can be named.
#[test]
fn the_end_of_a_name_is_enough_for_inlined_functions() {
    const SOURCE: &str = r#"
#include <cstdio>
#include <cstdlib>
namespace shop {
struct Queue { int v; inline int put(int x) { v += x; return v * 2 + rand() % 2; } };
struct Pile {
	int v;
	inline int put(int x) { v -= x; return v * 3 + rand() % 2; }
	inline int take(int x) { v ^= x; return v * 5 + rand() % 2; }
};
}
__attribute__((noinline)) int fill(shop::Queue &q, shop::Pile &p, int x)
{
	return q.put(x) + p.put(x) + p.take(x);
}
int main()
{
	shop::Queue q{0};
	shop::Pile p{0};
	int sum = 0;
	for (int i = 0; i < 30; i++)
		sum += fill(q, p, i);
	printf("ok sum=%d calls=30\n", sum);
}
"#;
    let shop = Workshop::new();
    let Some(program) = shop.compile("g++", &["-g", "-O2"], SOURCE, "ends") else {
        return;
    };
    let program = text(&program);
    for name in [":take", ":Pile::take", ":shop::Pile::take", ":Queue::put"] {
        let output = capriole(&["stat", "--json", "-e", name, "--", program]);
        let (calls, json) = counted_and_told(&output);
        assert_eq!(json["events"][0]["calls"], calls, "{name}: {json}");
    }
    let output = capriole(&["stat", "-e", ":put", "--", program]);
    let said = told(&output);
    assert!(!output.status.success(), "{said}");
    for candidate in ["shop::Queue::put(int)", "shop::Pile::put(int)"] {
        assert!(said.contains(candidate), "{said}");
        let output = capriole(&["list", &format!(":{candidate}"), program]);
        assert!(output.status.success(), "{}", told(&output));
    }
    let said = told(&capriole(&["check", "r :take", program]));
    assert!(said.contains("inlined"), "{said}");
}

/// Debug information has one entry for all rounds of an unrolled loop, which is not reached in each.
#[test]
fn copies_in_unrolled_loops_are_told() {
    const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
struct node { struct node *next; int v; };
static inline void enqueue(struct node **head, struct node *n, int v)
{
	n->v = v;
	n->next = *head;
	*head = n;
}
/* A loop of its own begins it. */
static inline int length(const struct node *at)
{
	int n = 0;
	for (; at; at = at->next)
		n++;
	return n;
}
__attribute__((noinline)) struct node *fill(struct node *all, int n)
{
	struct node *head = 0;
	for (int i = 0; i < n; i++)
		enqueue(&head, &all[i], i);
	return head;
}
int main(int argc, char **argv)
{
	struct node *all = calloc(100, sizeof *all);
	struct node *head = fill(all, 99 + argc);
	printf("%d %d\n", head->v, length(head));
	return 0;
}
"#;
    let shop = Workshop::new();
    for (compiler, flags, unrolled) in [
        ("gcc", &["-g", "-O3", "-funroll-loops"][..], true),
        ("clang", &["-g", "-O2"], true),
        ("gcc", &["-g", "-O2"], false),
        ("clang", &["-g", "-O2", "-fno-unroll-loops"], false),
    ] {
        let name = format!("unrolled_{compiler}_{unrolled}");
        let Some(program) = shop.compile(compiler, flags, SOURCE, &name) else {
            continue;
        };
        let words = ["stat", "--json", "-e", ":enqueue", "-e", ":length", "--"];
        let output = capriole(&[&words[..], &[text(&program)]].concat());
        let said = told(&output);
        assert!(output.status.success(), "{name}: {said}");
        let is_told = said.contains("hit in some rounds only");
        assert_eq!(is_told, unrolled, "{name}: {said}");
        assert!(!said.contains("  length (inlined"), "{name}: {said}");
        let (_, json) = told_by_stat(&output);
        let calls = json["events"][0]["calls"].as_u64();
        assert_eq!(calls == Some(100), !unrolled, "{name}: {json}");
        let output = capriole(&["list", "--json", ":enqueue", text(&program)]);
        let sites: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(
            sites[0]["unrolled"].as_bool().unwrap_or(false),
            unrolled,
            "{sites}"
        );
    }
}

/// Where the optimiser has left nothing of a copy, or has moved what is left out of a loop, no instruction is executed
/// as often as the copy is called: it gets no probe, and that is said.
#[test]
fn copies_of_which_nothing_is_left_are_told() {
    const SOURCE: &str = r#"
#include <cstdio>
struct Q {
	__attribute__((always_inline)) Q(double a) : v((int)a) { asm volatile("" ::: "memory"); }
	__attribute__((always_inline)) ~Q() { asm volatile("" :: "r"(this) : "memory"); }
	int v;
};
static inline int getter(const int *p) { return *p; }
static inline void barrier() { asm volatile("" ::: "memory"); }
int main(int count, char **)
{
	long sum = 0;
	int a[4] = { 1, 2, 3, count };
	for (int i = 0; i < 100; i++) {
		Q one(i), two(i + 0.5), three(i * 2.0);
		sum += one.v + two.v + three.v;
		if (i % 5 == 0) {
			sum += getter(&a[i & 3]);
			barrier();
		}
		if (i % 7 == 0 && a[3] > 0)
			barrier();
	}
	printf("ok sum=%ld\n", sum);
}
"#;
    const NOTHING: &str = "the compiler has left nothing of";
    let shop = Workshop::new();
    for flags in [["-g", "-O1"], ["-g", "-O2"]] {
        let name = format!("moved{}", flags[1]);
        let Some(program) = shop.compile("g++", &flags, SOURCE, &name) else {
            return;
        };
        let path = text(&program);
        let output = capriole(&["stat", "-e", ":Q::~Q", "--", path]);
        let said = told(&output);
        assert!(!output.status.success(), "{flags:?}: {said}");
        assert!(said.contains(NOTHING), "{flags:?}: {said}");
        let output = capriole(&["stat", "--json", "-e", ":barrier", "--", path]);
        let said = told(&output);
        assert!(said.contains(NOTHING), "{flags:?}: {said}");
        // One of both copies has an instruction; with -O2, debug information gives it one of the code around it.
        if output.status.success() && flags[1] == "-O1" {
            let (_, json) = told_by_stat(&output);
            let events = json["events"].as_array().expect("a list").iter();
            let calls: u64 = events.filter_map(|event| event["calls"].as_u64()).sum();
            assert!([20, 15].contains(&calls), "{said}");
        }
    }
}

/// Constructors have several symbols, templates and local functions of C++ other names in debug information than in the
/// source: counts are those of all calls, and no other function is taken.
#[test]
fn inlined_functions_of_cxx_are_found_by_each_name() {
    const SOURCE: &str = r#"
#include <cstdio>
namespace a {
template <class T> inline long tw(T x) { asm volatile("nop"); return x * 2; }
struct K { template <class U> long mm(U u) { asm volatile("nop;nop"); return u + 1; } };
}
namespace b {
static inline long tw(long x) { asm volatile("nop;nop;nop"); return x * 3; }
struct P { int n; long mm(int u) { asm volatile("nop;nop"); return u + 2 + n; } };
}
inline long tw(double q) { asm volatile("nop;nop;nop;nop"); return (long)q; }
struct A { static long st(int x) { asm volatile("nop"); return x; } };
static inline long st(int x) { asm volatile("nop;nop"); return x + 1; }
struct Made { int v; Made(int k); ~Made(); };
Made::Made(int k) : v(k) { asm volatile("nop"); }
Made::~Made() { asm volatile("nop;nop"); }
__attribute__((noinline)) Made *make(int i) { return new Made(i); }
__attribute__((noinline)) long run(int i)
{
	long t = a::tw(i);
	t += b::tw(i) + b::tw(i + 1);
	t += tw(i * 1.5) + tw(i * 2.5) + tw(i * 3.5);
	a::K k;
	t += k.mm(i);
	b::P p{i};
	t += p.mm(i) + p.mm(i + 1);
	t += A::st(i);
	t += st(i) + st(i + 1);
	return t;
}
int main()
{
	long t = 0;
	for (volatile int i = 0; i < 6; i++)
		t += run(i);
	for (volatile int i = 0; i < 5; i++) {
		Made one(i);
		t += one.v;
	}
	Made *last = make(3);
	t += last->v;
	delete last;
	std::printf("ok sum=%ld calls=6\n", t);
}
"#;
    let shop = Workshop::new();
    for (compiler, level) in [("g++", "-O2"), ("clang++", "-O2"), ("g++", "-O0")] {
        let name = format!("cxx_{compiler}{level}");
        let Some(program) = shop.compile(compiler, &["-g", level], SOURCE, &name) else {
            continue;
        };
        let program = text(&program);
        for (event, expected) in [
            (":a::tw", 6),
            (":b::tw", 12),
            (":tw(double)", 18),
            (":a::K::mm", 6),
            (":K::mm", 6),
            (":b::P::mm", 12),
            (":A::st", 6),
            (":st(int)", 12),
            (":st", 12),
            (":Made::Made", 6),
            (":Made::~Made", 6),
        ] {
            let output = capriole(&["stat", "--json", "-e", event, "--", program]);
            let (_, json) = counted_and_told(&output);
            let rows = json["events"].as_array().expect("a list").iter();
            let calls: Option<u64> = rows.map(|row| row["calls"].as_u64()).sum();
            assert_eq!(calls, Some(expected), "{name} {event}: {json}");
        }
        for (event, candidates) in [
            (":mm", &["a::K::mm<int>(int)", "b::P::mm(int)"][..]),
            (":::tw", &["a::tw<int>(int)", "b::tw", "tw(double)"]),
        ] {
            let said = told(&capriole(&["list", event, program]));
            for candidate in candidates {
                assert!(
                    said.contains(&format!("  {candidate}")),
                    "{name} {event}: {said}"
                );
            }
        }
    }
}
