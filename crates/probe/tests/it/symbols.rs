//! What the libraries export and import.

use crate::support::libraries;
use capriole_testkit::tools::{present, quiet, root};
use std::collections::BTreeSet;
use std::process::Command;

/// Functions that the header declares.
pub fn declared(header: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in header.lines() {
        // A declaration begins at the start of a line, and its name with the prefix.
        let begins = ["int ", "unsigned long ", "const char *", "void "];
        let Some(rest) = begins.iter().find_map(|begin| line.strip_prefix(begin)) else {
            continue;
        };
        if let Some((name, _)) = rest.split_once('(')
            && name.starts_with("capriole_")
        {
            names.insert(name.to_owned());
        }
    }
    names
}

/// The names that `nm` prints, of these kinds; without versions.
fn names(options: &[&str], file: &std::path::Path, kinds: &str) -> BTreeSet<String> {
    let listed = quiet(Command::new("nm").args(options).arg(file));
    let symbol = |line: &str| {
        let mut words = line.split_whitespace().rev();
        let name = words.next()?.split('@').next()?.to_owned();
        let kind = words.next()?;
        (kind.len() == 1 && kinds.contains(kind)).then_some(name)
    };
    listed.lines().filter_map(symbol).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// Names that the object in libcapriole.a may import: of a C library, and of the linker, which makes the
/// last five.
fn of_archive() -> BTreeSet<String> {
    set(&[
        "environ",
        "getauxval",
        "_GLOBAL_OFFSET_TABLE_",
        "__start_capriole_calls",
        "__start_capriole_text",
        "__stop_capriole_calls",
        "__stop_capriole_text",
    ])
}

#[test]
fn what_is_declared_is_exported_and_nothing_else() {
    let header = std::fs::read_to_string(root().join("include/capriole/probe.h")).unwrap();
    let declared = declared(&header);
    assert!(declared.len() > 25, "{declared:?}");
    for compiler in present(&["gcc", "clang"]) {
        let directory = libraries(compiler);
        let shared = directory.path().join("libcapriole.so");
        let fixed = directory.path().join("libcapriole.a");
        let exported = names(&["-D", "--defined-only"], &shared, "TDBRVWiu");
        assert_eq!(exported, declared, "{compiler}: libcapriole.so");
        let global = names(&["-g", "--defined-only"], &fixed, "TDBRVWCiu");
        assert_eq!(global, declared, "{compiler}: libcapriole.a");
        // Nothing of a C library's may be called by a handler's surroundings: probes may be there.
        let imported = names(&["-D", "-u"], &shared, "U");
        let few = set(&["environ", "__environ", "getauxval"]);
        assert!(imported.is_subset(&few), "{compiler}: {imported:?}");
        let imported = names(&["-u"], &fixed, "Uw");
        assert!(
            imported.is_subset(&of_archive()),
            "{compiler}: {imported:?}"
        );
    }
}

#[test]
fn the_shared_library_says_what_it_is() {
    let directory = libraries("cc");
    let shared = directory.path().join("libcapriole.so");
    let dynamic = quiet(Command::new("readelf").args(["-dlW"]).arg(&shared));
    for wanted in [
        "[libcapriole.so.0]", // its soname
        "NODELETE",           // probes lead into it
        "STATIC_TLS",         // read by handlers without a call
        "BIND_NOW",
    ] {
        assert!(dynamic.contains(wanted), "{wanted}: {dynamic}");
    }
    let stack = dynamic.lines().find(|line| line.contains("GNU_STACK"));
    assert!(stack.is_some_and(|line| line.contains(" RW ")), "{stack:?}");
    assert!(!dynamic.contains("TEXTREL"), "{dynamic}");
}

#[test]
fn flags_of_the_user_do_not_change_what_is_needed() {
    let directory = capriole_testkit::files::scratch();
    quiet(
        Command::new("sh")
            .arg(root().join("scripts/library.sh"))
            .arg(directory.path())
            .arg("/usr/bin/capriole")
            .env("CC", "gcc")
            .env(
                "CFLAGS",
                "-O3 -flto=auto -march=x86-64-v3 -fstack-protector-strong -D_FORTIFY_SOURCE=2 \
                 -fcf-protection -fno-plt -ftls-model=global-dynamic",
            ),
    );
    let fixed = directory.path().join("libcapriole.a");
    let imported = names(&["-u"], &fixed, "Uw");
    assert!(imported.is_subset(&of_archive()), "{imported:?}");
    let code = quiet(
        Command::new("objdump")
            .args(["-d", "--no-show-raw-insn"])
            .arg(&fixed),
    );
    // Only where they are saved and restored.
    let vector = code
        .lines()
        .filter(|line| line.contains("%xmm") || line.contains("%ymm"));
    assert_eq!(vector.count(), 0);
    let strings = quiet(Command::new("strings").arg("-n").arg("8").arg(&fixed));
    assert!(strings.contains("/usr/bin/capriole"));
}
