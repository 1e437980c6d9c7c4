//! Exits of functions: by example, in random functions, and in all functions of real
//! libraries compared with objdump.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::support::elf::{Elf, find_library};
use capriole_insn::{
    Code, ExitKind, Exits, Extent, FunctionFlow, Surroundings, Targets, Undecided,
};
use proptest::prelude::*;

const START: u64 = 0x40_1000;

fn exits(bytes: &[u8], parts: &[(u64, u64)]) -> Exits {
    let mut text = bytes.to_vec();
    text.resize(bytes.len() + 64, 0xcc);
    let code = Code::new(&text, START);
    let parts: Vec<Extent> = parts
        .iter()
        .map(|(start, end)| Extent::new(START + start, START + end))
        .collect();
    Exits::find(&code, &parts, &Surroundings::NONE).unwrap()
}

/// Formats exits as offset, `r` (return) or `t` (tail call), and the condition, if any.
fn told(found: &Exits) -> Vec<String> {
    let kind = |kind| match kind {
        ExitKind::Return => 'r',
        ExitKind::TailCall => 't',
    };
    let exit = |e: &capriole_insn::Exit| {
        let mark = e.condition.map(|c| format!("{c:?}")).unwrap_or_default();
        format!("{}{}{mark}", e.address - START, kind(e.kind))
    };
    found.exits.iter().map(exit).collect()
}

/// Exits, undecided places and unreached returns of a function that consists of `bytes`.
fn all(bytes: &[u8]) -> (Vec<String>, Vec<Undecided>, Vec<u64>) {
    let found = exits(bytes, &[(0, bytes.len() as u64)]);
    let unreached = found.unreached.iter().map(|at| at - START).collect();
    (told(&found), found.undecided.clone(), unreached)
}

fn only(expected: &[&str]) -> (Vec<String>, Vec<Undecided>, Vec<u64>) {
    let expected = expected.iter().map(|text| (*text).to_owned());
    (expected.collect(), Vec::new(), Vec::new())
}

#[test]
fn every_form_of_return() {
    assert_eq!(all(&[0xc3]), only(&["0r"]));
    // rep ret; ret $16; bnd ret
    assert_eq!(all(&[0xf3, 0xc3]), only(&["0r"]));
    assert_eq!(all(&[0xc2, 0x10, 0x00]), only(&["0r"]));
    assert_eq!(all(&[0xf2, 0xc3]), only(&["0r"]));
    // test %edi,%edi; je 7; xor %eax,%eax; ret; ret
    let two = [0x85, 0xff, 0x74, 0x03, 0x31, 0xc0, 0xc3, 0xc3];
    assert_eq!(all(&two), only(&["6r", "7r"]));
    // lret
    let far = exits(&[0xcb], &[(0, 1)]);
    assert_eq!(far.undecided, [Undecided::FarReturn { at: START }]);
}

#[test]
fn jumps_out_of_the_function_are_exits() {
    // test; je +0x40; jmp +0x40 (rel32)
    let code = [0x85, 0xff, 0x74, 0x40, 0xe9, 0x40, 0, 0, 0];
    assert_eq!(all(&code), only(&["2te", "4t"]));
    // A jump back to the function's own start is a loop, and this one never ends.
    assert_eq!(all(&[0x85, 0xff, 0xeb, 0xfc]), only(&[]));
    assert!(exits(&[0xeb, 0xfe], &[(0, 2)]).never_returns());
}

#[test]
fn what_never_comes_back_is_no_exit() {
    // call +0; nop
    assert_eq!(all(&[0xe8, 0x40, 0, 0, 0, 0x90]), only(&[]));
    // ud2; hlt; int3; call *%rax
    assert_eq!(all(&[0x0f, 0x0b]), only(&[]));
    assert_eq!(all(&[0xf4]), only(&[]));
    assert_eq!(all(&[0x90, 0xcc]), only(&[]));
    assert_eq!(all(&[0xff, 0xd0, 0x66, 0x90]), only(&[]));
    // A return after ud2, which nothing leads to.
    let (found, undecided, unreached) = all(&[0x0f, 0x0b, 0xc3]);
    assert_eq!((found.len(), undecided.len(), unreached), (0, 0, vec![2]));
}

#[test]
fn running_past_the_end_is_not_decided() {
    // xor %eax,%eax; nop
    let (found, undecided, _) = all(&[0x31, 0xc0, 0x90]);
    assert_eq!(found, [""; 0]);
    assert_eq!(undecided, [Undecided::FallsThrough { at: START }]);
    // je: runs past the end only if the jump is not taken.
    let (found, undecided, _) = all(&[0x74, 0x40]);
    assert_eq!(found, ["0te"]);
    assert_eq!(undecided, [Undecided::FallsThrough { at: START }]);
    // 0x06 is no instruction; it is not reached after ret, but is reached after nop.
    assert_eq!(all(&[0xc3, 0x06]), only(&["0r"]));
    let (_, undecided, _) = all(&[0x31, 0xc0, 0x06]);
    assert_eq!(undecided, [Undecided::NoInstruction { at: START + 2 }]);
    // jmp into the middle of `mov $imm32,%eax`
    let (_, undecided, _) = all(&[0xeb, 0x01, 0xb8, 0, 0, 0, 0, 0xc3]);
    assert_eq!(undecided, [Undecided::NoInstruction { at: START + 3 }]);
}

/// The function is the first `size` bytes; the last byte is another function, after any nops.
fn running_on(bytes: &[u8], size: u64) -> (Vec<String>, Vec<Undecided>) {
    let mut text = bytes.to_vec();
    text.resize(bytes.len() + 64, 0xcc);
    let code = Code::new(&text, START);
    let next = START + bytes.len() as u64 - 1;
    let around = Surroundings {
        is_function: &|at| at == next,
        ..Surroundings::NONE
    };
    let part = [Extent::new(START, START + size)];
    let found = Exits::find(&code, &part, &around).unwrap();
    (told(&found), found.undecided)
}

#[test]
fn nothing_runs_on_behind_what_a_compiler_put_elsewhere() {
    // jne 3 | ret | mov %r14,0x38(%rbp), in a cold part or not | the next function
    let text = [0x75, 0x01, 0xc3, 0x4c, 0x89, 0x75, 0x38, 0xc3];
    let code = Code::new(&text, START);
    let parts = [
        Extent::new(START, START + 3),
        Extent::new(START + 3, START + 7),
    ];
    let found = |is_cold: bool| {
        let around = Surroundings {
            is_function: &|at| at == START + 7,
            is_cold: &|part| is_cold && part == parts[1],
            ..Surroundings::NONE
        };
        Exits::find(&code, &parts, &around).unwrap()
    };
    assert_eq!(told(&found(true)), ["2r"]);
    assert_eq!(found(true).undecided, []);
    assert_eq!(
        found(false).undecided,
        [Undecided::FallsThrough { at: START + 3 }]
    );
}

#[test]
fn running_into_another_function_is_an_exit() {
    // xor %eax,%eax | ret
    let left = |exits: &[&str]| {
        let exits: Vec<String> = exits.iter().map(|exit| (*exit).to_owned()).collect();
        (exits, Vec::new())
    };
    assert_eq!(running_on(&[0x31, 0xc0, 0xc3], 2), left(&["0t"]));
    // The same with nops that belong to the function, or to no function.
    let padded = [0x31, 0xc0, 0x90, 0x66, 0x90, 0xc3];
    assert_eq!(running_on(&padded, 5), left(&["3t"]));
    assert_eq!(running_on(&padded, 2), left(&["0t"]));
    // test; je +0x40 | ret: it leaves the function either way.
    assert_eq!(
        running_on(&[0x85, 0xff, 0x74, 0x40, 0xc3], 4),
        left(&["2t"])
    );
    // dec %edi; jne 0 | ret: it leaves the function if the jump is not taken.
    let (exits, undecided) = running_on(&[0xff, 0xcf, 0x75, 0xfc, 0xc3], 4);
    assert_eq!((exits, undecided.len()), (vec!["2te".to_owned()], 0));
    // loop 0 | ret
    let counted = running_on(&[0x90, 0xe2, 0xfd, 0xc3], 3);
    assert_eq!(counted.1, [Undecided::Counted { at: START + 1 }]);
    // push %rax | ret, push %rax; nop | ret and leave; nop | ret: the stack is not as it is at a
    // return.
    let runs_on = |at| vec![Undecided::FallsThrough { at: START + at }];
    assert_eq!(running_on(&[0x50, 0xc3], 1).1, runs_on(0));
    assert_eq!(running_on(&[0x50, 0x90, 0xc3], 2).1, runs_on(0));
    assert_eq!(running_on(&[0xc9, 0x90, 0xc3], 2).1, runs_on(0));
    // The code that follows does not begin a function.
    assert_eq!(running_on(&[0x31, 0xc0, 0x99, 0xc3], 2).1, runs_on(0));
}

#[test]
fn jumps_that_keep_the_frame_are_not_decided() {
    // push %rbx; je +0x40; pop %rbx; jne +0x40; ret
    let (found, undecided, _) = all(&[0x53, 0x74, 0x40, 0x5b, 0x75, 0x40, 0xc3]);
    assert_eq!(found, ["4tne", "6r"]);
    assert_eq!(undecided, [Undecided::KeepsFrame { at: START + 1 }]);
    // push %rbx; jmp +0x40
    let (_, undecided, _) = all(&[0x53, 0xeb, 0x40]);
    assert_eq!(undecided, [Undecided::KeepsFrame { at: START + 1 }]);
    // push %rbx; je to the ret; call +0x40; jmp to the end, so the call never returns; ret
    let call = [0x53, 0x74, 0x07, 0xe8, 0x40, 0, 0, 0];
    let (found, undecided, _) = all(&[&call[..], &[0xeb, 0x01, 0xc3]].concat());
    assert_eq!((found, undecided), (vec!["10r".to_owned()], vec![]));
    // The same, but the jump leads behind the end.
    let (_, undecided, _) = all(&[&call[..], &[0xeb, 0x02, 0xc3]].concat());
    assert_eq!(undecided, [Undecided::KeepsFrame { at: START + 8 }]);
    // leave; jmp +0x40: the stack depth is unknown.
    assert_eq!(all(&[0xc9, 0xeb, 0x40]), only(&["1t"]));
    // jrcxz +0x40; ret
    let (found, undecided, _) = all(&[0xe3, 0x40, 0xc3]);
    assert_eq!(found, ["2r"]);
    assert_eq!(undecided, [Undecided::Counted { at: START }]);
}

#[test]
fn parts_belong_together() {
    // 0: je 16; 2: ret; 3: ud2; 5: ret (only the other part jumps there)
    // 16: test; 18: je 5; 20: ret
    let mut code = vec![0x74, 0x0e, 0xc3, 0x0f, 0x0b, 0xc3];
    code.resize(16, 0xcc);
    code.extend([0x85, 0xff, 0x74, 0xf1, 0xc3]);
    let whole = exits(&code, &[(0, 6), (16, 21)]);
    assert_eq!(told(&whole), ["2r", "5r", "20r"]);
    assert_eq!((whole.undecided.len(), whole.unreached.len()), (0, 0));
    let alone = exits(&code, &[(0, 6)]);
    assert_eq!(told(&alone), ["0te", "2r"]);
    assert_eq!(alone.unreached, [START + 5]);
}

#[test]
fn indirect_jumps_through_pointers_leave_if_none_leads_inside() {
    // jmp *(%rdi); ret
    let mut bytes = vec![0xff, 0x27, 0xc3];
    bytes.resize(64, 0xcc);
    let code = Code::new(&bytes, START);
    let part = [Extent::new(START, START + 3)];
    let found = |targets: Option<&Targets>| {
        let around = Surroundings {
            targets,
            ..Surroundings::NONE
        };
        Exits::find(&code, &part, &around).unwrap()
    };
    let mut targets = Targets::new(code.extent());
    for unknown in [None, Some(&targets)] {
        let found = found(unknown);
        assert_eq!(found.undecided, [Undecided::IndirectJump { at: START }]);
        // It may lead to the return that follows.
        assert_eq!(told(&found), ["2r"]);
    }
    targets.set_pointers_known();
    targets.insert_pointer(START);
    let outside = found(Some(&targets));
    assert_eq!(told(&outside), ["0t"]);
    assert_eq!(outside.unreached, [START + 2]);
    targets.insert_pointer(START + 2);
    assert_eq!(found(Some(&targets)).undecided.len(), 1);
}

/// If the stack is not empty, a jump through a pointer stays in the function, also if only
/// such jumps lead to it; with an empty stack, it may leave the function.
#[test]
fn a_computed_goto_is_no_exit() {
    let found = |bytes: &[u8], labels: &[u64]| {
        let mut text = bytes.to_vec();
        text.resize(64, 0xcc);
        let code = Code::new(&text, START);
        let mut targets = Targets::new(code.extent());
        labels
            .iter()
            .for_each(|label| targets.insert_pointer(START + label));
        let around = Surroundings {
            targets: Some(&targets),
            ..Surroundings::NONE
        };
        let part = [Extent::new(START, START + bytes.len() as u64)];
        let found = Exits::find(&code, &part, &around).unwrap();
        let undecided = found.undecided.iter().map(|u| u.address() - START);
        (told(&found), undecided.collect::<Vec<u64>>())
    };
    // push %rbx; jmp *%rax; jmp *%rax; pop %rbx; ret
    let bytes = [0x53, 0xff, 0xe0, 0xff, 0xe0, 0x5b, 0xc3];
    // It is unknown how much is on the stack when the second one is reached.
    assert_eq!(found(&bytes, &[]), (vec!["6r".to_owned()], vec![3]));
    assert_eq!(found(&bytes, &[3, 5]), (vec!["6r".to_owned()], vec![]));
    // push %rbx; jmp *%rax; pop %rbx; jmp *%rax
    let bytes = [0x53, 0xff, 0xe0, 0x5b, 0xff, 0xe0];
    assert_eq!(found(&bytes, &[3]), (vec![], vec![4]));
}

proptest! {
    /// For any bytes: every exit is an instruction that decoding finds and has the reported kind,
    /// and every return is reported.
    #[test]
    fn exits_are_instructions(bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
        let code = Code::new(&bytes, START);
        let extent = Extent::new(START, START + bytes.len() as u64);
        let found = Exits::find(&code, &[extent], &Surroundings::NONE).unwrap();
        let flow = FunctionFlow::analyse(&code, &extent).unwrap();
        let mut returns = BTreeSet::new();
        for at in flow.boundaries() {
            let instruction = code.instruction_at(at, extent.end).unwrap();
            if instruction.mnemonic() == iced_x86::Mnemonic::Ret {
                returns.insert(at);
            }
        }
        let mut told: BTreeSet<u64> = found.unreached.iter().copied().collect();
        for exit in &found.exits {
            prop_assert!(flow.is_boundary(exit.address));
            let instruction = code.instruction_at(exit.address, extent.end).unwrap();
            match exit.kind {
                ExitKind::Return => {
                    prop_assert_eq!(instruction.mnemonic(), iced_x86::Mnemonic::Ret);
                    told.insert(exit.address);
                }
                ExitKind::TailCall => {
                    prop_assert!(!extent.contains(instruction.near_branch_target()));
                }
            }
        }
        prop_assert_eq!(told, returns);
    }
}

/// Returns the addresses of the returns that objdump shows in a range; `None` if objdump cannot
/// be run.
fn objdump(path: &Path, range: Extent) -> Option<BTreeSet<u64>> {
    let output = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn"])
        .arg(format!("--start-address={:#x}", range.start))
        .arg(format!("--stop-address={:#x}", range.end))
        .arg(path)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let of = |line: &str| {
        let (address, text) = line.split_once(":\t")?;
        let mut words = text.split_whitespace();
        let is_return = words.any(|word| matches!(word, "ret" | "retq"));
        let address = u64::from_str_radix(address.trim(), 16).ok()?;
        is_return.then_some(address)
    };
    output
        .status
        .success()
        .then(|| text.lines().filter_map(of).collect())
}

/// Checks all functions of a library.
fn library(name: &str) {
    let Some(path) = find_library(name) else {
        println!("skipped: no {name} on this system");
        return;
    };
    let elf = Elf::open(&path).unwrap_or_else(|| panic!("{name} is no x86-64 ELF file"));
    let mut extents: Vec<Extent> = elf.functions().into_iter().map(|(_, f)| f).collect();
    extents.extend(elf.fdes().into_iter().map(|fde| fde.extent));
    extents.sort_unstable();
    extents.dedup();
    let read = |address, size| elf.read(address, size);
    let (mut decided, mut functions, mut never) = (0, 0, 0);
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for text in elf.texts() {
        let Some((bytes, address)) = elf.text_at(text.start) else {
            continue;
        };
        let code = Code::new(bytes, address);
        let mut targets = Targets::of(&code, &extents, &read);
        for pointer in elf.pointers() {
            if extents.binary_search_by_key(&pointer, |e| e.start).is_err() {
                targets.insert_pointer(pointer);
            }
        }
        targets.set_pointers_known();
        let Some(theirs) = objdump(&path, text) else {
            println!("skipped: objdump cannot be run on {name}");
            return;
        };
        let around = Surroundings {
            landing_pads: &|_| Vec::new(),
            read: &read,
            targets: Some(&targets),
            is_function: &|at| extents.binary_search_by_key(&at, |e| e.start).is_ok(),
            is_cold: &|_| false,
        };
        for extent in extents.iter().filter(|e| text.contains(e.start)) {
            let found = Exits::find(&code, &[*extent], &around).unwrap();
            let flow = FunctionFlow::analyse(&code, extent).unwrap();
            functions += 1;
            never += u64::from(found.never_returns());
            // Jumps between the parts of a function, which are not combined here, keep
            // its frame.
            let apart = |u: &Undecided| matches!(u, Undecided::KeepsFrame { .. });
            decided += u64::from(found.undecided.iter().all(apart));
            for exit in &found.exits {
                assert!(flow.is_boundary(exit.address), "{name} {exit:?}");
                let kind = match (exit.kind, exit.condition.is_some()) {
                    (ExitKind::Return, _) => "ret",
                    (ExitKind::TailCall, false) => "tail jumps",
                    (ExitKind::TailCall, true) => "conditional tail jumps",
                };
                *counts.entry(kind).or_default() += 1;
            }
            for undecided in &found.undecided {
                let why = match undecided {
                    Undecided::IndirectJump { .. } => "unknown jumps",
                    Undecided::NoInstruction { .. } => "not decoded",
                    Undecided::FallsThrough { .. } => "run past the end",
                    Undecided::KeepsFrame { .. } => "keep their frame",
                    Undecided::Counted { .. } => "depend on a register",
                    Undecided::FarReturn { .. } => "far returns",
                };
                *counts.entry(why).or_default() += 1;
                if std::env::var_os("CAPRIOLE_SHOW").is_some() {
                    println!("{name} {extent}: {undecided}");
                }
            }
            *counts.entry("unreached").or_default() += found.unreached.len() as u64;
            let end = flow.undecodable().unwrap_or(extent.end);
            for at in theirs.range(extent.start..end.max(extent.start)) {
                // After bytes that objdump does not know, it may resume at another offset.
                if !flow.is_boundary(*at) {
                    *counts.entry("objdump decodes otherwise").or_default() += 1;
                    continue;
                }
                let is_told = found.unreached.contains(at)
                    || found
                        .exits
                        .iter()
                        .any(|e| e.address == *at && e.kind == ExitKind::Return);
                assert!(
                    is_told,
                    "{name} {extent}: the return at {at:#x} is not found"
                );
            }
        }
    }
    println!("{name}: {functions} functions, {decided} decided, {never} never return; {counts:?}");
    assert!(functions > 1000, "{name}: {functions} functions");
    assert!(
        decided * 100 >= functions * 97,
        "{name}: {decided} of {functions} are decided"
    );
    let other = counts
        .get("objdump decodes otherwise")
        .copied()
        .unwrap_or(0);
    assert!(other * 1000 <= counts["ret"], "{name}: {counts:?}");
}

#[test]
fn exits_of_libc() {
    library("libc.so.6");
}

#[test]
fn exits_of_libcrypto() {
    library("libcrypto.so.3");
}

#[test]
fn exits_of_libstdcxx() {
    library("libstdc++.so.6");
}
