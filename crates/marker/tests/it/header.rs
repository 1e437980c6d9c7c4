//! `capriole/marker.h`, compiled by GCC and Clang with the options that programs use.

use std::path::Path;
use std::process::Command;

use capriole_testkit::effort::{Effort, effort};

use crate::support::{Elf, compile, compiling, program, run};
use capriole_testkit::tools::{have, present, quiet};

const C: &[&str] = &["gcc", "clang"];
const CXX: &[&str] = &["g++", "clang++"];
/// In an order in which two levels, in turn, are tried with the compilers of both projects.
const ALL: &[&str] = &["gcc", "g++", "clang", "clang++"];
const WARNINGS: &[&str] = &[
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wshadow",
    "-Wconversion",
    "-Wformat=2",
    "-Werror",
    "-pedantic-errors",
];

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Compiles a program, checks all notes, runs it, and checks the notes again after stripping
/// it. Returns the number of markers.
fn built(compiler: &str, options: &[&str], source: &str) -> usize {
    let directory = directory();
    let out = directory.path().join("program");
    println!("{compiler} {options:?} {source}");
    compile(
        compiler,
        &[WARNINGS, options].concat(),
        &program(source),
        &out,
    );
    let markers = Elf::read(&out).markers();
    quiet(&mut Command::new(&out));
    quiet(Command::new("strip").arg(&out));
    assert_eq!(Elf::read(&out).markers(), markers);
    let names = |name| markers.iter().filter(|marker| marker.name == name).count();
    for name in ["bare", "n12", "loop", "message", "after"] {
        assert!(names(name) >= 1, "{name}");
    }
    // Markers that use a counter have its address; others have none.
    for marker in &markers {
        let guarded = matches!(marker.name.as_str(), "guarded" | "inner");
        assert_eq!(marker.semaphore != 0, guarded, "{marker:?}");
    }
    markers.len()
}

/// Pairs each of `all` with one of the others, in turn; in the soak with each of them.
fn in_turn<'a, A, B>(all: &'a [A], others: &'a [B]) -> impl Iterator<Item = (&'a A, &'a B)> {
    all.iter().enumerate().flat_map(move |(index, one)| {
        let (first, count) = match effort() {
            Effort::Test => (index % others.len().max(1), 1),
            Effort::Soak | Effort::Long => (0, others.len()),
        };
        let others = others.iter().skip(first).take(count);
        others.map(move |other| (one, other))
    })
}

#[test]
fn all_standards_and_levels() {
    let with = |compilers: &[&'static str], source| -> Vec<(&str, &str)> {
        let present = present(compilers).into_iter();
        present.map(|compiler| (compiler, source)).collect()
    };
    let c: &[&[&str]] = &[
        &["-std=c99", "-O0"],
        &["-std=c11", "-O0"],
        &["-std=c11", "-O2"],
        &["-std=gnu17", "-O2"],
        &["-std=gnu17", "-O0"],
        &["-std=c99", "-O2"],
        &["-std=c99", "-O1"],
        &["-std=c99", "-O3"],
        &["-std=c99", "-Os"],
        &["-std=c99", "-Og"],
    ];
    for (options, (compiler, source)) in in_turn(c, &with(C, "kinds.c")) {
        built(compiler, options, source);
    }
    let cxx: &[&[&str]] = &[
        &["-std=c++11", "-O0"],
        &["-std=c++20", "-O0"],
        &["-std=c++20", "-O2"],
        &["-std=c++11", "-O2"],
        &["-std=c++14", "-O1"],
        &["-std=c++14", "-O3"],
        &["-std=c++14", "-Os"],
        &["-std=c++14", "-Og"],
    ];
    for (options, (compiler, source)) in in_turn(cxx, &with(CXX, "kinds.cpp")) {
        built(compiler, options, source);
    }
}

/// A text is written to a file as well, if there are a text, a file and markers.
#[test]
fn texts_go_to_files() {
    for (compiler, level) in in_turn(&present(ALL), &["-O0", "-O2"]) {
        for (more, written) in [
            ("-UCAPRIOLE_MARK_NONE", "done\n"),
            ("-DCAPRIOLE_MARK_NONE", ""),
        ] {
            let directory = directory();
            let out = directory.path().join("program");
            let language = if CXX.contains(compiler) { "c++" } else { "c" };
            let options = [WARNINGS, &[level, more, "-x", language]].concat();
            compile(compiler, &options, &program("text_to.c"), &out);
            let shown = quiet(&mut Command::new(&out));
            assert_eq!(shown, written, "{compiler} {level} {more}");
        }
    }
}

/// Any other compiler versions that are installed.
#[test]
fn other_versions_of_compilers() {
    let gcc = (11..=15).map(|version| (format!("gcc-{version}"), format!("g++-{version}")));
    let clang = (13..=22).map(|version| (format!("clang-{version}"), format!("clang++-{version}")));
    let there: Vec<_> = gcc
        .chain(clang)
        .filter(|(c, cxx)| have(c) && have(cxx))
        .collect();
    if there.is_empty() {
        println!("skipped: no other versions of GCC and Clang");
    }
    for (c, cxx) in there {
        for level in ["-O0", "-O2"] {
            built(&c, &["-std=c99", level], "kinds.c");
            built(&cxx, &["-std=c++11", level], "kinds.cpp");
        }
    }
}

#[test]
fn kinds_of_code() {
    let ways: &[&[&str]] = &[
        &["-O2", "-fPIC", "-pie"],
        &["-O2", "-fno-pic", "-no-pie"],
        &["-O0", "-fno-pic", "-no-pie"],
        &["-O2", "-static"],
        &["-O3", "-funroll-loops", "-fno-omit-frame-pointer"],
        &[
            "-O2",
            "-ffunction-sections",
            "-fdata-sections",
            "-Wl,--gc-sections",
        ],
        &["-O2", "-g"],
        &["-O2", "-fcf-protection=full", "-fstack-protector-strong"],
        &["-O1", "-march=native"],
    ];
    let c = C.iter().map(|&compiler| (compiler, "kinds.c"));
    let all = c.chain(CXX.iter().map(|&compiler| (compiler, "kinds.cpp")));
    let compilers: Vec<_> = all.filter(|(c, _)| !present(&[c]).is_empty()).collect();
    for (options, (compiler, source)) in in_turn(ways, &compilers) {
        built(compiler, options, source);
    }
}

#[test]
fn link_time_optimisation_and_linkers() {
    for (compiler, source) in [("gcc", "kinds.c"), ("g++", "kinds.cpp")] {
        built(compiler, &["-O2", "-flto"], source);
        for linker in present(&["ld.gold", "ld.lld"]) {
            let linker = format!("-fuse-ld={}", &linker[3..]);
            built(compiler, &["-O2", &linker], source);
        }
    }
    if !have("ld.lld") {
        println!("skipped: no ld.lld for link time optimisation by Clang");
        return;
    }
    for (compiler, source) in [("clang", "kinds.c"), ("clang++", "kinds.cpp")] {
        if !present(&[compiler]).is_empty() {
            built(compiler, &["-O2", "-flto", "-fuse-ld=lld"], source);
            built(compiler, &["-O2", "-flto=thin", "-fuse-ld=lld"], source);
        }
    }
}

#[test]
fn arguments_and_texts_are_described() {
    let directory = directory();
    let out = directory.path().join("program");
    for compiler in present(C) {
        for level in ["-O0", "-O2"] {
            compile(compiler, &[level], &program("kinds.c"), &out);
            let elf = Elf::read(&out);
            assert_eq!(
                elf.marker("small").types(),
                ["1", "-1", "-1", "1", "-2", "2"]
            );
            assert_eq!(
                elf.marker("large").types(),
                ["-4", "4", "-8", "8", "-8", "8"]
            );
            assert_eq!(elf.marker("floating").types(), ["-4", "4", "8", "-4"]);
            assert_eq!(elf.marker("floating").floats, 0b110);
            assert_eq!(elf.marker("others").types(), ["-4", "8", "-8", "8"]);
            assert_eq!(elf.marker("pointers").types(), ["8"; 4]);
            assert_eq!(elf.marker("memory").types(), ["-2", "-4", "-4"]);
            let signs = elf.marker("signs");
            assert_eq!(signs.format, "100%% {x|y} $1 \"q\" \\ \t%d\n \u{e9}");
            assert_eq!(elf.marker("others").format, "%d %zu %td %lu");
            assert_eq!(elf.marker("bare").format, "");
            let source = std::fs::read_to_string(program("kinds.h")).unwrap();
            for marker in elf
                .markers()
                .iter()
                .filter(|marker| marker.name != "message")
            {
                assert!(
                    marker.file.ends_with("tests/it/programs/kinds.h"),
                    "{marker:?}"
                );
                // GCC gives the line where the statement ends, Clang where it begins.
                let lines: Vec<&str> = source
                    .lines()
                    .skip(marker.line as usize - 2)
                    .take(2)
                    .collect();
                assert!(
                    lines.concat().contains(&marker.name),
                    "{marker:?}: {lines:?}"
                );
            }
        }
    }
}

#[test]
fn names_of_files_may_be_anything_and_long() {
    let directory = directory();
    let odd = directory
        .path()
        .join("feature%2F {a|b} $x")
        .join("d".repeat(120));
    std::fs::create_dir_all(&odd).unwrap();
    let source = odd.join("o%d.c");
    let text = "#include <capriole/marker.h>\nint main(void) { CAPRIOLE_MARK(a, b, \"%d\", 1); return 0; }\n";
    std::fs::write(&source, text).unwrap();
    let out = directory.path().join("program");
    for compiler in present(C) {
        for level in ["-O0", "-O2"] {
            compile(compiler, &[level], &source, &out);
            let file = Elf::read(&out).marker("b").file;
            assert!(
                source.to_str().unwrap().ends_with(&file) && file.ends_with("/o%d.c"),
                "{file}"
            );
        }
    }
}

#[test]
fn other_headers_of_markers_do_no_harm() {
    let text = "#include <sys/sdt.h>\n#include <capriole/marker.h>\n\
        int main(int argc, char **argv) { (void)argv; DTRACE_PROBE1(other, one, argc); \
        CAPRIOLE_MARK(own, two, \"%d\", argc); return 0; }\n";
    let directory = directory();
    let source = directory.path().join("both.c");
    std::fs::write(&source, text).unwrap();
    if !run(Command::new("sh").args(["-c", "echo '#include <sys/sdt.h>' | cc -E -"]))
        .status
        .success()
    {
        println!("skipped: no sys/sdt.h");
        return;
    }
    for compiler in present(C) {
        compile(compiler, &["-O2"], &source, &directory.path().join("both"));
    }
}

/// Projects that require declarations at the beginning of a block get no warning either.
#[test]
fn declarations_come_first() {
    let directory = directory();
    let source = directory.path().join("first.c");
    let text = "#include <capriole/marker.h>\nint f(int a);\nint f(int a) { int b = a; \
        CAPRIOLE_MARK(a, b, \"%d %d\", a, b); CAPRIOLE_MARK_GUARDED(a, b, \"%d\", b); return a; }\n";
    std::fs::write(&source, text).unwrap();
    for compiler in present(C) {
        for level in ["-O0", "-O2"] {
            let options = [WARNINGS, &["-Wdeclaration-after-statement", level, "-c"]].concat();
            compile(
                compiler,
                &options,
                &source,
                &directory.path().join("first.o"),
            );
        }
    }
}

/// Where markers are not available, programs still compile, and formats are checked.
#[test]
fn other_processors_and_none() {
    let source = program("kinds.c");
    for compiler in present(C) {
        let directory = directory();
        let out = directory.path().join("none");
        compile(
            compiler,
            &[WARNINGS, &["-O2", "-DCAPRIOLE_MARK_NONE"]].concat(),
            &source,
            &out,
        );
        assert!(Elf::read(&out).markers().is_empty());
        quiet(&mut Command::new(&out));
        let text = "void f(long n) { CAPRIOLE_MARK(net, request, \"n=%d\", n); }";
        error_of(compiler, &["-DCAPRIOLE_MARK_NONE"], text);
    }
    if !present(&["clang"]).is_empty() {
        let text = "#include <capriole/marker.h>\nint f(int n, const char *t) { \
            CAPRIOLE_MARK_GUARDED(a, b, \"%d %s\", n, t); return CAPRIOLE_MARK_ENABLED(a, b); }\n";
        let directory = directory();
        let path = directory.path().join("other.c");
        std::fs::write(&path, text).unwrap();
        for target in ["aarch64-linux-gnu", "i386-linux-gnu", "arm-linux-gnueabihf"] {
            let target = format!("--target={target}");
            let options = [&target[..], "-std=c99", "-c"];
            compile(
                "clang",
                &[WARNINGS, &options].concat(),
                &path,
                &directory.path().join("other.o"),
            );
        }
    }
}

/// All users of a name in a program share one counter; each library has its own.
#[test]
fn counters_are_shared_within_a_program() {
    let directory = directory();
    let path = |name: &str| directory.path().join(name);
    let part = |name: &str| {
        format!(
            "#include <capriole/marker.h>\nint {name}(int n) {{ int on = CAPRIOLE_MARK_ENABLED(parts, shared); \
             CAPRIOLE_MARK_GUARDED(parts, shared, \"%d\", ++n); return on + CAPRIOLE_MARK_ENABLED(parts, shared); }}\n"
        )
    };
    std::fs::write(path("one.c"), part("one")).unwrap();
    std::fs::write(path("two.c"), part("two")).unwrap();
    let main = "#include <capriole/marker.h>\n\
        extern unsigned short parts_shared_semaphore __attribute__((visibility(\"hidden\")));\n\
        extern int one(int), two(int);\n\
        int main(void) { CAPRIOLE_MARK(parts, shared, \"%d\", 1); CAPRIOLE_MARK(parts, alone, \"%d\", 1);\n\
        if (one(1) || two(1)) return 1; parts_shared_semaphore++; return one(1) == 2 && two(1) == 2 ? 0 : 2; }\n";
    std::fs::write(path("main.c"), main).unwrap();
    for compiler in present(C) {
        for options in [&["-O0"][..], &["-O2"], &["-O2", "-flto"]] {
            if compiler == "clang" && options.contains(&"-flto") {
                continue;
            }
            for name in ["one", "two", "main"] {
                let object = path(&format!("{name}.o"));
                compile(
                    compiler,
                    &[options, &["-c"]].concat(),
                    &path(&format!("{name}.c")),
                    &object,
                );
            }
            let archive = path("libparts.a");
            let _ = std::fs::remove_file(&archive);
            let ar = if options.contains(&"-flto") {
                "gcc-ar"
            } else {
                "ar"
            };
            quiet(
                Command::new(ar)
                    .arg("rcs")
                    .arg(&archive)
                    .args([path("one.o"), path("two.o")]),
            );
            let out = path("parts");
            quiet(
                Command::new(compiler)
                    .args(options)
                    .arg(path("main.o"))
                    .arg(&archive)
                    .arg("-o")
                    .arg(&out),
            );
            quiet(&mut Command::new(&out));
            let markers = Elf::read(&out).markers();
            let counters: Vec<u64> = markers
                .iter()
                .filter(|m| m.name == "shared")
                .map(|m| m.semaphore)
                .collect();
            assert!(counters.len() >= 3);
            assert!(
                counters[0] != 0 && counters.iter().all(|&c| c == counters[0]),
                "{markers:?}"
            );
            assert!(
                markers
                    .iter()
                    .all(|m| m.name == "shared" || m.semaphore == 0)
            );
        }
        let library = path("libone.so");
        compile(
            compiler,
            &["-O2", "-fPIC", "-shared", "-Wl,-z,text,-z,defs"],
            &path("one.c"),
            &library,
        );
        let elf = Elf::read(&library);
        assert_ne!(elf.marker("shared").semaphore, 0);
        let dynamic = quiet(Command::new("nm").arg("-D").arg(&library));
        assert!(
            dynamic.contains(" one") && !dynamic.contains("semaphore"),
            "{dynamic}"
        );
    }
}

/// Arguments of the guarded form are evaluated only while the marker is enabled.
#[test]
fn guarded_arguments_are_not_evaluated_while_off() {
    for (compiler, level) in in_turn(&present(ALL), &["-O0", "-O2", "-O3"]) {
        let language = match CXX.contains(compiler) {
            true => "-xc++",
            false => "-xc",
        };
        let directory = directory();
        let out = directory.path().join("guarded");
        let options = [WARNINGS, &[level, language]].concat();
        compile(compiler, &options, &program("guarded.c"), &out);
        let said = quiet(&mut Command::new(&out));
        // Five rounds off, five on, five off; one evaluation per round.
        assert_eq!(
            said, "off 0\non 10\noff 10\nunguarded 15\n",
            "{compiler} {level}"
        );
    }
}

fn error_of(compiler: &str, options: &[&str], text: &str) -> String {
    let directory = directory();
    let source = directory.path().join(if compiler.ends_with('+') {
        "wrong.cpp"
    } else {
        "wrong.c"
    });
    std::fs::write(&source, format!("#include <capriole/marker.h>\n{text}\n")).unwrap();
    let options = [options, &["-c"]].concat();
    let output =
        run(compiling(compiler, &options, &source, Path::new("/dev/null")).env("LC_ALL", "C"));
    assert!(!output.status.success(), "{compiler} takes {text}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_is_wrong_is_an_error_that_says_so() {
    let wrong = [
        (
            "void f(long n) { CAPRIOLE_MARK(net, request, \"n=%d\", n); }",
            "'long",
        ),
        (
            "void f(int n) { CAPRIOLE_MARK(net, request, \"n=%d %d\", n); }",
            "%d",
        ),
        (
            "void f(int n) { CAPRIOLE_MARK(net, request, \"none\", n); }",
            "format",
        ),
        (
            "void f(int n) { CAPRIOLE_MARK_GUARDED(net, request, \"%s\", n); }",
            "%s",
        ),
        (
            "void f(const char *t) { CAPRIOLE_MARK(net, request, t, 1); }",
            "the format has to be a string literal",
        ),
        (
            "struct s { int a[4]; }; void f(struct s s) { CAPRIOLE_MARK(net, request, \"%d\", s); }",
            "argument 1 is no integer, bool, enumeration, float, double or pointer",
        ),
        (
            "void f(long double d) { CAPRIOLE_MARK(net, request, \"%d %Lf\", 1, d); }",
            "argument 2 is no",
        ),
        (
            "void f(void) { CAPRIOLE_MARK(net, request, \"%d\", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13); }",
            "there can be at most 12 arguments",
        ),
        (
            "void f(void) { CAPRIOLE_MARK(net); }",
            "a provider and a name are needed",
        ),
    ];
    for (compiler, level) in in_turn(&present(ALL), &["-O0", "-O2"]) {
        // These are errors even without warning options.
        for (text, says) in wrong {
            let error = error_of(compiler, &[level], text).replace('\u{2018}', "'");
            assert!(
                error.contains("error") && error.contains(says),
                "{compiler} of {text}:\n{error}"
            );
        }
        let long = format!(
            "void f(int n) {{ CAPRIOLE_MARK(a, b, \"{} %d\", n); }}",
            "x".repeat(220)
        );
        let error = error_of(compiler, &[level], &long);
        assert!(error.contains("the format is longer than"), "{error}");
    }
}
