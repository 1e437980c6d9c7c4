//! From event texts to sites, in files and in running programs.

mod fixtures;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use capriole_target::object::Objects;
use capriole_target::process::Process;
use capriole_target::resolve::{ResolveError, Site};
use fixtures::{Running, Workshop, complaint, find, find_one, libc, nm_functions, run, system_file};

const PROGRAM: &str = r#"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int counter = 7;
static int twice(int x) { return x * 2; }
__attribute__((noinline)) int work(int x) { counter += x; return twice(counter) + x; }
void copy(char *to, const char *from, unsigned long n) { memcpy(to, from, n); }
int (*volatile call)(int) = work;
int main(int argc, char **argv)
{
	char to[64] = "";
	copy(to, argv[0], strlen(argv[0]) % 63);
	puts("ready"); fflush(stdout);
	for (;;) { call(argc); pause(); }
}
"#;

/// The bytes at the site are those of the file: bias and offsets are right.
fn is_there(process: &Process, site: &Site) {
    let mut mapped = [0; 16];
    assert_eq!(process.read_memory(site.address, &mut mapped).unwrap(), 16);
    let mut on_disk = [0; 16];
    let file = std::fs::File::open(site.object.path()).unwrap();
    file.read_exact_at(&mut on_disk, site.file_offset).unwrap();
    assert_eq!(mapped, on_disk, "{:?}", site.symbol);
    assert!(site.extent.contains(site.address));
    let mappings = site.object.mappings();
    let holds = mappings.iter().find(|m| m.contains(site.address)).unwrap();
    assert!(holds.perms.execute);
    assert_eq!(site.address - holds.start + holds.offset, site.file_offset);
}

#[test]
fn programs_of_every_kind_are_found_in_memory() {
    let shop = Workshop::new();
    let kinds: [(&str, &str, &[&str]); 7] = [
        ("gcc", "pie", &["-pie", "-fPIE"]),
        ("gcc", "fixed", &["-no-pie"]),
        ("gcc", "static", &["-static"]),
        ("gcc", "staticpie", &["-static-pie", "-fPIE"]),
        ("gcc", "onesegment", &["-Wl,-z,noseparate-code"]),
        ("gcc", "bigpages", &["-Wl,-z,max-page-size=0x200000"]),
        ("musl-gcc", "musl", &["-static"]),
    ];
    for (compiler, name, options) in kinds {
        let options = [options, &["-O1"]].concat();
        let Some(path) = shop.compile(compiler, &options, PROGRAM, name) else {
            continue;
        };
        let running = Running::start(&mut Command::new(&path));
        let process = running.process();
        process.preflight().unwrap();
        let objects = running.objects();
        for event in [":work", ":main", ":work+4", "pie:work", &format!("{}:work", path.display())] {
            if event.starts_with("pie") && name != "pie" {
                continue;
            }
            let site = find_one(&objects, event);
            assert!(site.object.is_main());
            is_there(&process, &site);
        }
        let work = find_one(&objects, ":work");
        let by_offset = find_one(&objects, &format!(":{:#x}", work.file_offset));
        assert_eq!(by_offset.address, work.address);
        assert_eq!(by_offset.symbol.as_deref(), Some("work"));
        assert_eq!(by_offset.extent, work.extent);
        assert_eq!(work.address, work.object.run_time(work.link_address));
        // `call` points to it: what the program itself takes for the address.
        let words = data_words(&process, &work);
        assert!(words.contains(&work.address), "{name}");
        if name.starts_with("static") || name == "musl" {
            assert!(complaint(&objects, "libc:malloc").contains("no program or library `libc`"));
        } else {
            is_there(&process, &find_one(&objects, "libc:malloc"));
        }
        println!("{name}: bias {:#x}", work.object.bias());
    }
}

/// The words in the writable mappings of the site's object.
fn data_words(process: &Process, site: &Site) -> Vec<u64> {
    let writable = site.object.mappings().iter().filter(|m| m.perms.write);
    let mut words = Vec::new();
    for mapping in writable {
        let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
        process.read_memory(mapping.start, &mut bytes).unwrap();
        let (chunks, _) = bytes.as_chunks::<8>();
        words.extend(chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)));
    }
    words
}

#[test]
fn this_program_is_found_at_its_own_addresses() {
    #[inline(never)]
    fn marked(x: u64) -> u64 {
        std::hint::black_box(x) + 1
    }
    assert_eq!(marked(1), 2);
    let here = marked as fn(u64) -> u64 as usize as u64;
    let objects = Objects::of_process(&Process::open(std::process::id()).unwrap()).unwrap();
    let name = "resolve::this_program_is_found_at_its_own_addresses::marked";
    let site = find_one(&objects, &format!(":{name}"));
    assert_eq!(site.address, here);
    assert_eq!(site.symbol.as_deref(), Some(name));
    assert_eq!(find(&objects, ":*own_addresses::marked").unwrap()[0].address, here);
    assert_eq!(site.instruction().unwrap(), Some(here));

    let getppid = libc::getppid as unsafe extern "C" fn() -> libc::pid_t as usize as u64;
    assert_eq!(find_one(&objects, "libc:getppid").address, getppid);
    let inside = objects.containing(getppid).unwrap();
    assert!(inside.name().starts_with("libc.so"));
    assert!(objects.main().unwrap().contains(here));
}

#[test]
fn globs_match_every_function_once() {
    let sqlite = ["/usr/lib/x86_64-linux-gnu/libsqlite3.so.0", "/usr/lib64/libsqlite3.so.0"];
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
    assert!(none.contains("functions with names in") && none.contains("`no_such_*`"), "{none}");
}

#[test]
fn globs_leave_out_indirect_functions() {
    let Some(path) = libc() else { return };
    let objects = Objects::offline(&path).unwrap();
    let sites = find(&objects, ":mem*").unwrap();
    let names: Vec<&str> = sites.iter().map(|site| site.symbol.as_deref().unwrap()).collect();
    assert!(names.contains(&"memfrob"), "{names:?}");
    assert!(!names.contains(&"memcpy"), "{names:?}");
}

#[test]
fn an_indirect_function_leads_to_the_implementation_in_use() {
    let shop = Workshop::new();
    let Some(path) = shop.compile("gcc", &["-O1", "-Wl,-z,now"], PROGRAM, "copier") else {
        return;
    };
    let running = Running::start(&mut Command::new(&path));
    let objects = running.objects();
    let Err(ResolveError::Indirect { in_use, .. }) = find(&objects, "libc:memcpy") else {
        panic!("memcpy is not an indirect function here");
    };
    let used = in_use.unwrap();
    let event = format!("{}:{:#x}", used.object.display(), used.file_offset);
    let site = find_one(&objects, &event);
    let words = objects
        .all()
        .flat_map(|object| object.mappings().to_vec())
        .filter(|m| m.perms.read && !m.perms.execute);
    // The loader has written this address where memcpy is called through.
    let wanted = site.address.to_le_bytes();
    let process = running.process();
    let found = words.into_iter().any(|mapping| {
        let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
        process.read_memory(mapping.start, &mut bytes).is_ok()
            && bytes.chunks_exact(8).any(|word| word == wanted)
    });
    assert!(found, "{event}");
    assert!(complaint(&objects, "libc:memcpy").contains("this process uses /"));
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
    assert!(text.contains("indirect") && text.contains("`pick_avx2`, `pick_sse2`"), "{text}");
    // The resolver can be probed by the name of the function it is.
    assert_eq!(find_one(&objects, ":choose").symbol.as_deref(), Some("choose"));
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
    assert_eq!(find_one(&objects, ":twin(int)").linkage_name.as_deref(), Some("_Z4twini"));
    assert_eq!(find_one(&objects, ":twin(long)").symbol.as_deref(), Some("twin(long)"));
    assert_eq!(find_one(&objects, ":operator*").linkage_name.as_deref(), Some("_Zml1VS_"));
    assert_eq!(find_one(&objects, ":operator*(V, V)").linkage_name.as_deref(), Some("_Zml1VS_"));
    assert_eq!(find_one(&objects, ":(anonymous namespace)::quiet(int)").offset, 0);
    assert_eq!(find(&objects, ":twin*").unwrap().len(), 2);
    assert_eq!(find(&objects, ":*times*").unwrap().len(), 2);

    let Err(ResolveError::AmbiguousSymbol { candidates, .. }) = find(&objects, ":twin") else {
        panic!("twin has two overloads");
    };
    let text = complaint(&objects, ":twin");
    assert!(text.starts_with("`twin` names 2 functions; choose one:\n  /"), "{text}");
    // What the message says to write works.
    for candidate in candidates {
        let event = format!("{}:{:#x}", candidate.object.display(), candidate.file_offset);
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
    compile.args(["-O1", "-fPIC", "-DN=2", "-c"]).arg(shop.path("part.c"));
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
    let running = Running::start(&mut Command::new(&path));
    let objects = running.objects();
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
            format!("none of the {} functions with names in {file} matches `zz*`", named(&objects)),
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
        format!("`libc` is not {file}; without a process only that file can be looked at (use -p PID for its libraries)")
    );
    if let Some(stripped) = shop.strip(&path) {
        let offline = Objects::offline(&stripped).unwrap();
        assert!(complaint(&offline, ":work").contains("stripped of all names"));
    }
}

fn named(objects: &Objects) -> usize {
    let main = objects.main().unwrap();
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
fn a_library_loaded_twice_has_two_sites() {
    let shop = Workshop::new();
    let Some(library) = shop.compile("gcc", &["-shared", "-fPIC"], "int one(void) { return 1; }", "libone.so")
    else {
        return;
    };
    let source = r#"
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <stdio.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            void *a = dlopen(argv[1], RTLD_NOW), *b = dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW);
            FILE *out = fopen(argv[2], "w");
            fprintf(out, "%lu %lu\n", (unsigned long)dlsym(a, "one"), (unsigned long)dlsym(b, "one"));
            fclose(out);
            puts("ready"); fflush(stdout);
            pause();
        }
    "#;
    let Some(path) = shop.compile("gcc", &["-ldl"], source, "loader") else {
        return;
    };
    let answer = shop.path("answer");
    let running = Running::start(Command::new(path).arg(&library).arg(&answer));
    let mut expected: Vec<u64> = std::fs::read_to_string(&answer)
        .unwrap()
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    expected.sort_unstable();
    let objects = running.objects();
    let sites = find(&objects, "libone:one").unwrap();
    let found: Vec<u64> = sites.iter().map(|site| site.address).collect();
    assert_eq!(found, expected);
    // Symbolic links lead to the library as well.
    let link = shop.path("link.so");
    std::os::unix::fs::symlink(&library, &link).unwrap();
    assert_eq!(find(&objects, &format!("{}:one", link.display())).unwrap().len(), 2);
}

#[test]
fn a_name_that_fits_several_libraries_is_ambiguous() {
    let shop = Workshop::new();
    let source = "int one(void) { return 1; }";
    let options = ["-shared", "-fPIC"];
    let names = ["libxy-first.so", "libxy-second.so", "libxy.so.3", "libxyz.so"];
    let mut libraries = Vec::new();
    for name in names {
        match shop.compile("gcc", &options, source, name) {
            Some(library) => libraries.push(library),
            None => return,
        }
    }
    let loader = r#"
        #include <dlfcn.h>
        #include <stdio.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            for (int i = 1; i < argc; i++) dlopen(argv[i], RTLD_NOW);
            puts("ready"); fflush(stdout);
            pause();
        }
    "#;
    let Some(path) = shop.compile("gcc", &["-ldl"], loader, "loader") else {
        return;
    };
    let running = Running::start(Command::new(path).args(&libraries));
    let objects = running.objects();
    let file = |event: &str| find_one(&objects, event).object.path().to_owned();
    assert_eq!(file("libxy:one"), libraries[2]);
    assert_eq!(file("libxyz:one"), libraries[3]);
    assert_eq!(file("libxy-f:one"), libraries[0]);
    let text = complaint(&objects, "libxy-:one");
    assert!(text.starts_with("`libxy-` may be any of these"), "{text}");
    assert!(text.contains("libxy-first.so\n") && text.ends_with("libxy-second.so"), "{text}");
}

#[test]
fn go_programs_are_recognised() {
    let shop = Workshop::new();
    let source = "package main\nimport (\"fmt\"; \"os\")\n//go:noinline\nfunc work(x int) int { return x * 3 }\nfunc main() { fmt.Println(\"ready\"); work(len(os.Args)); select {} }\n";
    std::fs::write(shop.path("main.go"), source).unwrap();
    let output = shop.path("gopher");
    let mut build = Command::new("go");
    build.current_dir(shop.path("")).args(["build", "-o"]).arg(&output).arg("main.go");
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
        assert!(Objects::offline(&stripped).unwrap().main().unwrap().file().is_go());
    }
    let system = Objects::offline(Path::new("/proc/self/exe")).unwrap();
    assert!(!system.main().unwrap().file().is_go());
}
