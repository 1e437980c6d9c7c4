//! Compares the rules with framehop, which interprets the call frame information itself: both take
//! the same step from the same registers and memory.

use super::*;
use crate::ObjectFile;
use capriole_testkit::effort::rounds;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{
    ExplicitModuleSectionInfo, FrameAddress, MayAllocateDuringUnwind, Module, Unwinder as _,
};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Words of a stack, whose contents follow from their addresses. They look like addresses of the
/// stack, so that rbp can be any of them.
struct Stack {
    start: u64,
    end: u64,
    seed: u64,
}

impl Stack {
    fn read(&self, address: u64) -> Option<u64> {
        let inside = address >= self.start && address + 8 <= self.end && address.is_multiple_of(8);
        inside.then(|| self.start + 8 * (mixed(address ^ self.seed) % 4000) + 8)
    }
}

/// Mixes the bits of a number (SplitMix64).
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A step to the caller: its address, stack pointer and rbp, the latter `None` if not known.
#[derive(Debug, PartialEq, Eq)]
enum Taken {
    To(u64, u64, Option<u64>),
    Outermost,
    Not,
}

/// Takes a step by a rule.
fn step(rule: FrameRule, at: u64, rsp: u64, rbp: u64, stack: &Stack) -> Taken {
    let FrameRule::Frame { cfa, rbp: saved } = rule else {
        return match rule {
            FrameRule::Outermost => Taken::Outermost,
            _ => Taken::Not,
        };
    };
    let frame = match cfa {
        Cfa::Rsp(above) => Some(rsp + u64::from(above)),
        Cfa::Rbp(above) => Some(rbp + u64::from(above)),
        Cfa::Saved(below) => rbp.checked_sub(below.into()).and_then(|at| stack.read(at)),
        Cfa::Plt => Some(rsp + if at & 15 >= 11 { 16 } else { 8 }),
    };
    let Some((frame, to)) = frame.and_then(|frame| Some((frame, stack.read(frame - 8)?))) else {
        return Taken::Not;
    };
    let rbp = match saved {
        SavedRbp::Unchanged => Some(rbp),
        SavedRbp::BelowCfa(below) => match stack.read(frame - u64::from(below)) {
            None => return Taken::Not,
            rbp => rbp,
        },
        SavedRbp::AtRbp => match stack.read(rbp) {
            None => return Taken::Not,
            rbp => rbp,
        },
        SavedRbp::Unknown => None,
    };
    Taken::To(to, frame, rbp)
}

/// Files with all kinds of call frame information that are on this machine.
fn files() -> Vec<ObjectFile> {
    const PLACES: [&str; 2] = ["/usr/lib/x86_64-linux-gnu", "/lib64"];
    const NAMES: [&str; 7] = [
        "libc.so.6",
        "libm.so.6",
        "libstdc++.so.6",
        "libgcc_s.so.1",
        "libsqlite3.so.0",
        "libcrypto.so.3",
        "ld-linux-x86-64.so.2",
    ];
    let own = std::env::current_exe().expect("a running test");
    let libraries = NAMES.iter().filter_map(|name| {
        let mut paths = PLACES.iter().map(|place| Path::new(place).join(name));
        ObjectFile::open(&paths.find(|path| path.exists())?).ok()
    });
    let own = ObjectFile::open(&own).expect("an ELF file");
    libraries.chain([own]).collect()
}

fn unwinder_of(file: &ObjectFile) -> UnwinderX86_64<Arc<[u8]>> {
    let (at, bytes) = file.eh_frame().expect("readable").expect("a section");
    let range = file.link_range();
    let sections = ExplicitModuleSectionInfo {
        base_svma: range.start,
        text_svma: file.section(".text"),
        got_svma: file.section(".got"),
        eh_frame_svma: Some(at..at + bytes.len() as u64),
        eh_frame: Some(Arc::from(bytes)),
        ..ExplicitModuleSectionInfo::default()
    };
    let mut unwinder = UnwinderX86_64::new();
    let module = Module::new("object".to_owned(), range.clone(), range.start, sections);
    unwinder.add_module(module);
    unwinder
}

fn rule_at(rules: &[RuleStart], address: u64) -> FrameRule {
    let next = rules.partition_point(|rule| rule.address <= address);
    let rule = next.checked_sub(1).map(|at| rules[at].rule);
    rule.unwrap_or(FrameRule::Unknown)
}

#[test]
fn steps_are_those_of_framehop() {
    for file in files() {
        let rules = file.frame_rules();
        let unwinder = unwinder_of(&file);
        let mut cache: CacheX86_64<MayAllocateDuringUnwind> = CacheX86_64::new();
        let name = file.path().display().to_string();
        let (mut same, mut unknown, mut outermost) = (0, 0, 0);
        let frames = file.frames().expect("readable").to_vec();
        let count = rounds(20_000, 100_000, 1_000_000) as u64;
        for number in 0..count {
            let random = mixed(number);
            let extent = frames[random as usize % frames.len()].extent;
            let at = extent.start + (random >> 32) % (extent.end - extent.start);
            let stack = Stack {
                start: 0x7fff_0000_0000,
                end: 0x7fff_0000_8000,
                seed: random,
            };
            let rsp = stack.start + 8 * (random % 64);
            let rbp = rsp + 8 * (random >> 20 & 63) + 64;
            let ours = step(rule_at(&rules, at), at, rsp, rbp, &stack);
            let mut registers = UnwindRegsX86_64::new(at, rsp, rbp);
            let mut read = |address| stack.read(address).ok_or(());
            let place = FrameAddress::from_instruction_pointer(at);
            let theirs = unwinder.unwind_frame(place, &mut registers, &mut cache, &mut read);
            match (ours, theirs) {
                (Taken::To(address, sp, bp), Ok(Some(found))) => {
                    assert_eq!((address, sp), (found, registers.sp()), "{name} {at:#x}");
                    assert!(bp.is_none_or(|bp| bp == registers.bp()), "{name} {at:#x}");
                    same += 1;
                }
                (Taken::Outermost, Ok(None)) => outermost += 1,
                // Ours may give up, as for a frame that is relative to other registers.
                (Taken::Not, _) => unknown += 1,
                // Theirs gives up where its own rule does not fit into two bytes, or the frame does
                // not ascend.
                (Taken::To(_, sp, _), Err(_)) if sp <= rsp => unknown += 1,
                (ours, theirs) => panic!(
                    "{name} {at:#x}: {:?} leads to {ours:x?}, framehop's to {theirs:x?}",
                    rule_at(&rules, at)
                ),
            }
        }
        println!(
            "{name}: {same} same, {unknown} not followed, {outermost} outermost, {} rules",
            rules.len()
        );
        assert!(same > count * 9 / 10, "{name}: {same} of {count}");
    }
}

#[test]
fn rules_are_in_order_and_each_differs_from_the_one_before() {
    for file in files() {
        let rules = file.frame_rules();
        for pair in rules.windows(2) {
            assert!(pair[0].address < pair[1].address, "{pair:x?}");
            assert_ne!(pair[0].rule, pair[1].rule, "{pair:x?}");
        }
        // What is behind the last entry has no rule.
        let last = rules.last().expect("a rule");
        assert_eq!(last.rule, FrameRule::Unknown);
    }
}

#[test]
fn code_between_entries_has_no_rule() {
    for file in files() {
        let rules = file.frame_rules();
        let frames = file.frames().expect("readable");
        let mut gaps = 0;
        for pair in frames.windows(2) {
            let (end, next) = (pair[0].extent.end, pair[1].extent.start);
            if end < next {
                let rule = rule_at(&rules, end + (next - end) / 2);
                assert!(
                    matches!(rule, FrameRule::Unknown | FrameRule::Signal),
                    "{rule:?} at {end:#x}"
                );
                gaps += 1;
            }
        }
        assert!(gaps > 0, "{}", file.path().display());
    }
}

#[test]
fn ranges_in_ranges_end_where_they_should() {
    let frame = |rsp| FrameRule::Frame {
        cfa: Cfa::Rsp(rsp),
        rbp: SavedRbp::Unchanged,
    };
    let rules = Rules(vec![
        (40, 50, frame(8)),
        (10, 30, frame(16)),
        (14, 20, FrameRule::Signal),
        (50, 60, frame(8)),
        (28, 34, frame(24)),
    ]);
    let found: Vec<_> = rules.joined().iter().map(|r| (r.address, r.rule)).collect();
    let expected = [
        (10, frame(16)),
        (14, FrameRule::Signal),
        (20, frame(16)),
        (28, frame(24)),
        (34, FrameRule::Unknown),
        (40, frame(8)),
        (60, FrameRule::Unknown),
    ];
    assert_eq!(found, expected);
}

#[test]
fn the_return_from_a_signal_is_found_in_the_c_library() {
    let libc = files().remove(0);
    let rules = libc.frame_rules();
    let mut signals = rules.iter().filter(|rule| rule.rule == FrameRule::Signal);
    assert!(signals.next().is_some(), "{}", libc.path().display());
}

/// The place of rbp in a function with a frame pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FramePointer {
    Callers,
    Saved,
    Set,
    Unknown,
}

impl FramePointer {
    /// Returns it after an instruction.
    fn behind(self, instruction: &Instruction) -> FramePointer {
        let (first, second) = (instruction.op0_register(), instruction.op1_register());
        match instruction.mnemonic() {
            Mnemonic::Push if first == Register::RBP => FramePointer::Saved,
            Mnemonic::Mov if (first, second) == (Register::RBP, Register::RSP) => match self {
                FramePointer::Saved => FramePointer::Set,
                _ => FramePointer::Unknown,
            },
            Mnemonic::Leave => FramePointer::Callers,
            Mnemonic::Pop if first == Register::RBP => FramePointer::Callers,
            Mnemonic::Cmp | Mnemonic::Test => self,
            _ if first == Register::RBP => FramePointer::Unknown,
            _ if self == FramePointer::Saved => FramePointer::Unknown,
            _ => self,
        }
    }
}

/// Follows the control flow of a function from its start. Returns its calls.
fn calls(bytes: &[u8], start: u64) -> Vec<(Instruction, FramePointer)> {
    let mut known: BTreeMap<u64, FramePointer> = BTreeMap::new();
    let mut calls: BTreeMap<u64, (Instruction, FramePointer)> = BTreeMap::new();
    let mut work = vec![(start, FramePointer::Callers)];
    while let Some((at, state)) = work.pop() {
        let Some(code) = at
            .checked_sub(start)
            .and_then(|at| bytes.get(at as usize..))
        else {
            continue;
        };
        let state = match known.get(&at) {
            Some(same) if *same == state || *same == FramePointer::Unknown => continue,
            Some(_) => FramePointer::Unknown,
            None => state,
        };
        known.insert(at, state);
        let mut decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
        if !decoder.can_decode() {
            continue;
        }
        let instruction = decoder.decode();
        let behind = state.behind(&instruction);
        let next = (instruction.next_ip(), behind);
        match instruction.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall => {
                calls.insert(at, (instruction, state));
                work.push(next);
            }
            FlowControl::Next => work.push(next),
            FlowControl::ConditionalBranch => {
                work.extend([next, (instruction.near_branch_target(), behind)]);
            }
            FlowControl::UnconditionalBranch => {
                work.push((instruction.near_branch_target(), behind));
            }
            _ => {}
        }
    }
    calls.into_values().collect()
}

/// Built-in functions of V8 call outside frames only what has no rule, or calls nothing: no chain of callers leads
/// through such a call.
#[test]
fn built_in_functions_of_v8_call_inside_frames() {
    // By V8's table of built-in functions: a write barrier, and one that ends the program.
    const BY_TABLE: [&str; 2] = [
        "InterpreterEntryTrampolineForProfiling",
        "InterpreterEnterAtNextBytecode",
    ];
    let Ok(file) = ObjectFile::open(Path::new("/usr/bin/node")) else {
        println!("skipped: node is not installed");
        return;
    };
    let rules = file.frame_rules();
    let symbols = file.symbols().expect("symbols");
    let texts = file.text().expect("text");
    let builtins: Vec<(&str, Extent)> = symbols
        .functions()
        .iter()
        .filter_map(|function| {
            let name = symbols.linkage_name(function)?.strip_prefix(BUILTIN)?;
            Some((name, function.extent))
        })
        .collect();
    if builtins.is_empty() {
        println!("skipped: this node has no symbols of built-in functions");
        return;
    }
    let calls: Vec<_> = builtins
        .iter()
        .map(|(name, extent)| {
            let code = texts.iter().find_map(|text| text.at(*extent));
            (
                *name,
                extent.start,
                calls(code.expect("code"), extent.start),
            )
        })
        .collect();
    let leaves: BTreeSet<u64> = calls
        .iter()
        .filter(|(_, _, calls)| calls.is_empty())
        .map(|(_, start, _)| *start)
        .collect();
    let mut inside = 0;
    for (name, start, calls) in &calls {
        for (call, state) in calls {
            let at = call.next_ip() - 1;
            let target = call.near_branch_target();
            let ends = |address: u64| rule_at(&rules, address) == FrameRule::Unknown;
            if *state == FramePointer::Set || ends(at) {
                inside += 1;
                continue;
            }
            let is_direct = call.flow_control() == FlowControl::Call;
            let led = is_direct && (ends(target) || leaves.contains(&target));
            let offset = call.ip() - start;
            assert!(
                led || BY_TABLE.contains(name),
                "{name}+{offset:#x}: {state:?} {call}"
            );
        }
    }
    assert!(inside > 1000, "{inside} calls");
    let (_, trampoline) = builtins
        .iter()
        .find(|(name, _)| *name == "InterpreterEntryTrampoline")
        .expect("a trampoline");
    let inside = trampoline.start + trampoline.len() / 2;
    assert_eq!(rule_at(&rules, inside), FrameRule::Called);
}
