//! Events in running programs: the addresses match the loaded code.

use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::fixtures::{
    PROGRAM, Started, Workshop, complaint, find, find_one, main_object, objects,
};
use capriole_object::Objects;
use capriole_planner::resolve::Site;
use capriole_proc::process::Process;
use capriole_testkit::tools::is_root;

const LOADER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
	for (int i = 1; i < argc; i++) dlopen(argv[i], RTLD_NOW);
	puts("ready"); fflush(stdout);
	pause();
}
"#;

/// Checks that the bytes at the site equal those of the file: bias and offsets are right.
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

/// Returns the words in the writable mappings of the site's object.
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
        let running = Started::start(&mut Command::new(&path));
        let process = Process::open(running.pid()).unwrap();
        process.preflight().unwrap();
        let objects = objects(&running);
        for event in [
            ":work",
            ":main",
            ":work+4",
            "pie:work",
            &format!("{}:work", path.display()),
        ] {
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
        // `call` points to it: the program's own value of the address.
        let words = data_words(&process, &work);
        assert!(words.contains(&work.address), "{name}");
        if name.starts_with("static") || name == "musl" {
            assert!(complaint(&objects, "libc:malloc").contains("no program or library `libc`"));
        } else {
            is_there(&process, &find_one(&objects, "libc:malloc"));
        }
        println!("{name}: bias {:#x}", work.object.run_time(0));
    }
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
    let name = concat!(
        module_path!(),
        "::this_program_is_found_at_its_own_addresses::marked"
    );
    let site = find_one(&objects, &format!(":{name}"));
    assert_eq!(site.address, here);
    assert_eq!(site.symbol.as_deref(), Some(name));
    assert_eq!(
        find(&objects, ":*own_addresses::marked").unwrap()[0].address,
        here
    );
    assert_eq!(site.instruction().unwrap(), Some(here));

    let getppid = libc::getppid as unsafe extern "C" fn() -> libc::pid_t as usize as u64;
    assert_eq!(find_one(&objects, "libc:getppid").address, getppid);
    let inside = objects.containing(getppid).unwrap();
    assert!(inside.name().starts_with("libc.so"));
    assert!(main_object(&objects).contains(here));
}

#[test]
fn an_indirect_function_leads_to_the_implementation_in_use() {
    let shop = Workshop::new();
    let Some(path) = shop.compile("gcc", &["-O1", "-Wl,-z,now"], PROGRAM, "copier") else {
        return;
    };
    let running = Started::start(&mut Command::new(&path));
    let objects = objects(&running);
    // Behind it the version that is kept for old programs, which is no indirect function.
    let newest = |event: &str| {
        let sites = find(&objects, event).expect("a function");
        let old = |site: &Site| site.symbol.as_ref().is_some_and(|name| name.contains('@'));
        assert!(sites[1..].iter().all(old), "{event}");
        sites.into_iter().next().expect("a site")
    };
    let site = newest("libc:memcpy");
    assert_eq!(site.symbol.as_deref(), Some("memcpy"));
    let symbols = site.object.symbols().unwrap();
    let resolver = symbols.exact("memcpy")[0].function.extent.start;
    assert_ne!(site.link_address, resolver);
    let words = objects
        .all()
        .flat_map(|object| object.mappings().to_vec())
        .filter(|m| m.perms.read && !m.perms.execute);
    // The loader has written this address to the slot that calls of memcpy go through.
    let wanted = site.address.to_le_bytes();
    let process = Process::open(running.pid()).unwrap();
    let found = words.into_iter().any(|mapping| {
        let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
        process.read_memory(mapping.start, &mut bytes).is_ok()
            && bytes.chunks_exact(8).any(|word| word == wanted)
    });
    assert!(found, "{:#x}", site.address);
    // Without an object as well, and where only the C library itself calls it.
    assert_eq!(newest("memcpy").address, site.address);
    assert_ne!(find_one(&objects, "libc:strlen").extent.start, 0);
}

#[test]
fn a_library_loaded_twice_has_two_sites() {
    let shop = Workshop::new();
    let Some(library) = shop.compile(
        "gcc",
        &["-shared", "-fPIC"],
        "int one(void) { return 1; }",
        "libone.so",
    ) else {
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
    let running = Started::start(Command::new(path).arg(&library).arg(&answer));
    let mut expected: Vec<u64> = std::fs::read_to_string(&answer)
        .unwrap()
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    expected.sort_unstable();
    let objects = objects(&running);
    let sites = find(&objects, "libone:one").unwrap();
    let found: Vec<u64> = sites.iter().map(|site| site.address).collect();
    assert_eq!(found, expected);
    // Symbolic links to the library work as well.
    let link = shop.path("link.so");
    std::os::unix::fs::symlink(&library, &link).unwrap();
    assert_eq!(
        find(&objects, &format!("{}:one", link.display()))
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn a_name_that_fits_several_libraries_is_ambiguous() {
    let shop = Workshop::new();
    let source = "int one(void) { return 1; }";
    let options = ["-shared", "-fPIC"];
    let names = [
        "libxy-first.so",
        "libxy-second.so",
        "libxy.so.3",
        "libxyz.so",
    ];
    let mut libraries = Vec::new();
    for name in names {
        match shop.compile("gcc", &options, source, name) {
            Some(library) => libraries.push(library),
            None => return,
        }
    }
    let Some(path) = shop.compile("gcc", &["-ldl"], LOADER, "loader") else {
        return;
    };
    let running = Started::start(Command::new(path).args(&libraries));
    let objects = objects(&running);
    let file = |event: &str| find_one(&objects, event).object.path().to_owned();
    assert_eq!(file("libxy:one"), libraries[2]);
    assert_eq!(file("libxyz:one"), libraries[3]);
    assert_eq!(file("libxy-f:one"), libraries[0]);
    let text = complaint(&objects, "libxy-:one");
    assert!(text.starts_with("`libxy-` may be any of these"), "{text}");
    assert!(
        text.contains("libxy-first.so\n") && text.ends_with("libxy-second.so"),
        "{text}"
    );
}

#[test]
fn a_library_is_found_by_the_name_it_gives_itself() {
    let shop = Workshop::new();
    let options = ["-shared", "-fPIC", "-Wl,-soname,libother.so.2"];
    let source = "int one(void) { return 1; }";
    let Some(library) = shop.compile("gcc", &options, source, "strange") else {
        return;
    };
    let Some(loader) = shop.compile("gcc", &["-ldl"], LOADER, "loader") else {
        return;
    };
    let running = Started::start(Command::new(loader).arg(&library));
    let objects = objects(&running);
    for event in ["strange:one", "libother:one", "libother.so.2:one"] {
        assert_eq!(find_one(&objects, event).object.path(), library, "{event}");
    }
    // The path of a file that is not loaded does not match.
    assert!(complaint(&objects, "/no/strange:one").contains("`strange`"));
}

#[test]
fn a_path_is_one_of_the_process() {
    if !is_root("change the root directory") {
        return;
    }
    let shop = Workshop::new();
    let Some(path) = shop.compile("gcc", &["-static", "-O1"], PROGRAM, "inside") else {
        return;
    };
    let running = Started::start(Command::new("chroot").arg(shop.path("")).arg("/inside"));
    let objects = objects(&running);
    let work = find_one(&objects, "/inside:work");
    assert_eq!(find_one(&objects, ":work").address, work.address);
    // The kernel shows the path as seen from outside the chroot.
    assert_eq!(
        find_one(&objects, &format!("{}:work", path.display())).address,
        work.address
    );
}

const LIBRARY: &str = "int one(int x) { return x * 3 + 1; }\n";
const OPENER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
	if (!dlopen(argv[1], RTLD_NOW)) return 1;
	puts("ready"); fflush(stdout);
	pause();
}
"#;

#[test]
fn a_library_is_found_after_it_was_replaced_or_deleted() {
    if !is_root("reach files that have no name") {
        return;
    }
    let shop = Workshop::new();
    let options = ["-shared", "-fPIC", "-O1"];
    let Some(library) = shop.compile("gcc", &options, LIBRARY, "libone with blank.so") else {
        return;
    };
    let Some(loader) = shop.compile("gcc", &["-ldl"], OPENER, "loader") else {
        return;
    };
    let running = Started::start(Command::new(&loader).arg(&library));
    let before = find_one(&objects(&running), "libone:one");
    assert_eq!(before.object.path(), library);

    let other = shop
        .compile(
            "gcc",
            &options,
            "int none; int one(int x) { return x; }",
            "libone.so",
        )
        .unwrap();
    std::fs::rename(other, &library).unwrap();
    let after = find_one(&objects(&running), "libone:one");
    assert_eq!(after.address, before.address);
    assert_eq!(after.object.path(), library);
    assert_eq!(
        after.object.file().build_id(),
        before.object.file().build_id()
    );
    let event = format!("{}:one", library.display());
    assert_eq!(find_one(&objects(&running), &event).address, before.address);

    std::fs::remove_file(&library).unwrap();
    std::fs::remove_file(&loader).unwrap();
    let objects = objects(&running);
    assert_eq!(find_one(&objects, "libone:one").address, before.address);
    assert_eq!(find_one(&objects, ":main").object.path(), loader);
}

#[test]
fn run_time_addresses_are_link_addresses_plus_bias() {
    let shop = Workshop::new();
    let source = r#"
        #include <stdio.h>
        #include <unistd.h>
        int pick(int x) { static void *table[] = { &&a, &&b }; goto *table[x & 1]; a: return x * 7; b: return x / 3; }
        int main(int argc, char **argv) { puts("ready"); fflush(stdout); pick(argc); pause(); }
    "#;
    let Some(path) = shop.compile("gcc", &["-O1", "-pie", "-fPIE"], source, "goto") else {
        return;
    };
    let running = Started::start(&mut Command::new(&path));
    let objects = objects(&running);
    let site = find_one(&objects, ":pick");
    let code = site.object.code().unwrap();
    assert!(site.object.range().contains(&site.address));
    let piece = code.code_at(site.address).unwrap();
    let mut mapped = vec![0; site.extent.len() as usize];
    Process::open(running.pid())
        .unwrap()
        .read_memory(site.address, &mut mapped)
        .unwrap();
    assert_eq!(piece.get(site.extent).unwrap(), mapped);
    // The table's relocations contain the labels' addresses.
    let targets = code.targets_at(site.address).unwrap();
    let inside = (site.extent.start + 1..site.extent.end).filter(|&at| targets.jumped(at));
    assert!(inside.count() >= 2);
    let offline = Objects::offline(&path).unwrap();
    assert_eq!(find_one(&offline, ":pick").link_address, site.link_address);
    assert_eq!(
        find(&offline, ":pi*").unwrap()[0].address,
        site.link_address
    );
    assert!(complaint(&offline, ":pock").contains("similar: `pick`"));
}
