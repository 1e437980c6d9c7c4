//! What must hold for `choose` on any bytes at all.

use capriole_insn::{Code, Extent, FunctionFlow, Hints, Targets, relocate};
use capriole_plan::site::{JUMP, Refusal, SiteInput, Tactic, choose};
use iced_x86::Mnemonic;
use proptest::prelude::*;

const START: u64 = 0x40_1000;

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
                forbidden: &forbidden,
                shadow_stack,
                int3: if breakpoints { Ok(()) } else { Err(Refusal::BreakpointsOff) },
                go,
                split_part,
            };
            let shape = match choose(&input) {
                Ok(shape) => shape,
                Err(refused) => {
                    prop_assert_eq!(refused.refusals.len(), Tactic::ALL.len());
                    prop_assert!(!refused.to_string().is_empty());
                    continue;
                }
            };
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
            if shape.tactic == Tactic::Region {
                prop_assert!(!go && flow.undecodable().is_none());
                prop_assert!(flow.unresolved_indirect_jump(pointers_known).is_none());
            }
            // What is displaced can be relocated, and is exactly what stands
            // between the site and where the program goes on.
            if let (Some(first), Some(last)) = (shape.displaced.first(), shape.displaced.last()) {
                prop_assert_eq!(first.ip(), shape.site);
                prop_assert_eq!(last.next_ip(), shape.resume);
                let sum: usize = shape.displaced.iter().map(|i| i.len()).sum();
                prop_assert_eq!(sum as u64, shape.resume - shape.site);
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
