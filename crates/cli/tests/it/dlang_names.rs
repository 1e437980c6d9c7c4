//! Functions of D by their names, in a program compiled by gdc.

use crate::target::{capriole, told};
use crate::traces::{calls, events, record, record_program, scratch, text};
use capriole_testkit::workshop::Workshop;
use std::path::PathBuf;

const SOURCE: &str = r#"
module app;
import core.stdc.stdio;
struct Cart
{
    int count;
    this(int count) { pragma(inline, false); this.count = count; }
    ~this() { pragma(inline, false); total += count; }
    int cost(string name, size_t times) const { pragma(inline, false); return cast(int) (name.length * times) + count; }
}
__gshared int total;
T larger(T)(T a, T b) { pragma(inline, false); return a > b ? a : b; }
int walk(scope int delegate(int) visit)
{
    pragma(inline, false);
    int sum;
    foreach (i; 0 .. 3) sum += visit(i);
    return sum;
}
extern (C) int plain(int x) { pragma(inline, false); return x + total; }
void main()
{
    foreach (i; 0 .. 10)
    {
        auto cart = Cart(i);
        total += cart.cost("apple", i);
        total += larger(i, 5) + cast(int) larger(i * 0.5, 2.0);
        total += walk((int x) => x + i) + plain(i);
    }
    printf("ok %d\n", total);
}
"#;

fn program(shop: &Workshop) -> Option<PathBuf> {
    shop.compile("gdc", &["-g", "-O0"], SOURCE, "app")
}

#[test]
fn functions_are_listed_and_recorded_by_the_names_of_the_source() {
    let shop = Workshop::new();
    let Some(program) = program(&shop) else {
        return;
    };
    let listed = told(&capriole(&["list", ":app.*", text(&program)]));
    for name in [
        "app.Cart.this",
        "app.Cart.~this",
        "app.Cart.cost",
        "app.larger!(int).larger",
        "app.larger!(double).larger",
        "app.walk",
    ] {
        assert!(
            listed.lines().any(|line| line.ends_with(name)),
            "{name}: {listed}"
        );
    }
    assert!(!listed.contains("_D3app"), "{listed}");

    for (event, expected, hits) in [
        (
            ":app.Cart.cost",
            "app.Cart.cost(immutable(char)[], ulong) const",
            10,
        ),
        (
            "Cart.cost",
            "app.Cart.cost(immutable(char)[], ulong) const",
            10,
        ),
        (
            ":app.Cart.cost(string, size_t)",
            "app.Cart.cost(immutable(char)[], ulong) const",
            10,
        ),
        (":_D3app4CartQj", "", 0),
        (":app.Cart.this", "app.Cart.this(int)", 10),
        (
            ":app.larger!(int).larger",
            "app.larger!(int).larger(int, int)",
            10,
        ),
        (
            ":app.larger!double.larger",
            "app.larger!(double).larger(double, double)",
            10,
        ),
        ("walk", "app.walk(scope int(int) delegate)", 10),
        ("_Dmain", "D main", 1),
        (":plain", "plain", 10),
    ] {
        let directory = scratch();
        let trace = directory.path().join("t");
        let output = record(&trace, &["-e", event, "--", text(&program)]);
        if hits == 0 {
            assert!(!output.status.success(), "{event}");
            continue;
        }
        assert!(output.status.success(), "{event}: {}", told(&output));
        let calls = calls(&trace);
        let found: Vec<(&str, u64)> = calls.iter().map(|(n, c)| (n.as_str(), *c)).collect();
        assert_eq!(found, [(expected, hits)], "{event}");
    }
}

#[test]
fn call_stacks_have_them_too() {
    let shop = Workshop::new();
    let Some(program) = program(&shop) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    record_program(&trace, &["-e", "Cart.cost times stack"], &program, &[]);
    for (number, event) in events(&trace).iter().enumerate() {
        assert_eq!(event["arguments"]["times"], number, "{event}");
        let frames = event["stack"].as_array().expect("a list");
        let names: Vec<&str> = frames.iter().filter_map(|f| f["symbol"].as_str()).collect();
        assert!(names.contains(&"D main"), "{names:?}");
    }
    let report = told(&capriole(&["report", "--callers", text(&trace)]));
    assert!(
        report.contains("app.Cart.cost") && report.contains("D main"),
        "{report}"
    );
}
