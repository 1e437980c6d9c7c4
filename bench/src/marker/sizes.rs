//! Bytes that a marker adds to a function, to data and to sections: the difference between two
//! object files of the same source, with a marker and without (`bench/marker/sizes.c`).

use std::collections::BTreeMap;
use std::path::Path;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use object::{File, Object, ObjectSection, ObjectSymbol, SectionFlags, SectionKind};
use serde::Serialize;

use super::subject::put_header;
use crate::peers::build::compile_one;
use crate::scratch::Scratch;

const SOURCE: &str = include_str!("../../marker/sizes.c");
const FUNCTION: &str = "capriole_bench_size";
/// Prefixes of sections that only the linker uses, and that are not counted.
const OF_THE_LINKER: [&str; 7] = [
    ".group",
    ".comment",
    ".symtab",
    ".strtab",
    ".shstrtab",
    ".rel",
    ".llvm_addrsig",
];

/// Size that a marker with two arguments adds, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Size {
    /// `size.COMPILER.FORM`
    pub name: String,
    /// Code executed while the marker is off.
    pub hot_bytes: i64,
    /// Number of instructions there that read data.
    pub hot_reads: i64,
    /// Other code, including its alignment.
    pub cold_bytes: i64,
    /// Writable data.
    pub data_bytes: i64,
    /// Notes: sections in the file that are not loaded into memory.
    pub note_bytes: i64,
    /// Size difference of every section whose size changes.
    pub sections: BTreeMap<String, i64>,
}

/// Measures both forms with each compiler; an error is the row's name and the reason.
pub fn sizes() -> Vec<Result<Size, (String, String)>> {
    let mut all = Vec::new();
    for compiler in ["gcc", "clang"] {
        for (form, option) in [("plain", "-DPLAIN"), ("guarded", "-DGUARDED")] {
            let name = format!("size.{compiler}.{form}");
            let size = of(compiler, option, &name);
            all.push(size.map_err(|why| (name, why)));
        }
    }
    all
}

fn of(compiler: &str, form: &str, name: &str) -> Result<Size, String> {
    let files = Scratch::new().map_err(|error| format!("no place for files: {error}"))?;
    put_header(files.path())?;
    let with = measured(compiler, form, files.path())?;
    let without = measured(compiler, "-DCAPRIOLE_MARK_NONE", files.path())?;
    let mut sections = with.sections;
    for (name, size) in without.sections {
        *sections.entry(name).or_default() -= size;
    }
    sections.retain(|_, size| *size != 0);
    let hot_bytes = with.hot_bytes - without.hot_bytes;
    Ok(Size {
        name: name.to_owned(),
        hot_bytes,
        hot_reads: with.hot_reads - without.hot_reads,
        cold_bytes: with.code_bytes - without.code_bytes - hot_bytes,
        data_bytes: with.data_bytes - without.data_bytes,
        note_bytes: with.note_bytes - without.note_bytes,
        sections,
    })
}

/// Sizes in one object file.
#[derive(Default)]
struct Parts {
    hot_bytes: i64,
    hot_reads: i64,
    code_bytes: i64,
    data_bytes: i64,
    note_bytes: i64,
    sections: BTreeMap<String, i64>,
}

fn measured(compiler: &str, option: &str, files: &Path) -> Result<Parts, String> {
    let include = format!("-I{}", files.display());
    let options = ["-O2", "-fcf-protection=none", include.as_str(), option];
    let path = compile_one(files, compiler, ("sizes.c", SOURCE), &options)?;
    let bytes = std::fs::read(&path).map_err(|e| format!("cannot read its object file: {e}"))?;
    parts(&bytes).map_err(|why| format!("{compiler}'s object file: {why}"))
}

fn parts(bytes: &[u8]) -> Result<Parts, String> {
    let file = File::parse(bytes).map_err(|error| error.to_string())?;
    let mut parts = Parts::default();
    for section in file.sections() {
        let name = section.name().unwrap_or_default();
        if name.is_empty() || OF_THE_LINKER.iter().any(|other| name.starts_with(other)) {
            continue;
        }
        let size = section.size() as i64;
        *parts.sections.entry(name.to_owned()).or_default() += size;
        let SectionFlags::Elf { sh_flags, .. } = section.flags() else {
            continue;
        };
        let has = |flag: object::elf::SectionFlags| sh_flags.0 & flag.0 != 0;
        match section.kind() {
            SectionKind::Text => parts.code_bytes += size,
            _ if has(object::elf::SHF_WRITE) => parts.data_bytes += size,
            _ if !has(object::elf::SHF_ALLOC) => parts.note_bytes += size,
            _ => {}
        }
    }
    for instruction in hot_path(&file)? {
        parts.hot_bytes += instruction.len() as i64;
        parts.hot_reads += i64::from(instruction.is_ip_rel_memory_operand());
    }
    Ok(parts)
}

/// Returns the instructions that the function executes while the marker is off. Its only branch
/// tests whether the marker's counter is zero, which it is then.
fn hot_path(file: &File<'_>) -> Result<Vec<Instruction>, String> {
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(FUNCTION));
    let symbol = symbol.ok_or("it has no function")?;
    let section = symbol.section_index().ok_or("its function is nowhere")?;
    let section = file.section_by_index(section).map_err(|e| e.to_string())?;
    let code = section.data().map_err(|error| error.to_string())?;
    let mut at = symbol.address();
    let mut path = Vec::new();
    while path.len() < 1000 {
        let rest = usize::try_from(at).ok().and_then(|at| code.get(at..));
        let rest = rest.ok_or("its function goes on elsewhere")?;
        let instruction = Decoder::with_ip(64, rest, at, DecoderOptions::NONE).decode();
        path.push(instruction);
        at = match (instruction.flow_control(), instruction.mnemonic()) {
            (FlowControl::Next, _) | (_, Mnemonic::Jne) => instruction.next_ip(),
            (FlowControl::UnconditionalBranch, _) | (_, Mnemonic::Je) => {
                instruction.near_branch_target()
            }
            (FlowControl::Return, _) => return Ok(path),
            _ => return Err(format!("it has {instruction}, which is not understood")),
        };
    }
    Err("its function does not end".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_marker_is_its_nop_and_a_guarded_one_a_question() {
        for size in sizes() {
            let size = match size {
                Ok(size) => size,
                Err((name, why)) => {
                    println!("skipped: {name}: {why}");
                    continue;
                }
            };
            assert!(size.note_bytes > 100, "{size:?}");
            assert_eq!(
                size.sections[".note.stapsdt"] + size.sections[".note.capriole"],
                size.note_bytes
            );
            if size.name.ends_with("plain") {
                assert_eq!(
                    (size.hot_bytes, size.hot_reads, size.data_bytes),
                    (5, 0, 0),
                    "{size:?}"
                );
            } else {
                assert!((10..=14).contains(&size.hot_bytes), "{size:?}");
                assert_eq!((size.hot_reads, size.data_bytes), (1, 2), "{size:?}");
                assert!(size.cold_bytes >= 5, "{size:?}");
            }
        }
    }
}
