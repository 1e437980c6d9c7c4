//! Properties that must hold for arbitrary bytes.

use std::collections::BTreeSet;

use capriole_insn::{
    Code, Extent, FunctionFlow, Hints, Live, Targets, landing_pads, live_at, relocate,
};
use iced_x86::Instruction;
use proptest::prelude::*;

const BASE: u64 = 0x40_0000;

fn decode(code: &Code<'_>) -> Vec<Instruction> {
    let end = code.extent().end;
    std::iter::successors(code.instruction_at(BASE, end), |last| {
        code.instruction_at(last.next_ip(), end)
    })
    .collect()
}

/// Bytes with many branches and few unknown instructions.
fn machine_code() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..6),
        (0x70u8..0x80, any::<u8>()).prop_map(|(op, to)| vec![op, to]),
        (0xe0u8..0xe4, any::<u8>()).prop_map(|(op, to)| vec![op, to]),
        any::<i16>().prop_map(|to| [&[0xe8][..], &i32::from(to).to_le_bytes()].concat()),
        any::<i16>()
            .prop_map(|to| [&[0x48, 0x8d, 0x05][..], &i32::from(to).to_le_bytes()].concat()),
        (0u8..8).prop_map(|register| vec![0xff, 0xe0 | register]),
        Just(vec![0x48, 0x63, 0x04, 0x8a, 0x48, 0x01, 0xd0, 0xff, 0xe0]),
        Just(vec![0xff, 0x24, 0xc5, 0, 0, 0x40, 0]),
        Just(vec![0x83, 0xff, 5, 0x77, 0x10]),
        Just(vec![0xf0, 0x48, 0x0f, 0xb1, 0x0f]),
        Just(vec![0xc3]),
        Just(vec![0x90]),
        Just(vec![0x48, 0x89, 0xd8]),
    ];
    prop::collection::vec(piece, 1..40).prop_map(|pieces| pieces.concat())
}

/// Failures are printed; nothing is written into the source tree.
fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        cases: 512,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn flow_of_any_bytes(bytes in machine_code(), table in prop::collection::vec(any::<u8>(), 64)) {
        let code = Code::new(&bytes, BASE);
        let extent = code.extent();
        let read = |address: u64, len: usize| {
            let start = (address % 50) as usize;
            table.get(start..start + len).map(<[u8]>::to_vec)
        };
        let hints = Hints { landing_pads: &[BASE + 3], read: &read };
        let flow = FunctionFlow::analyse_with(&code, &extent, &hints).unwrap();
        // Instructions follow each other without gaps up to the end, or to
        // the first undecodable byte.
        let mut at = BASE;
        for boundary in flow.boundaries() {
            prop_assert_eq!(boundary, at);
            let instruction = code.instruction_at(at, extent.end).unwrap();
            at = instruction.next_ip();
        }
        prop_assert_eq!(at, flow.undecodable().unwrap_or(extent.end));
        // The direct target of a reached instruction is reached too, or
        // known to be in the middle of an instruction.
        for instruction in decode(&code) {
            if instruction.is_jcc_short_or_near() && flow.is_reached(instruction.ip()) {
                let target = instruction.near_branch_target();
                if extent.contains(target) {
                    prop_assert!(flow.is_jumped_to(target));
                    let middle = flow.overlap().is_some() || flow.undecodable().is_some();
                    let lock = code.byte(target.wrapping_sub(1)) == Some(0xf0);
                    prop_assert!(flow.is_reached(target) || middle || lock);
                }
            }
        }
    }

    #[test]
    fn targets_hold_every_direct_branch(bytes in machine_code(), cut in 1usize..40) {
        let code = Code::new(&bytes, BASE);
        let extent = code.extent();
        let cut = BASE + (cut % bytes.len()) as u64;
        let functions = [Extent::new(BASE, cut), Extent::new(cut, extent.end)];
        let none: &dyn Fn(u64, usize) -> Option<Vec<u8>> = &|_, _| None;
        let whole = Targets::of(&code, &functions, none);
        for function in functions {
            let Ok(flow) = FunctionFlow::analyse(&code, &function) else { continue };
            for at in flow.boundaries() {
                let instruction = code.instruction_at(at, function.end).unwrap();
                if instruction.is_jcc_short_or_near() || instruction.is_call_near() {
                    let target = instruction.near_branch_target();
                    prop_assert!(whole.contains(target) || !extent.contains(target));
                }
            }
        }
        // Scanning in pieces gives the same result.
        let mut merged = Targets::new(extent);
        for piece in Targets::pieces(extent, &functions, 2) {
            let mut part = Targets::new(extent);
            part.scan(&code, piece, &functions, none);
            part.insert_markers([piece.start]);
            merged.merge(&part);
        }
        let starts: Vec<u64> = Targets::pieces(extent, &functions, 2).iter().map(|p| p.start).collect();
        prop_assert_eq!(merged.markers(), starts);
        let all = |t: &Targets| (extent.start..extent.end).filter(|&a| t.contains(a)).collect::<Vec<_>>();
        prop_assert_eq!(all(&whole), all(&merged));
    }

    #[test]
    fn targets_are_a_set(addresses in prop::collection::vec(BASE - 10..BASE + 300, 0..40),
                         start in BASE - 20..BASE + 320, len in 0u64..30) {
        let text = Extent::new(BASE, BASE + 256);
        let mut targets = Targets::new(text);
        let mut model = BTreeSet::new();
        for (i, &address) in addresses.iter().enumerate() {
            match i % 3 {
                0 => targets.insert(address),
                1 => targets.insert_entry(address),
                _ => targets.insert_pointer(address),
            }
            if text.contains(address) {
                model.insert(address);
            }
        }
        let is_right = |address| targets.contains(address) == model.contains(&address);
        prop_assert!((text.start..text.end).all(is_right));
        let range = Extent::new(start, start + len);
        prop_assert_eq!(targets.any_in(range), model.range(start..start + len).next().copied());
    }

    #[test]
    fn relocation_of_any_bytes(bytes in machine_code(), distance in -0x7000_0000i64..0x7000_0000) {
        let code = Code::new(&bytes, 0x1_0000_0000);
        let mut instructions = Vec::new();
        let mut at = code.address;
        while let Some(instruction) = code.instruction_at(at, code.extent().end) {
            at = instruction.next_ip();
            instructions.push(instruction);
        }
        let new = code.address.wrapping_add_signed(distance);
        for block in instructions.chunks(3) {
            let Ok(relocated) = relocate(block, new) else { continue };
            prop_assert_eq!(relocated.offsets.len(), block.len());
            let copy = Code::new(&relocated.bytes, new);
            for (original, &(ip, offset)) in block.iter().zip(&relocated.offsets) {
                prop_assert_eq!(original.ip(), ip);
                let at = new + offset as u64;
                let copied = copy.instruction_at(at, u64::MAX).unwrap();
                // A copy refers to the same memory.
                if original.is_ip_rel_memory_operand() && !original.is_call_near_indirect() {
                    prop_assert_eq!(original.ip_rel_memory_address(), copied.ip_rel_memory_address());
                }
            }
            // The length is the same at another address.
            if let Ok(again) = relocate(block, new ^ 0x10_0000) {
                prop_assert_eq!(again.offsets, relocated.offsets);
                prop_assert_eq!(again.bytes.len(), relocated.bytes.len());
            }
        }
    }

    #[test]
    fn liveness_of_any_bytes(bytes in machine_code(), offset in 0u64..60) {
        let code = Code::new(&bytes, BASE);
        let live = live_at(&code, &code.extent(), BASE + offset);
        prop_assert!(live.gprs.contains(iced_x86::Register::RSP));
        let Some(first) = code.instruction_at(BASE + offset, code.extent().end) else {
            prop_assert_eq!(live, Live::ALL);
            return Ok(());
        };
        // Registers that the first instruction reads are live.
        let mut info = iced_x86::InstructionInfoFactory::new();
        for used in info.info(&first).used_registers() {
            if matches!(used.access(), iced_x86::OpAccess::Read | iced_x86::OpAccess::ReadWrite)
                && used.register().full_register().is_gpr64()
            {
                prop_assert!(live.gprs.contains(used.register()), "{:?}", used.register());
            }
        }
    }

    #[test]
    fn landing_pads_of_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        // Damaged data gives an error or wrong pads, never a crash or a hang.
        if let Ok(pads) = landing_pads(&bytes, BASE, BASE) {
            prop_assert!(pads.len() <= bytes.len());
        }
    }
}
