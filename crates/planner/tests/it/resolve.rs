//! Resolving events to sites: names, patterns, and the message if there is none.

use std::path::Path;
use std::process::Command;

use crate::fixtures::{
    PROGRAM, Started, Workshop, complaint, find, find_one, libc, main_object, nm_functions,
    objects, run, system_file,
};
use capriole_object::Objects;
use capriole_planner::resolve::ResolveError;

#[test]
fn globs_match_every_function_once() {
    let sqlite = [
        "/usr/lib/x86_64-linux-gnu/libsqlite3.so.0",
        "/usr/lib64/libsqlite3.so.0",
    ];
    let Some(path) = system_file(&sqlite) else {
        return;
    };
    let Some(symbols) = nm_functions(&path, true) else {
        return;
    };
    let mut expected: Vec<u64> = symbols
        .iter()
        .filter(|symbol| symbol.name.starts_with("sqlite3_"))
        .map(|symbol| symbol.address)
        .collect();
    expected.sort_unstable();
    expected.dedup();
    let objects = Objects::offline(&path).unwrap();
    let sites = find(&objects, "libsqlite3:sqlite3_*").unwrap();
    let found: Vec<u64> = sites.iter().map(|site| site.link_address).collect();
    assert_eq!(found, expected);
    let names = sites.iter().map(|site| site.symbol.as_deref().unwrap());
    assert!(names.into_iter().all(|name| name.starts_with("sqlite3_")));
    let none = complaint(&objects, ":no_such_*");
    assert!(
        none.contains("functions with names in") && none.contains("`no_such_*`"),
        "{none}"
    );
}

#[test]
fn globs_leave_out_indirect_functions() {
    let Some(path) = libc() else { return };
    let objects = Objects::offline(&path).unwrap();
    let sites = find(&objects, ":mem*").unwrap();
    let names: Vec<&str> = sites
        .iter()
        .map(|site| site.symbol.as_deref().unwrap())
        .collect();
    assert!(names.contains(&"memfrob"), "{names:?}");
    assert!(!names.contains(&"memcpy"), "{names:?}");
}

#[test]
fn implementations_are_named_where_symbols_are_left() {
    let shop = Workshop::new();
    let source = r#"
        static int pick_sse2(int x) { return x; }
        static int pick_avx2(int x) { return x + 1; }
        static int (*choose(void))(int) { return __builtin_cpu_supports("avx2") ? pick_avx2 : pick_sse2; }
        int pick(int) __attribute__((ifunc("choose")));
    "#;
    let options = ["-O1", "-shared", "-fPIC"];
    let Some(path) = shop.compile("gcc", &options, source, "libpick.so") else {
        return;
    };
    let objects = Objects::offline(&path).unwrap();
    let text = complaint(&objects, ":pick");
    assert!(
        text.contains("indirect") && text.contains("`pick_avx2`, `pick_sse2`"),
        "{text}"
    );
    // The resolver can be probed by its own function name.
    assert_eq!(
        find_one(&objects, ":choose").symbol.as_deref(),
        Some("choose")
    );
}

const OVERLOADS: &str = r#"
#define KEEP __attribute__((noinline, used))
namespace { KEEP int quiet(int x) { return x; } }
struct V { int a; };
KEEP int twin(int x) { return x; }
KEEP int twin(long x) { return (int)x + 1; }
KEEP V operator*(V a, V b) { return V{a.a * b.a}; }
KEEP int times(V a) { return (a * a).a; }
namespace other { KEEP int times(int x) { return x * 5; } }
int main(int c, char **) { return twin(c) + twin((long)c) + times(V{c}) + quiet(c) + other::times(c); }
"#;

#[test]
fn ambiguous_and_operator_names() {
    let shop = Workshop::new();
    let Some(path) = shop.compile("g++", &["-O1"], OVERLOADS, "overloads") else {
        return;
    };
    let objects = Objects::offline(&path).unwrap();
    assert_eq!(
        find_one(&objects, ":twin(int)").linkage_name.as_deref(),
        Some("_Z4twini")
    );
    assert_eq!(
        find_one(&objects, ":twin(long)").symbol.as_deref(),
        Some("twin(long)")
    );
    assert_eq!(
        find_one(&objects, ":operator*").linkage_name.as_deref(),
        Some("_Zml1VS_")
    );
    assert_eq!(
        find_one(&objects, ":operator*(V, V)")
            .linkage_name
            .as_deref(),
        Some("_Zml1VS_")
    );
    assert_eq!(
        find_one(&objects, ":(anonymous namespace)::quiet(int)").offset,
        0
    );
    assert_eq!(find(&objects, ":twin*").unwrap().len(), 2);
    assert_eq!(find(&objects, ":*times*").unwrap().len(), 2);

    let Err(ResolveError::AmbiguousSymbol { candidates, .. }) = find(&objects, ":twin") else {
        panic!("twin has two overloads");
    };
    let text = complaint(&objects, ":twin");
    assert!(
        text.starts_with("`twin` names 2 functions; choose one:\n  /"),
        "{text}"
    );
    // The events that the message suggests work.
    for candidate in candidates {
        let event = format!(
            "{}:{:#x}",
            candidate.object.display(),
            candidate.file_offset
        );
        assert_eq!(find_one(&objects, &event).symbol, Some(candidate.symbol));
    }
}

#[test]
fn static_functions_of_one_name_are_ambiguous() {
    let shop = Workshop::new();
    let part = "__attribute__((noinline, used)) static int init(int x) { return x + N; }\n";
    std::fs::write(shop.path("part.c"), part).unwrap();
    let second = shop.path("second.o");
    let mut compile = Command::new("gcc");
    compile
        .args(["-O1", "-fPIC", "-DN=2", "-c"])
        .arg(shop.path("part.c"));
    if !run(compile.arg("-o").arg(&second)) {
        return;
    }
    let options = ["-O1", "-fPIC", "-shared", "-DN=1", second.to_str().unwrap()];
    let Some(path) = shop.compile("gcc", &options, part, "libinit.so") else {
        return;
    };
    let objects = Objects::offline(&path).unwrap();
    let text = complaint(&objects, ":init");
    assert!(text.starts_with("`init` names 2 functions"), "{text}");
    assert_eq!(find(&objects, ":init*").unwrap().len(), 2);
}

#[test]
fn what_is_wrong_is_said() {
    let shop = Workshop::new();
    let Some(path) = shop.compile("gcc", &["-O1"], PROGRAM, "prog") else {
        return;
    };
    let running = Started::start(&mut Command::new(&path));
    let objects = objects(&running);
    let file = path.display();
    let size = find_one(&objects, ":work").extent.len();
    let cases = [
        (":wrok", format!("no function `wrok` in {file}; similar: `work`")),
        (":counter", format!("`counter` in {file} is data, not a function")),
        (":puts", format!("`puts` is used but not defined in {file}; write libc.so.6:puts")),
        (":work+5000", format!("`work` has {size} bytes: offset 0x1388 is outside of it")),
        (
            ":0x10",
            format!("there is no code at file offset 0x10 of {file} (this is an offset in the file, not an address)"),
        ),
        (
            "libx.so.6:f",
            "no program or library `libx.so.6` is loaded; loaded are, among others, `libc.so.6`".to_owned(),
        ),
        (
            "/bin/ls:main",
            "no program or library `/bin/ls` is loaded; loaded are, among others, `prog`, `libc.so.6`, `ld-linux-x86-64.so.2`".to_owned(),
        ),
        (
            ":zz*",
            format!(
                "none of the {} functions with names in {file} matches `zz*`",
                named(&objects)
            ),
        ),
    ];
    for (event, expected) in cases {
        assert_eq!(complaint(&objects, event), expected, "{event}");
    }
    assert!(complaint(&objects, ":malloc").contains("; libc.so.6 has it"));
    let offline = Objects::offline(&path).unwrap();
    let text = complaint(&offline, "libc:malloc");
    assert_eq!(
        text,
        format!("`libc` is not {file}; without a process only that file can be looked at")
    );
    if let Some(stripped) = shop.strip(&path) {
        let offline = Objects::offline(&stripped).unwrap();
        assert!(complaint(&offline, ":work").contains("stripped of all names"));
    }
}

fn named(objects: &Objects) -> usize {
    let main = main_object(objects);
    let functions = main.symbols().unwrap().functions().iter();
    functions.filter(|function| function.is_named()).count()
}

#[test]
fn a_site_inside_an_instruction_is_noticed() {
    let shop = Workshop::new();
    let source = "asm(\".globl f\\n.type f,@function\\nf:\\n movabs $0x1122334455667788,%rax\\n ret\\n.size f,.-f\");";
    let Some(path) = shop.compile("gcc", &["-shared", "-nostdlib"], source, "libf.so") else {
        return;
    };
    let objects = Objects::offline(&path).unwrap();
    let start = find_one(&objects, ":f").address;
    for (offset, instruction) in [(0, start), (1, start), (9, start), (10, start + 10)] {
        let site = find_one(&objects, &format!(":f+{offset}"));
        assert_eq!(site.instruction().unwrap(), Some(instruction), "{offset}");
    }
}

#[test]
fn go_programs_are_recognised() {
    let shop = Workshop::new();
    let source = "package main\nimport (\"fmt\"; \"os\")\n//go:noinline\nfunc work(x int) int { return x * 3 }\nfunc main() { fmt.Println(\"ready\"); work(len(os.Args)); select {} }\n";
    std::fs::write(shop.path("main.go"), source).unwrap();
    let output = shop.path("gopher");
    let mut build = Command::new("go");
    build
        .current_dir(shop.path(""))
        .args(["build", "-o"])
        .arg(&output)
        .arg("main.go");
    build.env("GO111MODULE", "off").env("GOTOOLCHAIN", "local");
    if !run(&mut build) {
        return;
    }
    let objects = Objects::offline(&output).unwrap();
    let site = find_one(&objects, ":main.work");
    assert!(site.object.file().is_go());
    assert_eq!(site.offset, 0);
    assert!(find(&objects, ":runtime.*").unwrap().len() > 500);
    let code = site.object.code().unwrap();
    assert!(code.is_go() && code.targets_at(site.address).unwrap().called(site.address));
    if let Some(stripped) = shop.strip(&output) {
        let stripped = Objects::offline(&stripped).unwrap();
        assert!(main_object(&stripped).file().is_go());
    }
    let system = Objects::offline(Path::new("/proc/self/exe")).unwrap();
    assert!(!main_object(&system).file().is_go());
}
