//! The installation: where files are, and that programs can be built and run with them.

use crate::support::{helper, probing};
use capriole_testkit::files;
use capriole_testkit::tools::{have, present, quiet, root};
use std::path::Path;
use std::process::Command;

/// Installs the library below a DESTDIR.
fn install(destdir: &Path, variables: &[(&str, &str)]) {
    let mut command = Command::new("sh");
    command
        .arg(root().join("scripts/install-library.sh"))
        .env("DESTDIR", destdir)
        .env("BUILD", destdir.join("build"))
        .env_remove("CFLAGS");
    for name in ["PREFIX", "LIBDIR", "INCLUDEDIR", "MANDIR", "CC"] {
        command.env_remove(name);
    }
    quiet(command.envs(variables.iter().copied()));
}

fn pkg_config(destdir: &Path, libdir: &str, options: &[&str]) -> Vec<String> {
    let answer = quiet(
        Command::new("pkg-config")
            .args(options)
            .arg("capriole")
            .env_remove("PKG_CONFIG_SYSROOT_DIR")
            .env(
                "PKG_CONFIG_PATH",
                destdir
                    .join(libdir.trim_start_matches('/'))
                    .join("pkgconfig"),
            ),
    );
    answer.split_whitespace().map(str::to_owned).collect()
}

fn program(name: &str) -> std::path::PathBuf {
    root().join("crates/probe/tests/it/programs").join(name)
}

/// Runs a program that was built of `first.c`.
fn runs(path: &Path, directory: &Path) {
    let output = probing(Command::new(path).env("LD_LIBRARY_PATH", directory));
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{path:?}: {}\n{said}{wrong}",
        output.status
    );
    assert!(said.contains("hits 145 words 7 sum 3454: "), "{said}");
    assert_eq!(said.matches("  k  ").count(), 2, "{said}");
}

#[test]
fn files_are_where_they_belong_and_programs_run() {
    if !have("pkg-config") {
        return println!("skipped: no pkg-config");
    }
    for compiler in present(&["gcc", "clang"]) {
        let scratch = files::scratch();
        let destdir = scratch.path().join("a place");
        let libdir = "/opt/capriole/lib/x86_64-linux-gnu";
        let variables = [
            ("PREFIX", "/opt/capriole"),
            ("LIBDIR", libdir),
            ("CC", compiler),
        ];
        install(&destdir, &variables);
        let there = |path: &str| destdir.join(format!("opt/capriole/{path}"));
        let lib = there("lib/x86_64-linux-gnu");
        for file in ["libcapriole.a", "libcapriole.so", "pkgconfig/capriole.pc"] {
            assert!(lib.join(file).exists(), "{file}");
        }
        let link = |name: &str| lib.join(name).read_link().unwrap();
        assert_eq!(link("libcapriole.so"), Path::new("libcapriole.so.0"));
        let real = link("libcapriole.so.0");
        assert!(lib.join(real).symlink_metadata().unwrap().is_file());
        assert!(there("include/capriole/probe.h").exists());
        for page in ["man3/capriole-probe.3", "man7/capriole.7"] {
            assert!(there("share/man").join(page).exists(), "{page}");
        }
        // The helper is where the command is going to be; DESTDIR is nowhere in the files.
        let library = std::fs::read(lib.join("libcapriole.a")).unwrap();
        let contains = |text: &str| library.windows(text.len()).any(|at| at == text.as_bytes());
        assert!(contains("/opt/capriole/bin/capriole\0"));
        let config = std::fs::read_to_string(lib.join("pkgconfig/capriole.pc")).unwrap();
        assert!(!config.contains("a place"), "{config}");

        // pkg-config escapes the blank of the directory, and a shell reads it.
        let scratch = scratch.path();
        std::os::unix::fs::symlink(&destdir, scratch.join("root")).unwrap();
        let destdir = scratch.join("root");
        let shared = scratch.join("shared");
        let flags = pkg_config(&destdir, libdir, &["--cflags", "--libs"]);
        quiet(
            Command::new(compiler)
                .arg(program("first.c"))
                .args(flags)
                .arg("-o")
                .arg(&shared),
        );
        runs(&shared, &lib);
        let fixed = scratch.join("static");
        let flags = pkg_config(&destdir, libdir, &["--static", "--cflags", "--libs"]);
        quiet(
            Command::new(compiler)
                .arg("-static")
                .arg(program("first.c"))
                .args(&flags)
                .arg("-o")
                .arg(&fixed),
        );
        runs(&fixed, &lib);
        if have("musl-gcc") {
            let with_musl = scratch.join("musl");
            quiet(
                Command::new("musl-gcc")
                    .arg("-static")
                    .arg(program("first.c"))
                    .args(&flags)
                    .arg("-o")
                    .arg(&with_musl),
            );
            runs(&with_musl, &lib);
        } else {
            println!("skipped: no musl-gcc");
        }
    }
}

#[test]
fn a_sysroot_is_not_counted_twice() {
    if !have("pkg-config") {
        return println!("skipped: no pkg-config");
    }
    let scratch = files::scratch();
    install(scratch.path(), &[("PREFIX", "/usr")]);
    let prefix = quiet(
        Command::new("pkg-config")
            .args(["--variable=helper", "capriole"])
            .env_remove("PKG_CONFIG_SYSROOT_DIR")
            .env("PKG_CONFIG_PATH", "")
            .env(
                "PKG_CONFIG_LIBDIR",
                scratch.path().join("usr/lib/pkgconfig"),
            ),
    );
    assert!(prefix.trim().ends_with("bin/capriole"), "{prefix}");
    let flags = quiet(
        Command::new("pkg-config")
            .args(["--cflags", "--libs", "capriole"])
            .env("PKG_CONFIG_SYSROOT_DIR", scratch.path())
            .env(
                "PKG_CONFIG_LIBDIR",
                scratch.path().join("usr/lib/pkgconfig"),
            ),
    );
    let out = scratch.path().join("program");
    quiet(
        Command::new("cc")
            .arg(program("first.c"))
            .args(flags.split_whitespace())
            .arg("-o")
            .arg(&out),
    );
    runs(&out, &scratch.path().join("usr/lib"));
}

#[test]
fn paths_that_are_not_absolute_are_refused() {
    let scratch = files::scratch();
    for (name, value) in [("PREFIX", "usr"), ("LIBDIR", "lib")] {
        let output = Command::new("sh")
            .arg(root().join("scripts/install-library.sh"))
            .env("DESTDIR", scratch.path())
            .env(name, value)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
    assert!(helper().exists());
}
