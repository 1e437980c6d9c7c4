//! Demangling of names of D, compared with what GNU's c++filt writes.

use capriole_object::symbols::demangle::{demangle, demangle_full, is_mangled};
use capriole_testkit::effort::Random;
use capriole_testkit::files::system_file;
use capriole_testkit::nm::nm;
use capriole_testkit::tools::have;
use proptest::prelude::*;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Mangled names, as GNU's tools write them, and without parameters.
const NAMES: &[(&str, &str, &str)] = &[
    ("_Dmain", "D main", "D main"),
    ("_D3app3fooFiZv", "app.foo(int)", "app.foo"),
    ("_D3app3fooFNaNbNiNfiZi", "app.foo(int)", "app.foo"),
    (
        "_D3app1S3fooMxFNaNbNiNfZi",
        "app.S.foo() const",
        "app.S.foo",
    ),
    ("_D3app1S3getMNgFZNgPi", "app.S.get() inout", "app.S.get"),
    (
        "_D4core4sync5mutex5Mutex4lockMOFNeZv",
        "core.sync.mutex.Mutex.lock() shared",
        "core.sync.mutex.Mutex.lock",
    ),
    // Constructors and the like.
    (
        "_D3app1S6__ctorMFiZS3app1S",
        "app.S.this(int)",
        "app.S.this",
    ),
    ("_D3app1S6__dtorMFZv", "app.S.~this()", "app.S.~this"),
    (
        "_D3app1S10__postblitMFZv",
        "app.S.this(this)",
        "app.S.this(this)",
    ),
    (
        "_D3app1S11__invariantMFZv",
        "app.S.__invariant()",
        "app.S.__invariant",
    ),
    // Templates, with a length and without, and back references.
    (
        "_D3app__T3fooTiZQhFiZv",
        "app.foo!(int).foo(int)",
        "app.foo!(int).foo",
    ),
    (
        "_D4shop__T3maxTiZQhFiiZi",
        "shop.max!(int).max(int, int)",
        "shop.max!(int).max",
    ),
    (
        "_D3std5stdio__T7writelnTAyaZQnFNfQjZv",
        "std.stdio.writeln!(immutable(char)[]).writeln(immutable(char)[])",
        "std.stdio.writeln!(immutable(char)[]).writeln",
    ),
    (
        "_D3app1S6__ctorMFNcNaNbNiNfiZSQBcQBb",
        "app.S.this(int)",
        "app.S.this",
    ),
    (
        "_D8demangle13__T4testVii3Z4testFZv",
        "demangle.test!(3).test()",
        "demangle.test!(3).test",
    ),
    (
        "_D3app__T3fooVii5ZQjFZv",
        "app.foo!(5).foo()",
        "app.foo!(5).foo",
    ),
    (
        "_D3app__T3fooVAyaa3_0a09e4ZQsFZv",
        "app.foo!(\"\\n\\t\\xe4\").foo()",
        "app.foo!(\"\\n\\t\\xe4\").foo",
    ),
    (
        "_D3app__T3fooS3app3barZQoFZv",
        "app.foo!(app.bar).foo()",
        "app.foo!(app.bar).foo",
    ),
    (
        "_D3app__T3fooVdeAP2Vbi1Vai65Vhi7Vli9Vmi10ZQBhFZv",
        "app.foo!(0xA.p2, true, 'A', 7u, 9L, 10uL).foo()",
        "app.foo!(0xA.p2, true, 'A', 7u, 9L, 10uL).foo",
    ),
    (
        "_D3app__T3fooVAiA2i1i2ZQoFZv",
        "app.foo!([1, 2]).foo()",
        "app.foo!([1, 2]).foo",
    ),
    (
        "_D3app__T3fooVHiiA1i1i2ZQpFZv",
        "app.foo!([1:2]).foo()",
        "app.foo!([1:2]).foo",
    ),
    (
        "_D3app__T3fooVS3app1PS2i1i2ZQtFZv",
        "app.foo!(app.P(1, 2)).foo()",
        "app.foo!(app.P(1, 2)).foo",
    ),
    (
        "_D8demangle14__T4testVii3Z4testFZv",
        "_D8demangle14__T4testVii3Z4testFZv",
        "",
    ),
    // Functions in functions, and scopes without a name of their own.
    ("_D3app3fooFZ3barMFZi", "app.foo().bar()", "app.foo().bar"),
    (
        "_D3app3fooFZ9__lambda1FNaNbNiNfiZi",
        "app.foo().__lambda1(int)",
        "app.foo().__lambda1",
    ),
    ("_D3app4__S13fooFZv", "app.foo()", "app.foo"),
    // Types.
    (
        "_D3app3fooFHiAyaZv",
        "app.foo(immutable(char)[][int])",
        "app.foo",
    ),
    ("_D3app3fooFG4iZv", "app.foo(int[4])", "app.foo"),
    ("_D3app3fooFPxiZv", "app.foo(const(int)*)", "app.foo"),
    (
        "_D3app3fooFKiJiLiZv",
        "app.foo(ref int, out int, lazy int)",
        "app.foo",
    ),
    (
        "_D3app3fooFMiNkKiZv",
        "app.foo(scope int, return ref int)",
        "app.foo",
    ),
    ("_D3app3fooFiXv", "app.foo(int...)", "app.foo"),
    ("_D3app3fooFiYv", "app.foo(int, ...)", "app.foo"),
    (
        "_D3app3fooFOiNgiZv",
        "app.foo(shared(int), inout(int))",
        "app.foo",
    ),
    (
        "_D3app3fooFNhG4fZv",
        "app.foo(__vector(float[4]))",
        "app.foo",
    ),
    ("_D3app3fooFB2ilZv", "app.foo(Tuple!(int, long))", "app.foo"),
    ("_D3app3fooFE3app1EZv", "app.foo(app.E)", "app.foo"),
    (
        "_D3app3fooFqrcjopZv",
        "app.foo(cfloat, cdouble, creal, ireal, ifloat, idouble)",
        "app.foo",
    ),
    ("_D3app3fooFzizkZv", "app.foo(cent, ucent)", "app.foo"),
    ("_D3app3fooUiZv", "app.foo(int)", "app.foo"),
    (
        "_D3app3barFPUiZiZv",
        "app.bar(extern(C) int(int) function)",
        "app.bar",
    ),
    (
        "_D3app3barFDFNaNbiZvZv",
        "app.bar(void(int) pure nothrow delegate)",
        "app.bar",
    ),
    (
        "_D3app3barFDFiZvMxFZAyaZPFiZi",
        "app.bar(void(int) delegate, scope const(immutable(char)[]() function))",
        "app.bar",
    ),
    // Data.
    ("_D3app7counteri", "app.counter", "app.counter"),
    (
        "_D3app1S6__initZ",
        "initializer for app.S",
        "initializer for app.S",
    ),
    (
        "_D3app1C7__ClassZ",
        "ClassInfo for app.C",
        "ClassInfo for app.C",
    ),
    ("_D3app1C6__vtblZ", "vtable for app.C", "vtable for app.C"),
    (
        "_D3app12__ModuleInfoZ",
        "ModuleInfo for app",
        "ModuleInfo for app",
    ),
    // Not of D.
    ("_D", "_D", ""),
    ("_DYNAMIC", "_DYNAMIC", ""),
    ("_D3ap", "_D3ap", ""),
    ("_D3app3fooFiZ", "_D3app3fooFiZ", ""),
    ("_D3app3fooFiZvx", "_D3app3fooFiZvx", ""),
    ("_D99999999999app", "_D99999999999app", ""),
    ("_D3appQa", "_D3appQa", ""),
    ("_D3appQz", "_D3appQz", ""),
];

#[test]
fn names_are_written_as_d_writes_them() {
    for (mangled, full, short) in NAMES {
        let name = demangle(mangled);
        assert_eq!(demangle_full(mangled), name.clone().map(|name| name.full));
        match short.is_empty() {
            true => assert_eq!(name, None, "{mangled}"),
            false => {
                let name = name.unwrap_or_else(|| panic!("{mangled}"));
                assert_eq!(
                    (name.full.as_str(), name.short.as_str()),
                    (*full, *short),
                    "{mangled}"
                );
            }
        }
    }
    let copy = demangle("_D3app3fooFiZv.part.0.cold").expect("a name");
    assert_eq!(copy.full, "app.foo(int) [clone .part.0] [clone .cold]");
    assert_eq!(copy.short, "app.foo [clone .part.0] [clone .cold]");
}

/// Returns each name as c++filt writes it; `None` if there is none that knows back references.
fn filtered(names: &[&str]) -> Option<Vec<String>> {
    if !have("c++filt") {
        println!("skipped: no c++filt");
        return None;
    }
    let mut filter = Command::new("c++filt");
    filter
        .args(["-s", "dlang"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = filter.spawn().expect("c++filt starts");
    let mut input = child.stdin.take().expect("a pipe");
    let text = names.join("\n") + "\n";
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("no panic").expect("it reads");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), names.len());
    Some(lines)
}

#[test]
fn gnu_writes_the_same_names() {
    let names: Vec<&str> = NAMES.iter().map(|(mangled, ..)| *mangled).collect();
    let Some(written) = filtered(&names) else {
        return;
    };
    for ((mangled, full, _), written) in NAMES.iter().zip(written) {
        assert_eq!(*full, written, "{mangled}");
    }
}

/// Returns the names of D's library; `None` if it is not installed.
fn names_of_library() -> Option<Vec<String>> {
    let directory = "/usr/lib/x86_64-linux-gnu";
    let paths = (3..8).map(|version| format!("{directory}/libgphobos.so.{version}"));
    let paths: Vec<String> = paths.collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let Some(library) = system_file(&paths) else {
        println!("skipped: no libgphobos");
        return None;
    };
    let symbols = nm(&library, true)?.into_iter();
    let mut names: Vec<String> = symbols.map(|symbol| symbol.name).collect();
    names.retain(|name| is_mangled(name) && name.starts_with("_D"));
    names.sort_unstable();
    names.dedup();
    assert!(names.len() > 1000, "{}", names.len());
    Some(names)
}

fn assert_same(names: &[String]) {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let Some(written) = filtered(&names) else {
        return;
    };
    for (mangled, written) in names.iter().zip(written) {
        let own = demangle(mangled).map_or((*mangled).to_owned(), |name| name.full);
        assert_eq!(own, written, "{mangled}");
    }
}

#[test]
fn gnu_writes_the_same_names_of_ds_library() {
    if let Some(names) = names_of_library() {
        assert_same(&names);
    }
}

#[test]
#[ignore = "soak"]
fn gnu_reads_damaged_names_alike() {
    let Some(names) = names_of_library() else {
        return;
    };
    let letters: Vec<char> = ('a'..='z').chain('A'..='Z').chain('0'..='9').collect();
    let mut random = Random::new(0);
    let damaged = names.iter().map(|name| {
        let at = 2 + random.below(name.len() - 2);
        let end = (at + random.below(3)).min(name.len());
        let new = match random.below(3) {
            0 => String::new(),
            _ => random.pick(&letters).to_string(),
        };
        format!("{}{new}{}", &name[..at], &name[end..])
    });
    let damaged: Vec<String> = damaged.filter(|name| is_mangled(name)).collect();
    assert_same(&damaged);
}

proptest! {
    #[test]
    fn no_name_takes_long_or_is_too_long(
        name in "_D(3app|__T|4|Q[a-zA-Z]{1,2}|[0-9A-Za-z_]){0,60}",
        tail in "[A-Za-z0-9_.\u{e4}]{0,8}",
    ) {
        if let Some(name) = demangle(&format!("{name}{tail}")) {
            prop_assert!(name.full.len() < 1 << 18);
        }
    }

    #[test]
    fn a_damaged_name_is_another_or_none(
        index in 0..NAMES.len(),
        at in any::<prop::sample::Index>(),
        by in "[A-Za-z0-9_]{0,3}",
        removed in 0..4_usize,
    ) {
        let name = NAMES[index].0;
        let at = at.index(name.len());
        let end = (at + removed).min(name.len());
        let damaged = format!("{}{by}{}", &name[..at], &name[end..]);
        let _ = demangle(&damaged);
    }
}

/// A back reference over this distance.
fn reference(mut distance: usize) -> String {
    let mut digits = vec![b'a' + (distance % 26) as u8];
    while distance >= 26 {
        distance /= 26;
        digits.insert(0, b'A' + (distance % 26) as u8);
    }
    format!("Q{}", String::from_utf8(digits).expect("letters"))
}

/// A name with so many tuples, each of two of the one before.
fn doubled(count: usize) -> String {
    let mut name = "_D3app3fooF".to_owned();
    let mut before = name.len();
    name += "B2ii";
    for _ in 0..count {
        let start = name.len();
        name += "B2";
        for _ in 0..2 {
            name += &reference(name.len() - before);
        }
        before = start;
    }
    name + "Zv"
}

#[test]
fn names_that_grow_without_end_are_refused() {
    let few = demangle(&doubled(5)).expect("a name").full;
    assert_eq!(few.matches("int").count(), (1 << 7) - 2);
    for name in [
        doubled(40),
        format!("_D3app3fooF{}iZv", "P".repeat(4000)),
        format!("_D3app3fooF{}{}Zv", "DF".repeat(700), "Zv".repeat(700)),
        "_D3app3fooFB4294967295iZv".to_owned(),
        format!("_D{}", "__T".repeat(1000)),
        format!("_D{}", "3appM".repeat(800)),
    ] {
        assert!(demangle(&name).is_none(), "{name}");
    }
}
