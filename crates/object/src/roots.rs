//! Link addresses at which an instruction begins, according to the file.

use capriole_insn::{Code, Extent};
use iced_x86::{FlowControl, Mnemonic, OpKind};

use super::{ObjectFile, pointers};
use crate::symbols::SymbolKind;

/// Sections that contain addresses of functions.
const ARRAYS: [&str; 3] = [".preinit_array", ".init_array", ".fini_array"];
/// Sections of code that begin with an instruction.
const FUNCTIONS: [&str; 2] = [".init", ".fini"];

/// Returns the known starts of instructions: the entry point, the functions whose addresses it
/// passes on, functions from symbols and from call frame information, landing pads, code that
/// runs when the object is loaded or unloaded, and the stubs through which the object calls
/// others. Parts that cannot be read are left out.
pub(super) fn roots(file: &ObjectFile) -> Vec<u64> {
    let mut roots = Vec::new();
    let entry = file.entry();
    if entry != 0 {
        roots.push(entry);
        roots.extend(passed_on(file, entry));
    }
    if let Ok(symbols) = file.symbols() {
        // An untyped symbol may name data.
        let is_code = |function: &&crate::symbols::Function| {
            !function.is_named()
                || symbols
                    .names(function)
                    .any(|name| name.kind != SymbolKind::Untyped)
        };
        let functions = symbols.functions().iter().filter(is_code);
        roots.extend(functions.map(|function| function.extent.start));
    }
    let frames = file.frames().unwrap_or_default();
    roots.extend(frames.iter().map(|frame| frame.extent.start));
    if let Ok(pads) = file.landing_pads() {
        roots.extend(&pads.addresses);
    }
    roots.extend(arrays(file));
    let named = FUNCTIONS
        .iter()
        .filter_map(|name| file.headers.section(name));
    roots.extend(named.map(|section| section.address));
    for section in file.headers.sections.iter().filter(|s| s.is_plt()) {
        roots.extend(line_of_code(file, section.address, section.end()));
    }
    roots
}

/// Returns the addresses of the functions that the loader runs.
fn arrays(file: &ObjectFile) -> Vec<u64> {
    words_of(file, &ARRAYS)
}

/// Returns the code addresses that the named sections contain.
fn words_of(file: &ObjectFile, names: &[&str]) -> Vec<u64> {
    let sections: Vec<_> = names
        .iter()
        .flat_map(|name| {
            file.headers
                .sections
                .iter()
                .filter(move |s| s.name == *name)
        })
        .collect();
    if sections.is_empty() {
        return Vec::new();
    }
    let relocated = pointers::relative_relocations(&file.source, &file.headers);
    let relocated = relocated.unwrap_or_default().into_iter();
    let mut found: Vec<u64> = relocated
        .filter(|(place, _)| sections.iter().any(|section| section.contains(*place)))
        .map(|(_, value)| value)
        .collect();
    for section in sections {
        let words = file.read(section.address, section.size).unwrap_or_default();
        found.extend(
            words
                .as_chunks::<8>()
                .0
                .iter()
                .map(|word| u64::from_le_bytes(*word)),
        );
    }
    found.retain(|address| file.is_text(*address));
    found
}

/// Returns the addresses of the patchable nops of functions (`-fpatchable-function-entry`).
pub(super) fn patchable(file: &ObjectFile) -> Vec<u64> {
    words_of(file, &["__patchable_function_entries"])
}

/// Returns the addresses of all instructions in a section that contains only code.
fn line_of_code(file: &ObjectFile, start: u64, end: u64) -> Vec<u64> {
    let mut found = Vec::new();
    let mut at = start;
    while let Some(instruction) = instruction(file, at, end) {
        found.push(at);
        at = instruction.next_ip();
    }
    found
}

/// Returns the code addresses that start-up code computes and passes on: `main`, and the
/// functions that run before and after it. Some C libraries do that in a function that the
/// entry point calls or jumps to.
fn passed_on(file: &ObjectFile, entry: u64) -> Vec<u64> {
    let mut found = Vec::new();
    let mut next = Some(entry);
    for _ in 0..2 {
        let Some(mut at) = next.take() else { break };
        while let Some(instruction) = instruction(file, at, u64::MAX) {
            at = instruction.next_ip();
            let made = match (instruction.mnemonic(), instruction.op1_kind()) {
                (Mnemonic::Lea, _) if instruction.is_ip_rel_memory_operand() => {
                    instruction.ip_rel_memory_address()
                }
                (Mnemonic::Mov, OpKind::Immediate32 | OpKind::Immediate32to64) => {
                    instruction.immediate(1)
                }
                _ => 0,
            };
            found.extend(Some(made).filter(|made| file.is_text(*made)));
            match instruction.flow_control() {
                FlowControl::Next => {}
                FlowControl::Call | FlowControl::UnconditionalBranch => {
                    next = Some(instruction.near_branch_target());
                    break;
                }
                _ => break,
            }
        }
    }
    found
}

fn instruction(file: &ObjectFile, at: u64, end: u64) -> Option<iced_x86::Instruction> {
    let texts = file.text().ok()?;
    let text = texts
        .iter()
        .find(|text| Extent::new(text.address, text.end()).contains(at))?;
    Code::new(&text.bytes, text.address).instruction_at(at, end)
}
