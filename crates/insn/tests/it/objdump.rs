//! Instruction boundaries compared with a second opinion: binutils' objdump.
//!
//! Covers every function of the libraries, and samples of the large programs; with
//! `CAPRIOLE_LONG`, all of those, too.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::elf::{Elf, find_library};
use capriole_insn::{Code, Extent, FunctionFlow};

/// Larger code sections, in bytes, are only sampled.
const LARGE: u64 = 6 << 20;
/// Bytes compared at a time.
const PIECE: u64 = 256 * 1024;
/// In a sampled section, one of this many pieces is compared.
const SAMPLE: usize = 16;

/// Address and length of each instruction of `range` according to objdump; length 0 for
/// bytes it does not know. `None` if objdump cannot be run.
fn objdump(path: &Path, range: Extent) -> Option<HashMap<u64, u64>> {
    let mut child = Command::new("objdump")
        .args(["-d", "--wide"])
        .arg(format!("--start-address={:#x}", range.start))
        .arg(format!("--stop-address={:#x}", range.end))
        .arg(path)
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut lengths = HashMap::new();
    let mut line = Vec::new();
    let mut output = BufReader::with_capacity(1 << 20, child.stdout.take()?);
    loop {
        line.clear();
        if output.read_until(b'\n', &mut line).ok()? == 0 {
            break;
        }
        // "  1139:\t55 48 89 e5 \tpush ..."
        let mut fields = line.split(|&b| b == b'\t');
        let (Some(address), Some(bytes), Some(text)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let address = std::str::from_utf8(address).ok()?.trim();
        let Some(address) = address.strip_suffix(':') else {
            continue;
        };
        let address = u64::from_str_radix(address, 16).ok()?;
        let length = bytes.split(|&b| b == b' ').filter(|b| b.len() == 2).count() as u64;
        let known = !text.starts_with(b"(bad)") && !text.starts_with(b".byte") && !is_prefix(text);
        lengths.insert(address, if known { length } else { 0 });
    }
    child.wait().ok()?.success().then_some(lengths)
}

/// Returns true if objdump shows a prefix by itself: one that has no effect on the
/// following instruction, as in data between the code. Processors treat it as a part
/// of that instruction.
fn is_prefix(text: &[u8]) -> bool {
    const PREFIXES: [&[u8]; 12] = [
        b"cs", b"ds", b"es", b"ss", b"fs", b"gs", b"data16", b"addr32", b"lock", b"rep", b"repz",
        b"repnz",
    ];
    let text = text.trim_ascii();
    text == b"rex" || text.starts_with(b"rex.") && !text.contains(&b' ') || PREFIXES.contains(&text)
}

/// Results of a comparison.
#[derive(Default)]
struct Counts {
    functions: u64,
    agree: u64,
    unknown: u64,
}

/// Compares the functions that begin in `range`. `false` if objdump cannot be run.
fn compare(
    path: &Path,
    elf: &Elf,
    functions: &[(String, Extent)],
    range: Extent,
    counts: &mut Counts,
) -> bool {
    let first = functions.partition_point(|(_, f)| f.start < range.start);
    let behind = functions.partition_point(|(_, f)| f.start < range.end);
    let functions = &functions[first..behind];
    // objdump starts decoding at the given address, so that has to be a function.
    let Some((_, start)) = functions.first() else {
        return true;
    };
    let end = functions.iter().map(|(_, f)| f.end).max();
    let range = Extent::new(start.start, end.unwrap_or(range.end));
    let Some(lengths) = objdump(path, range) else {
        return false;
    };
    let (bytes, address) = elf.text_at(range.start).expect("text around a function");
    let code = Code::new(bytes, address);
    for (symbol, extent) in functions {
        let flow = FunctionFlow::analyse(&code, extent).unwrap();
        counts.functions += 1;
        for at in flow.boundaries() {
            let length = flow.instruction_around(at).unwrap().len();
            match lengths.get(&at) {
                // After bytes that objdump does not know, and after prefixes, it may resume
                // at another offset.
                Some(&theirs) if theirs == length => counts.agree += 1,
                Some(0) | None => counts.unknown += 1,
                Some(theirs) => panic!(
                    "{}: {symbol} {at:#x}: {length} bytes, objdump says {theirs}",
                    path.display()
                ),
            }
        }
    }
    true
}

/// Compares a file, in pieces if it is large. `least` is the minimum number of
/// instructions that must agree.
fn compare_file(path: &Path, least: u64) {
    let name = path.display();
    let elf = Elf::open(path).unwrap_or_else(|| panic!("{name} is no x86-64 ELF file"));
    let functions = elf.functions();
    let mut counts = Counts::default();
    for text in elf.texts() {
        let sampled = text.len() > LARGE && !capriole_testkit::effort::is_long();
        let pieces = (text.start..text.end)
            .step_by(PIECE as usize)
            .map(|start| Extent::new(start, text.end.min(start + PIECE)))
            .step_by(if sampled { SAMPLE } else { 1 });
        for piece in pieces {
            if !compare(path, &elf, &functions, piece, &mut counts) {
                println!("skipped: objdump cannot be run on {name}");
                return;
            }
        }
    }
    let Counts {
        functions,
        agree,
        unknown,
    } = counts;
    println!(
        "{name}: {functions} functions, {agree} instructions agree, {unknown} unknown to objdump"
    );
    assert!(agree > least, "{name}: {agree} instructions agree");
    assert!(
        unknown * 1000 < agree,
        "{name}: {unknown} unknown to objdump, {agree} agree"
    );
}

fn compare_library(name: &str) {
    match find_library(name) {
        Some(path) => compare_file(&path, 10_000),
        None => println!("skipped: no {name} on this system"),
    }
}

#[test]
fn lengths_agree_with_objdump_in_libc() {
    compare_library("libc.so.6");
}

#[test]
fn lengths_agree_with_objdump_in_libcrypto() {
    compare_library("libcrypto.so.3");
}

#[test]
fn lengths_agree_with_objdump_in_libstdcxx() {
    compare_library("libstdc++.so.6");
}

#[test]
fn lengths_agree_with_objdump_in_libsqlite3() {
    compare_library("libsqlite3.so.0");
}

/// Returns a program's output without leading and trailing white space.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

#[test]
fn lengths_agree_with_objdump_in_libpython() {
    const WHERE: &str = "import sysconfig as s; \
        print(s.get_config_var('LIBDIR') + '/' + s.get_config_var('INSTSONAME'))";
    let own = output("python3", &["-c", WHERE]).map(PathBuf::from);
    let version = |minor| find_library(&format!("libpython3.{minor}.so.1.0"));
    let found: Vec<PathBuf> = own
        .filter(|path| path.extension().is_some_and(|e| e != "a") && path.exists())
        .into_iter()
        .chain((8..16).filter_map(version))
        .collect();
    if found.is_empty() {
        println!("skipped: no libpython3 on this system");
    }
    found.iter().for_each(|path| compare_file(path, 10_000));
}

/// Finds the file that a command of this name runs.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = output("sh", &["-c", &format!("command -v {name}")])?;
    std::fs::canonicalize(path).ok()
}

#[test]
fn lengths_agree_with_objdump_in_node() {
    // Some systems have all of its code in a library.
    let library = (72..200).find_map(|version| find_library(&format!("libnode.so.{version}")));
    let program = find_program("node").filter(|path| Elf::open(path).is_some());
    match library.or(program) {
        Some(path) => compare_file(&path, 10_000),
        None => println!("skipped: no node on this system"),
    }
}

#[test]
fn lengths_agree_with_objdump_in_a_go_program() {
    match find_program("go").filter(|path| Elf::open(path).is_some()) {
        Some(path) => compare_file(&path, 10_000),
        None => println!("skipped: no go on this system"),
    }
}
