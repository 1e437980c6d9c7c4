//! Properties of `choose` that must hold for arbitrary bytes.

use capriole_insn::{Code, Extent, FunctionFlow, Hints, Targets, relocate};
use capriole_tactic::place::{Placer, Space};
use capriole_tactic::site::{
    JUMP, Placed, Refusal, Shape, SiteInput, StubTo, Tactic, choose, choose_before, choose_placed,
};
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind};
use proptest::prelude::*;

const START: u64 = 0x5555_5555_5000;

/// Bytes that are mostly short instructions, nops, branches and calls.
fn machine_code() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..5),
        (0x70u8..0x80, 0u8..20).prop_map(|(op, to)| vec![op, to]),
        (0x70u8..0x80, 0xe8u8..).prop_map(|(op, to)| vec![op, to]),
        (0x50u8..0x60).prop_map(|op| vec![op]),
        Just(vec![0x48, 0x89, 0xd8]),
        Just(vec![0x90]),
        Just(vec![0x0f, 0x1f, 0x40, 0]),
        Just(vec![0x0f, 0x1f, 0x44, 0, 0]),
        Just(vec![0xe8, 0x10, 0, 0, 0]),
        Just(vec![0xff, 0xd0]),
        Just(vec![0xff, 0xe0]),
        Just(vec![0xeb, 0x09, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 2, 0, 0]),
        Just(vec![0xf3, 0x0f, 0x1e, 0xfa]),
        Just(vec![0x0f, 0x05]),
        Just(vec![0xc3]),
        Just(vec![0xcc]),
    ];
    prop::collection::vec(piece, 1..20).prop_map(|pieces| pieces.concat())
}

/// Follows a jump at `at` to a stub, possibly through another jump.
fn follow(image: &Code<'_>, at: u64, placed: &Placed) -> Option<StubTo> {
    let mut at = at;
    for _ in 0..2 {
        let jump = image.instruction_at(at, u64::MAX)?;
        if jump.mnemonic() != Mnemonic::Jmp || jump.op0_kind() != OpKind::NearBranch64 {
            return None;
        }
        at = jump.near_branch_target();
        if let Some(stub) = placed.stubs.iter().find(|stub| stub.address == at) {
            return Some(stub.to);
        }
    }
    None
}

/// Checks the properties of shapes of prescribed tactics, after each write.
fn prescribed(
    code: &Code<'_>,
    flow: &FunctionFlow,
    forbidden: &Extent,
    shape: &Shape,
    placed: &Placed,
) -> Result<(), TestCaseError> {
    let site = (shape.displaced[0], StubTo::Detour);
    let evicted = placed.evicted.iter().enumerate();
    let replaced: Vec<(Instruction, StubTo)> = evicted
        .map(|(index, instruction)| (*instruction, StubTo::Evicted(index)))
        .chain([site])
        .collect();
    prop_assert_eq!(site.0.ip(), shape.site);
    prop_assert_eq!(placed.traps.is_empty(), shape.tactic != Tactic::Trapped);
    let mut bytes = code.bytes.to_vec();
    for (count, write) in placed.writes.iter().enumerate() {
        let range = Extent::new(write.address, write.address + write.before.len() as u64);
        prop_assert!(!range.overlaps(forbidden));
        prop_assert_eq!(code.get(range), Some(&write.before[..]));
        prop_assert_eq!(write.before.len(), write.after.len());
        let at = (write.address - code.address) as usize;
        bytes[at..at + write.after.len()].copy_from_slice(&write.after);
        let image = Code::new(&bytes, code.address);
        let last = count + 1 == placed.writes.len();
        for (instruction, to) in &replaced {
            let own = Extent::new(instruction.ip(), instruction.next_ip());
            let leads = follow(&image, own.start, placed);
            prop_assert!(
                leads == Some(*to) || !last && image.get(own) == code.get(own),
                "after {} writes {:#x} leads to {:?}: {:x?}",
                count + 1,
                own.start,
                leads,
                placed
            );
        }
        // All other reachable instructions are unchanged.
        for at in flow.boundaries() {
            let own = flow.instruction_around(at).unwrap();
            let other = replaced.iter().all(|(i, _)| i.ip() != at) && !placed.traps.contains(&at);
            let nobody_runs = code
                .instruction_at(at, own.end)
                .is_none_or(|i| i.mnemonic() == Mnemonic::Nop && !flow.is_reached(at));
            prop_assert!(
                !other || nobody_runs || image.get(own) == code.get(own),
                "{at:#x} changed"
            );
        }
    }
    let image = Code::new(&bytes, code.address);
    for trap in &placed.traps {
        prop_assert_eq!(image.byte(*trap), Some(0xcc));
        prop_assert!(shape.displaced.iter().any(|i| i.ip() == *trap));
    }
    for (at, relied) in &placed.relies_on {
        let range = Extent::new(*at, at + relied.len() as u64);
        prop_assert_eq!(code.get(range), Some(&relied[..]));
    }
    let relocated = relocate(&shape.displaced, START + 0x10_0000);
    prop_assert!(relocated.is_ok(), "{:?}", relocated);
    Ok(())
}

/// Checks a site whose jump contains another site's jump as a part, after each write.
fn beside(input: &SiteInput<'_>, placer: &mut Placer) -> Result<(), TestCaseError> {
    for at in input.site + 1..input.site + JUMP {
        let Ok(neighbour) = choose(&SiteInput { site: at, ..*input }) else {
            continue;
        };
        placer.claim(neighbour.covered.start..neighbour.covered.end);
        let Ok((shape, theirs)) = choose_before(input, input.site, &neighbour, placer) else {
            continue;
        };
        let ours = shape.placed.as_ref().unwrap();
        prop_assert!(!neighbour.tactic.is_prescribed() && shape.tactic.is_prescribed());
        let (other, shared) = ours.builds_on.as_ref().unwrap();
        prop_assert_eq!(*other, neighbour.covered.start);
        let mut bytes = input.code.bytes.to_vec();
        for (placed, start) in [(&theirs, *other), (ours, shape.site)] {
            prop_assert_eq!(placed.writes.len(), 1);
            let write = &placed.writes[0];
            let range = Extent::new(write.address, write.address + write.before.len() as u64);
            prop_assert_eq!(start, range.start);
            prop_assert_eq!(input.code.get(range), Some(&write.before[..]));
            let from = (write.address - input.code.address) as usize;
            bytes[from..from + write.after.len()].copy_from_slice(&write.after);
            let image = Code::new(&bytes, input.code.address);
            prop_assert_eq!(follow(&image, start, placed), Some(StubTo::Detour));
        }
        prop_assert!(theirs.writes[0].after.starts_with(shared));
        // The neighbour's jump is unchanged.
        let image = Code::new(&bytes, input.code.address);
        prop_assert_eq!(follow(&image, *other, &theirs), Some(StubTo::Detour));
        // Except for the neighbour's bytes, only the site's own bytes, and unused ones after it,
        // change.
        let own = input.flow.instruction_around(shape.site).unwrap();
        let end = ours.writes[0].address + ours.writes[0].after.len() as u64;
        prop_assert!(end <= own.end || end <= *other);
        for at in own.end..end {
            let around = input.flow.instruction_around(at);
            let unused = around.is_none_or(|at| {
                let nop = input.code.instruction_at(at.start, at.end);
                nop.is_some_and(|nop| nop.mnemonic() == Mnemonic::Nop)
                    && !input.flow.is_reached(at.start)
            });
            prop_assert!(unused && input.targets.any_in(Extent::new(at, at + 1)).is_none());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 2000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_shape_is_safe(
        bytes in machine_code(),
        size in 1usize..60,
        extra in prop::collection::vec(0u64..60, 0..3),
        forbidden in (0u64..60, 0u64..4),
        (shadow_stack, go, split_part, pointers_known) in any::<(bool, bool, bool, bool)>(),
        breakpoints in any::<bool>(),
        space in prop_oneof![Just(None), (0u64..1 << 19, 1u64..0x8000).prop_map(Some)],
    ) {
        let code = Code::new(&bytes, START);
        let extent = Extent::new(START, START + size.min(bytes.len()) as u64);
        let flow = FunctionFlow::analyse_with(&code, &extent, &Hints::NONE).unwrap();
        let mut targets = Targets::of(&code, &[extent], &|_, _| None);
        extra.iter().for_each(|offset| targets.insert(START + offset));
        if pointers_known {
            targets.set_pointers_known();
        }
        let forbidden = [Extent::new(START + forbidden.0, START + forbidden.0 + forbidden.1)];
        for site in START - 1..extent.end + 1 {
            let input = SiteInput {
                code: &code,
                flow: &flow,
                site,
                targets: &targets,
                padding_end: code.extent().end,
                next: None,
                forbidden: &forbidden,
                shadow_stack,
                int3: if breakpoints { Ok(()) } else { Err(Refusal::BreakpointsOff) },
                go,
                split_part,
            };
            let mut placer = Placer::new(match space {
                None => Space::around(START..START + 0x1000),
                // A range of this many pages, anywhere in reach.
                Some((page, pages)) => {
                    let start = START - (1 << 31) + page * 0x1000;
                    let overlaps = start < START + 0x1000 && START < start + pages * 0x1000;
                    let free = (!overlaps).then_some(start..start + pages * 0x1000);
                    Space::new(free.into_iter().collect(), usize::MAX)
                }
            });
            let plain = choose(&input);
            beside(&input, &mut placer.clone())?;
            let shape = match choose_placed(&input, &mut placer) {
                Ok(shape) => shape,
                Err(refused) => {
                    prop_assert_eq!(refused.refusals.len(), Tactic::ALL.len());
                    prop_assert!(!refused.to_string().is_empty());
                    prop_assert!(plain.is_err());
                    continue;
                }
            };
            prop_assert_eq!(shape.placed.is_some(), shape.tactic.is_prescribed());
            if let Some(placed) = &shape.placed {
                prop_assert!(plain.is_err() || plain.is_ok_and(|p| p.tactic == Tactic::Int3));
                prescribed(&code, &flow, &forbidden[0], &shape, placed)?;
                continue;
            }
            prop_assert_eq!(plain.as_ref().map(|p| p.tactic), Ok(shape.tactic));
            let covered = shape.covered;
            prop_assert!(extent.contains(shape.site) && flow.is_boundary(shape.site));
            if shape.site != site {
                let skipped = code.instruction_at(site, shape.site).unwrap();
                prop_assert_eq!(skipped.mnemonic(), Mnemonic::Endbr64);
                prop_assert_eq!(skipped.next_ip(), shape.site);
            }
            prop_assert!(code.get(covered).is_some());
            prop_assert!(!forbidden[0].overlaps(&covered));
            prop_assert!(split_part <= !shape.at_entry);
            if shape.tactic == Tactic::Int3 {
                prop_assert!(breakpoints && covered.len() == 1);
            } else {
                prop_assert!(covered.len() >= JUMP);
                let inside = Extent::new(covered.start + 1, covered.end);
                prop_assert_eq!(targets.any_in(inside), None);
            }
            // A single last instruction and the padding after it need no knowledge of jumps.
            let is_last = shape.displaced.len() == 1 && shape.resume == extent.end;
            if shape.tactic == Tactic::Region && !is_last {
                prop_assert!(!go && flow.undecodable().is_none());
                prop_assert!(flow.unresolved_indirect_jump(pointers_known).is_none());
            }
            // The displaced instructions can be relocated, and are exactly the code
            // between the site and the address where the program resumes.
            if let (Some(first), Some(last)) = (shape.displaced.first(), shape.displaced.last()) {
                prop_assert_eq!(first.ip(), covered.start);
                prop_assert_eq!(last.next_ip(), shape.resume);
                let sum: usize = shape.displaced.iter().map(|i| i.len()).sum();
                prop_assert_eq!(sum as u64, shape.resume - covered.start);
                prop_assert!(shape.displaced.iter().any(|i| i.ip() == shape.site));
                prop_assert!(shape.tactic == Tactic::Region || first.ip() == shape.site);
                let before = &shape.displaced[..shape.displaced.len() - 1];
                prop_assert!(before.iter().all(|i| matches!(
                    i.flow_control(),
                    FlowControl::Next | FlowControl::ConditionalBranch
                )));
                let relocated = relocate(&shape.displaced, START + 0x10_0000);
                prop_assert!(relocated.is_ok(), "{:?}", relocated);
                let call = last.is_call_near() || last.is_call_near_indirect();
                prop_assert!(!(shadow_stack && call));
            } else {
                prop_assert_eq!(shape.tactic, Tactic::Reserved);
                prop_assert_eq!(shape.resume, covered.end);
            }
        }
    }
}
