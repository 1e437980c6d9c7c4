//! Compilers, and the notes in their output.
#![allow(dead_code, reason = "each test file uses a part of it")]

use capriole_testkit::tools::quiet;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use object::{Object, ObjectSection};

pub const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];

pub fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../include")
        .canonicalize()
        .unwrap()
}

pub fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/programs")
        .join(name)
}

pub fn run(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs `compiler options... source -o out`, with the header; warnings are errors.
pub fn compile(compiler: &str, options: &[&str], source: &Path, out: &Path) {
    quiet(&mut compiling(compiler, options, source, out));
}

pub fn compiling(compiler: &str, options: &[&str], source: &Path, out: &Path) -> Command {
    let mut command = Command::new(compiler);
    command
        .arg("-I")
        .arg(include())
        .args(options)
        .arg(source)
        .arg("-o")
        .arg(out);
    command
}

/// The compiler that built the tests.
pub fn rustc() -> Command {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
    rustc.args(["--edition", "2024"]);
    rustc
}

/// Builds the crate itself, as a library.
pub fn library(directory: &Path, options: &[&str]) -> PathBuf {
    let out = directory.join("libcapriole_marker.rlib");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let crate_type = ["--crate-type", "rlib", "--crate-name", "capriole_marker"];
    quiet(
        rustc()
            .args(crate_type)
            .args(options)
            .arg(source)
            .arg("-o")
            .arg(&out),
    );
    out
}

/// Returns a rustc command for a program that uses the crate.
pub fn with_library(directory: &Path, options: &[&str]) -> Command {
    let mut rustc = rustc();
    rustc.args(options).arg("--extern").arg(format!(
        "capriole_marker={}",
        library(directory, options).display()
    ));
    rustc
}

/// A marker, combined from both notes.
#[derive(Debug, Clone, PartialEq)]
pub struct Marker {
    pub provider: String,
    pub name: String,
    pub address: u64,
    pub semaphore: u64,
    pub arguments: Vec<String>,
    pub line: u32,
    pub floats: u32,
    pub format: String,
    pub file: String,
}

impl Marker {
    /// Returns the part before the `@` of each argument.
    pub fn types(&self) -> Vec<&str> {
        self.arguments
            .iter()
            .map(|text| text.split_once('@').unwrap().0)
            .collect()
    }
}

pub struct Elf {
    bytes: Vec<u8>,
}

impl Elf {
    pub fn read(path: &Path) -> Elf {
        Elf {
            bytes: std::fs::read(path).unwrap(),
        }
    }

    pub fn file(&self) -> object::File<'_> {
        object::File::parse(&*self.bytes).unwrap()
    }

    pub fn section(&self, name: &str) -> &[u8] {
        let file = object::File::parse(&*self.bytes).unwrap();
        file.section_by_name(name).map_or(&[], |section| {
            let (start, size) = section.file_range().unwrap_or_default();
            &self.bytes[start as usize..][..size as usize]
        })
    }

    /// Returns `size` bytes of the loaded file at an address.
    pub fn at(&self, address: u64, size: usize) -> Vec<u8> {
        let file = self.file();
        let section = file
            .sections()
            .find(|s| {
                s.kind() == object::SectionKind::Text
                    && (s.address()..s.address() + s.size()).contains(&address)
            })
            .unwrap_or_else(|| panic!("{address:#x} is in no code"));
        section
            .data_range(address, size as u64)
            .unwrap()
            .expect("whole")
            .to_vec()
    }

    /// Returns all markers by address, after checking that each has one note of each kind, that
    /// the notes agree, and that its instruction is a nop.
    pub fn markers(&self) -> Vec<Marker> {
        let mut described = BTreeMap::new();
        for (owner, kind, content) in notes(self.section(".note.capriole")) {
            assert_eq!((owner.as_str(), kind), ("capriole", 1));
            let mut rest = Rest(content);
            let (address, base) = (rest.word(), rest.word());
            let (line, floats) = (rest.half(), rest.half());
            let texts = [rest.text(), rest.text(), rest.text(), rest.text()];
            assert!(
                rest.0.len() < 4 && rest.0.iter().all(|&b| b == 0),
                "{:?}",
                rest.0
            );
            let former = described.insert(address, (base, line, floats, texts));
            assert_eq!(former, None, "two descriptions of {address:#x}");
        }
        let mut markers = Vec::new();
        for (owner, kind, content) in notes(self.section(".note.stapsdt")) {
            assert_eq!((owner.as_str(), kind), ("stapsdt", 3));
            let mut rest = Rest(content);
            let (address, base, semaphore) = (rest.word(), rest.word(), rest.word());
            let [provider, name, arguments] = [rest.text(), rest.text(), rest.text()];
            if matches!(
                provider.as_str(),
                "libc" | "libm" | "libstdcxx" | "libgcc" | "rtld"
            ) {
                continue; // by sys/sdt.h
            }
            let (its_base, line, floats, texts) = described
                .remove(&address)
                .unwrap_or_else(|| panic!("{provider}:{name} at {address:#x} is not described"));
            let [its_provider, its_name, format, file] = texts;
            assert_eq!(
                (base, &provider, &name),
                (its_base, &its_provider, &its_name)
            );
            assert_ne!(base, 0);
            assert_eq!(self.at(address, 5), NOP, "{provider}:{name}");
            let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
            let conversions = format.replace("%%", "").matches('%').count();
            assert_eq!(arguments.len(), conversions, "{format:?} {arguments:?}");
            arguments.iter().for_each(|text| plain(text));
            markers.push(Marker {
                provider,
                name,
                address,
                semaphore,
                arguments,
                line,
                floats,
                format,
                file,
            });
        }
        assert!(
            described.is_empty(),
            "descriptions without a note: {described:?}"
        );
        markers.sort_by_key(|marker| marker.address);
        markers
    }

    pub fn marker(&self, name: &str) -> Marker {
        let markers = self.markers();
        markers
            .iter()
            .find(|marker| marker.name == name)
            .unwrap_or_else(|| panic!("no marker {name}"))
            .clone()
    }
}

/// Checks that an argument has a form that every tool knows: `-4@%eax` or `-4@$5`.
fn plain(text: &str) {
    let (size, operand) = text.split_once('@').unwrap_or_else(|| panic!("{text}"));
    assert!(
        matches!(
            size.strip_prefix('-').unwrap_or(size),
            "1" | "2" | "4" | "8"
        ),
        "{text}"
    );
    let good = match operand.split_at(1) {
        ("%", register) => register
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()),
        ("$", number) => number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok(),
        _ => false,
    };
    assert!(good, "{text}");
}

/// Owner, type and content of notes.
fn notes(mut bytes: &[u8]) -> Vec<(String, u32, &[u8])> {
    let mut notes = Vec::new();
    while !bytes.is_empty() {
        let mut rest = Rest(bytes);
        let (owner, content, kind) = (rest.half() as usize, rest.half() as usize, rest.half());
        let name = Rest(&rest.0[..owner]).text();
        let start = owner.next_multiple_of(4);
        notes.push((name, kind, &rest.0[start..start + content]));
        bytes = rest
            .0
            .get(start + content.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    notes
}

struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self
            .0
            .split_first_chunk()
            .expect("a shorter note than it says");
        self.0 = rest;
        *taken
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn half(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn text(&mut self) -> String {
        let end = self
            .0
            .iter()
            .position(|&b| b == 0)
            .expect("a text without an end");
        let text = String::from_utf8(self.0[..end].to_vec()).unwrap();
        self.0 = &self.0[end + 1..];
        text
    }
}
