//! Code and data that a marker adds to a program, read from object files.

use std::path::Path;

use crate::support::{Elf, NOP, compile, program};
use capriole_testkit::tools::present;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use object::{Object, ObjectSection, ObjectSymbol};

/// Returns the instructions of a function after linking.
fn instructions(elf: &Elf, name: &str) -> Vec<Instruction> {
    let file = elf.file();
    let symbol = file
        .symbols()
        .find(|symbol| symbol.name() == Ok(name))
        .unwrap();
    let bytes = elf.at(symbol.address(), symbol.size() as usize);
    Decoder::with_ip(64, &bytes, symbol.address(), DecoderOptions::NONE)
        .iter()
        .collect()
}

/// Returns the instructions without alignment, and without calls that are never made: the
/// compiler assumes that a marker could jump to them, but no marker does.
fn hot(elf: &Elf, name: &str, sites: &[u64]) -> Vec<Instruction> {
    let all = instructions(elf, name);
    let mut kept = Vec::new();
    let mut reached = true;
    for instruction in &all {
        reached |= all
            .iter()
            .any(|other| other.near_branch_target() == instruction.ip() && is_branch(other));
        if reached && (!is_nop(instruction) || sites.contains(&instruction.ip())) {
            kept.push(*instruction);
        }
        reached &= !matches!(
            instruction.flow_control(),
            FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::Exception
        );
    }
    kept
}

fn is_branch(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
    )
}

fn is_nop(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        iced_x86::Mnemonic::Nop | iced_x86::Mnemonic::Endbr64
    )
}

fn size(instructions: &[Instruction]) -> usize {
    instructions.iter().map(Instruction::len).sum()
}

fn built(compiler: &str, level: &str, none: bool, directory: &Path) -> Elf {
    let out = directory.join(if none { "none.so" } else { "marked.so" });
    let none: &[&str] = if none { &["-DCAPRIOLE_MARK_NONE"] } else { &[] };
    compile(
        compiler,
        &[&[level, "-fPIC", "-shared"], none].concat(),
        &program("hot.c"),
        &out,
    );
    Elf::read(&out)
}

#[test]
fn a_marker_is_one_nop() {
    let directory = tempfile::tempdir().unwrap();
    for compiler in present(&["gcc", "clang", "clang-19"]) {
        for level in ["-O2", "-O3"] {
            let none = built(compiler, level, true, directory.path());
            let marked = built(compiler, level, false, directory.path());
            assert!(none.section(".note.stapsdt").is_empty());
            for name in ["empty_loop", "arguments", "leaf", "copies"] {
                let sites: Vec<u64> = marked
                    .markers()
                    .iter()
                    .filter(|m| m.name == name)
                    .map(|m| m.address)
                    .collect();
                let with = hot(&marked, name, &sites);
                let without = hot(&none, name, &[]);
                let nops = with.iter().filter(|i| is_nop(i)).count();
                assert_eq!(nops, sites.len(), "{compiler} {level} {name}");
                println!(
                    "{compiler} {level} {name}: {} bytes, {} without",
                    size(&with),
                    size(&without)
                );
                // The compiler keeps a loop that it would otherwise remove, and keeps the marker's
                // arguments until the marker.
                if name == "leaf" || name == "arguments" {
                    assert!(
                        size(&with) <= size(&without) + 8,
                        "{compiler} {level} {name}: {with:?}"
                    );
                }
                for (at, instruction) in with.iter().enumerate() {
                    if sites.contains(&instruction.ip()) {
                        assert_eq!(marked.at(instruction.ip(), 5), NOP);
                        // Neither the instruction before it nor the one after it reads memory by a
                        // RIP-relative operand, except where the function does so anyway.
                        let around = &with[at.saturating_sub(1)..(at + 2).min(with.len())];
                        assert!(
                            around.iter().all(|i| !i.is_ip_rel_memory_operand()),
                            "{around:?}"
                        );
                    }
                }
            }
        }
    }
}

/// The loop only counts: the nop, the addition, the comparison, the branch.
#[test]
fn an_empty_loop_has_one_nop_more() {
    let directory = tempfile::tempdir().unwrap();
    for compiler in present(&["gcc", "clang", "clang-19"]) {
        let marked = built(compiler, "-O2", false, directory.path());
        let site = marked.marker("empty_loop").address;
        let all = hot(&marked, "empty_loop", &[site]);
        let back = all
            .iter()
            .find(|i| is_branch(i) && i.near_branch_target() < i.ip())
            .unwrap();
        let body: Vec<_> = all
            .iter()
            .filter(|i| (back.near_branch_target()..=back.ip()).contains(&i.ip()))
            .collect();
        assert!(body.len() <= 4, "{compiler}: {body:?}");
        assert_eq!(body.iter().filter(|i| is_nop(i)).count(), 1, "{compiler}");
    }
}

/// The guarded form: a comparison with memory and a branch; the rest is out of line.
#[test]
fn a_guarded_marker_is_a_comparison_and_a_branch() {
    let directory = tempfile::tempdir().unwrap();
    for compiler in present(&["gcc", "clang", "clang-19"]) {
        let marked = built(compiler, "-O2", false, directory.path());
        let all = instructions(&marked, "guarded");
        let at = all
            .iter()
            .position(|i| i.is_ip_rel_memory_operand())
            .unwrap();
        assert_eq!(all[at].mnemonic(), iced_x86::Mnemonic::Cmp);
        assert_eq!(
            all[at].ip_rel_memory_address(),
            marked.marker("guarded").semaphore
        );
        let branch = all[at + 1..]
            .iter()
            .find(|i| !is_nop(i) && i.mnemonic() != iced_x86::Mnemonic::Lea);
        assert!(
            branch.is_some_and(Instruction::is_jcc_short_or_near),
            "{compiler}: {branch:?}"
        );
        // The argument is computed after the branch.
        let product = all
            .iter()
            .position(|i| i.mnemonic() == iced_x86::Mnemonic::Imul)
            .unwrap();
        assert!(product > at, "{compiler}");
    }
}

#[test]
fn markers_have_no_data() {
    let directory = tempfile::tempdir().unwrap();
    for compiler in present(&["gcc", "clang", "clang-19"]) {
        let none = built(compiler, "-O2", true, directory.path());
        let marked = built(compiler, "-O2", false, directory.path());
        let data = |elf: &Elf| -> u64 {
            let names = [
                ".data",
                ".rodata",
                ".bss",
                ".data.rel.ro",
                ".init_array",
                ".got",
            ];
            let file = elf.file();
            let sections = file
                .sections()
                .filter(|s| names.contains(&s.name().unwrap()));
            sections.map(|s| s.size()).sum()
        };
        // It may be smaller, because the counter uses some of the padding of .bss.
        assert!(data(&marked) <= data(&none), "{compiler}");
        // The only counter, and the base byte shared by all markers.
        assert_eq!(marked.section(".probes").len(), 2);
        assert_eq!(marked.section(".stapsdt.base").len(), 1);
    }
}
