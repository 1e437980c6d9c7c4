//! The macros, compiled as in programs and libraries.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Elf, library, program, run, rustc, with_library};
use capriole_testkit::effort::rounds;
use capriole_testkit::tools::{present, quiet};
use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use object::{Object, ObjectSymbol};

fn built(options: &[&str], source: &Path) -> (Elf, PathBuf, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("built");
    println!("{options:?}");
    quiet(
        with_library(directory.path(), options)
            .arg(source)
            .arg("-o")
            .arg(&out),
    );
    (Elf::read(&out), out, directory)
}

#[test]
fn all_levels_and_ways_to_link() {
    let mut ways: Vec<Vec<&str>> = vec![
        vec!["-Copt-level=0"],
        vec!["-Copt-level=1"],
        vec!["-Copt-level=2"],
        vec!["-Copt-level=3"],
        vec!["-Copt-level=s"],
        vec!["-Copt-level=0", "-Cdebuginfo=2", "-Ccodegen-units=16"],
        vec!["-Copt-level=3", "-Clto=fat"],
        vec!["-Copt-level=3", "-Clto=thin", "-Ccodegen-units=4"],
        vec![
            "-Copt-level=3",
            "-Cpanic=abort",
            "-Crelocation-model=static",
        ],
    ];
    if !present(&["ld.bfd"]).is_empty() {
        ways.push(vec!["-Copt-level=2", "-Clink-arg=-fuse-ld=bfd"]);
    }
    // Every second way; in the soak all.
    for way in ways.into_iter().step_by(rounds(2, 1, 1)) {
        let (elf, out, _directory) = built(&way, &program("kinds.rs"));
        let said = quiet(&mut Command::new(&out));
        assert_eq!(said, "off 0 on 10 off 10\n");
        quiet(Command::new("strip").arg(&out));
        let markers = elf.markers();
        assert_eq!(Elf::read(&out).markers(), markers);
        assert_eq!(
            elf.marker("integers").types(),
            [
                "-1", "-2", "-4", "-8", "-8", "1", "2", "4", "8", "8", "1", "4"
            ]
        );
        assert_eq!(elf.marker("floats").types(), ["4", "8", "4"]);
        assert_eq!(elf.marker("floats").floats, 0b110);
        assert_eq!(elf.marker("pointers").types(), ["8"; 6]);
        assert_eq!(
            elf.marker("signs").format,
            "100%% {x} {{y}} $1 \"q\" \\ \t%u\n é"
        );
        assert_eq!(elf.marker("bare").format, "");
        assert_eq!(
            markers.iter().filter(|m| m.name == "generic").count(),
            2,
            "one for each instance"
        );
        assert!(
            markers.iter().all(|m| m.name != "never_called"),
            "the function is not there"
        );
        let source = std::fs::read_to_string(program("kinds.rs")).unwrap();
        for marker in &markers {
            assert_eq!(
                marker.semaphore != 0,
                marker.name == "guarded",
                "{marker:?}"
            );
            if marker.name != "message" {
                assert!(
                    marker.file.ends_with("tests/it/programs/kinds.rs"),
                    "{marker:?}"
                );
                let line = source.lines().nth(marker.line as usize - 1).unwrap();
                assert!(line.contains(&marker.name), "{marker:?}: {line}");
            }
        }
    }
}

#[test]
fn shared_libraries() {
    let text = "#![no_std]\n#[panic_handler] fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }\n\
        #[unsafe(no_mangle)] pub extern \"C\" fn work(n: i32) -> i32 {\n\
        capriole_marker::mark_guarded!(library, work, \"n=%d\", n); capriole_marker::mark!(library, done); n }\n";
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("library.rs");
    std::fs::write(&source, text).unwrap();
    let options = ["--crate-type=cdylib", "-Copt-level=2", "-Cpanic=abort"];
    let out = directory.path().join("liblibrary.so");
    let crate_options = ["-Copt-level=2", "-Cpanic=abort"];
    quiet(
        with_library(directory.path(), &crate_options)
            .args(options)
            .arg(&source)
            .arg("-o")
            .arg(&out),
    );
    let elf = Elf::read(&out);
    assert_ne!(elf.marker("work").semaphore, 0);
    assert_eq!(elf.marker("done").semaphore, 0);
}

#[test]
fn a_marker_is_one_nop() {
    let (elf, ..) = built(&["-Copt-level=3", "-Cpanic=abort"], &program("kinds.rs"));
    let file = elf.file();
    let symbol = file
        .symbols()
        .find(|symbol| symbol.name() == Ok("leaf"))
        .unwrap();
    let bytes = elf.at(symbol.address(), symbol.size() as usize);
    let all: Vec<_> = Decoder::with_ip(64, &bytes, symbol.address(), DecoderOptions::NONE)
        .iter()
        .collect();
    let end = all
        .iter()
        .position(|i| i.mnemonic() == Mnemonic::Ret)
        .unwrap();
    // The nop, and a push and a pop that align the stack; the values stay in place.
    let without: usize = all[..=end]
        .iter()
        .filter(|i| i.mnemonic() == Mnemonic::Mov)
        .map(|i| i.len())
        .sum();
    let size: usize = all[..=end].iter().map(|i| i.len()).sum();
    assert!(size - without - 1 <= 8, "{all:?}");
    let marker = elf.marker("leaf");
    assert_eq!(
        all[..=end]
            .iter()
            .filter(|i| i.ip() == marker.address && i.mnemonic() == Mnemonic::Nop)
            .count(),
        1
    );
}

#[test]
fn what_is_wrong_is_an_error_that_says_so() {
    let wrong = [
        (
            "mark!(a, b, \"%d %d\", 1)",
            "the format has more conversions than there are arguments",
        ),
        (
            "mark!(a, b, \"%d\", 1, 2)",
            "there are more arguments than the format has conversions",
        ),
        (
            "mark!(a, b, \"%d\", 1.5)",
            "%c are for integers, bool and char",
        ),
        ("mark!(a, b, \"%f\", 1)", "are for f32 and f64"),
        ("mark!(a, b, \"%s\", &1)", "%s is for &CStr"),
        (
            "mark!(a, b, \"%p\", 1_u64)",
            "%p is for pointers and references",
        ),
        (
            "mark!(a, b, \"%*d\", 1, 2)",
            "a width or precision that is an argument",
        ),
        ("mark!(a, b, \"%y\", 1)", "a conversion is one of"),
        ("mark!(a, b, \"%s\", \"text\")", "Argument"),
        (
            "mark!(a, b, \"%d%d%d%d%d%d%d%d%d%d%d%d%d\", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)",
            "at most 12 arguments",
        ),
        ("mark!(a, \"b\")", "no rules expected"),
    ];
    let directory = tempfile::tempdir().unwrap();
    let library = library(directory.path(), &["-Copt-level=0"]);
    for (text, says) in wrong {
        let source = directory.path().join("wrong.rs");
        std::fs::write(
            &source,
            format!("use capriole_marker::mark;\nfn main() {{ {text}; }}\n"),
        )
        .unwrap();
        let mut rustc = rustc();
        rustc
            .arg("--extern")
            .arg(format!("capriole_marker={}", library.display()));
        let output = run(rustc
            .arg(&source)
            .arg("-o")
            .arg(directory.path().join("wrong")));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && error.contains(says),
            "{text}: {says}\n{error}"
        );
    }
}
