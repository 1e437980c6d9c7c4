//! Compiles and links the resident into one flat blob.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

#[allow(dead_code)]
#[path = "../ring/src/numbers.rs"]
mod numbers;

fn run(command: &mut Command) {
    let status = command
        .status()
        .unwrap_or_else(|e| panic!("cannot run {command:?}: {e}; install gcc and binutils"));
    assert!(status.success(), "{command:?} failed");
}

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    for file in [
        "resident.c",
        "resident.h",
        "summary.c",
        "interval.c",
        "chain.c",
        "frames.c",
        "entry.S",
        "resident.ld",
        "returns.S",
        "returns.ld",
    ] {
        println!("cargo:rerun-if-changed=src/{file}");
    }
    println!("cargo:rerun-if-env-changed=CC");
    write_numbers(&out.join("numbers.h"));
    // Not by the crate `cc`: it would add the flags in CFLAGS, and some (-flto, -march) make code
    // that must not run inside a probe.
    for (source, object) in [
        ("src/entry.S", "entry.o"),
        ("src/resident.c", "resident.o"),
        ("src/summary.c", "summary.o"),
        ("src/interval.c", "interval.o"),
        ("src/chain.c", "chain.o"),
        ("src/frames.c", "frames.o"),
        ("src/returns.S", "returns.o"),
    ] {
        run(Command::new(&cc)
            .args("-c -std=gnu11 -O2 -g0 -Wall -Wextra -Werror -ffreestanding -fpie".split(' '))
            .args("-mgeneral-regs-only -mno-red-zone -fno-stack-protector".split(' '))
            .args("-fcf-protection=none -fno-jump-tables -fvisibility=hidden".split(' '))
            .args("-fasynchronous-unwind-tables".split(' '))
            .args("-fno-tree-loop-distribute-patterns -fno-strict-aliasing".split(' '))
            // Nops in front of code that is jumped to: a thirtieth of the blob, and nothing measurable.
            .arg("-fno-align-jumps")
            .arg("-I")
            .arg(&out)
            .args([source, "-o"])
            .arg(out.join(object)));
    }
    let resident = [
        "entry.o",
        "resident.o",
        "summary.o",
        "interval.o",
        "chain.o",
        "frames.o",
    ];
    link(&out, "resident", &resident);
    extract(&out, "resident", ".eh_frame", "resident.frames");
    link(&out, "returns", &["returns.o"]);
}

/// Writes the numbers that Rust and C share as a C header. A literal has the smallest type that
/// holds its value.
fn write_numbers(path: &Path) {
    let mut text = String::from("/* Generated from crates/ring/src/numbers.rs. */\n");
    for (name, value) in numbers::ALL.iter().copied().flatten() {
        writeln!(text, "#define {name} {value:#x}").expect("a string takes everything");
    }
    std::fs::write(path, text).expect("OUT_DIR can be written");
}

/// Links the objects into the flat blob `NAME.bin`, by the linker script `NAME.ld`.
fn link(out: &Path, name: &str, objects: &[&str]) {
    let elf = out.join(format!("{name}.elf"));
    run(Command::new("ld")
        .args("-m elf_x86_64 -static --no-warn-rwx-segments -T".split(' '))
        .arg(format!("src/{name}.ld"))
        .arg("-o")
        .arg(&elf)
        .args(objects.iter().map(|object| out.join(object))));
    extract(out, name, ".blob", &format!("{name}.bin"));
}

/// Writes the contents of a section of `NAME.elf` to a file.
fn extract(out: &Path, name: &str, section: &str, file: &str) {
    run(Command::new("objcopy")
        .args(["-O", "binary", "-j", section])
        .arg(out.join(format!("{name}.elf")))
        .arg(out.join(file)));
}
